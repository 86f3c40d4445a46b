//! What a container must not be able to do, and what it must be able to do.

use super::*;
use crate::runtime::embedded::spec::{Rlimit, User};

fn status(outcome: &Outcome, name: &str) -> String {
    let line = outcome.output.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.unwrap_or_else(|| panic!("{name} in {outcome:?}")).trim().replace('\t', " ")
}

#[test]
fn users_groups_and_capabilities_are_exactly_as_asked() {
    let mut sample = Sample::new(
        "capabilities",
        "cat /proc/self/status; stat -c %u /proc/1/fd/1 2>&1; echo x >/dev/stdout",
    );
    let process = &mut sample.bundle.oci.process;
    process.user = User { uid: 1000, gid: 1001, additional_gids: vec![5, 7] };
    let (bind, chown) = (words(&["CAP_NET_BIND_SERVICE"]), words(&["CAP_NET_BIND_SERVICE", "CAP_CHOWN"]));
    process.capabilities = Capabilities {
        bounding: chown.clone(),
        permitted: chown,
        effective: bind.clone(),
        inheritable: bind.clone(),
        ambient: bind,
    };
    let outcome = sample.run();
    assert_eq!(
        (outcome.failed.as_deref(), outcome.code),
        (None, 0),
        "a pipe can be opened anew: {outcome:?}"
    );
    assert_eq!(status(&outcome, "Uid"), "1000 1000 1000 1000");
    assert_eq!(status(&outcome, "Gid"), "1001 1001 1001 1001");
    assert_eq!(status(&outcome, "Groups"), "5 7");
    assert_eq!(status(&outcome, "CapBnd"), "0000000000000401");
    // Programs without file capabilities have the ambient ones, and no more.
    for set in ["CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert_eq!(status(&outcome, set), "0000000000000400", "{set}");
    }
    assert_eq!(status(&outcome, "NoNewPrivs"), "1");
    assert_eq!(status(&outcome, "Umask"), "0022");
}

#[test]
fn root_without_capabilities_has_empty_capability_sets() {
    let mut sample = Sample::new("nothing", "cat /proc/self/status");
    sample.bundle.oci.process.capabilities = Capabilities::default();
    sample.bundle.oci.process.no_new_privileges = false;
    let outcome = sample.run();
    for set in ["CapBnd", "CapPrm", "CapEff", "CapInh", "CapAmb"] {
        assert_eq!(status(&outcome, set), "0000000000000000", "{set}");
    }
    assert_eq!(status(&outcome, "NoNewPrivs"), "0");
}

#[test]
fn seccomp_filter_loads_at_any_privilege_and_broken_one_fails() {
    // One instruction: return SECCOMP_RET_ALLOW.
    let mut allow = vec![6, 0, 0, 0];
    allow.extend(0x7fff_0000_u32.to_ne_bytes());
    for (no_new_privileges, uid) in [(true, 0), (true, 1000), (false, 0), (false, 1000)] {
        let mut sample = Sample::new(&format!("filter-{no_new_privileges}-{uid}"), "cat /proc/self/status");
        let path = sample.base.join("filter");
        std::fs::write(&path, &allow).unwrap();
        sample.bundle.seccomp_filter = Some(path.clone());
        sample.bundle.oci.process.no_new_privileges = no_new_privileges;
        sample.bundle.oci.process.user.uid = uid;
        let outcome = sample.run();
        assert_eq!(status(&outcome, "Seccomp"), "2", "{no_new_privileges} {uid}");
        for broken in [&[][..], &allow[..7], &allow.repeat(4097), &[255; 8]] {
            std::fs::write(&path, broken).unwrap();
            let failed = sample.run().failed.expect("it must not run without its filter");
            assert!(failed.starts_with("load the seccomp filter: Invalid argument"), "{failed}");
        }
    }
}

#[test]
fn an_exec_is_confined_like_its_container() {
    let sample = Sample::new("exec-confined", "sleep 100");
    let running = sample.start();
    let mut process =
        default_process("cat /proc/self/status; touch /proc/sys/kernel/hostname; cat /proc/keys");
    process.capabilities = Capabilities::default();
    process.user.uid = 12;
    let outcome = run_exec(&running, &PodHandles::default(), process);
    assert_eq!(status(&outcome, "CapBnd"), "0000000000000000");
    assert_eq!(status(&outcome, "Uid"), "12 12 12 12");
    assert_eq!(status(&outcome, "NoNewPrivs"), "1");
    assert!(outcome.output.contains("Read-only file system"), "{}", outcome.output);
    crate::platform::sys::kill::kill_process(running.pid).unwrap();
    running.end();
}

#[test]
fn what_the_kernel_tells_and_takes_is_masked_or_read_only() {
    let script = "cat /proc/keys; ls /sys/firmware; touch /sys/firmware/x; echo x >/proc/sys/kernel/domainname; \
                  echo b >/proc/sysrq-trigger; touch /sys/fs/cgroup/x; echo 1 >/sys/fs/cgroup/memory/memory.limit_in_bytes; \
                  mount -o remount,rw /proc/sys; umount /proc/keys; stat -c %t:%T /proc/keys";
    let outcome = Sample::new("masks", script).run();
    let errors = outcome.output.lines().filter(|line| line.contains("Read-only file system")).count();
    assert!(errors >= 4, "{}", outcome.output);
    assert!(outcome.output.ends_with("1:3\n"), "the mask is the null device, still: {}", outcome.output);
    for line in outcome.output.lines() {
        assert!(line.contains(':'), "nothing is readable: {line}");
    }
}

#[test]
fn read_only_rootfs_keeps_the_options_of_its_mounts() {
    let mut sample = Sample::new("readonly", "touch /x; touch /dev/x && echo dev; touch /ro/x; ls /ro/below");
    sample.bundle.oci.root.readonly = true;
    sample.bundle.oci.mounts.push(mount("tmpfs", "/ro", "tmpfs", &["ro"]));
    sample.bundle.oci.mounts.push(mount("tmpfs", "/ro/below/deep", "tmpfs", &["mode=700"]));
    let outcome = sample.run();
    assert_eq!(
        outcome.output, "touch: /x: Read-only file system\ndev\ntouch: /ro/x: Read-only file system\ndeep\n",
        "{:?}",
        outcome.failed
    );
}

#[test]
fn limits_are_set_and_what_may_not_be_raised_is_clamped() {
    let mut sample = Sample::new("limits", "ulimit -n; ulimit -Hn; ulimit -c");
    let limit = |kind: &str, soft, hard| Rlimit { kind: kind.to_owned(), soft, hard };
    sample.bundle.oci.process.rlimits =
        vec![limit("RLIMIT_NOFILE", 100, 200), limit("RLIMIT_CORE", 0, u64::MAX)];
    let outcome = sample.run();
    assert_eq!(outcome.output, "100\n200\n0\n", "{:?}", outcome.failed);
    sample.bundle.oci.process.rlimits = vec![limit("RLIMIT_NONE", 1, 1)];
    assert!(sample.run().failed.unwrap().starts_with("set limit RLIMIT_NONE"));
}

#[test]
fn unpermitted_low_oom_score_adj_is_clamped() {
    let mut sample = Sample::new("oom", "cat /proc/self/oom_score_adj");
    sample.bundle.oci.process.oom_score_adj = Some(777);
    assert_eq!(sample.run().output, "777\n");
    sample.bundle.oci.process.oom_score_adj = Some(-999);
    let outcome = sample.run();
    assert_eq!(outcome.failed, None);
    let own = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
    assert!(outcome.output == "-999\n" || outcome.output == own, "{}", outcome.output);
}

#[test]
fn no_descriptor_but_the_three_streams_reaches_the_program() {
    let marker = File::open("/etc").unwrap();
    let leaked = clone::leak(marker.as_fd());
    assert!(leaked > 2);
    // The shell's own descriptors are listed by a builtin, so that only its are seen.
    let outcome = Sample::new("leak", "echo /proc/$$/fd/*").run();
    // The fourth is the shell's, for reading the directory.
    let seen: Vec<_> =
        outcome.output.split_whitespace().map(|path| path.rsplit('/').next().unwrap()).collect();
    assert!(seen.iter().all(|fd| ["0", "1", "2", "3", "10"].contains(fd)), "{seen:?}");
    assert!(!seen.contains(&leaked.to_string().as_str()));
}
