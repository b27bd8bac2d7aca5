//! The health of the files: how their errors are counted, and when one is given up.

use thiserror::Error;

/// Writes in a row that may fail before a file is given up.
pub const WRITE_ERRORS: u32 = 8;

/// Why a device did not do what it was to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub enum DeviceError {
    /// No space is left for the file.
    #[error("write flash: no space left on the device: allocate the file before or give a smaller size")]
    Full,
    /// Fewer bytes came or went than were asked for.
    #[error("transfer flash: fewer bytes than asked for: check that the file was not truncated")]
    Short,
    /// The driver no longer waits for it.
    #[error("transfer flash: no answer: check the device")]
    Silent,
    /// The device reports an error; the number is the system's.
    #[error("transfer flash: error {0} of the system: check the device")]
    Failed(i32),
}

#[derive(Clone, Copy, Debug, Default)]
struct Health {
    errors: u32,
    is_lost: bool,
}

/// The files of a log.
#[derive(Debug, Default)]
pub(crate) struct Files {
    files: Vec<Health>,
}

impl Files {
    fn get(&mut self, file: u16) -> &mut Health {
        let at = usize::from(file);
        if self.files.len() <= at {
            self.files.resize(at + 1, Health::default());
        }
        &mut self.files[at]
    }
    pub(crate) fn lost(&self) -> usize {
        self.files.iter().filter(|file| file.is_lost).count()
    }
    pub(crate) fn lose(&mut self, file: u16) {
        self.get(file).is_lost = true;
    }
    /// Takes the end of a write; returns whether the file is to be given up now.
    pub(crate) fn written(&mut self, file: u16, is_ok: bool) -> bool {
        let file = self.get(file);
        file.errors = if is_ok { 0 } else { file.errors + 1 };
        !file.is_lost && file.errors >= WRITE_ERRORS
    }
}
