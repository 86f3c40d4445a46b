use std::io::Write;

use proptest::prelude::*;

use super::*;
use crate::model::api::pod::{ContainerStateRunning, ContainerStateTerminated, ContainerStateWaiting};
use crate::platform::testing::TempDir;
use crate::serve::server::body::Body;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn stamp(second: i64) -> String {
    Timestamp::from_secs(1_799_999_000 + second).to_rfc3339_nano()
}

/// Lines 0, 1, 2..., a second apart.
fn lines(count: i64) -> String {
    (0..count)
        .map(|number| format!("{} stdout F line {number}\n", stamp(number)))
        .collect::<Vec<_>>()
        .concat()
}

async fn read_all(path: &Path, options: &LogOptions) -> String {
    let (pieces, body) = Body::in_pieces();
    let Body::Pieces(mut received) = body else { unreachable!("made in pieces") };
    let log = open(path.to_owned(), options, NOW).await.unwrap();
    let send = log.send(pieces, async || true);
    let receive = async {
        let mut all = Vec::new();
        while let Some(piece) = received.recv().await {
            all.extend_from_slice(&piece.unwrap());
        }
        String::from_utf8(all).unwrap()
    };
    tokio::join!(send, receive).1
}

#[tokio::test]
async fn a_log_that_is_a_link_or_pipe_is_refused_without_waiting() {
    let directory = TempDir::new();
    let (target, link, pipe) = (directory.join("target"), directory.join("link"), directory.join("pipe"));
    std::fs::write(&target, lines(1)).unwrap();
    std::os::unix::fs::symlink(&target, &link).unwrap();
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    for path in [link, pipe, directory.join(".")] {
        let opened = open(path.clone(), &LogOptions::default(), NOW).await;
        assert!(opened.is_err(), "{}", path.display());
    }
    assert_eq!(read_all(&target, &LogOptions::default()).await, "line 0\n");
}

#[tokio::test]
async fn log_lines_lose_their_prefix_and_partial_lines_are_joined() {
    let directory = TempDir::new();
    let path = directory.join("0.log");
    let (one, two) = (stamp(1), stamp(2));
    let text = format!(
        "{one} stdout P half \n{one} stdout F and half\nno line of CRI\n{two} stderr F \n{two} stderr F:x tagged\n{two} stdin F no\n{two} stdout F torn"
    );
    std::fs::write(&path, text).unwrap();
    assert_eq!(read_all(&path, &LogOptions::default()).await, "half and half\n\ntagged\n");
    let stamped = LogOptions { timestamps: true, ..LogOptions::default() };
    assert_eq!(read_all(&path, &stamped).await, format!("{one} half and half\n{two} \n{two} tagged\n"));
}

#[tokio::test]
async fn only_the_end_only_the_new_and_only_so_much() {
    let directory = TempDir::new();
    let path = directory.join("0.log");
    std::fs::write(&path, lines(5_000)).unwrap();
    let of = async |options: LogOptions| read_all(&path, &options).await;
    let tail = |tail| LogOptions { tail: Some(tail), ..LogOptions::default() };
    assert_eq!(of(tail(2)).await, "line 4998\nline 4999\n");
    assert_eq!(of(tail(0)).await, "");
    assert_eq!(of(tail(3_000)).await.lines().next(), Some("line 2000"));
    assert_eq!(of(tail(6_000)).await.lines().count(), 5_000);
    let since_time = Timestamp::parse_rfc3339(&stamp(4_997));
    assert_eq!(
        of(LogOptions { since_time, ..LogOptions::default() }).await,
        "line 4997\nline 4998\nline 4999\n"
    );
    // NOW is second 1000 of this log.
    let since = Some(Duration::from_secs(990));
    assert!(of(LogOptions { since, ..LogOptions::default() }).await.starts_with("line 10\n"));
    let limit_bytes = Some(9);
    assert_eq!(of(LogOptions { limit_bytes, ..LogOptions::default() }).await, "line 0\nli");
    assert_eq!(of(LogOptions { limit_bytes: Some(7), ..LogOptions::default() }).await, "line 0\n");
}

#[tokio::test(start_paused = true)]
async fn log_follow_survives_rotation_and_ends_with_the_container() {
    let directory = TempDir::new();
    let path = directory.join("0.log");
    std::fs::write(&path, lines(1)).unwrap();
    let (pieces, Body::Pieces(mut received)) = Body::in_pieces() else { unreachable!("made in pieces") };
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let over = std::rc::Rc::new(std::cell::Cell::new(false));
    let ended = std::rc::Rc::clone(&over);
    let send = open(path.clone(), &options, NOW).await.unwrap().send(pieces, async move || ended.get());
    let append = |path: &Path, text: &str| {
        let mut file = File::options().append(true).create(true).open(path).unwrap();
        writeln!(file, "{} stdout F {text}", stamp(9)).unwrap();
    };
    let receive = async {
        let mut next =
            async || received.recv().await.map(|piece| String::from_utf8(piece.unwrap().to_vec()).unwrap());
        assert_eq!(next().await.as_deref(), Some("line 0\n"));
        append(&path, "more");
        assert_eq!(next().await.as_deref(), Some("more\n"));
        tokio::time::sleep(ASK_EVERY * 3).await;
        append(&path, "last of the old");
        std::fs::rename(&path, directory.join("0.log.old")).unwrap();
        append(&path, "first of the new");
        assert_eq!(next().await.as_deref(), Some("last of the old\n"));
        assert_eq!(next().await.as_deref(), Some("first of the new\n"));
        append(&path, "good bye");
        over.set(true);
        assert_eq!(next().await.as_deref(), Some("good bye\n"));
        assert_eq!(next().await, None);
    };
    tokio::join!(send, receive);
}

#[tokio::test(start_paused = true)]
async fn log_follow_ends_when_the_client_disconnects() {
    let directory = TempDir::new();
    let path = directory.join("0.log");
    std::fs::write(&path, "").unwrap();
    let (pieces, body) = Body::in_pieces();
    let options = LogOptions { follow: true, ..LogOptions::default() };
    let send = open(path.clone(), &options, NOW).await.unwrap().send(pieces, async || false);
    drop(body);
    tokio::time::timeout(ASK_EVERY, send).await.expect("it ends");
}

#[tokio::test]
async fn a_file_without_line_breaks_is_not_kept_in_memory() {
    let directory = TempDir::new();
    let path = directory.join("0.log");
    std::fs::write(&path, "x".repeat(5 << 20)).unwrap();
    let mut reading = Reading::open(&path, None).unwrap();
    let mut filter = Filter::new(&LogOptions::default(), NOW);
    while reading.next(&mut filter).unwrap() != ReadStep::End {
        assert!(reading.held.len() <= LONGEST_LINE + CHUNK);
    }
}

#[test]
fn a_long_log_of_which_nothing_is_wanted_is_read_in_turns() {
    let directory = TempDir::new();
    let path = directory.join("0.log");
    let length = CHUNK * CHUNKS_AT_ONCE * 3;
    let mut file = File::create(&path).unwrap();
    let line = lines(1);
    file.write_all(line.repeat(length / line.len() + 1).as_bytes()).unwrap();
    let mut reading = Reading::open(&path, None).unwrap();
    let mut filter = Filter::new(&LogOptions { since_time: Some(NOW), ..LogOptions::default() }, NOW);
    let turns =
        (0..100).take_while(|_| reading.next(&mut filter).unwrap() == ReadStep::On(Vec::new())).count();
    assert_eq!(turns, 3);
    assert!(!reading.has_grown());
    file.write_all(b"more").unwrap();
    assert!(reading.has_grown());
}

fn ended(id: &str) -> ContainerState {
    let terminated =
        ContainerStateTerminated { container_id: id.into(), ..ContainerStateTerminated::default() };
    ContainerState { terminated: Some(terminated), ..ContainerState::default() }
}

fn status(state: ContainerState, last_state: ContainerState) -> PodStatus {
    let app = ContainerStatus {
        name: "app".into(),
        container_id: "agent://now".into(),
        state,
        last_state,
        ..ContainerStatus::default()
    };
    PodStatus { container_statuses: vec![app], ..PodStatus::default() }
}

#[test]
fn the_instance_is_chosen_as_upstream_does() {
    let running =
        || ContainerState { running: Some(ContainerStateRunning::default()), ..ContainerState::default() };
    let waits = |reason: &str| {
        let waiting = ContainerStateWaiting { reason: reason.into(), ..ContainerStateWaiting::default() };
        ContainerState { waiting: Some(waiting), ..ContainerState::default() }
    };
    let of = |state, last, previous| {
        instance(&status(state, last), "web", "app", previous).map(|id| id.as_str().to_owned())
    };
    let none = ContainerState::default;
    assert_eq!(of(running(), none(), false).as_deref(), Ok("now"));
    assert_eq!(of(ended("agent://now"), ended("agent://before"), false).as_deref(), Ok("now"));
    assert_eq!(of(waits("CrashLoopBackOff"), ended("agent://before"), false).as_deref(), Ok("before"));
    assert_eq!(of(running(), ended("agent://before"), true).as_deref(), Ok("before"));
    let no = |state, last, previous| of(state, last, previous).unwrap_err();
    assert_eq!(no(running(), none(), true), "previous terminated container \"app\" in pod \"web\" not found");
    assert_eq!(
        no(waits("ContainerCreating"), none(), false),
        "container \"app\" in pod \"web\" is waiting to start: ContainerCreating"
    );
    assert!(no(waits("ErrImagePull"), none(), false).ends_with("is waiting to start: image can't be pulled"));
    let missing = instance(&status(running(), none()), "web", "other", false).unwrap_err();
    assert_eq!(missing, "container \"other\" in pod \"web\" is not available");
}

proptest! {
    #[test]
    fn the_end_of_any_file_begins_at_a_line(text in "[ab\n]{0,40}", wanted in 0_u64..8) {
        let directory = TempDir::new();
        let path = directory.join("log");
        std::fs::write(&path, &text).unwrap();
        let start = tail_start(&mut File::open(&path).unwrap(), wanted).unwrap();
        let rest = &text[usize::try_from(start).unwrap()..];
        let count = u64::try_from(text.lines().count()).unwrap();
        prop_assert_eq!(u64::try_from(rest.lines().count()).unwrap(), count.min(wanted));
    }

    #[test]
    fn no_line_makes_the_filter_panic(line in proptest::collection::vec(any::<u8>(), 0..60), limit in 1_u64..20) {
        let options = LogOptions { limit_bytes: Some(limit), timestamps: true, ..LogOptions::default() };
        let mut out = Vec::new();
        let _ = Filter::new(&options, NOW).add(&line, &mut out);
        prop_assert!(u64::try_from(out.len()).unwrap() <= limit);
    }
}
