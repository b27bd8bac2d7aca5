//! Compressed bytes, known by their first bytes and not by a name.

use std::io::{self, BufReader, Cursor, Read};

/// Memory that an `.xz` may ask for: the largest of xz's own presets needs 65 MiB.
const XZ_MEMORY: u64 = 256 << 20;

const BUFFER: usize = 128 << 10;

/// The plain bytes: decompressed where they begin like something compressed, else as they are.
///
/// A second layer is not taken off. Memory is bounded by the decoders: 128 MiB for zstd, 256 MiB for xz.
pub(crate) fn plain(mut inner: Box<dyn Read + Send>) -> io::Result<Box<dyn Read + Send>> {
    let mut head = Vec::with_capacity(6);
    inner.by_ref().take(6).read_to_end(&mut head)?;
    let kind = Kind::of(&head);
    let whole = BufReader::with_capacity(BUFFER, Cursor::new(head).chain(inner));
    Ok(match kind {
        Kind::Plain => Box::new(whole),
        Kind::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(whole)),
        Kind::Zstd => Box::new(zstd::Decoder::with_buffer(whole)?),
        Kind::Xz => {
            let stream = liblzma::stream::Stream::new_stream_decoder(XZ_MEMORY, liblzma::stream::CONCATENATED)?;
            Box::new(liblzma::bufread::XzDecoder::new_stream(whole, stream))
        }
    })
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    Plain,
    Gzip,
    Zstd,
    Xz,
}

impl Kind {
    fn of(head: &[u8]) -> Self {
        match head {
            [0x1f, 0x8b, 8, ..] => Self::Gzip,
            [0x28, 0xb5, 0x2f, 0xfd, ..] => Self::Zstd,
            // A frame to be skipped, which tools put first.
            [0x50..=0x5f, 0x2a, 0x4d, 0x18, ..] => Self::Zstd,
            [0xfd, b'7', b'z', b'X', b'Z', 0, ..] => Self::Xz,
            _ => Self::Plain,
        }
    }
}
