//! Files, where `man` and the shells look for them below a prefix's `share`.

use crate::{BY_HAND, commands, page};
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// The files written.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Written {
    /// Manual pages.
    pub pages: Vec<PathBuf>,
    /// Completions.
    pub completions: Vec<PathBuf>,
}

/// Shells, each with the folder in which it looks.
const SHELLS: [(Shell, &str); 3] = [
    (Shell::Bash, "bash-completion/completions"),
    (Shell::Zsh, "zsh/site-functions"),
    (Shell::Fish, "fish/vendor_completions.d"),
];

/// Writes everything.
///
/// # Errors
/// The file that could not be written, and why.
pub fn write(share: &Path) -> io::Result<Written> {
    let mut written = Written::default();
    for (file, text) in BY_HAND {
        let section = file.rsplit('.').next().unwrap_or("7");
        written.pages.push(put(
            &share.join("man").join(format!("man{section}")).join(file),
            text.replace("@VERSION@", env!("CARGO_PKG_VERSION")).as_bytes(),
        )?);
    }
    for command in commands() {
        for (file, text) in page::all(&command)? {
            written.pages.push(put(&share.join("man/man1").join(file), &text)?);
        }
        for (shell, folder) in SHELLS {
            written.completions.push(complete(command.clone(), shell, &share.join(folder))?);
        }
    }
    Ok(written)
}

fn complete(mut command: Command, shell: Shell, folder: &Path) -> io::Result<PathBuf> {
    let name = command.get_name().to_owned();
    let file = match shell {
        // By this name the package bash-completion finds it when it is wanted.
        Shell::Bash => name.clone(),
        Shell::Zsh => format!("_{name}"),
        _ => format!("{name}.fish"),
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut text);
    put(&folder.join(file), &text)
}

fn put(file: &Path, text: &[u8]) -> io::Result<PathBuf> {
    let named =
        |error: io::Error| io::Error::new(error.kind(), format!("{} cannot be written: {error}", file.display()));
    if let Some(folder) = file.parent() {
        fs::create_dir_all(folder).map_err(named)?;
    }
    fs::write(file, text).map_err(named)?;
    Ok(file.to_owned())
}
