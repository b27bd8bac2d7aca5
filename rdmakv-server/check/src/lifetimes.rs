//! No read returns a value after its time. Evictions may take a value early, so this is no question of order. For each
//! value the latest moment is known at which it could have been seen, from its writer's expiry and from all that may
//! have touched it since.

use rustc_hash::FxHashMap;

use crate::history::{NEVER, Operation, Step, Value};
use crate::violation::{Kind, Violation};

/// The slack for the server's whole seconds, and for a worker that looks at its clock once a round.
const SLACK: u64 = 2_000_000_000;

/// Looks for a value that was seen too late. `expiry` says in seconds what expiry an operation asked for, 0 for none, or
/// that it left it as it was.
pub fn outlived(history: &[Operation], expiry: impl Fn(usize) -> Option<u8>) -> Option<Violation> {
    let until = |place: usize| match expiry(place) {
        Some(0) => NEVER,
        Some(seconds) => history[place].end.saturating_add(u64::from(seconds) * 1_000_000_000 + SLACK),
        None => 0,
    };
    let writers: FxHashMap<Value, usize> =
        history.iter().enumerate().filter_map(|(place, operation)| Some((operation.written()?, place))).collect();
    let mut touches: Vec<usize> =
        (0..history.len()).filter(|&place| history[place].written().is_none() && expiry(place).is_some()).collect();
    touches.sort_by_key(|&place| history[place].begin);
    for (place, operation) in history.iter().enumerate() {
        let Step::Read(value) = operation.step else { continue };
        let Some(&writer) = writers.get(&value) else { continue };
        let own = until(writer);
        // A sum lasts as long as what it was made of, which is not followed here.
        if expiry(writer).is_none() || own >= operation.begin {
            continue;
        }
        let may_have = touches.iter().take_while(|&&touch| history[touch].begin <= operation.end);
        let latest =
            may_have.filter(|&&touch| history[touch].end >= history[writer].begin).map(|&touch| until(touch)).max();
        if latest.is_none_or(|latest| latest < operation.begin) {
            let why = format!(
                "A gave the value {} s, nobody touched it so that it would last longer, and B saw it after that \
                 (two seconds are added for the server's whole seconds)",
                expiry(writer).unwrap_or(0)
            );
            return Some(Violation::new(Kind::Outlived, [writer, place], why));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn value_expires_unless_touched() {
        let at = |begin, step| Operation { begin: begin * S, end: begin * S + 1, certain: true, step };
        let seen_at = |second, expiries: &[Option<u8>], touched: &[u64]| {
            let mut history = vec![at(1, Step::Write(7))];
            history.extend(touched.iter().map(|&begin| at(begin, Step::Present { not: None })));
            history.push(at(second, Step::Read(7)));
            outlived(&history, |place| expiries.get(place).copied().flatten())
        };
        assert_eq!(seen_at(5, &[Some(2)], &[]), None);
        assert_eq!(seen_at(6, &[Some(2)], &[]).map(|found| found.kind), Some(Kind::Outlived));
        assert_eq!(seen_at(600, &[Some(0)], &[]), None);
        assert_eq!(seen_at(6, &[Some(2), Some(3)], &[2]), None);
        assert_eq!(seen_at(60, &[Some(2), Some(0)], &[2]), None);
        assert_eq!(seen_at(8, &[Some(2), Some(3)], &[2]).map(|found| found.operations), Some(vec![0, 2]));
    }
}
