//! The checker against all orders: what it says of small histories is what trying every order of the operations, one after
//! another, on a register with evictions says.

use proptest::prelude::*;
use rdmakv_check::history::NEVER;
use rdmakv_check::judge::{Verdict, judge};
use rdmakv_check::record::{Answer, Record, Request, Transport};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Returns the server's answer and the key's value after it: memcached's rules, literally.
fn serve(request: Request, value: Option<u64>) -> (Answer, Option<u64>) {
    match (request, value) {
        (Request::Get, Some(value)) => (Answer::Value(value), Some(value)),
        (Request::Set(new), _) | (Request::Add(new), None) => (Answer::Done, Some(new)),
        (Request::Add(_), some) => (Answer::Refused, some),
        (Request::Cas { from, to }, Some(value)) if value == from => (Answer::Done, Some(to)),
        (Request::Cas { .. }, Some(value)) => (Answer::Refused, Some(value)),
        (Request::Incr, Some(value)) => (Answer::Value(value + 1), Some(value + 1)),
        (Request::Delete | Request::Flush, Some(_)) | (Request::Flush, None) => (Answer::Done, None),
        (Request::Touch, Some(value)) => (Answer::Done, Some(value)),
        (Request::Get | Request::Cas { .. } | Request::Incr | Request::Delete | Request::Touch, None) => {
            (Answer::Absent, None)
        }
    }
}

/// Returns whether some order, with evictions wherever they help, explains all answers.
fn has_an_order(history: &[Record]) -> bool {
    fn go(history: &[Record], done: u32, value: Option<u64>, tried: &mut HashSet<(u32, Option<u64>)>) -> bool {
        if !tried.insert((done, value)) {
            return false;
        }
        let undone = |place: &usize| done & 1 << place == 0;
        let places = || (0..history.len()).filter(undone);
        if places().all(|place| history[place].answer == Answer::Unknown) {
            return true;
        }
        if value.is_some() && go(history, done, None, tried) {
            return true;
        }
        let is_lost = |&place: &usize| history[place].answer == Answer::Unknown;
        let first_end = places().filter(|place| !is_lost(place)).map(|place| history[place].end).min().unwrap_or(NEVER);
        let last_begin = (0..history.len()).filter(|place| !undone(place)).map(|place| history[place].begin).max();
        places().any(|place| {
            let (answer, after) = serve(history[place].request, value);
            // An operation without an answer may also have taken effect never, but not after its end.
            let is_next = history[place].begin <= first_end && last_begin <= Some(history[place].end);
            let is_so = history[place].answer == answer || is_lost(&place);
            is_next && is_so && go(history, done | 1 << place, after, tried)
        })
    }
    go(history, 0, None, &mut HashSet::new())
}

/// Requests with times; values are numbers of their own, those of CAS are some other's.
fn requests(count: usize, counters: bool) -> impl Strategy<Value = Vec<(Request, u64, u64, u64)>> {
    let one = (0..100u32, 0..24u64, 0..9u64, 0..count, any::<u64>());
    // Some are crowded.
    (prop::collection::vec(one, 2..=count), 1..4u64).prop_map(move |(all, crowd)| {
        let name = |place: usize| if counters { (place as u64 + 1) << 8 } else { place as u64 + 1 };
        let each = all.into_iter().enumerate().map(|(place, (kind, at, length, other, chance))| {
            let request = match kind {
                0..20 => Request::Set(name(place)),
                20..27 => Request::Add(name(place)),
                27..60 => Request::Get,
                60..75 if counters => Request::Incr,
                60..75 if other != place => Request::Cas { from: name(other), to: name(place) },
                75..88 => Request::Delete,
                88..97 => Request::Touch,
                97.. => Request::Flush,
                _ => Request::Get,
            };
            (request, at / crowd, at / crowd + length, chance)
        });
        each.collect()
    })
}

/// A history that has an order: each request takes effect at some moment of its time, evictions come in between.
fn possible(requests: &[(Request, u64, u64, u64)]) -> Vec<Record> {
    let mut order: Vec<usize> = (0..requests.len()).collect();
    let moment = |&place: &usize| {
        let (_, begin, end, chance) = requests[place];
        (begin + chance % (end - begin + 1), chance >> 8)
    };
    order.sort_by_key(moment);
    let mut value = None;
    let mut records: Vec<Option<Record>> = vec![None; requests.len()];
    for place in order {
        let (request, begin, end, chance) = requests[place];
        if chance >> 16 & 15 == 0 {
            value = None;
        }
        let lost = chance >> 24 & 7 == 0;
        let (answer, after) = serve(request, value);
        if !lost || chance >> 32 & 1 == 0 {
            value = after;
        }
        // Half of them are known to have been over by then, as after a server was killed.
        let end = if lost && chance >> 33 & 1 == 0 { NEVER } else { end };
        let answer = if lost { Answer::Unknown } else { answer };
        let (key, expiry, transport, one_sided) = (0, 0, Transport::Tcp, false);
        records[place] = Some(Record { begin, end, key, request, answer, expiry, transport, one_sided });
    }
    records.into_iter().flatten().collect()
}

/// The same with some things changed: times, and what was seen.
fn changed(mut history: Vec<Record>, changes: &[(usize, u8, u64)]) -> Vec<Record> {
    for &(place, what, by) in changes {
        let values: Vec<u64> = history.iter().filter_map(|record| record.operation()?.written_value()).collect();
        let count = history.len();
        let record = &mut history[place % count];
        if record.answer == Answer::Unknown {
            continue;
        }
        match what {
            0 => record.begin = record.begin.saturating_sub(by),
            1 => {
                let length = record.end - record.begin;
                record.begin += by;
                record.end = record.begin + length;
            }
            2 => record.end = record.begin,
            _ => {
                record.answer = match record.request {
                    Request::Get if !values.is_empty() => Answer::Value(values[by as usize % values.len()]),
                    Request::Incr if !values.is_empty() => Answer::Value(values[by as usize % values.len()] + 1),
                    Request::Get | Request::Touch if record.answer != Answer::Absent => Answer::Absent,
                    Request::Touch | Request::Delete => Answer::Done,
                    Request::Cas { .. } => [Answer::Done, Answer::Refused, Answer::Absent][by as usize % 3],
                    Request::Add(_) => [Answer::Done, Answer::Refused][by as usize % 2],
                    _ => record.answer,
                }
            }
        }
    }
    history
}

trait Written {
    fn written_value(&self) -> Option<u64>;
}

impl Written for rdmakv_check::history::Operation {
    fn written_value(&self) -> Option<u64> {
        match self.step {
            rdmakv_check::history::Step::Write(value) | rdmakv_check::history::Step::Swap { to: value, .. } => {
                Some(value)
            }
            _ => None,
        }
    }
}

/// Both verdicts on it; the checker's is the one of all orders.
fn agree(history: &[Record]) -> Result<bool, TestCaseError> {
    let operations: Vec<_> = history.iter().filter_map(Record::operation).collect();
    let has_an_order = has_an_order(history);
    let verdict = judge(&operations);
    let says = match &verdict {
        Verdict::Linearizable => true,
        Verdict::Violated(_) => false,
        Verdict::Undecided => return Err(TestCaseError::fail("undecided")),
    };
    // Of several increments without an answer the checker does not tell apart which is which: it may let one pass.
    let lost = |record: &&Record| record.request == Request::Incr && record.answer == Answer::Unknown;
    let may_pass = says && history.iter().filter(lost).count() > 1;
    prop_assert!(has_an_order == says || may_pass, "{:?} of {:#?}", verdict, history);
    Ok(says)
}

fn compare(counters: bool) {
    let (with, without) = (AtomicU32::new(0), AtomicU32::new(0));
    let changes = prop::collection::vec((0..9usize, 0..6u8, 0..12u64), 0..4);
    let cases = std::env::var("RDMAKV_CHECK_CASES").ok().and_then(|cases| cases.parse().ok()).unwrap_or(6000);
    let config = ProptestConfig { cases, failure_persistence: None, ..ProptestConfig::default() };
    let mut runner = proptest::test_runner::TestRunner::new(config);
    let run = runner.run(&(requests(9, counters), changes), |(requests, changes)| {
        let history = possible(&requests);
        prop_assert!(agree(&history)?, "what happened can happen: {:#?}", history);
        let says = agree(&changed(history, &changes))?;
        (if says { &with } else { &without }).fetch_add(1, Relaxed);
        Ok(())
    });
    run.unwrap_or_else(|error| panic!("{error}"));
    let (with, without) = (with.load(Relaxed), without.load(Relaxed));
    println!("{with} with an order, {without} without");
    assert!(with.min(without) > (with + without) / 10, "both verdicts come often: {with} {without}");
}

#[test]
fn the_checker_says_what_all_orders_say() {
    compare(false);
}

#[test]
fn the_checker_says_what_all_orders_say_of_counters() {
    compare(true);
}
