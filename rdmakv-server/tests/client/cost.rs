//! The cost of a one-sided GET: no memory of the heap's.

use crate::by_hand::Running;
use crate::client;
use rdmakv_client::{Client, Source};

#[test]
fn one_sided_get_allocates_nothing() {
    let server = Running::over_shm();
    let mut client = client([&server.address]);
    for key in 0..100_u8 {
        server.store.put(&[b'k', key], &[key; 1024], 0);
    }
    let round = |client: &mut Client| {
        for key in 0..100_u8 {
            let value = client.get([b'k', key]).unwrap().unwrap();
            assert!(value.len() == 1024 && value[1023] == key);
            // Twice, so that the server is told in between of neither.
            assert!(value.source() == Source::OneSided || value.source() == Source::Message);
        }
    };
    round(&mut client);
    round(&mut client);
    let one_sided = client.counters().one_sided;
    let allocations = allocation_counter::measure(|| (0..10).for_each(|_| round(&mut client)));
    assert_eq!((allocations.count_total, client.counters().one_sided - one_sided), (0, 1000));
}
