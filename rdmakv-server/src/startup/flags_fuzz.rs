//! Noise on the command line: no flags make it panic; they are understood, or refused with words.

use clap::Parser;
use rand::{RngExt, SeedableRng, rngs::StdRng};

use super::flags::Flags;
use crate::noise_times as times;

const FLAGS: [&str; 16] =
    ["-p", "-U", "-l", "-m", "-c", "-t", "-R", "-b", "-B", "-I", "-o", "-f", "-n", "-a", "-vv", "-D"];
const VALUES: [&str; 24] = [
    "0",
    "1",
    "-1",
    "64",
    "65536",
    "4k",
    "1m",
    "2g",
    "99999999999999999999",
    "127.0.0.1",
    "127.0.0.1:11211,[::1]:5",
    "[::1",
    "::1",
    "a:b:c",
    "idle_timeout=3,no_maxconns_fast",
    "hashpower=16",
    "hashpower=",
    "idle_timeout",
    "ext_path=/x",
    "=,=,",
    "1.25",
    "nan",
    "755",
    "é",
];

#[test]
fn no_command_line_makes_the_server_panic() {
    let mut random = StdRng::seed_from_u64(12);
    let (mut good, mut refused) = (0_u64, 0_u64);
    for _ in 0..1500 * times() {
        let mut arguments = vec!["rdmakv-server".to_owned()];
        for _ in 0..random.random_range(0..4) {
            arguments.push(FLAGS[random.random_range(0..FLAGS.len())].into());
            let mut value: Vec<char> = VALUES[random.random_range(0..VALUES.len())].chars().collect();
            if random.random_bool(0.3) && !value.is_empty() {
                let at = random.random_range(0..value.len());
                match random.random_range(0..3) {
                    0 => drop(value.remove(at)),
                    1 => value.insert(at, [',', ':', '[', ']', '=', '-', '9'][random.random_range(0..7)]),
                    _ => value[at] = random.random_range('\u{1}'..'\u{200}'),
                }
            }
            arguments.push(value.into_iter().collect());
        }
        match Flags::try_parse_from(&arguments).map_err(|error| error.to_string()).and_then(|flags| flags.plan()) {
            Ok(_) => good += 1,
            Err(words) => {
                assert!(!words.is_empty(), "{arguments:?}");
                refused += 1;
            }
        }
    }
    assert!(good > 100 * times() && refused > 100 * times(), "{good} understood, {refused} refused");
}
