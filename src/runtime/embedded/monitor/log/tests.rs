use proptest::prelude::*;

use super::*;

/// The expected entries of a whole stream: lines, each in parts of `MAX_LINE`, the last of them tagged `F` if
/// a line break ends it. A line of exactly the limit is one entry.
fn model(stream: &[u8]) -> Vec<(Vec<u8>, bool)> {
    let mut entries = Vec::new();
    let mut lines: Vec<&[u8]> = stream.split(|byte| *byte == b'\n').collect();
    let rest = lines.pop().unwrap_or_default();
    for (line, ends) in lines.into_iter().map(|line| (line, true)).chain([(rest, false)]) {
        let mut parts: Vec<&[u8]> = line.chunks(MAX_LINE).collect();
        if ends && parts.is_empty() {
            parts.push(b"");
        }
        let last = parts.len();
        let tagged = parts.into_iter().zip(1..).map(|(part, number)| (part.to_vec(), ends && number == last));
        entries.extend(tagged);
    }
    entries
}

fn split(chunks: &[&[u8]]) -> Vec<(Vec<u8>, bool)> {
    let mut splitter = Splitter::default();
    let mut entries = Vec::new();
    for chunk in chunks {
        splitter.feed(chunk, |head, tail, ends| entries.push(([head, tail].concat(), ends)));
        assert!(splitter.pending.len() <= MAX_LINE && splitter.pending.capacity() <= 2 * MAX_LINE);
    }
    splitter.finish(|head, tail, ends| entries.push(([head, tail].concat(), ends)));
    entries
}

/// Pieces that meet the limits: short ones, line breaks, and runs about as long as an entry.
fn pieces() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let piece = prop_oneof![
        4 => proptest::collection::vec(prop_oneof![Just(b'\n'), Just(b'\r'), any::<u8>()], 0..40),
        1 => (MAX_LINE - 3..MAX_LINE + 4).prop_map(|length| vec![b'x'; length]),
        1 => Just(b"\n".to_vec()),
    ];
    proptest::collection::vec(piece, 0..8)
}

proptest! {
    #[test]
    fn however_a_stream_arrives_its_entries_are_those_of_the_whole(
        pieces in pieces(),
        size in 1_usize..MAX_LINE + 1,
    ) {
        let stream = pieces.concat();
        let expected = model(&stream);
        let by_piece: Vec<&[u8]> = pieces.iter().map(Vec::as_slice).collect();
        prop_assert_eq!(split(&by_piece), expected.clone());
        let by_size: Vec<&[u8]> = stream.chunks(size).collect();
        prop_assert_eq!(split(&by_size), expected);
    }

    #[test]
    fn times_are_those_of_the_calendar(nanos in 0_i64..i64::MAX) {
        let at = Timestamp::from_nanos(nanos);
        let text = String::from_utf8(format_time(at).to_vec()).unwrap();
        prop_assert_eq!(Timestamp::parse_rfc3339(&text), Some(at));
        prop_assert_eq!(text.len(), 30);
    }
}

fn directory(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("edge-agent-log-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&path);
    std::fs::create_dir_all(&path).unwrap();
    path
}

#[test]
fn entries_have_the_form_of_cri() {
    let directory = directory("form");
    let mut log = Log::open(Some(directory.join("0.log"))).unwrap();
    let mut entries = Entries::new();
    let at = Timestamp::from_nanos(1_795_168_800_120_000_000);
    let (mut out, mut err) = (Splitter::default(), Splitter::default());
    entries.chunk(&mut log, &mut out, LogStream::Stdout, at, b"one\ntw");
    entries.chunk(&mut log, &mut err, LogStream::Stderr, at, b"\xff\0\r\n");
    entries.chunk(&mut log, &mut out, LogStream::Stdout, at, b"o\n\nrest");
    entries.finish(&mut log, &mut out, LogStream::Stdout, at);
    entries.finish(&mut log, &mut err, LogStream::Stderr, at);
    let text = std::fs::read(directory.join("0.log")).unwrap();
    let expected: &[u8] = b"2026-11-20T10:00:00.120000000Z stdout F one\n\
        2026-11-20T10:00:00.120000000Z stderr F \xff\0\r\n\
        2026-11-20T10:00:00.120000000Z stdout F two\n\
        2026-11-20T10:00:00.120000000Z stdout F \n\
        2026-11-20T10:00:00.120000000Z stdout P rest\n";
    assert_eq!(String::from_utf8_lossy(&text), String::from_utf8_lossy(expected));
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn after_a_rotation_the_new_file_is_written() {
    let directory = directory("rotation");
    let (path, old) = (directory.join("0.log"), directory.join("0.log.1"));
    let mut log = Log::open(Some(path.clone())).unwrap();
    let (mut entries, mut out) = (Entries::new(), Splitter::default());
    let mut write = |log: &mut Log, text: &[u8]| {
        entries.chunk(log, &mut out, LogStream::Stdout, Timestamp::default(), text);
    };
    write(&mut log, b"one\n");
    std::fs::rename(&path, &old).unwrap();
    write(&mut log, b"two\n");
    log.reopen().unwrap();
    write(&mut log, b"three\n");
    // When a path cannot be opened, the old file stays open.
    std::fs::remove_file(&path).unwrap();
    std::os::unix::fs::symlink(&old, &path).unwrap();
    assert!(log.reopen().is_err());
    write(&mut log, b"four\n");
    assert_eq!(std::fs::read_to_string(&old).unwrap().lines().count(), 2);
    std::fs::remove_dir_all(&directory).unwrap();
}

#[test]
fn a_full_disk_loses_entries_and_says_so_when_there_is_room() {
    let directory = directory("full");
    crate::platform::sys::mount::mount_tmpfs(&directory, Some(64 * 1024)).unwrap();
    let (path, filler) = (directory.join("0.log"), directory.join("filler"));
    let mut log = Log::open(Some(path.clone())).unwrap();
    let (mut entries, mut out) = (Entries::new(), Splitter::default());
    let mut write = |text: &str| {
        entries.chunk(&mut log, &mut out, LogStream::Stdout, Timestamp::from_secs(1), text.as_bytes());
    };
    std::fs::write(&filler, vec![0; 40 * 1024]).unwrap();
    write("before\n");
    let line = format!("{}\n", "x".repeat(999));
    for _ in 0..200 {
        write(&line);
    }
    std::fs::remove_file(&filler).unwrap();
    write("after\n");
    write("later\n");
    let text = std::fs::read_to_string(&path).unwrap();
    crate::platform::sys::mount::unmount(&directory).unwrap();
    std::fs::remove_dir_all(&directory).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert!(lines[0].ends_with(" stdout F before"));
    assert!(lines.iter().all(|line| line.starts_with("1970-01-01T00:00:01.000000000Z std")), "{text}");
    let [.., note, after, later] = lines[..] else { panic!("three lines at least: {text}") };
    assert!(after.ends_with(" stdout F after") && later.ends_with(" stdout F later"), "{text}");
    let lost: usize = note
        .split_once("stderr F [agent] ")
        .and_then(|(_, rest)| rest.strip_suffix(" bytes of log lost")?.parse().ok())
        .unwrap_or_else(|| panic!("{note}"));
    assert_eq!(text.matches("bytes of log lost").count(), 1, "it is said once");
    let entry = line.len() + ENVELOPE - 1;
    let kept =
        lines.iter().map(|line| line.len() + 1).sum::<usize>() - note.len() - after.len() - later.len();
    let sent = 200 * entry + lines[0].len();
    assert!(kept + lost >= sent && kept + lost < sent + 100, "{kept} + {lost} of {sent}");
}

#[test]
fn without_a_path_nothing_is_written_and_nothing_kept() {
    let mut log = Log::open(None).unwrap();
    let (mut entries, mut out) = (Entries::new(), Splitter::default());
    entries.chunk(&mut log, &mut out, LogStream::Stdout, Timestamp::default(), b"gone\n");
    log.reopen().unwrap();
    assert!(entries.bytes.is_empty() && log.lost == 0);
}
