//! A server of the text protocol that keeps a map under one lock, and is wrong now and then in one chosen way.

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// GET shows the value of before.
    Stale,
    /// GET shows the beginning of one value and the end of another.
    Torn,
    /// DELETE says so and does nothing.
    Undeleted,
    /// DELETE says that it deleted what was not there.
    DeletedTwice,
    /// INCR and CAS say that they were done, and are not.
    LostUpdate,
    /// GET shows another key's value.
    WrongKey,
}

struct Item {
    version: u64,
    value: Vec<u8>,
    /// None if it never expires.
    expires: Option<Instant>,
}

#[derive(Default)]
struct Store {
    values: HashMap<String, Item>,
    before: HashMap<String, Vec<u8>>,
    version: u64,
    requests: u64,
    /// Of INCR and CAS.
    updates: u64,
}

pub(crate) struct Server {
    pub(crate) address: String,
}

impl Server {
    /// It ends with the test program.
    pub(crate) fn start(flaw: Flaw) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let store = Arc::new(Mutex::new(Store::default()));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = store.clone();
                std::thread::spawn(move || converse(&stream, &store, flaw));
            }
        });
        Self { address }
    }
}

/// Until the client goes.
fn converse(stream: &TcpStream, store: &Mutex<Store>, flaw: Flaw) -> Option<()> {
    stream.set_nodelay(true).ok()?;
    let (mut reader, mut writer) = (BufReader::new(stream), stream);
    loop {
        let mut line = String::new();
        if reader.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let words: Vec<&str> = line.split_whitespace().collect();
        let mut data = Vec::new();
        if let ["set" | "add" | "cas", _, _, _, length, ..] = words[..] {
            data = vec![0; length.parse::<usize>().ok()? + 2];
            reader.read_exact(&mut data).ok()?;
            data.truncate(data.len() - 2);
        }
        let answer = store.lock().ok()?.answer(&words, data, flaw);
        writer.write_all(&answer).ok()?;
    }
}

impl Store {
    fn answer(&mut self, words: &[&str], data: Vec<u8>, flaw: Flaw) -> Vec<u8> {
        self.requests += 1;
        self.updates += u64::from(matches!(words[0], "incr" | "cas"));
        // Of these there are few.
        let loses = flaw == Flaw::LostUpdate && self.updates.is_multiple_of(2);
        let is_wrong = |wanted| flaw == wanted && self.requests.is_multiple_of(16);
        let key = words.get(1).copied().unwrap_or_default().to_owned();
        if self.values.get(&key).is_some_and(|item| item.expires.is_some_and(|end| end <= Instant::now())) {
            self.values.remove(&key);
        }
        let there = self.values.get(&key).map(|item| (item.version, item.value.clone()));
        let plain = |text: &str| format!("{text}\r\n").into_bytes();
        match (words[0], there) {
            ("gets", None) => plain("END"),
            ("gets", Some((version, mut value))) => {
                if is_wrong(Flaw::Stale)
                    && let Some(before) = self.before.get(&key)
                {
                    value.clone_from(before);
                }
                if is_wrong(Flaw::Torn) && value.len() > 24 {
                    let end = value.len() - 8;
                    value[end..].fill(1);
                }
                if is_wrong(Flaw::WrongKey)
                    && let Some((_, other)) =
                        self.values.iter().find(|(name, _)| key[..4] == name[..4] && **name != key)
                {
                    value.clone_from(&other.value);
                }
                let mut answer = format!("VALUE {key} 0 {} {version}\r\n", value.len()).into_bytes();
                answer.extend(value);
                answer.extend(b"\r\nEND\r\n");
                answer
            }
            ("add", Some(_)) => plain("NOT_STORED"),
            ("cas" | "incr" | "delete" | "touch", None) => {
                plain(if words[0] == "delete" && flaw == Flaw::DeletedTwice { "DELETED" } else { "NOT_FOUND" })
            }
            ("cas", Some((version, _))) if words[5] != version.to_string() => plain("EXISTS"),
            ("cas", Some(_)) if loses => plain("STORED"),
            ("set" | "add" | "cas", _) => {
                self.put(key, data, expiry(words[3]));
                plain("STORED")
            }
            ("incr", Some((_, value))) => {
                let sum = String::from_utf8(value).unwrap().parse::<u64>().unwrap() + 1;
                if !loses {
                    let expires = self.values[&key].expires;
                    self.put(key, sum.to_string().into_bytes(), expires);
                }
                plain(&sum.to_string())
            }
            ("touch", Some(_)) => {
                self.values.get_mut(&key).unwrap().expires = expiry(words[2]);
                plain("TOUCHED")
            }
            ("delete", Some((_, value))) => {
                if flaw != Flaw::Undeleted {
                    self.before.insert(key.clone(), value);
                    self.values.remove(&key);
                }
                plain("DELETED")
            }
            ("flush_all", _) => {
                self.values.clear();
                plain("OK")
            }
            ("stats", _) => plain("END"),
            _ => plain("ERROR"),
        }
    }

    fn put(&mut self, key: String, value: Vec<u8>, expires: Option<Instant>) {
        self.version += 1;
        if let Some(before) = self.values.insert(key.clone(), Item { version: self.version, value, expires }) {
            self.before.insert(key, before.value);
        }
    }
}

/// Returns the end of a life of that many seconds. None is no end.
fn expiry(seconds: &str) -> Option<Instant> {
    match seconds.parse().unwrap() {
        0 => None,
        seconds => Some(Instant::now() + Duration::from_secs(seconds)),
    }
}
