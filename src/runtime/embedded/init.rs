//! From a bundle to a running program: what children of the monitor do between fork and exec.

#![expect(clippy::all, clippy::pedantic, missing_docs, reason = "stand-in until the branch with the real one is merged")]
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;

use super::layout::ContainerDir;
use super::spec::{Bundle, ExecSpec, PodSpec, Process};
use crate::api::decode::decode;
use crate::sys::{children, packets};

#[derive(Debug)]
pub enum Report { Pid(i32), Terminal(OwnedFd), Failed(String) }
impl Report {
    pub fn send(self, socket: BorrowedFd<'_>) {
        let _ = match &self {
            Self::Pid(pid) => packets::send(socket, format!("P{pid}").as_bytes(), &[]),
            Self::Terminal(fd) => packets::send(socket, b"T", &[fd.as_fd()]),
            Self::Failed(text) => packets::send(socket, format!("E{text}").as_bytes(), &[]),
        };
    }
    pub fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Report>> {
        let mut bytes = [0; 4096];
        let mut fds = packets::Descriptors::default();
        let n = packets::receive(socket, &mut bytes, &mut fds)?;
        let text = || String::from_utf8_lossy(&bytes[1..n]).into_owned();
        Ok(match bytes[..n].first() {
            None => None,
            Some(b'P') => Some(Self::Pid(text().parse().unwrap())),
            Some(b'T') => Some(Self::Terminal(fds[0].take().unwrap())),
            _ => Some(Self::Failed(text())),
        })
    }
}
#[derive(Debug, Default)]
pub struct PodHandles { pub init: Option<i32>, pub pids: Option<OwnedFd>, pub users: Option<OwnedFd> }
#[derive(Debug, thiserror::Error)]
#[error("no")]
pub struct InitError;
pub fn make_pod(_spec: &PodSpec) -> Result<PodHandles, InitError> { Ok(PodHandles::default()) }
fn run(process: &Process, report: OwnedFd) -> ! {
    Report::Pid(std::process::id() as i32).send(report.as_fd());
    let mut command = std::process::Command::new(&process.args[0]);
    command.args(&process.args[1..]);
    let error = command.exec();
    Report::Failed(error.to_string()).send(report.as_fd());
    std::process::abort()
}
pub fn container(dir: &ContainerDir, _pod: &PodHandles, report: OwnedFd) -> ! {
    let bundle: Bundle = decode(serde_json::from_slice(&std::fs::read(dir.bundle()).unwrap()).unwrap()).unwrap().object;
    run(&bundle.oci.process, report)
}
pub fn exec(spec: File, _target: i32, _pod: &PodHandles, report: OwnedFd) -> ! {
    let spec: ExecSpec = decode(serde_json::from_reader(spec).unwrap()).unwrap().object;
    run(&spec.process, report)
}
pub fn delete_external(_dir: &ContainerDir) -> ! { std::process::abort() }
fn _unused() { let _ = children::reap(); }
