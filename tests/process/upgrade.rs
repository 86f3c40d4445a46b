//! `agent upgrade` of a real agent that a service manager keeps alive. "Another version" is the same program with a few bytes behind
//! its end; what it does wrong is done to it from outside, except for programs that never become an agent, which are C.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde_json::Value;

use super::node::{Node, Running, pod, said};
use crate::support::agent::{PATIENCE, binary};
use crate::support::wait::{pause, wait_for, wait_until};

/// A service manager: starts the agent, and starts it again when it has ended.
const MANAGER: &str = r#"#!/bin/sh
here=$1; shift
trap 'kill -9 $child; exit 0' TERM
while :; do
	"$@" 2>>"$here/agent.log" & child=$!
	echo $child >"$here/pid.new" && mv "$here/pid.new" "$here/pid"
	wait $child
	sleep 0.3
done
"#;

/// Says what it is, as the real one does, and is nothing else.
const BROKEN: &str = r#"
#include <string.h>
#include <unistd.h>
int main(int count, char **words) {
	if (count > 2 && !strcmp(words[1], "upgrade") && !strcmp(words[2], "facts")) { execv(REAL, words); return 2; }
	if (HANGS) for (;;) pause();
	return 1;
}
"#;

/// The directory cannot be synced once the new program has its name.
const BAD_DISK: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
static int armed;
int rename(const char *from, const char *to) {
	int (*real)(const char *, const char *) = dlsym(RTLD_NEXT, "rename");
	int result = real(from, to);
	if (!result && strstr(from, "/.agent.new")) armed = 1;
	return result;
}
int fsync(int fd) {
	int (*real)(int) = dlsym(RTLD_NEXT, "fsync");
	struct stat facts;
	if (armed && !fstat(fd, &facts) && S_ISDIR(facts.st_mode)) { armed = 0; errno = EIO; return -1; }
	return real(fd);
}
"#;

/// A node whose agent is a file of its own, under a service manager.
struct Device {
    node: Node,
    manager: Child,
    program: PathBuf,
    neighbour: Running,
}

impl Device {
    fn new() -> Self {
        let node = Node::new();
        let here = node.scratch.dir("box");
        let program = here.join("agent");
        fs::copy(binary(), &program).expect("copy the agent");
        fs::write(here.join("manager"), MANAGER).expect("write the service manager");
        node.apply(&pod("neighbour"));
        let command = node.agent.command();
        let manager = Command::new("sh")
            .arg(here.join("manager"))
            .arg(&here)
            .arg(&program)
            .args(command.get_args())
            .stdin(Stdio::null())
            .spawn()
            .expect("start the service manager");
        let neighbour = node.running("neighbour");
        let node = Self { node, manager, program, neighbour };
        wait_until("the agent to say that the neighbour runs", PATIENCE, || {
            let pods = node.agent(&["get", "pods", "--root-dir", "/nowhere"]);
            said(&pods).contains("Running")
        });
        node
    }

    fn here(&self) -> &Path {
        self.program.parent().expect("it is in a directory")
    }

    /// A command of the installed program.
    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(arguments).arg("--socket").arg(self.node.agent.socket()).stdin(Stdio::null());
        command
    }

    fn agent(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().expect("run the agent")
    }

    fn upgrade_command(&self, arguments: &[&str]) -> Command {
        let restart = format!("kill $(cat {})", self.here().join("pid").display());
        let mut command = self.command(&["upgrade"]);
        command.args(arguments).arg("--root-dir").arg(self.node.agent.root_dir());
        command.args(["--restart-command", &restart, "-o", "json", "--window", "4s", "--timeout", "20s"]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    /// Runs `agent upgrade` to its end; its exit code, what it answers, what it says.
    fn upgrade(&self, arguments: &[&str]) -> (Option<i32>, Value, String) {
        let output = self.upgrade_command(arguments).output().expect("run agent upgrade");
        answered(&output)
    }

    /// A program that differs from the one that is there.
    fn other(&self, name: &str) -> PathBuf {
        let path = self.here().join(name);
        let mut bytes = fs::read(&self.program).expect("read the program");
        bytes.extend(name.as_bytes());
        fs::write(&path, bytes).expect("write another program");
        path
    }

    fn broken(&self, hangs: bool) -> PathBuf {
        let (source, path) = (self.here().join("broken.c"), self.here().join("broken"));
        let real = format!("#define REAL \"{}\"\n#define HANGS {}\n", binary().display(), u8::from(hangs));
        fs::write(&source, real + BROKEN).expect("write a program");
        let compiler = std::env::var_os("CC").unwrap_or_else(|| "cc".into());
        let output =
            Command::new(compiler).arg("-o").arg(&path).arg(&source).output().expect("run the C compiler");
        assert!(output.status.success(), "{}", said(&output));
        path
    }

    fn pid(&self) -> i32 {
        let text = fs::read_to_string(self.here().join("pid")).unwrap_or_default();
        text.trim().parse().expect("the service manager writes a process id")
    }

    /// The agent runs this file.
    fn runs(&self, program: &Path) -> bool {
        let identity = |path: &Path| fs::metadata(path).map(|file| (file.dev(), file.ino())).ok();
        let running = identity(Path::new(&format!("/proc/{}/exe", self.pid())));
        running.is_some() && running == identity(program)
    }

    /// The new program is in place, and the agent runs it.
    fn on_trial(&self) {
        let previous = self.here().join("agent.previous");
        wait_until("the new program to run", PATIENCE, || {
            previous.exists() && self.runs(&self.program) && !self.runs(&previous) && self.answers()
        });
    }

    fn answers(&self) -> bool {
        let status = self.agent(&["status", "-o", "json", "--exit-zero", "--root-dir", "/nowhere"]);
        let status: Value = serde_json::from_slice(&status.stdout).unwrap_or_default();
        status["pid"] == self.pid()
    }

    fn has_events(&self, reasons: &[&str]) {
        wait_for("the node's events", PATIENCE, || {
            let events = said(&self.agent(&["events", "-A"]));
            if reasons.iter().all(|reason| events.contains(reason)) { Ok(()) } else { Err(events) }
        });
    }

    /// The pod was not touched, and nothing lies about beside the program.
    fn is_as_before(&self, files: &[&str]) {
        self.node.keeps_running("neighbour", &self.neighbour);
        let names = fs::read_dir(self.here()).expect("list the directory").flatten();
        let mut names: Vec<String> =
            names.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
        names.retain(|name| name.contains("agent") && name != "agent.log");
        names.sort();
        assert_eq!(names, files);
    }
}

impl Drop for Device {
    fn drop(&mut self) {
        let pid = i32::try_from(self.manager.id()).expect("process ids are small");
        let _ = kill(Pid::from_raw(pid), Signal::SIGTERM);
        let _ = self.manager.wait();
    }
}

fn answered(output: &Output) -> (Option<i32>, Value, String) {
    let value = serde_json::from_slice(&output.stdout).unwrap_or_default();
    (output.status.code(), value, said(output))
}

fn text(path: &Path) -> String {
    path.display().to_string()
}

#[test]
fn a_good_program_stays_and_can_be_given_up_for_the_one_before() {
    let node = Device::new();
    let (old, new) = (fs::read(&node.program).unwrap(), node.other("new"));
    let (code, answer, all) = node.upgrade(&[&text(&new), "--allow-unsigned"]);
    assert_eq!((code, answer["phase"].as_str()), (Some(0), Some("Upgraded")), "{all}");
    assert!(all.contains("the signature of") && answer["containers"] == 1, "{all}");
    assert!(fs::read(&node.program).unwrap() == fs::read(&new).unwrap() && node.runs(&node.program));
    assert!(fs::read(node.here().join("agent.previous")).unwrap() == old);
    node.has_events(&["AgentUpgraded"]);
    node.is_as_before(&["agent", "agent.previous"]);

    let (code, _, all) = node.upgrade(&[&text(&new), "--allow-unsigned"]);
    assert_eq!(code, Some(0), "it is there already: {all}");
    let (code, answer, all) = node.upgrade(&["rollback"]);
    assert_eq!((code, answer["phase"].as_str()), (Some(0), Some("RolledBack")), "{all}");
    assert!(answer["reason"] == "requested" && node.runs(&node.program), "{all}");
    assert!(fs::read(&node.program).unwrap() == old);
    node.has_events(&["AgentUpgradeRolledBack"]);
    node.is_as_before(&["agent"]);
    let status = said(&node.agent(&["status", "--exit-zero", "--root-dir", "/nowhere"]));
    assert!(status.contains("Upgrade:") && status.contains("requested"), "{status}");
    let (code, _, all) = node.upgrade(&["rollback"]);
    assert!(code == Some(1) && all.contains("no upgrade to roll back"), "{all}");
}

#[test]
fn what_may_not_be_the_agent_changes_nothing() {
    let node = Device::new();
    let (old, new) = (fs::read(&node.program).unwrap(), node.other("new"));
    let refused = |arguments: &[&str], words: &str| {
        let (code, _, all) = node.upgrade(arguments);
        assert!(code == Some(1) && all.contains(words), "{arguments:?}: {all}");
        assert!(fs::read(&node.program).unwrap() == old);
        node.is_as_before(&["agent"]);
    };
    let key = node.here().join("key.pub");
    fs::write(&key, "untrusted comment: x\nRWT0eUA4PQKzHEJx9oGPrFYTaS7nZN/ibi4JKCIeJVvJDFxM4J/qZ9ju\n")
        .unwrap();
    refused(&[&text(&new)], "--allow-unsigned");
    refused(&[&text(&new), "--verify-key-file", &text(&key)], "new.minisig");
    let signature = node.here().join("new.minisig");
    // Of this key, over something else.
    fs::write(&signature, "untrusted comment: signature of a test\nRUT0eUA4PQKzHL3u/ndP2wAkjSTwJ2up1khHMUc/uibdftMkPcanPfZQxWZFsBDu2KjD80uIKge6DFljKm3uZWOScYENqNpC1gc=\ntrusted comment: fleet\n6de7Ayh3WRmiDZlCDTpF9NXDfnIfGl0rbDWp7dgAPm0+p9VctyFotbDI+Bm3hq2t04gXRwKA9Mfyzmc3QzboCg==\n").unwrap();
    refused(&[&text(&new), "--verify-key-file", &text(&key)], "does not match the content");
    let script = node.here().join("script");
    fs::write(&script, "#!/bin/sh\n").unwrap();
    refused(&[&text(&script), "--allow-unsigned"], "not a program for this machine");
    refused(&["/bin/true", "--allow-unsigned"], "does not report its version");
    refused(&["/bin/false", "--allow-unsigned"], "cannot be run on this machine");
    refused(&["/nowhere", "--allow-unsigned"], "/nowhere");
    let output = Command::new(binary())
        .args(["upgrade", &text(&new), "--allow-unsigned", "--socket"])
        .arg(node.node.agent.socket())
        .arg("--root-dir")
        .arg(node.node.agent.root_dir())
        .output()
        .unwrap();
    assert!(said(&output).contains("use that program to upgrade it"), "{}", said(&output));
    let (code, _, all) = node.upgrade(&[&text(&new), "--allow-unsigned", "--dry-run"]);
    assert_eq!(code, Some(0), "{all}");
    node.is_as_before(&["agent"]);
    let status = said(&node.agent(&["upgrade", "status", "--root-dir", &text(&node.node.agent.root_dir())]));
    assert!(status.contains("No upgrade has been recorded"), "{status}");
}

/// What somebody has put where the command writes, and files that are no programs.
#[test]
fn a_tampered_place_or_file_leaves_the_old_program() {
    let node = Device::new();
    let (old, new) = (fs::read(&node.program).unwrap(), node.other("new"));
    let victim = node.here().join("victim");
    fs::write(&victim, "untouched").unwrap();
    let refused = |file: &Path, words: &str| {
        let (code, _, all) = node.upgrade(&[&text(file), "--allow-unsigned"]);
        assert!(code == Some(1) && all.contains(words), "{}: {all}", file.display());
        assert!(fs::read(&node.program).unwrap() == old && node.runs(&node.program));
    };
    let whole = fs::read(&new).unwrap();
    for (name, length, words) in
        [("short", 4096, "cannot be run"), ("head", 30, "cannot be run"), ("none", 0, "not a program")]
    {
        let cut = node.here().join(name);
        fs::write(&cut, &whole[..length]).unwrap();
        refused(&cut, words);
    }
    let pipe = node.here().join("pipe");
    nix::unistd::mkfifo(&pipe, nix::sys::stat::Mode::S_IRWXU).unwrap();
    refused(&pipe, "not a regular file");
    let repeating = node.here().join("loop");
    std::os::unix::fs::symlink("loop", &repeating).unwrap();
    refused(&repeating, "loop");
    refused(Path::new("/dev/zero"), "not a regular file");
    refused(node.here(), "not a regular file");
    // A directory in the new program's place stops it; a link is replaced, and not followed.
    let staged = node.here().join(".agent.new");
    fs::create_dir(&staged).unwrap();
    refused(&new, ".agent.new");
    fs::remove_dir(&staged).unwrap();
    for name in [".agent.new", ".agent.kept", "agent.previous"] {
        std::os::unix::fs::symlink(&victim, node.here().join(name)).unwrap();
    }
    let (code, answer, all) = node.upgrade(&[&text(&new), "--allow-unsigned", "--window", "2s"]);
    assert_eq!((code, answer["phase"].as_str()), (Some(0), Some("Upgraded")), "{all}");
    assert!(fs::read(&node.program).unwrap() == whole && !node.program.is_symlink());
    let previous = node.here().join("agent.previous");
    assert!(fs::read(&previous).unwrap() == old && !previous.is_symlink());
    assert_eq!(fs::read_to_string(&victim).unwrap(), "untouched");
}

#[test]
fn a_disk_that_fails_at_the_last_step_leaves_the_old_program() {
    let node = Device::new();
    let (old, new) = (fs::read(&node.program).unwrap(), node.other("new"));
    let (source, shim) = (node.here().join("shim.c"), node.here().join("shim.so"));
    fs::write(&source, BAD_DISK).unwrap();
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).arg(&shim).arg(&source).arg("-ldl").output();
    assert!(made.as_ref().is_ok_and(|made| made.status.success()), "{made:?}");
    let mut command = node.upgrade_command(&[&text(&new), "--allow-unsigned"]);
    let (code, _, all) = answered(&command.env("LD_PRELOAD", &shim).output().unwrap());
    assert!(code == Some(1) && all.contains("install the program as"), "{all}");
    assert!(fs::read(&node.program).unwrap() == old, "the new one is there, unwatched");
    node.is_as_before(&["agent"]);
    let status = said(&node.agent(&["upgrade", "status", "--root-dir", &text(&node.node.agent.root_dir())]));
    assert!(status.contains("was kept"), "{status}");
}

#[test]
fn a_program_that_never_becomes_an_agent_is_given_up() {
    let node = Device::new();
    let old = fs::read(&node.program).unwrap();
    for hangs in [false, true] {
        let broken = node.broken(hangs);
        let (code, answer, all) = node.upgrade(&[&text(&broken), "--allow-unsigned", "--timeout", "15s"]);
        assert_eq!((code, answer["phase"].as_str()), (Some(3), Some("RolledBack")), "hangs: {hangs}: {all}");
        assert!(answer["reason"].as_str().unwrap_or_default().contains("not"), "{all}");
        assert!(fs::read(&node.program).unwrap() == old && node.runs(&node.program));
        node.has_events(&["AgentUpgradeRolledBack"]);
        node.is_as_before(&["agent"]);
    }
}

#[test]
fn a_program_that_dies_again_and_again_is_given_up() {
    let node = Device::new();
    let new = node.other("new");
    let watching =
        node.upgrade_command(&[&text(&new), "--allow-unsigned", "--window", "60s"]).spawn().unwrap();
    for _ in 0..3 {
        node.on_trial();
        // It has been seen in this life: looks are a second apart.
        pause(Duration::from_secs(3));
        kill(Pid::from_raw(node.pid()), Signal::SIGKILL).unwrap();
        wait_until("its next life", PATIENCE, || node.answers());
    }
    let (code, answer, all) = answered(&watching.wait_with_output().unwrap());
    assert_eq!((code, answer["phase"].as_str()), (Some(3), Some("RolledBack")), "{all}");
    assert_eq!(answer["reason"], "the agent started 4 times", "{all}");
    assert!(node.runs(&node.program));
    node.is_as_before(&["agent"]);
}

#[test]
fn a_program_under_which_a_pod_is_killed_is_given_up() {
    let mut node = Device::new();
    let new = node.other("new");
    let watching =
        node.upgrade_command(&[&text(&new), "--allow-unsigned", "--window", "60s"]).spawn().unwrap();
    node.on_trial();
    let id = node.neighbour.0.as_str().into();
    node.node.cri.change(|world, now| world.kill_container(&id, 137, now));
    let (code, answer, all) = answered(&watching.wait_with_output().unwrap());
    assert_eq!((code, answer["phase"].as_str()), (Some(3), Some("RolledBack")), "{all}");
    let reason = answer["reason"].as_str().unwrap_or_default();
    assert!(reason.contains("containers stopped running: default/neighbour-edge/main"), "{all}");
    node.neighbour = node.node.running_other_than("neighbour", Some(&node.neighbour));
    node.is_as_before(&["agent"]);
}

#[test]
fn a_watch_that_is_killed_together_with_the_agent_is_carried_on() {
    let node = Device::new();
    let new = node.other("new");
    let mut watching =
        node.upgrade_command(&[&text(&new), "--allow-unsigned", "--window", "60s"]).spawn().unwrap();
    node.on_trial();
    watching.kill().unwrap();
    watching.wait().unwrap();
    kill(Pid::from_raw(node.pid()), Signal::SIGKILL).unwrap();
    let (code, _, all) = node.upgrade(&[&text(&node.other("newer")), "--allow-unsigned"]);
    assert!(code == Some(1) && all.contains("in progress") && all.contains("agent upgrade watch"), "{all}");
    // The one that watches hears what another one asks for.
    let root = text(&node.node.agent.root_dir());
    let previous = node.here().join("agent.previous");
    let watch = Command::new(&previous)
        .args(["upgrade", "watch", "-o", "json", "--root-dir", &root])
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    wait_until("it to be watched", PATIENCE, || {
        fs::read_to_string(node.node.agent.root_dir().join("upgrade")).unwrap().contains("watches 2")
    });
    let (code, answer, all) = node.upgrade(&["rollback"]);
    assert_eq!((code, answer["phase"].as_str()), (Some(0), Some("RolledBack")), "{all}");
    let (code, answer, all) = answered(&watch.wait_with_output().unwrap());
    assert_eq!((code, answer["reason"].as_str()), (Some(0), Some("requested")), "{all}");
    assert!(node.runs(&node.program));
    node.is_as_before(&["agent"]);
}
