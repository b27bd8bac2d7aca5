//! The run's directory, where its processes meet: the server's address, the journals, and a word that says when to stop.

use std::fs::{File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering::{Acquire, Release};

use crate::journal::{Journal, Words};

const STOP: usize = 0;
const DOWN: usize = 1;
const LOG: &str = "server.log";

/// The directory of a run.
#[derive(Clone, Debug)]
pub struct Place {
    directory: PathBuf,
    words: Arc<Words>,
}

impl Place {
    /// Returns a new one in a directory that is there.
    ///
    /// # Errors
    ///
    /// Its file cannot be made.
    pub fn create(directory: &Path) -> io::Result<Self> {
        let words = Words::create(&directory.join("state"), 2)?;
        Ok(Self { directory: directory.to_owned(), words: Arc::new(words) })
    }

    /// One that another process made.
    ///
    /// # Errors
    ///
    /// It is not there.
    pub fn open(directory: &Path) -> io::Result<Self> {
        let words = Words::open(&directory.join("state"))?;
        Ok(Self { directory: directory.to_owned(), words: Arc::new(words) })
    }

    /// Returns the directory.
    pub fn directory(&self) -> &Path {
        &self.directory
    }

    /// Returns the server's address; `None` while it is down.
    pub fn tcp(&self) -> Option<String> {
        self.address("tcp")
    }

    /// Returns the server's address with that transport.
    pub fn address(&self, transport: &str) -> Option<String> {
        if self.words.at(DOWN).load(Acquire) == 0 { self.last_address(transport) } else { None }
    }

    /// Returns the server's address with that transport, or its last one before it went down.
    pub fn last_address(&self, transport: &str) -> Option<String> {
        std::fs::read_to_string(self.directory.join(transport)).ok()
    }

    /// The server listens there.
    ///
    /// # Errors
    ///
    /// The file cannot be written.
    pub fn up(&self, addresses: &[(&str, String)]) -> io::Result<()> {
        for (transport, address) in addresses {
            let new = self.directory.join(format!("{transport}.new"));
            std::fs::write(&new, address)?;
            std::fs::rename(new, self.directory.join(transport))?;
        }
        self.words.at(DOWN).store(0, Release);
        Ok(())
    }

    /// Notes that the server is about to end: no client connects to its successor yet.
    pub fn down(&self) {
        self.words.at(DOWN).store(1, Release);
    }

    /// All clients come to an end.
    pub fn stop(&self) {
        self.words.at(STOP).store(1, Release);
    }

    /// Returns whether they do.
    pub fn is_stopping(&self) -> bool {
        self.words.at(STOP).load(Acquire) != 0
    }

    /// Opens the log of the servers' complaints.
    ///
    /// # Errors
    ///
    /// The file cannot be opened.
    pub fn server_log(&self) -> io::Result<File> {
        OpenOptions::new().create(true).append(true).open(self.directory.join(LOG))
    }

    /// Returns the servers' last complaints.
    pub fn end_of_server_log(&self) -> String {
        let text = std::fs::read_to_string(self.directory.join(LOG)).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(10).collect();
        lines.into_iter().rev().collect::<Vec<_>>().join("\n")
    }

    fn journal_path(&self, thread: usize) -> PathBuf {
        self.directory.join(format!("journal-{thread}"))
    }

    /// Returns a thread's journal, empty.
    ///
    /// # Errors
    ///
    /// The file cannot be made.
    pub fn new_journal(&self, thread: usize, lines: usize) -> io::Result<Journal> {
        Journal::create(&self.journal_path(thread), lines)
    }

    /// Returns a thread's journal as it is; `None` if the thread has none.
    ///
    /// # Errors
    ///
    /// The file is there and cannot be read.
    pub fn journal(&self, thread: usize) -> io::Result<Option<Journal>> {
        match Journal::open(&self.journal_path(thread)) {
            Ok(journal) => Ok(Some(journal)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }
}
