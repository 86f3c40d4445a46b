//! Settings about the machine itself: swap, cgroup v1, kernel parameters, the cgroups of the agent and of the system's
//! processes, FlexVolume drivers.
//!
//! Owns the checks at start.

use std::fs;
use std::path::{Path, PathBuf};

use crate::agent::config::{KubeletConfiguration, Resolved};
use crate::agent::kubelet::setup::{SetupError, configs};
use crate::platform::cgroup::container::make_leaf;
use crate::platform::sys::node;

/// Kernel parameters and the values that the kubelet wants (upstream: `setupKernelTunables`).
const KERNEL_PARAMETERS: [(&str, &str); 6] = [
    ("kernel/keys/root_maxbytes", "25000000"),
    ("kernel/keys/root_maxkeys", "1000000"),
    ("kernel/panic", "10"),
    ("kernel/panic_on_oops", "1"),
    ("vm/overcommit_memory", "1"),
    ("vm/panic_on_oom", "0"),
];

/// As the kubelet words it: operators search for these sentences.
const CGROUP_V1: &str = "kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is unsupported and \
     will be removed in a future release";
const SINGLE_OOM_KILL: &str =
    "singleProcessOOMKill must not be explicitly set to false when using cgroup v1; remove it";
const LIMITED_SWAP: &str = "memorySwap.swapBehavior: swap feature is enabled and LimitedSwap but it is only supported \
     with cgroupv2; set NoSwap";
const SWAP_ON: &str = "running with swap on is not supported, please disable swap or set --fail-swap-on flag to false. /proc/swaps contained";

/// Checks the machine, and puts it into the state that the configuration asks for.
///
/// # Errors
/// The machine is not as the configuration demands.
pub(super) fn prepare(resolved: &Resolved) -> Result<(), SetupError> {
    let kubelet = &resolved.kubelet;
    check_host(kubelet, node::cgroup_v2(), &fs::read_to_string("/proc/swaps").unwrap_or_default())
        .map_err(SetupError::Host)?;
    tune(Path::new("/proc/sys"), kubelet.protect_kernel_defaults).map_err(SetupError::Host)?;
    join_cgroups(kubelet);
    for driver in flex_volume_drivers(Path::new(&kubelet.volume_plugin_dir)) {
        log::warn!(path = driver.display().to_string(); "FlexVolume driver is not used: pods with flexVolume are refused; \
             use a CSI driver");
    }
    Ok(())
}

fn check_host(kubelet: &KubeletConfiguration, cgroup_v2: bool, swaps: &str) -> Result<(), String> {
    if kubelet.fail_cgroup_v1 && !cgroup_v2 {
        return Err(CGROUP_V1.to_owned());
    }
    if !cgroup_v2 && kubelet.single_process_oom_kill == Some(false) {
        return Err(SINGLE_OOM_KILL.to_owned());
    }
    if !cgroup_v2 && kubelet.memory_swap_swap_behavior == "LimitedSwap" {
        return Err(LIMITED_SWAP.to_owned());
    }
    // The first line is the header; swap in memory does not count (upstream).
    let is_tmpfs = |line: &&str| line.split_whitespace().nth(1) == Some("tmpfs");
    let devices: Vec<&str> =
        swaps.lines().skip(1).filter(|line| !line.is_empty() && !is_tmpfs(line)).collect();
    if kubelet.fail_swap_on && !devices.is_empty() {
        return Err(format!("{SWAP_ON}: {}", devices.join("; ")));
    }
    Ok(())
}

/// Sets the kernel parameters, or checks them if they are protected. One that this kernel does not have is left out.
fn tune(root: &Path, protected: bool) -> Result<(), String> {
    let mut wrong = Vec::new();
    for (name, wanted) in KERNEL_PARAMETERS {
        let file = root.join(name);
        let Ok(found) = fs::read_to_string(&file) else { continue };
        let (found, flag) = (found.trim(), name.replace('/', "."));
        if found == wanted {
            continue;
        }
        if protected {
            wrong.push(format!(
                "invalid kernel flag: {flag}, expected value: {wanted}, actual value: {found}"
            ));
            continue;
        }
        match fs::write(&file, wanted) {
            Ok(()) => log::info!(flag = flag, expected = wanted, actual = found; "Updating kernel flag"),
            Err(error) => {
                log::warn!(flag = flag, expected = wanted, actual = found, err:% = error; "Failed to set kernel flag, \
                     continuing");
            }
        }
    }
    if wrong.is_empty() { Ok(()) } else { Err(format!("protectKernelDefaults: {}", wrong.join(", "))) }
}

/// `kubeletCgroups` and `systemCgroups`: this process, and the processes of the root cgroup, each go into their cgroup.
fn join_cgroups(kubelet: &KubeletConfiguration) {
    let own = [std::process::id()];
    let system = if kubelet.system_cgroups.is_empty() { Vec::new() } else { root_processes() };
    let wanted = [
        ("kubeletCgroups", &kubelet.kubelet_cgroups, &own[..]),
        ("systemCgroups", &kubelet.system_cgroups, &system),
    ];
    for (setting, cgroup, processes) in wanted {
        if cgroup.is_empty() {
            continue;
        }
        if let Err(error) = join(kubelet, cgroup, processes) {
            log::warn!(setting = setting, cgroup = cgroup, err = error; "Failed to move processes to cgroup, continuing");
        }
    }
}

fn join(kubelet: &KubeletConfiguration, cgroup: &str, processes: &[u32]) -> Result<(), String> {
    let (_, config) = configs::cgroups(kubelet);
    let path = Path::new(cgroup.trim_matches('/'));
    let parent = path.parent().map(|parent| parent.display().to_string()).unwrap_or_default();
    let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    let made = make_leaf(&config, &format!("/{parent}"), name).map_err(|error| error.to_string())?;
    for directory in made.dirs {
        let file = directory.join("cgroup.procs");
        for process in processes {
            // A process may end meanwhile.
            match fs::write(&file, process.to_string()) {
                Err(error) if Path::new(&format!("/proc/{process}")).exists() => {
                    return Err(format!("{}: {error}", file.display()));
                }
                _ => {}
            }
        }
    }
    Ok(())
}

/// The processes of the root cgroup but the first (upstream), as far as they have a program: threads of the kernel have
/// none.
fn root_processes() -> Vec<u32> {
    let files = ["/sys/fs/cgroup/cgroup.procs", "/sys/fs/cgroup/memory/cgroup.procs"];
    let Some(text) = files.iter().find_map(|file| fs::read_to_string(file).ok()) else { return Vec::new() };
    let processes = text.lines().filter_map(|line| line.parse().ok());
    let processes = processes.filter(|process: &u32| *process != 1);
    processes.filter(|process| fs::read_link(format!("/proc/{process}/exe")).is_ok()).collect()
}

/// The drivers below `volumePluginDir`: `<vendor>~<driver>/<driver>`.
fn flex_volume_drivers(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let driver = |path: PathBuf| {
        let name = path.file_name()?.to_str()?.rsplit('~').next()?.to_owned();
        Some(path.join(name)).filter(|program| program.is_file())
    };
    entries.filter_map(|entry| driver(entry.path())).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[test]
    fn swap_and_cgroup_v1_are_refused_only_when_asked() {
        let swaps = "Filename\tType\tSize\n/dev/sda2 partition 99 0 -2\nnone tmpfs 9 0 -2\n";
        let mut kubelet = KubeletConfiguration::default();
        assert_eq!(check_host(&kubelet, false, swaps), Ok(()));
        kubelet.fail_swap_on = true;
        let refused = check_host(&kubelet, true, swaps).unwrap_err();
        assert!(
            refused.starts_with(SWAP_ON) && refused.ends_with(": /dev/sda2 partition 99 0 -2"),
            "{refused}"
        );
        assert_eq!(check_host(&kubelet, true, "Filename\tType\nnone tmpfs 9 0 -2\n"), Ok(()));
        kubelet.fail_cgroup_v1 = true;
        assert_eq!(check_host(&kubelet, false, ""), Err(CGROUP_V1.to_owned()));
        assert_eq!(check_host(&kubelet, true, ""), Ok(()));
    }

    #[test]
    fn what_needs_cgroup_v2_is_refused_on_v1() {
        let shared =
            KubeletConfiguration { single_process_oom_kill: Some(false), ..KubeletConfiguration::default() };
        let swapping = KubeletConfiguration {
            memory_swap_swap_behavior: "LimitedSwap".to_owned(),
            ..KubeletConfiguration::default()
        };
        for (kubelet, why) in [(&shared, SINGLE_OOM_KILL), (&swapping, LIMITED_SWAP)] {
            assert_eq!(check_host(kubelet, true, ""), Ok(()));
            assert_eq!(check_host(kubelet, false, ""), Err(why.to_owned()));
        }
        let single =
            KubeletConfiguration { single_process_oom_kill: Some(true), ..KubeletConfiguration::default() };
        assert_eq!(check_host(&single, false, ""), Ok(()));
    }

    #[test]
    fn kernel_parameters_are_set_or_checked() {
        let root = TempDir::new();
        for directory in ["kernel/keys", "vm"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        fs::write(root.join("kernel/panic"), "0\n").unwrap();
        fs::write(root.join("vm/overcommit_memory"), "1\n").unwrap();
        let refused = tune(&root, true).unwrap_err();
        let words =
            "protectKernelDefaults: invalid kernel flag: kernel.panic, expected value: 10, actual value: 0";
        assert_eq!(refused, words);
        assert_eq!(tune(&root, false), Ok(()));
        assert_eq!(fs::read_to_string(root.join("kernel/panic")).unwrap(), "10");
        assert_eq!(tune(&root, true), Ok(()), "and parameters that the kernel does not have are left out");
    }

    #[test]
    fn flex_volume_drivers_are_found_by_their_names() {
        let root = TempDir::new();
        for directory in ["k8s~nfs", "plain", "other~x"] {
            fs::create_dir_all(root.join(directory)).unwrap();
        }
        for file in ["k8s~nfs/nfs", "plain/plain", "other~x/y"] {
            fs::write(root.join(file), "").unwrap();
        }
        let mut found = flex_volume_drivers(&root);
        found.sort();
        assert_eq!(found, [root.join("k8s~nfs/nfs"), root.join("plain/plain")]);
        assert_eq!(flex_volume_drivers(&root.join("none")), Vec::<PathBuf>::new());
    }
}
