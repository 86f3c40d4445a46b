//! What containers say, in their logs.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use super::fixture::{Pod, entries, eventually, run};

fn texts(log: &[(String, String, Vec<u8>)], stream: &str) -> Vec<u8> {
    let mut all = Vec::new();
    for (_, tag, text) in log.iter().filter(|(of, ..)| of == stream) {
        all.extend_from_slice(text);
        if tag == "F" {
            all.push(b'\n');
        }
    }
    all
}

#[test]
fn lines_of_both_streams_parts_and_binary_are_kept_as_they_were() {
    run(async {
        let pod = Pod::new().await;
        pod.run("one", r"echo out; echo err >&2; printf '\377\000\r\n'; printf 'no end'").await;
        let log = entries(&pod.log("one"));
        assert_eq!(texts(&log, "stdout"), b"out\n\xff\0\r\nno end");
        assert_eq!(texts(&log, "stderr"), b"err\n");
        // Which of two streams is read first is nobody's promise.
        let last = log.iter().rfind(|(stream, ..)| stream == "stdout");
        assert_eq!(last.map(|(_, tag, _)| tag.as_str()), Some("P"));
        let mode = fs::metadata(pod.log("one")).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o640);
    });
}

#[test]
fn megabyte_logs_with_one_or_many_lines_are_complete() {
    run(async {
        let pod = Pod::new().await;
        pod.run("long", "dd if=/dev/zero bs=1024 count=1024 2>/dev/null | tr '\\0' x; echo").await;
        let log = entries(&pod.log("long"));
        assert!(log.iter().all(|(_, _, text)| text.len() <= 16 * 1024));
        assert_eq!(log.len(), 64);
        let (last, parts) = log.split_last().unwrap();
        assert!(last.1 == "F" && parts.iter().all(|(_, tag, text)| tag == "P" && text.len() == 16 * 1024));
        let text = texts(&log, "stdout");
        assert!(text.len() == 1024 * 1024 + 1 && text[..1024 * 1024].iter().all(|byte| *byte == b'x'));

        pod.run("many", "seq 1 150000").await;
        let expected = (1..=150_000).map(|number| format!("{number}\n")).collect::<Vec<_>>().concat();
        let log = entries(&pod.log("many"));
        assert_eq!(log.len(), 150_000);
        assert!(texts(&log, "stdout") == expected.as_bytes());
    });
}

#[test]
fn after_a_rotation_the_new_file_is_written() {
    run(async {
        let pod = Pod::new().await;
        pod.start("one", "i=0; while :; do i=$((i+1)); echo line $i; sleep 0.01; done").await;
        let (log, old) = (pod.log("one"), pod.log("one").with_extension("old"));
        eventually("a few lines", || fs::metadata(&log).unwrap().size() > 300).await;
        fs::rename(&log, &old).unwrap();
        pod.monitor.reopen_log("one").await.unwrap();
        eventually("a few lines more", || fs::metadata(&log).unwrap().size() > 300).await;
        pod.monitor.signal("one", 9, true).await.unwrap();
        pod.exited("one").await;
        let all: Vec<u8> = [entries(&old), entries(&log)]
            .concat()
            .into_iter()
            .flat_map(|entry| {
                let mut text = entry.2;
                text.push(b'\n');
                text
            })
            .collect();
        let all = String::from_utf8(all).unwrap();
        let expected = (1..=all.lines().count()).map(|n| format!("line {n}\n")).collect::<Vec<_>>().concat();
        assert_eq!(all, expected, "no line is lost or doubled");
    });
}

#[test]
fn a_full_disk_stops_no_container() {
    run(async {
        let pod = Pod::new().await;
        let small = pod.scratch.dir("small");
        edge_agent::platform::sys::mount::mount_tmpfs(&small, Some(64 * 1024)).unwrap();
        let mut bundle =
            pod.bundle("one", "seq 1 100000; while [ ! -e /go ]; do sleep 0.05; done; echo after");
        bundle.log_path = small.join("0.log");
        fs::write(small.join("filler"), vec![0; 32 * 1024]).unwrap();
        let pid = pod.start_bundle("one", &bundle).await;
        // It gets to its loop though its log is full.
        eventually("it to be through", || {
            super::fixture::children_of(pid).iter().any(|(child, _)| {
                fs::read(format!("/proc/{child}/cmdline"))
                    .unwrap_or_default()
                    .starts_with(b"/bin/busybox\0sleep")
            })
        })
        .await;
        // Each answer comes after one more piece of what the pipe held: then nothing is on its way any more.
        for _ in 0..20 {
            pod.monitor.forget("nobody").await.unwrap();
        }
        fs::remove_file(small.join("filler")).unwrap();
        // Through the running container's own root: layers below a mounted overlay are not to be written.
        fs::write(std::path::Path::new(&format!("/proc/{pid}/root")).join("go"), "").unwrap();
        assert_eq!(pod.exited("one").await.code, 0);
        let log = entries(&small.join("0.log"));
        let lost = log.iter().filter(|(_, _, text)| text.ends_with(b"bytes of log lost")).count();
        edge_agent::platform::sys::mount::unmount(&small).unwrap();
        assert_eq!(lost, 1, "it is said once");
        assert_eq!(log.last().unwrap().2, b"after");
    });
}
