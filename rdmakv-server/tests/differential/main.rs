//! Debian's memcached and ours are told the same, and have to answer the same, byte for byte.
//!
//! Parts that may differ are made the same first: versions of items (CAS) are replaced by a mark, and times by whether
//! there is one. Conversations are made of the protocols' commands, right ones and ones that are bent a little. A
//! difference is shortened to the commands that matter and shown.
//!
//! `DIFFERENTIAL=100000 cargo test --release -p rdmakv-server --test differential -- --nocapture` tries so many; a seed
//! (`DIFFERENTIAL_SEED`) makes others.

mod bend;
mod binary;
mod pair;
mod text;

use pair::Pair;
use rand::{RngExt, SeedableRng, rngs::StdRng};

/// A conversation: what is said at once, in parts that can be left out.
type Parts = Vec<Vec<u8>>;

fn number(name: &str, default: u64) -> u64 {
    std::env::var(name).ok().map_or(default, |text| text.parse().expect("a number"))
}

fn both_answer_the_same(what: &str, default: u64, make: impl Fn(&mut StdRng) -> Parts) {
    let Some(mut pair) = Pair::start() else {
        eprintln!("differential, {what}: not run: memcached is not installed (Debian: memcached)");
        return;
    };
    let mut random = StdRng::seed_from_u64(number("DIFFERENTIAL_SEED", 1));
    let (conversations, most) = (number("DIFFERENTIAL", default), number("DIFFERENTIAL_SHOWN", 1));
    let mut different = Vec::new();
    let mut commands = 0;
    for _ in 0..conversations {
        let parts = make(&mut random);
        commands += parts.len();
        if pair.differ(&parts).is_some() && pair.differ_later(&parts) {
            different.push(shorten(&mut pair, parts));
            if different.len() as u64 >= most {
                break;
            }
        }
    }
    println!("differential, {what}: {conversations} conversations, {commands} commands, {} differ", different.len());
    assert!(different.is_empty(), "{}", different.join("\n"));
}

/// Leaves out what is not needed for the difference.
fn shorten(pair: &mut Pair, mut parts: Parts) -> String {
    let mut at = parts.len();
    while at > 0 {
        at -= 1;
        let mut fewer = parts.clone();
        fewer.remove(at);
        if pair.differ(&fewer).is_some() {
            parts = fewer;
        }
    }
    let show = |bytes: &[u8]| bytes[..bytes.len().min(600)].escape_ascii().to_string();
    match pair.differ(&parts) {
        Some((theirs, ours)) => {
            format!("told:      {}\nmemcached: {}\nwe:        {}\n", show(&parts.concat()), show(&theirs), show(&ours))
        }
        None => format!("told:      {}\n(sometimes differs)\n", show(&parts.concat())),
    }
}

#[test]
fn text_is_answered_as_memcached_does() {
    both_answer_the_same("text", 400, |random| {
        let first = random.random_bool(0.05).then(|| text::large(random));
        let rest = (0..random.random_range(1..12)).map(|_| bend::a_little(text::classic(random), 0.1, random));
        first.into_iter().chain(rest.collect::<Parts>()).collect()
    });
}

#[test]
fn meta_commands_are_answered_as_memcached_does() {
    both_answer_the_same("meta", 400, |random| {
        let command = |random: &mut StdRng| {
            loop {
                let bent = bend::a_little(text::meta(random), 0.05, random);
                if !text::is_answered_otherwise(&bent) {
                    return bent;
                }
            }
        };
        (0..random.random_range(1..12)).map(|_| command(random)).collect()
    });
}

#[test]
fn the_binary_protocol_is_answered_as_memcached_does() {
    both_answer_the_same("binary", 400, |random| {
        (0..random.random_range(1..12)).map(|_| binary::command(random)).collect()
    });
}
