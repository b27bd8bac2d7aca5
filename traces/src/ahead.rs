//! Reads ahead in a thread of its own, so that decompression and parsing overlap.

use std::io::{self, Read};
use std::mem;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;

/// Bytes that are read without a thread: short sources are not worth one.
const ALONE: u64 = 1 << 20;

const BUFFER: usize = 256 << 10;

/// Buffers that are filled ahead, at most.
const BUFFERS: usize = 4;

/// A reader whose bytes are read ahead by a thread, once it turns out to be long.
///
/// The thread ends with the source, or when it notices that this reader is gone. It is not waited for, because it may wait for a pipe.
pub(crate) struct Ahead(State);

enum State {
    /// There is no thread yet: the source, and the bytes that were read of it.
    Alone(Box<dyn Read + Send>, u64),
    /// The thread has the source.
    Threaded(Buffers),
    Ended,
}

struct Buffers {
    filled: Receiver<Filled>,
    /// Buffers go back here.
    empty: Sender<Vec<u8>>,
    current: Filled,
    /// Bytes of `current` that were read.
    read: usize,
}

/// A buffer with bytes, and how the source ended after them, if it did.
#[derive(Default)]
struct Filled {
    bytes: Vec<u8>,
    length: usize,
    end: Option<io::Result<()>>,
}

impl Ahead {
    pub(crate) fn new(source: Box<dyn Read + Send>) -> Self {
        Self(State::Alone(source, 0))
    }
}

impl Read for Ahead {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let State::Alone(source, read) = &mut self.0 {
            if *read < ALONE {
                let length = source.read(buffer)?;
                *read += length as u64;
                return Ok(length);
            }
            let State::Alone(source, _) = mem::replace(&mut self.0, State::Ended) else { return Ok(0) };
            self.0 = match Buffers::filled_by_thread(source) {
                Ok(buffers) => State::Threaded(buffers),
                // The system has no thread to spare: tried again later.
                Err(source) => State::Alone(source, 0),
            };
            return self.read(buffer);
        }
        let State::Threaded(buffers) = &mut self.0 else { return Ok(0) };
        let result = buffers.read(buffer);
        if !buffer.is_empty() && !matches!(result, Ok(1..)) {
            self.0 = State::Ended;
        }
        result
    }
}

impl Buffers {
    /// Begins a thread that fills buffers from the source.
    ///
    /// # Errors
    /// Returns the source where the system starts no thread.
    fn filled_by_thread(source: Box<dyn Read + Send>) -> Result<Self, Box<dyn Read + Send>> {
        let (empty, to_fill) = mpsc::channel();
        let (send, filled) = mpsc::channel();
        let (hand_over, taken) = mpsc::channel();
        let thread = thread::Builder::new().name("traces-ahead".into());
        let begun = thread.spawn(move || {
            if let Ok(source) = taken.recv() {
                fill(source, &to_fill, &send);
            }
        });
        if begun.is_err() {
            return Err(source);
        }
        hand_over.send(source).map_err(|unsent| unsent.0)?;
        for _ in 0..BUFFERS {
            // An error is one of the thread, and is found when a buffer is awaited.
            let _ = empty.send(vec![0; BUFFER]);
        }
        Ok(Self { filled, empty, current: Filled::default(), read: 0 })
    }

    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if buffer.is_empty() {
            return Ok(0);
        }
        loop {
            let left = &self.current.bytes[self.read..self.current.length];
            if !left.is_empty() {
                let length = left.len().min(buffer.len());
                buffer[..length].copy_from_slice(&left[..length]);
                self.read += length;
                return Ok(length);
            }
            if let Some(end) = self.current.end.take() {
                return end.map(|()| 0);
            }
            let done = mem::take(&mut self.current.bytes);
            if !done.is_empty() {
                let _ = self.empty.send(done);
            }
            self.read = 0;
            self.current.length = 0;
            self.current = self.filled.recv().map_err(|_| io::Error::other("the thread that decompresses panicked"))?;
        }
    }
}

/// Fills buffers until the source ends or fails, or nothing reads them.
fn fill(mut source: Box<dyn Read + Send>, to_fill: &Receiver<Vec<u8>>, filled: &Sender<Filled>) {
    while let Ok(mut bytes) = to_fill.recv() {
        let mut length = 0;
        let mut end = None;
        while length < bytes.len() && end.is_none() {
            match source.read(&mut bytes[length..]) {
                Ok(0) => end = Some(Ok(())),
                Ok(read) => length += read,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => end = Some(Err(error)),
            }
        }
        let is_last = end.is_some();
        if filled.send(Filled { bytes, length, end }).is_err() || is_last {
            return;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bytes by their places, in reads of a few; at the end an error, if there is one.
    struct Counting {
        at: u64,
        end: u64,
        most: usize,
        error: Option<io::ErrorKind>,
    }

    impl Read for Counting {
        fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
            let length = buffer.len().min(self.most).min((self.end - self.at) as usize);
            if length == 0 && !buffer.is_empty() {
                return self.error.map_or(Ok(0), |kind| Err(kind.into()));
            }
            for byte in &mut buffer[..length] {
                *byte = (self.at % 251) as u8;
                self.at += 1;
            }
            Ok(length)
        }
    }

    fn expected(end: u64) -> Vec<u8> {
        (0..end).map(|at| (at % 251) as u8).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn reads_the_same_bytes(end in 0..4 * ALONE, most in 1_000_usize..1 << 19, fails: bool) {
            let error = fails.then_some(io::ErrorKind::InvalidData);
            let mut ahead = Ahead::new(Box::new(Counting { at: 0, end, most, error }));
            let mut read = Vec::new();
            let result = ahead.read_to_end(&mut read);
            prop_assert_eq!(result.err().map(|error| error.kind()), error);
            prop_assert!(read == expected(end));
        }
    }

    #[test]
    fn no_thread_for_a_short_source() {
        let mut ahead = Ahead::new(Box::new(Counting { at: 0, end: ALONE - 1, most: 4096, error: None }));
        ahead.read_to_end(&mut Vec::new()).unwrap();
        assert!(matches!(ahead.0, State::Alone(..)));
    }

    #[test]
    fn thread_ends_with_its_reader() {
        struct Told(Counting, Sender<()>);
        impl Read for Told {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0.read(buffer)
            }
        }
        impl Drop for Told {
            fn drop(&mut self) {
                self.1.send(()).unwrap();
            }
        }
        let (send, dropped) = mpsc::channel();
        let endless = Counting { at: 0, end: u64::MAX, most: 1 << 16, error: None };
        let mut ahead = Ahead::new(Box::new(Told(endless, send)));
        ahead.by_ref().take(2 * ALONE).read_to_end(&mut Vec::new()).unwrap();
        assert!(matches!(ahead.0, State::Threaded(_)));
        drop(ahead);
        dropped.recv().unwrap();
    }

    #[test]
    fn panic_of_the_source_is_no_end() {
        struct Panics(u64);
        impl Read for Panics {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                self.0 += buffer.len() as u64;
                assert!(self.0 < 2 * ALONE, "on purpose");
                Ok(buffer.len())
            }
        }
        let error = Ahead::new(Box::new(Panics(0))).read_to_end(&mut Vec::new()).unwrap_err();
        assert_eq!(error.to_string(), "the thread that decompresses panicked");
    }
}
