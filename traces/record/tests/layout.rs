//! Records and heads come back as they were written, and noise does not come back as a record.

use proptest::prelude::*;
use traces_record::layout::{HEAD, Head, Operation, Place, RECORD, Record};

fn record() -> impl Strategy<Value = Record> {
    let operation =
        prop::sample::select(vec![Operation::Request, Operation::Acquire, Operation::Release, Operation::Invalidate]);
    (operation, 0_u8..32, 0_u32..1 << 22, 0_u32..1 << 22, any::<u64>(), any::<u64>(), (0_u64..1 << 48, any::<u8>()))
        .prop_map(|(operation, access, process, thread, time, address, (length, domain))| Record {
            operation,
            access,
            process,
            thread,
            time,
            address,
            length,
            domain,
        })
}

proptest! {
    #[test]
    fn a_record_comes_back(record in record()) {
        let bytes = record.bytes();
        prop_assert_eq!(Record::of_bytes(&bytes), Place::Written(record));
        prop_assert_eq!(bytes[RECORD - 1], 0);
    }

    #[test]
    fn a_changed_bit_is_seen(record in record(), bit in 0..8 * RECORD) {
        let mut bytes = record.bytes();
        bytes[bit / 8] ^= 1 << (bit % 8);
        prop_assert!(!matches!(Record::of_bytes(&bytes), Place::Written(_)), "bit {}", bit);
    }

    #[test]
    fn a_head_comes_back(words in any::<[u64; 4]>(), halves in any::<[u32; 6]>(), boot in any::<[u8; 16]>()) {
        let [start, limit, claimed, ready] = words;
        let [attached, ended, stopped, source, others, unwatched] = halves;
        let head = Head { start, boot, limit, claimed, ready, attached, ended, stopped, source, others, unwatched };
        prop_assert_eq!(Head::of_bytes(&head.bytes()), Ok(head));
    }
}

#[test]
fn noise_is_seldom_a_record() {
    let mut state = 1_u64;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    };
    let taken = (0..100_000).filter(|_| {
        let words = std::array::from_fn(|_| next());
        matches!(Record::of_words(words), Place::Written(_))
    });
    assert!(taken.count() < 20);
    assert_eq!(Record::of_words([0; 4]), Place::Empty);
    assert_eq!(Head::of_bytes(&[0; HEAD]), Err(traces_record::layout::NoHead::Foreign));
}
