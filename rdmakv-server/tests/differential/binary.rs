//! Binary requests, with lengths that are right or nearly.

use rand::{RngExt, rngs::StdRng};

use crate::pair::NAME;

pub(crate) fn command(random: &mut StdRng) -> Vec<u8> {
    // No statistics: they differ. No quit in three of four cases, else little would follow.
    let code: u8 = loop {
        let code = random.random_range(0..0x28);
        // Nor unknown ones: memcached drops the rest of them twice, and with it what follows.
        let unknown = matches!(code, 0x1b | 0x1f | 0x21 | 0x22 | 0x25..);
        if unknown || matches!(code, 0x10 | 0x08 | 0x18) || matches!(code, 0x07 | 0x17) && random.random_bool(0.75) {
            continue;
        }
        break code;
    };
    let number = |random: &mut StdRng| [0_u64, 1, 5, u64::MAX, 1 << 32][random.random_range(0..5)].to_be_bytes();
    let expiry = |random: &mut StdRng| [0_u32, 0, 100, 2_592_001, u32::MAX][random.random_range(0..5)].to_be_bytes();
    let mut key = format!("{NAME}{}", ["v", "v", "n", "0", "1"][random.random_range(0..5)]).into_bytes();
    let (mut extras, mut value) = (Vec::new(), Vec::new());
    match code {
        0x01..=0x03 | 0x11..=0x13 => {
            extras.extend_from_slice(&7_u32.to_be_bytes());
            extras.extend_from_slice(&expiry(random));
            value = if random.random() { b"123".to_vec() } else { vec![b'v'; random.random_range(0..9000)] };
        }
        0x0e | 0x0f | 0x19 | 0x1a => value = b"more".to_vec(),
        0x05 | 0x06 | 0x15 | 0x16 => {
            extras.extend_from_slice(&number(random));
            extras.extend_from_slice(&number(random));
            extras.extend_from_slice(&expiry(random));
        }
        0x1c | 0x1d | 0x1e | 0x23 | 0x24 => extras.extend_from_slice(&expiry(random)),
        0x07 | 0x17 | 0x0a | 0x0b => key.clear(),
        _ => {}
    }
    if random.random_bool(0.05) {
        match random.random_range(0..6) {
            0 => drop(extras.pop()),
            1 => extras.push(0),
            2 => key.clear(),
            3 => key = vec![b'k'; 251],
            // A touch with a value is none to us, and memcached does not look.
            4 if !matches!(code, 0x1c..=0x1e | 0x23 | 0x24) => value.push(b'x'),
            _ => value.clear(),
        }
    }
    let cas: [u8; 8] = match random.random_range(0..10) {
        // The two differ on a value that is no number and not of that version.
        0 | 1 if matches!(code, 0x05 | 0x06 | 0x15 | 0x16) => [0; 8],
        0 => *b"VERSION!",
        1 => 1_u64.to_be_bytes(),
        _ => [0; 8],
    };
    // The name is three bytes here and six in what is sent.
    let key_len = key.len() + if key.starts_with(NAME.as_bytes()) { 6 - NAME.len() } else { 0 };
    let mut bytes = vec![0x80, code];
    bytes.extend_from_slice(&(key_len as u16).to_be_bytes());
    bytes.extend_from_slice(&[extras.len() as u8, 0, 0, 0]);
    bytes.extend_from_slice(&((extras.len() + key_len + value.len()) as u32).to_be_bytes());
    bytes.extend_from_slice(&random.random::<[u8; 4]>().map(|byte| byte | 0x80));
    bytes.extend_from_slice(&cas);
    bytes.extend_from_slice(&extras);
    bytes.extend_from_slice(&key);
    bytes.extend_from_slice(&value);
    bytes
}
