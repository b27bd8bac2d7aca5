//! `-Y`: the file of names and passwords, a line each. It is read at the start and again on a SIGHUP.

use crate::session::Shared;
use std::sync::PoisonError;

/// Returns the lines.
///
/// # Errors
///
/// The fault of the file, and its right form.
pub(super) fn read(file: &str) -> Result<Vec<Vec<u8>>, String> {
    let text = std::fs::read(file).map_err(|error| format!("-Y {file}: {error}"))?;
    let lines = text.split(|&byte| byte == b'\n').map(|line| line.strip_suffix(b"\r").unwrap_or(line));
    let users: Vec<Vec<u8>> = lines.filter(|line| !line.is_empty()).map(<[u8]>::to_vec).collect();
    for (at, user) in users.iter().enumerate() {
        let Some(colon) = user.iter().position(|&byte| byte == b':') else {
            return Err(format!("-Y {file}: name {} has no password: a line is user:password", at + 1));
        };
        if colon == 0 || user[..colon].contains(&b' ') {
            return Err(format!("-Y {file}: name {}: a name has no spaces and is not empty: user:password", at + 1));
        }
    }
    if users.is_empty() {
        return Err(format!("-Y {file}: it names no user: write a line user:password for each"));
    }
    Ok(users)
}

/// Reads them again; where the file is wrong, the old ones stay.
pub(super) fn refresh(file: &str, shared: &Shared) -> Result<(), String> {
    let users = read(file)?;
    *shared.users.lock().unwrap_or_else(PoisonError::into_inner) = users;
    Ok(())
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_line_is_a_name_and_a_password() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("users");
        let read = |text: &str| {
            std::fs::write(&file, text).unwrap();
            super::read(file.to_str().unwrap())
        };
        // A password is whatever follows the first colon, spaces and further colons too.
        assert_eq!(read("a:b\r\n\nc:d e:f \n").unwrap(), [b"a:b".to_vec(), b"c:d e:f ".to_vec()]);
        for (text, words) in [
            ("", "it names no user"),
            ("a:b\nnonsense\n", "name 2 has no password"),
            (":b", "not empty"),
            ("a b:c", "no spaces"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words), "{error}");
        }
    }
}
