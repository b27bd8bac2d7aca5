//! A file is there whole or not at all.

use mrrc_core::Access;
use smallvec::smallvec;
use std::fs;
use std::io::Read;
use std::path::Path;
use traces::write::{self, Form, Written};
use traces::{Action, Event, Span, TraceError};

fn events() -> Vec<Event> {
    let span = |address, length| Span { address, length };
    let of = |action, access| Event { time: 5, process: 1, client: 2, access, action };
    vec![
        of(Action::Request(smallvec![span(0xfff, 2)]), Access::LOCAL_READ),
        of(Action::Acquire(smallvec![span(0x5000, 4096), span(0x9000, 8192)]), Access::LOCAL),
        of(Action::Release(smallvec![span(0x5000, 4096), span(0x9000, 8192)]), Access::LOCAL),
        of(Action::Invalidate(span(0x5000, 4096)), Access::empty()),
    ]
}

fn write_all(file: &Path, form: Form) -> Result<Written, TraceError> {
    let mut writer = write::create(file, form)?;
    events().iter().try_for_each(|event| writer.write(event))?;
    writer.finish()
}

fn names(directory: &Path) -> Vec<String> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn every_form_is_compressed_as_its_name_says() {
    let directory = tempfile::tempdir().unwrap();
    for form in Form::ALL {
        let [plain, gzip, zstd, xz] = ["a", "a.gz", "a.zst", "a.xz"].map(|name| directory.path().join(name));
        for file in [&plain, &gzip, &zstd, &xz] {
            write_all(file, form).unwrap();
        }
        let plain = fs::read(plain).unwrap();
        let mut unzipped = Vec::new();
        flate2::read::GzDecoder::new(&fs::read(gzip).unwrap()[..]).read_to_end(&mut unzipped).unwrap();
        assert_eq!(unzipped, plain, "{form}");
        assert_eq!(zstd::decode_all(&fs::read(zstd).unwrap()[..]).unwrap(), plain, "{form}");
        let mut expanded = Vec::new();
        liblzma::read::XzDecoder::new(&fs::read(xz).unwrap()[..]).read_to_end(&mut expanded).unwrap();
        assert_eq!(expanded, plain, "{form}");
    }
    assert_eq!(names(directory.path()).len(), 4, "nothing else is left");
}

#[test]
fn tables_hold_requests_and_count_what_they_leave_out() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("out");
    let written = write_all(&file, Form::Pages).unwrap();
    assert_eq!(written, Written { events: 2, ranges: 3, left_out: 2 });
    assert_eq!(fs::read_to_string(&file).unwrap(), "start_page,pages\n0,2\n5,1\n9,2\n");
    write_all(&file, Form::Csv).unwrap();
    let expected = "time_ns,addr,len,op,client,process\n5,0xfff,2,r,2,1\n5,0x5000,4096,w,2,1\n5,0x9000,8192,w,2,1\n";
    assert_eq!(fs::read_to_string(&file).unwrap(), expected);
    let written = write_all(&file, Form::RegistrationsBinary).unwrap();
    assert_eq!(written, Written { events: 4, ranges: 6, left_out: 0 });
}

#[test]
fn tables_come_back() {
    let directory = tempfile::tempdir().unwrap();
    let asked = events().into_iter().take(2).flat_map(|event| {
        let spans = event.action.spans().to_vec();
        spans.into_iter().map(move |span| Event { action: Action::Request(smallvec![span]), ..event.clone() })
    });
    let asked: Vec<Event> = asked.collect();
    for (form, name) in [(Form::Csv, "a.csv.gz"), (Form::Pages, "a.zst")] {
        let file = directory.path().join(name);
        write_all(&file, form).unwrap();
        let back: Result<Vec<Event>, TraceError> =
            traces::open(&file, &traces::ReadOptions::default()).unwrap().collect();
        for (back, asked) in back.unwrap().iter().zip(&asked) {
            let spans = [back, asked].map(|event| event.action.spans()[0].pages().unwrap());
            assert_eq!(spans[0], spans[1], "{form}");
            if form == Form::Csv {
                assert_eq!(back.action, asked.action);
                assert_eq!((back.time, back.process), (asked.time, asked.process));
            }
        }
    }
}

#[test]
fn output_appears_only_when_complete() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("out.zst");
    fs::write(&file, "before").unwrap();
    for form in Form::ALL {
        let mut writer = write::create(&file, form).unwrap();
        events().iter().cycle().take(100_000).for_each(|event| writer.write(event).unwrap());
        assert_eq!(fs::read(&file).unwrap(), b"before");
        drop(writer);
        assert_eq!(names(directory.path()), ["out.zst"]);
        let mut writer = write::create(&file, form).unwrap();
        let error = writer.write(&Event::request(Span { address: 1, length: 0 }, Access::LOCAL)).unwrap_err();
        assert!(error.to_string().contains("out.zst, event 1: "), "{error}");
        drop(writer);
        assert_eq!(names(directory.path()), ["out.zst"]);
        assert_eq!(fs::read(&file).unwrap(), b"before");
    }
}

#[test]
fn what_cannot_be_made_is_named() {
    let error = write_all(Path::new("no/such/directory/x"), Form::Pages).unwrap_err().to_string();
    assert_eq!(error, "no/such/directory/x: create: there is no directory no/such/directory: make it");
    let directory = tempfile::tempdir().unwrap();
    let error = write_all(directory.path(), Form::Pages).unwrap_err().to_string();
    assert!(error.ends_with(": create: this is a directory; name a file in it"), "{error}");
    // Too long a name for the file, and for the temporary one.
    let long = directory.path().join("x".repeat(300));
    let error = write_all(&long, Form::Pages).unwrap_err().to_string();
    assert!(error.contains("too long") && !error.contains("at path"), "{error}");
}

#[cfg(unix)]
#[test]
fn links_stay_devices_stay_and_rights_are_the_usual() {
    use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
    let directory = tempfile::tempdir().unwrap();
    let [file, link, plain] = ["file", "link", "plain"].map(|name| directory.path().join(name));
    fs::write(&file, "").unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
    symlink(&file, &link).unwrap();
    write_all(&link, Form::Pages).unwrap();
    assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, 0o640);
    assert!(fs::metadata(&file).unwrap().len() > 0);
    fs::File::create(&plain).unwrap();
    let usual = fs::metadata(&plain).unwrap().mode();
    fs::remove_file(&plain).unwrap();
    write_all(&plain, Form::Pages).unwrap();
    assert_eq!(fs::metadata(&plain).unwrap().mode(), usual);
    write_all(Path::new("/dev/null"), Form::Pages).unwrap();
    assert!(fs::metadata("/dev/null").unwrap().file_type().is_char_device());
}

#[cfg(target_os = "linux")]
#[test]
fn a_full_device_is_an_error() {
    for form in Form::ALL {
        let error = write_all(Path::new("/dev/full"), form).unwrap_err().to_string();
        assert!(error.starts_with("/dev/full: write: "), "{error}");
    }
}
