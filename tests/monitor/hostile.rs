//! Who speaks nonsense, too much, or nothing at all.

use std::fs;
use std::io;
use std::os::fd::{AsFd, OwnedFd};

use edge_agent::platform::sys::packets::{self, Descriptors};
use edge_agent::platform::sys::reactor::Polled;
use edge_agent::runtime::embedded::client::Streams;
use edge_agent::runtime::embedded::protocol::{Reply, Request, VERSION};

use super::fixture::{Pod, eventually, exec_spec, run};

fn open_files(pid: i32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}

async fn connect(pod: &Pod) -> OwnedFd {
    loop {
        match packets::connect(&pod.directory.socket()) {
            Ok(socket) => return socket,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => tokio::task::yield_now().await,
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn garbage_is_refused_and_leaves_nothing() {
    run(async {
        let pod = Pod::new().await;
        pod.start("one", "sleep 1000").await;
        let before = open_files(pod.pid);
        let file = fs::File::open("/dev/null").unwrap();
        let mut packet = Request::Watch.encode();
        packet[0] = VERSION + 1;
        for round in 0..200_usize {
            let socket = connect(&pod).await;
            let garbage: Vec<u8> = match round % 4 {
                0 => packet.clone(),
                1 => vec![0xff; round],
                2 => Request::Exec {
                    container: "one".into(),
                    stdin: true,
                    stdout: true,
                    stderr: true,
                    terminal: false,
                }
                .encode(),
                _ => [vec![VERSION, 99], vec![0; 6000]].concat(),
            };
            // Some bring descriptors nobody has asked for, or too few.
            let fds = [file.as_fd(); packets::MAX_DESCRIPTORS];
            packets::send(socket.as_fd(), &garbage, &fds[..round % 4]).unwrap();
            let polled = Polled::readable(socket).unwrap();
            let mut bytes = [0; 4096];
            let receive = |socket: std::os::fd::BorrowedFd<'_>, bytes: &mut [u8]| {
                packets::receive(socket, bytes, &mut Descriptors::default())
            };
            let length = polled.read_with(|socket| receive(socket, &mut bytes)).await.unwrap();
            if length > 0 {
                let reply = Reply::decode(&bytes[..length]).unwrap();
                assert!(matches!(reply, Reply::Failed { .. }), "{round}: {reply:?}");
            }
        }
        eventually("their descriptors to be closed", || open_files(pod.pid) <= before).await;
        let mut session = pod.monitor.exec("one", &exec_spec("exit 3"), Streams::default()).await.unwrap();
        assert_eq!(session.wait().await.unwrap().code, 3);
    });
}

#[test]
fn connections_that_say_nothing_make_room_for_those_that_do() {
    run(async {
        let pod = Pod::new().await;
        let before = open_files(pod.pid);
        // A connection that is refused is open until it has its answer.
        let most = before + 64 + 1;
        let mut silent = Vec::new();
        for _ in 0..200 {
            silent.push(connect(&pod).await);
        }
        pod.monitor.forget("x").await.unwrap();
        assert!(open_files(pod.pid) <= most);
        // Two hundred watches: those that fit stay, others are told so, and an answer is given all the same.
        let mut watches = Vec::new();
        for _ in 0..200 {
            watches.push(pod.monitor.watch().await);
        }
        assert!(open_files(pod.pid) <= most);
        drop((watches, silent));
        eventually("their descriptors to be closed", || open_files(pod.pid) <= before).await;
        pod.monitor.forget("x").await.unwrap();
    });
}

#[test]
fn watcher_that_never_reads_does_not_block_the_monitor() {
    run(async {
        let pod = Pod::new().await;
        let _deaf = pod.watch().await;
        for round in 0..300 {
            let id = format!("c{round}");
            pod.start(&id, "exit 0").await;
            pod.exited(&id).await;
            pod.monitor.forget(&id).await.unwrap();
        }
    });
}
