//! A recording comes back as it was written, and says so where it does not.

use mrrc_core::Access;
use proptest::prelude::*;
use smallvec::smallvec;
use std::io::Cursor;
use std::path::Path;
use traces::registrations::binary::Encoder;
use traces::registrations::{self, CutShort, csv};
use traces::{Action, Event, Span, Spans, TraceError};

fn as_binary(events: &[Event], events_a_frame: usize) -> Vec<u8> {
    let mut file = Encoder::header().to_vec();
    let mut encoder = Encoder::default();
    for (at, event) in events.iter().enumerate() {
        encoder.push(event).unwrap();
        if (at + 1) % events_a_frame == 0 {
            encoder.take(&mut file).unwrap();
        }
    }
    encoder.take(&mut file).unwrap();
    file.extend(Encoder::end(events.len() as u64));
    file
}

fn as_csv(events: &[Event]) -> Vec<u8> {
    let mut file = Vec::new();
    csv::write_header(&mut file).unwrap();
    for event in events {
        csv::write_event(&mut file, event).unwrap();
    }
    file
}

/// Returns the events, and the error after them.
fn read(file: Vec<u8>, cut: CutShort) -> (Vec<Event>, Option<TraceError>) {
    let mut reader = match registrations::read(Path::new("recording"), Cursor::new(file), cut) {
        Ok(reader) => reader,
        Err(error) => return (Vec::new(), Some(error)),
    };
    let mut events = Vec::new();
    let mut error = None;
    for event in reader.by_ref() {
        match event {
            Ok(event) => events.push(event),
            Err(found) => {
                assert!(error.is_none(), "nothing comes after an error");
                error = Some(found);
            }
        }
    }
    assert_eq!(reader.summary().events, events.len() as u64);
    (events, error)
}

fn span() -> impl Strategy<Value = Span> {
    let pages =
        (0u64..1 << 40, 1u64..1 << 20).prop_map(|(page, pages)| Span { address: page << 12, length: pages << 12 });
    let bytes = (any::<u64>(), 1..=u64::MAX)
        .prop_map(|(address, length)| Span { address, length: length.min(u64::MAX - address).max(1) });
    prop_oneof![pages, bytes]
}

fn event() -> impl Strategy<Value = Event> {
    let spans = prop_oneof![
        4 => span().prop_map(|span| -> Spans { smallvec![span] }),
        1 => prop::collection::vec(span(), 1..6).prop_map(Spans::from_vec),
    ];
    let action = (0..4, spans).prop_map(|(kind, spans)| match kind {
        0 => Action::Request(spans),
        1 => Action::Acquire(spans),
        2 => Action::Release(spans),
        _ => Action::Invalidate(spans[0]),
    });
    let number = || prop_oneof![0u32..3, any::<u32>()];
    let time = prop_oneof![0u64..1000, any::<u64>()];
    (time, number(), number(), 0u8..32, action).prop_map(|(time, process, client, access, action)| Event {
        time,
        process,
        client,
        access: Access::from_bits_truncate(access),
        action,
    })
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    prop::collection::vec(event(), 0..40)
}

proptest! {
    #[test]
    fn binary_comes_back_as_it_was(events in events(), events_a_frame in 1usize..20) {
        let (back, error) = read(as_binary(&events, events_a_frame), CutShort::Refused);
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(back, events);
    }

    #[test]
    fn csv_comes_back_as_it_was(events in events()) {
        let (back, error) = read(as_csv(&events), CutShort::Refused);
        prop_assert!(error.is_none(), "{error:?}");
        prop_assert_eq!(back, events);
    }

    #[test]
    fn what_is_read_is_written_as_the_same_bytes(events in events()) {
        let (binary, text) = (as_binary(&events, 7), as_csv(&events));
        prop_assert_eq!(as_binary(&read(text.clone(), CutShort::Refused).0, 7), binary.clone());
        prop_assert_eq!(as_csv(&read(binary, CutShort::Refused).0), text);
    }

    #[test]
    fn a_changed_byte_of_a_binary_is_seen(events in events(), at in any::<prop::sample::Index>(), to in 1u8..=255) {
        let mut file = as_binary(&events, 5);
        let at = at.index(file.len());
        file[at] ^= to;
        let (back, error) = read(file, CutShort::Refused);
        prop_assert!(error.is_some(), "byte {at}");
        prop_assert!(events.starts_with(&back), "byte {at}");
    }

    #[test]
    fn noise_ends_with_an_error_or_as_nothing(noise in prop::collection::vec(any::<u8>(), 0..400), with_head in 0..3) {
        let mut file = match with_head {
            0 => Vec::new(),
            1 => Encoder::header().to_vec(),
            _ => as_csv(&[]),
        };
        file.extend(noise);
        let (back, error) = read(file, CutShort::Accepted);
        prop_assert!(error.is_some() || back.is_empty());
    }
}

fn sample() -> Vec<Event> {
    let event = |time, client, access, action| Event { time, process: 0, client, access, action };
    let span = |address, length| Span { address, length };
    vec![
        event(1200, 7, Access::LOCAL, Action::Acquire(smallvec![span(0x7f10_a200_0000, 65536)])),
        event(1350, 7, Access::LOCAL_READ, Action::Acquire(smallvec![span(0x7f10_a201_0000, 100), span(0x1001, 4096)])),
        event(1400, 9, Access::all(), Action::Request(smallvec![span(0x2000, 1)])),
        event(9800, 7, Access::LOCAL, Action::Release(smallvec![span(0x7f10_a200_0000, 65536)])),
        event(9900, 7, Access::empty(), Action::Invalidate(span(0x7f10_a200_0000, 1 << 20))),
    ]
}

#[test]
fn cut_at_any_byte_a_binary_is_read_up_to_there() {
    let events = sample();
    let file = as_binary(&events, 3);
    let mut most = 0;
    for length in 0..file.len() {
        let (back, error) = read(file[..length].to_vec(), CutShort::Refused);
        let message = error.unwrap_or_else(|| panic!("{length} bytes are not taken for whole")).to_string();
        assert!(message.contains("recording, "), "{message}");
        let (accepted, error) = read(file[..length].to_vec(), CutShort::Accepted);
        assert!(events.starts_with(&accepted) && accepted.starts_with(&back), "{length} bytes");
        // Frames are of three events here, and only those that are whole are proven.
        assert!(back.len().is_multiple_of(3) || back.len() == events.len(), "{length} bytes");
        assert!(accepted.len() >= most, "{length} bytes: nothing that is whole is lost");
        assert_eq!(error.is_some(), length < 16, "{length} bytes");
        most = accepted.len();
    }
    assert_eq!(most, events.len());
}

#[test]
fn cut_at_any_byte_a_csv_is_read_up_to_there() {
    let events = sample();
    let file = as_csv(&events);
    let head = format!("{}\n{}\n", csv::HEADER, csv::COLUMNS).len();
    for length in 0..file.len() {
        let (back, error) = read(file[..length].to_vec(), CutShort::Refused);
        assert!(events.starts_with(&back), "{length} bytes");
        // Between two events a text does not tell that it goes on.
        let lines = &file[head.min(length)..length];
        let between = length >= head && (lines.is_empty() || lines.ends_with(b"\n"));
        let within_group = back.len() == 1 && lines.iter().filter(|&&byte| byte == b'\n').count() == 2;
        assert_eq!(error.is_none(), between && !within_group, "{length} bytes: {error:?}");
    }
}

#[test]
fn a_damaged_length_makes_no_events_of_what_follows() {
    let span = |at: u64| Span { address: (at * 7919) << 12, length: (1 + at % 5) << (at % 30) };
    let event = |at| Event { time: at * 997, process: at as u32 % 3, ..Event::request(span(at), Access::LOCAL) };
    let events: Vec<Event> = (0..60).map(event).collect();
    for events_a_frame in 1..12 {
        let file = as_binary(&events, events_a_frame);
        let mut at = 16;
        while at < file.len() {
            let length = u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
            for bit in 0..32 {
                let mut file = file.clone();
                file[at + bit / 8] ^= 1 << (bit % 8);
                let (back, error) = read(file, CutShort::Refused);
                assert!(error.is_some() && events.starts_with(&back), "bit {bit} at {at}: {} events", back.len());
            }
            at += 8 + if length == 0 { 8 } else { length };
        }
    }
}

#[test]
fn a_lost_frame_is_missed() {
    let file = as_binary(&sample(), 1);
    let length = |at: usize| u32::from_le_bytes(file[at..at + 4].try_into().unwrap()) as usize;
    let second = 16 + 8 + length(16);
    let third = second + 8 + length(second);
    let without = [&file[..second], &file[third..]].concat();
    let message = read(without, CutShort::Accepted).1.unwrap().to_string();
    assert!(message.contains("5 events were written, 4 are there"), "{message}");
}

#[test]
fn an_event_takes_few_bytes() {
    let events: Vec<Event> = (0..1000)
        .map(|at| Event {
            time: at * 1500,
            ..Event::request(Span { address: (at * 7919) << 12, length: 8192 }, Access::LOCAL)
        })
        .collect();
    let bytes = as_binary(&events, usize::MAX).len();
    assert!(bytes < 8 * 1000, "{bytes} bytes for 1000 events");
    assert!(bytes * 5 < as_csv(&events).len());
}

#[test]
fn bad_lines_are_passed_over_with_their_group() {
    let bad = [
        "1,acquire,0,7,0x1000,4096",
        "1,acquire,0,7,0x1000,4096,r,r",
        "1,hold,0,7,0x1000,4096,r",
        "1,acquire,0,7,0x1000,0,r",
        "1,acquire,0,7,0xffffffffffffffff,2,r",
        "1,acquire,0,7,0x+10,4096,r",
        "-1,acquire,0,7,0x1000,4096,r",
        "1,acquire,0,4294967296,0x1000,4096,r",
        "1,acquire,0,7,0x1000,4096,x",
        "1,acquire,0,7,0x1000,18446744073709551616,r",
    ];
    for line in bad {
        let mut file = as_csv(&sample());
        file.extend(format!("{line}\n").bytes());
        file.extend_from_slice(b"1,acquire,0,7,8192,4096,r\n");
        let (back, error) = read(file, CutShort::Refused);
        assert!(error.is_none(), "{line}: {error:?}");
        assert_eq!(back.len(), sample().len() + 1, "{line}");
    }
    let mut file = as_csv(&sample());
    file.extend_from_slice(b"1,acquire+,0,7,0x1000,4096,r\n1,acquire+,0,7,0x1000,0,r\n1,acquire,0,7,0x1000,4096,r\n");
    file.extend_from_slice(b"1,invalidate+,0,7,0x1000,4096,-\n1,invalidate,0,7,0x9000,4096,-\n");
    assert_eq!(read(file, CutShort::Refused).0, sample());
    let mut file = as_csv(&[]);
    file.extend_from_slice(b"nothing\n");
    assert!(read(file, CutShort::Refused).1.is_some(), "a file without a good line is none of ours");
    let mut file = as_csv(&sample());
    file.extend(std::iter::repeat_n(b'x', 100_000));
    file.extend_from_slice(b"\n");
    assert_eq!(read(file, CutShort::Refused).0, sample(), "a line without end takes no memory");
}

#[test]
fn another_version_is_refused_with_a_remedy() {
    let mut file = as_binary(&sample(), 9);
    file[8] = 2;
    let message = read(file, CutShort::Accepted).1.unwrap().to_string();
    assert_eq!(
        message,
        "recording, byte 8: version 2 of the recording, only 1 is known; read it with a later version of this tool"
    );
    let file = b"# mrrc registrations 2\n".to_vec();
    let message = read(file, CutShort::Accepted).1.unwrap().to_string();
    assert!(message.starts_with("recording, line 1: `# mrrc registrations 1` expected"), "{message}");
}

#[test]
fn what_has_no_bytes_is_not_recorded() {
    for action in [
        Action::Request(Spans::new()),
        Action::Request(smallvec![Span { address: 1, length: 0 }]),
        Action::Release(smallvec![Span { address: u64::MAX, length: 2 }]),
    ] {
        let event = Event { action, ..Event::request(Span::default(), Access::LOCAL) };
        assert!(Encoder::default().push(&event).is_err());
        assert!(csv::write_event(&mut Vec::new(), &event).is_err());
    }
}
