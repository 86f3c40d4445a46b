//! A container works as specified.

use std::os::unix::fs::MetadataExt;

use super::*;
use crate::platform::sys::kill::kill_process;
use crate::runtime::embedded::spec::ConsoleSize;

#[test]
fn a_container_has_its_own_view_of_the_machine() {
    let sample = Sample::new(
        "view",
        "echo $$; ls /; mount; echo $HOME; pwd; stat -c %a-%t:%T /dev/null; readlink /dev/ptmx",
    );
    let outcome = sample.run();
    assert_eq!((outcome.failed.as_deref(), outcome.code), (None, 0), "{}", outcome.output);
    let (first, rest) = outcome.output.split_once('\n').unwrap();
    assert_eq!(first, "1", "it is the first process of its PID namespace");
    for line in [
        "proc on /proc type proc (rw,nosuid,nodev,noexec,relatime)",
        "tmpfs on /dev type tmpfs (rw,nosuid,size=65536k,mode=755",
        "devpts on /dev/pts type devpts (rw,nosuid,noexec,relatime,gid=5,mode=620,ptmxmode=666)",
        "mqueue on /dev/mqueue type mqueue (rw,nosuid,nodev,noexec,relatime)",
        "sysfs on /sys type sysfs (ro,nosuid,nodev,noexec,relatime)",
        "proc on /proc/sys type proc (ro,nosuid,nodev,noexec,relatime)",
        "666-1:3",
        "pts/ptmx",
    ] {
        assert!(rest.contains(line), "{line}\n{rest}");
    }
    assert!(rest.starts_with("bin\ndev\netc\nproc\nsys\ntmp\n"), "{rest}");
    assert!(!rest.lines().any(|line| line.contains(" on /etc") || line.contains("ext4")), "{rest}");
    assert!(rest.contains("\n/\n/\n"), "home and working directory: {rest}");
    assert_eq!(
        std::fs::read_dir(sample.base.join("container/rootfs")).unwrap().count(),
        0,
        "nothing is mounted outside"
    );
}

#[test]
fn namespaces_are_the_containers_own() {
    let kinds = ["pid", "ipc", "uts", "mnt", "net"];
    let script = kinds.map(|kind| format!("readlink /proc/self/ns/{kind};")).join(" ");
    let inside = Sample::new("namespaces", &script).run();
    let here =
        |kind: &str| std::fs::read_link(format!("/proc/self/ns/{kind}")).unwrap().display().to_string();
    for (kind, seen) in kinds.iter().zip(inside.output.lines()) {
        assert_ne!(seen, here(kind), "{kind}");
    }
    let mut sample =
        Sample::new("namespaces-node", "readlink /proc/self/ns/pid; readlink /proc/self/ns/cgroup");
    sample.bundle.oci.linux.namespaces = own_namespaces(&["mount", "cgroup"]);
    let inside = sample.run();
    let seen: Vec<_> = inside.output.lines().collect();
    assert_eq!(seen[0], here("pid"), "absent kinds are the node's");
    assert_ne!(seen[1], here("cgroup"));
}

#[test]
fn an_exec_sees_the_container_and_nothing_else() {
    let sample = Sample::new("exec", "echo secret >/tmp/file; sleep 100");
    let running = sample.start();
    assert_eq!(running.failed, None);
    let leaked = clone::leak(running.output.as_fd());
    let script = "while ! [ -s /tmp/file ]; do :; done; cat /tmp/file; readlink /proc/1/ns/net; readlink /proc/self/ns/net; ps; ls -l /proc/self/fd";
    let outcome = run_exec(&running, &PodHandles::default(), default_process(script));
    assert_eq!((outcome.failed.as_deref(), outcome.code), (None, 0), "{}", outcome.output);
    let lines: Vec<_> = outcome.output.lines().collect();
    assert_eq!(lines[0], "secret");
    assert_eq!(lines[1], lines[2]);
    assert!(outcome.output.contains("1 0        sleep 100"), "{}", outcome.output);
    assert!(!outcome.output.contains(&format!(" {leaked} ->")), "{}", outcome.output);
    let missing = run_exec(
        &running,
        &PodHandles::default(),
        Process { args: words(&["nothing"]), ..default_process("") },
    );
    assert_eq!(missing.failed.as_deref(), Some("exec: \"nothing\": executable file not found in $PATH"));
    kill_process(running.pid).unwrap();
    assert_eq!(running.end().code, 137);
}

#[test]
fn exit_codes_and_signals_are_the_programs() {
    assert_eq!(Sample::new("code", "exit 7").run().code, 7);
    let mut sample = Sample::new("signal", "kill -TERM $$; exit 3");
    // The first process of a namespace would not be ended by a signal it sends to itself.
    sample.bundle.oci.linux.namespaces.retain(|namespace| namespace.kind != "pid");
    assert_eq!(sample.run().code, 128 + 15);
}

#[test]
fn signals_are_as_a_new_program_expects_them() {
    let outcome = Sample::new("signals", "grep Sig /proc/1/status").run();
    let line = |name: &str| {
        outcome.output.lines().find_map(|line| line.strip_prefix(name)).unwrap().trim().to_owned()
    };
    assert_eq!(line("SigBlk:"), "0000000000000000");
    // At most the shell's own: signals that the agent or the test runner ignores are not inherited.
    let ignored = u64::from_str_radix(&line("SigIgn:"), 16).unwrap();
    assert_eq!(ignored & (1 << 12 | 1 << 31 | 1 << 32 | 1), 0, "{ignored:x}");
}

#[test]
fn unstartable_program_is_reported_like_runc_does() {
    for (name, args, expected) in [
        ("missing", &["nope"][..], "exec: \"nope\": executable file not found in $PATH"),
        ("path", &["/bin/nope"], "exec: \"/bin/nope\": stat /bin/nope: no such file or directory"),
        ("directory", &["/tmp"], "exec: \"/tmp\": is a directory"),
        ("mode", &["/etc/text"], "exec: \"/etc/text\": permission denied"),
        ("format", &["/etc/script"], "exec: \"/etc/script\": exec /etc/script: exec format error"),
        (
            "interpreter",
            &["/etc/orphan"],
            "exec: \"/etc/orphan\": exec /etc/orphan: no such file or directory",
        ),
        ("none", &[], "process.args: no command specified"),
        ("self", &["/proc/self/exe"], "exec: \"/proc/self/exe\": permission denied"),
        ("fd", &["/proc/self/fd/0"], "exec: \"/proc/self/fd/0\": permission denied"),
    ] {
        use std::os::unix::fs::PermissionsExt;
        let mut sample = Sample::new(&format!("program-{name}"), "");
        for (file, content, mode) in
            [("text", "", 0o644), ("script", "no program", 0o755), ("orphan", "#!/nowhere\n", 0o755)]
        {
            let path = sample.layer().join("etc").join(file);
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        sample.bundle.oci.process.args = words(args);
        let outcome = sample.run();
        assert_eq!(outcome.failed.as_deref(), Some(expected));
        assert_ne!(outcome.code, 0);
    }
}

#[test]
fn home_comes_from_passwd_and_working_directory_is_created() {
    let mut sample = Sample::new("home", "echo $HOME; pwd; stat -c %u:%a .");
    std::fs::write(sample.layer().join("etc/passwd"), "web:x:33:33::/var/www:/bin/sh\n").unwrap();
    sample.bundle.oci.process.user.uid = 33;
    sample.bundle.oci.process.cwd = "/srv/made".to_owned();
    let outcome = sample.run();
    assert_eq!(outcome.output, "/var/www\n/srv/made\n0:755\n", "{:?}", outcome.failed);
    // A directory that `..` leaves again is made, too; a link before it is followed.
    std::os::unix::fs::symlink("/etc", sample.layer().join("link")).unwrap();
    for (written, meant) in [
        ("/missing/../back", "/back"),
        ("/missing/deep/../../srv/./again/", "/srv/again"),
        ("/link/../beside", "/beside"),
        ("/../top", "/top"),
    ] {
        sample.bundle.oci.process.cwd = written.to_owned();
        let outcome = sample.run();
        assert!(
            outcome.output.contains(&format!("\n{meant}\n0:755\n")),
            "{written}: {} {:?}",
            outcome.output,
            outcome.failed
        );
    }
    sample.bundle.oci.process.cwd = "/srv/made".to_owned();
    sample.bundle.oci.process.env.push("HOME=/given".to_owned());
    assert!(sample.run().output.starts_with("/given\n"));
}

#[test]
fn a_terminal_is_the_containers_own_and_its_master_arrives() {
    let mut sample = Sample::new(
        "terminal",
        "tty; stat -c %t:%T:%u /dev/console; stat -c %u:%g /dev/pts/0; stty size; test -t 0 && echo input",
    );
    std::os::unix::fs::symlink("busybox", sample.layer().join("bin/stty")).unwrap();
    sample.bundle.oci.process.terminal = true;
    sample.bundle.oci.process.console_size = Some(ConsoleSize { height: 33, width: 101 });
    sample.bundle.oci.process.user.uid = 7;
    let mut running = sample.start();
    assert_eq!(running.failed, None);
    let mut master = File::from(running.terminal.take().expect("a terminal was asked for"));
    let mut output = Vec::new();
    // The end of a terminal is reported as an error.
    let _ = master.read_to_end(&mut output);
    let output = String::from_utf8(output).unwrap().replace('\r', "");
    assert_eq!(output, "/dev/pts/0\n88:0:7\n7:5\n33 101\ninput\n");
    assert_eq!(running.end().code, 0);
}

#[test]
fn an_exec_gets_a_terminal_of_the_containers_devpts() {
    let sample = Sample::new("exec-terminal", "sleep 100");
    let running = sample.start();
    let process = Process { terminal: true, ..default_process("tty; test -c /dev/pts/0 && echo there") };
    let mut session = start_exec(&running, &PodHandles::default(), process);
    assert_eq!(session.failed, None);
    let mut output = Vec::new();
    let _ = File::from(session.terminal.take().unwrap()).read_to_end(&mut output);
    assert_eq!(String::from_utf8(output).unwrap().replace('\r', ""), "/dev/pts/0\nthere\n");
    assert_eq!(session.end().code, 0);
    kill_process(running.pid).unwrap();
    running.end();
}

#[test]
fn changes_go_to_the_upper_layer_alone() {
    let sample = Sample::new("upper", "echo new >/etc/new; rm /bin/tty");
    std::os::unix::fs::symlink("busybox", sample.layer().join("bin/rm")).unwrap();
    assert_eq!(sample.run().code, 0);
    assert_eq!(std::fs::read_to_string(sample.base.join("upper/etc/new")).unwrap(), "new\n");
    assert!(sample.layer().join("bin/tty").symlink_metadata().is_ok());
    assert_eq!(std::fs::metadata(sample.base.join("upper")).unwrap().uid(), 0);
}
