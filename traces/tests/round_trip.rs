//! Written traces read back unchanged, in each form and by their content alone.

use mrrc_core::Access;
use traces::write::{self, Form};
use traces::{Event, ReadOptions, Reader, Span, Summary, TraceError};

/// Events from a list.
struct List(std::vec::IntoIter<Event>, Summary);

impl Iterator for List {
    type Item = Result<Event, TraceError>;

    fn next(&mut self) -> Option<Self::Item> {
        self.0.next().map(Ok)
    }
}

impl Reader for List {
    fn summary(&self) -> &Summary {
        &self.1
    }
}

fn events() -> Vec<Event> {
    let event = |n: u64| {
        let access = if n.is_multiple_of(3) { Access::LOCAL_WRITE } else { Access::LOCAL_READ };
        let span = Span { address: n * 7919 * 512 + n, length: n % 9000 + 1 };
        Event { time: n * 1001, client: 7 - n as u32 % 5, ..Event::request(span, access) }
    };
    (1..2000).map(event).collect()
}

fn round_trip(name: &str, form: Form) -> (Vec<Event>, String) {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(name);
    let mut list = List(events().into_iter(), Summary::new("a list"));
    write::copy(&mut list, write::create(&file, form).unwrap()).unwrap();
    let mut reader = traces::open(&file, &ReadOptions::default()).unwrap_or_else(|error| panic!("{error}"));
    let read = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!((reader.summary().skipped(), reader.summary().left_out()), (0, 0));
    (read, reader.summary().understood.clone())
}

#[test]
fn csv_keeps_times_clients_bytes_and_direction() {
    for name in ["t.csv", "t.csv.zst", "t.csv.gz"] {
        let (read, understood) = round_trip(name, Form::Csv);
        assert!(understood.starts_with("csv (by the names in its header)"), "{understood}");
        assert_eq!(read, events());
    }
}

#[test]
fn pages_keep_the_pages_that_bytes_touch() {
    let (read, _) = round_trip("t.csv", Form::Pages);
    let pages =
        |events: &[Event]| events.iter().map(|event| event.action.spans()[0].pages().unwrap()).collect::<Vec<_>>();
    assert_eq!(pages(&read), pages(&events()));
}

#[test]
fn recordings_keep_everything_in_both_forms() {
    for form in [Form::Registrations, Form::RegistrationsBinary] {
        let (read, understood) = round_trip("t", form);
        assert!(understood.starts_with("registrations"), "{understood}");
        assert_eq!(read, events());
    }
}

#[test]
fn the_golden_traces_are_pages() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("data/golden");
    let mut files = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            let lines = std::fs::read_to_string(&path).unwrap().lines().count();
            let mut reader = traces::open(&path, &ReadOptions::default()).unwrap();
            assert_eq!(reader.by_ref().map(Result::unwrap).count(), lines - 1);
            assert!(reader.summary().understood.starts_with("pages"));
            files += 1;
        }
    }
    assert_eq!(files, 4);
}
