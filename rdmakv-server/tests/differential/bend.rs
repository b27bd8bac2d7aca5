//! Small damage.

use rand::{RngExt, rngs::StdRng};

use crate::pair::{NAME, VERSION};

/// Changes a command somewhere, with this probability.
pub(crate) fn a_little(whole: Vec<u8>, probability: f64, random: &mut StdRng) -> Vec<u8> {
    let marks = |bytes: &[u8]| {
        let text = String::from_utf8_lossy(bytes).into_owned();
        (text.matches(NAME).count(), text.matches(&format!(" {VERSION}")).count())
    };
    let bent = bend(whole.clone(), probability, random);
    // Without its mark a name would be one for all conversations.
    if marks(&bent) == marks(&whole) { bent } else { whole }
}

fn bend(mut bytes: Vec<u8>, probability: f64, random: &mut StdRng) -> Vec<u8> {
    // Of a long one memcached's answer depends on how much of it has arrived.
    if bytes.len() > 2000 {
        return bytes;
    }
    while random.random_bool(probability) && !bytes.is_empty() {
        let at = random.random_range(0..bytes.len());
        match random.random_range(0..6) {
            0 => drop(bytes.remove(at)),
            1 => bytes.insert(at, b' '),
            2 => bytes[at] = random.random_range(32..127),
            3 => bytes.insert(at, bytes[at]),
            4 => bytes.truncate(at),
            _ => bytes[at] = *[0, b'\t', b'\r', b'\n', b'-', b'0', 0xff].get(random.random_range(0..7)).unwrap_or(&0),
        }
    }
    bytes
}
