//! How fast each format is read. Prints, asserts nothing about time; of use in a release build only:
//! `cargo test --release -p traces --test speed -- --ignored --nocapture`, with `MRRC_LINES` for more or less than 2 million.

use std::io::{self, Read};
use std::time::Instant;
use traces::{Format, ReadOptions};

/// The same piece of text again and again, as long as there are lines to give.
struct Again {
    piece: Vec<u8>,
    at: usize,
    left: u64,
}

impl Read for Again {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.at == self.piece.len() {
            if self.left == 0 {
                return Ok(0);
            }
            self.left -= 1;
            self.at = 0;
        }
        let count = buffer.len().min(self.piece.len() - self.at);
        buffer[..count].copy_from_slice(&self.piece[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

#[test]
#[ignore = "prints figures, takes half a minute"]
fn lines_a_second_of_each_format() {
    let lines: u64 = std::env::var("MRRC_LINES").ok().and_then(|lines| lines.parse().ok()).unwrap_or(2_000_000);
    let piece = 10_000;
    let columns: ReadOptions =
        ReadOptions { columns: "time=1:us,addr=2:sector,len=3,op=4".parse().ok(), ..ReadOptions::default() };
    let of = ReadOptions::of;
    type Line = fn(u64) -> String;
    let kinds: [(ReadOptions, Line); 12] = [
        (of(Format::Pages), |n| format!("{},{}\n", n * 7919 % 1_000_000, n % 32 + 1)),
        (columns, |n| format!("{n}.5,{},4096,r\n", n * 7919 % 1_000_000)),
        (of(Format::Mpi), |n| format!("{n}.9,irecv,-1,5652ed{:06x},8192\n", n * 4096)),
        (of(Format::Arc), |n| format!("{} 8 0 {n}\n", n * 7919 % 1_000_000)),
        (of(Format::Lirs), |n| format!("{}\n", n * 7919 % 1_000_000)),
        (of(Format::Spc), |n| format!("0,{},8192,W,0.551706\n", n * 7919 % 1_000_000)),
        (of(Format::Msr), |n| format!("1281663720030{n:05},hm,1,Read,{},32768,413\n", n * 4096)),
        (of(Format::Blkparse), |n| format!("  8,0    3  {n}  0.000002197   697  Q   W {} + 8 [kjournald]\n", n * 8)),
        (of(Format::Httpd), |n| {
            format!(
                "host{} - - [01/Aug/1995:00:00:01 -0400] \"GET /file/{}.gif HTTP/1.0\" 200 {n}\n",
                n % 100,
                n % 3000
            )
        }),
        (of(Format::Objects), |n| format!("{n} {} {}\n", n * 7919 % 5000, n % 9000 + 1)),
        (of(Format::Mooncake), |n| format!("{{\"timestamp\": {n}, \"hash_ids\": [{}, {}, {}]}}\n", n, n + 1, n + 2)),
        (of(Format::Mambo), |n| format!("2 1 10 {} 0.5 0.1 4096 8192\n", n % 3)),
    ];
    for (options, line) in kinds {
        let mut text: Vec<u8> = (0..piece).flat_map(|n| line(n).into_bytes()).collect();
        let format = options.format.unwrap_or(Format::Csv);
        if format == Format::Mambo {
            text = [b"1 3 9\n1 a\n1 b\n1 c\n".to_vec(), text].concat();
        }
        // A source that is read twice is kept first, which a file need not be: the second reading is what counts here.
        let times = if format == Format::Mambo { 1 } else { lines / piece };
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("trace");
        io::copy(&mut Again { piece: text, at: 0, left: times - 1 }, &mut std::fs::File::create(&file).unwrap())
            .unwrap();
        let start = Instant::now();
        let mut reader = traces::open(&file, &options).unwrap();
        let events = reader.by_ref().map(Result::unwrap).count();
        let seconds = start.elapsed().as_secs_f64();
        let read = times * piece;
        eprintln!("{format:14} {:6.2} million lines/s, {events} events, {seconds:.2} s", read as f64 / seconds / 1e6);
    }
}
