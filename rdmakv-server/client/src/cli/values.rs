//! Values from and to files, byte by byte.

use super::flags::How;
use super::{Failure, none};
use crate::{Client, Expire, Source, Stored, Terms};
use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::path::Path;
use std::time::Instant;

/// No server takes larger values: what goes on beyond that, as a device does, has no end.
const MOST: u64 = 1 << 30;

/// The prefixes of addresses on fabrics.
const FABRICS: [&str; 3] = ["shm:", "iwarp:", "verbs:"];

/// Returns the value to be stored.
pub(super) fn to_store(value: Option<&str>, input: Option<&Path>) -> Result<Vec<u8>, Failure> {
    let (mut bytes, name) = (Vec::new(), input.map_or("standard input".into(), |path| path.display().to_string()));
    let read = match (value, input) {
        (Some(value), _) => return Ok(value.as_bytes().to_vec()),
        (None, Some(path)) => File::open(path).and_then(|file| file.take(MOST + 1).read_to_end(&mut bytes)),
        (None, None) => io::stdin().lock().take(MOST + 1).read_to_end(&mut bytes),
    };
    match read {
        Ok(read) if read as u64 > MOST => Err(Failure::Io(format!("read {name}: a value has at most 1 GiB"))),
        Ok(_) => Ok(bytes),
        Err(error) => Err(Failure::Io(format!("read {name}: {error}{}", remedy(&error)))),
    }
}

/// Returns the remedy for a file's error.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => "; see that the name is right and its folder exists",
        io::ErrorKind::PermissionDenied => "; name another file, or see that you may use this one",
        io::ErrorKind::IsADirectory => "; name a file in it",
        _ => "",
    }
}

pub(super) fn set(
    client: &mut Client,
    key: &str,
    value: Vec<u8>,
    (expire, flags): (Expire, u32),
    how: How,
    verbose: bool,
) -> Result<(), Failure> {
    let terms = Terms { expire, flags };
    let stored = match how {
        How { add: true, .. } => client.add(key, value, terms),
        How { replace: true, .. } => client.replace(key, value, terms),
        How { append: true, .. } => client.append(key, value),
        How { prepend: true, .. } => client.prepend(key, value),
        How { cas: Some(version), .. } => client.cas(key, value, version, terms),
        _ => client.set(key, value, terms),
    }?;
    match stored {
        Stored::Yes(version) if verbose => Ok(writeln!(io::stderr(), "stored, version {version}")?),
        Stored::Yes(_) => Ok(()),
        Stored::NotStored if how.add => Err(Failure::No(format!("not stored: there is a \"{}\"", key.escape_debug()))),
        Stored::NotStored | Stored::NotFound => Err(none(key)),
        Stored::Exists => Err(Failure::No("not stored: another version is there".to_owned())),
    }
}

pub(super) fn get(
    client: &mut Client,
    servers: &[String],
    keys: &[String],
    times: u32,
    output: Option<&Path>,
    verbose: bool,
) -> Result<(), Failure> {
    // A file is what it was until there is something to be written.
    let mut to: Option<Box<dyn Write>> = None;
    let failed = |error: io::Error| match output {
        Some(path) if error.kind() != io::ErrorKind::BrokenPipe => {
            Failure::Io(format!("write {}: {error}{}", path.display(), remedy(&error)))
        }
        _ => error.into(),
    };
    let open = || -> Result<Box<dyn Write>, Failure> {
        let Some(path) = output else { return Ok(Box::new(io::stdout().lock())) };
        Ok(Box::new(File::create(path).map_err(failed)?))
    };
    let between = keys.len() > 1 || (output.is_none() && io::stdout().is_terminal());
    let mut missing = None;
    for key in keys {
        let (mut took, mut one_sided, mut last) = (Vec::new(), 0, None);
        for _ in 0..times {
            let begun = Instant::now();
            let value = client.get(key)?;
            took.push(begun.elapsed());
            one_sided += u32::from(value.as_ref().is_some_and(|value| value.source() == Source::OneSided));
            last = value;
        }
        let Some(value) = last else {
            missing.get_or_insert_with(|| none(key));
            continue;
        };
        if verbose {
            took.sort_unstable();
            let median = took[took.len() / 2];
            let named = servers.get(client.server_of(key)).map_or("", String::as_str);
            let hoped_for = named.split(',').any(|way| FABRICS.iter().any(|fabric| way.trim().starts_with(fabric)));
            let over = match (value.source(), client.fabric(client.server_of(key))) {
                (_, None) if hoped_for => "socket, as no fabric of that server answers".to_owned(),
                (Source::Socket, _) | (_, None) => "socket".to_owned(),
                (source, Some(fabric)) => format!("{source}, {fabric}"),
            };
            let (len, flags, version) = (value.len(), value.flags(), value.version());
            let key = key.escape_debug();
            let mut said = format!("{key}: {len} bytes, flags {flags}, version {version}; {over}; {median:?}");
            if times > 1 {
                said += &format!(" (median of {times}, {one_sided} one-sided)");
            }
            writeln!(io::stderr(), "{said}")?;
        }
        let to = match &mut to {
            Some(to) => to,
            none => none.insert(open()?),
        };
        to.write_all(&value).map_err(failed)?;
        if between {
            to.write_all(b"\n").map_err(failed)?;
        }
    }
    if let Some(mut to) = to {
        to.flush().map_err(failed)?;
    }
    missing.map_or(Ok(()), Err)
}
