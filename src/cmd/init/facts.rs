//! Facts of a machine before an agent runs on it, read from the files of a root directory.
//!
//! Owns the reading: procfs, sysfs, `/etc`, the mount table, processes. Changes nothing and loads no module.
//! Tests use a directory that imitates a machine.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::net::{IpAddr, ToSocketAddrs as _};
use std::path::{Path, PathBuf};

use crate::model::ordered::{Ordered as _, Sortable as _};
use crate::model::types::Timestamp;
use crate::platform::sys::listeners::{self, Listener, address};
use crate::platform::sys::node::{self, FileSystemFacts};
use crate::runtime::embedded::images::compression::Decompress;

pub(in crate::cmd) mod etcd;
mod mounts;

pub(crate) use mounts::{Mount, mounted_at};

/// The size limit of a file: that of an unpacked kernel configuration.
const MAX_FILE: u64 = 1 << 20;

/// The root directory, and facts that are not in files.
#[derive(Clone, Debug)]
pub(in crate::cmd) struct ProbedMachine {
    /// `/`, or a directory that imitates one.
    pub root: PathBuf,
    pub uid: u32,
    pub now: Timestamp,
    /// CPUs this process may use.
    pub cpus: usize,
    /// `HTTP_PROXY` and similar variables of this process.
    pub proxies: Vec<(String, String)>,
}

#[derive(Clone, Debug, Default)]
pub(in crate::cmd) struct MachineFacts {
    pub uid: u32,
    pub now: Option<Timestamp>,
    /// CPUs this process may use.
    pub cpus: usize,
    /// `HTTP_PROXY` and similar variables of this process.
    pub proxies: Vec<(String, String)>,
    /// The same for the service, from its environment file.
    pub service_environment: String,
    pub hostname: String,
    /// `MemTotal`, bytes.
    pub memory: u64,
    /// `uname -r`.
    pub release: String,
    /// The kernel's configuration; `None` when it is not available.
    pub kernel_config: Option<String>,
    /// Modules that are loaded, built in, or available: one name a line, in the kernel's spelling.
    pub modules: Vec<String>,
    /// `/proc/filesystems`.
    pub file_systems: Vec<String>,
    pub command_line: String,
    /// The board's model; empty on most PCs.
    pub model: String,
    /// The file that holds the kernel's command line, on boards that have one.
    pub command_line_file: Option<&'static str>,
    pub cgroups: Cgroups,
    pub swaps: Vec<Swap>,
    /// Real-time clocks, which keep time without power.
    pub rtcs: Vec<String>,
    /// The kernel's estimate of available entropy in bits.
    pub entropy: Option<u32>,
    /// All mounts, later ones last.
    pub mounts: Vec<Mount>,
    /// Existing directories of interest, with their entries.
    pub directories: BTreeMap<PathBuf, Vec<String>>,
    /// Existing files of interest.
    pub files: Vec<PathBuf>,
    /// Free space on the file systems of interest, by the requested path.
    pub room: BTreeMap<PathBuf, FileSystemFacts>,
    /// Whether a block device rotates, by its name.
    pub rotational: BTreeMap<String, bool>,
    /// Listening TCP sockets.
    pub listeners: Vec<Listener>,
    pub services: BTreeMap<&'static str, Service>,
    /// Names of processes, with one process id of each.
    pub processes: BTreeMap<String, u32>,
    /// The IPv4 routes without the default route.
    pub routes: Vec<Route>,
    /// The address families that have a default route.
    pub default_routes: Vec<&'static str>,
    /// Installed programs of interest.
    pub programs: Vec<&'static str>,
    /// The kernel enforces AppArmor profiles.
    pub apparmor: bool,
    pub init_system: InitSystem,
    /// IPv4 packets are forwarded between interfaces; `None` without IPv4.
    pub ipv4_forwarding: Option<bool>,
    /// The same of IPv6, for interfaces that are to come.
    pub ipv6_forwarding: Option<bool>,
    /// Why the name of interest has no address.
    pub lookup_error: Option<String>,
    /// Versions of an external etcd by its URLs.
    pub etcd: Vec<(String, Result<String, String>)>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cmd) enum Cgroups {
    #[default]
    None,
    /// A unified hierarchy, with these controllers.
    Unified {
        /// `cgroup.controllers` of its root.
        controllers: Vec<String>,
        /// The root is a threaded domain of another process, so that no controllers can be delegated.
        is_threaded: bool,
    },
    /// One hierarchy per controller, and which are mounted.
    Legacy { controllers: Vec<String> },
}

/// A line of `/proc/swaps`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cmd) struct Swap {
    /// File or device.
    pub name: String,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Service {
    /// It has a unit or a script.
    pub installed: bool,
    pub enabled: bool,
    /// One of its processes, if it runs.
    pub process: Option<u32>,
}

/// A line of `/proc/net/route`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Route {
    /// The outgoing interface.
    pub link: String,
    pub network: IpAddr,
    pub prefix: u8,
    pub by_gateway: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum InitSystem {
    Systemd,
    OpenRc,
    #[default]
    Other,
}

/// The services that matter here: the unit, and names of its processes.
const SERVICES: &[(&str, &[&str])] = &[
    ("kubelet", &["kubelet"]),
    ("k3s", &["k3s-server", "k3s"]),
    ("k3s-agent", &["k3s-agent"]),
    ("k0scontroller", &["k0s"]),
    ("k0sworker", &["k0s"]),
    ("rke2-server", &["rke2"]),
    ("rke2-agent", &["rke2"]),
    ("snap.microk8s.daemon-kubelite", &["kubelite"]),
    ("containerd", &["containerd"]),
    ("docker", &["dockerd"]),
    ("crio", &["crio"]),
    ("firewalld", &["firewalld"]),
    ("agent", &[]),
];

/// The file of the kernel's command line for a Raspberry Pi's boot loader: since Debian 12, and before.
const COMMAND_LINE_FILES: [&str; 2] = ["/boot/firmware/cmdline.txt", "/boot/cmdline.txt"];
const PROGRAM_DIRS: [&str; 6] = ["usr/sbin", "usr/bin", "sbin", "bin", "usr/local/sbin", "usr/local/bin"];
const PROGRAMS: [&str; 5] = ["apparmor_parser", "systemctl", "losetup", "mount", "cp"];
const UNIT_DIRS: [&str; 4] =
    ["etc/systemd/system", "run/systemd/system", "usr/lib/systemd/system", "lib/systemd/system"];

/// The file system paths and ports to examine.
#[derive(Clone, Debug, Default)]
pub(in crate::cmd) struct Interest {
    /// Directories whose free space or entries are needed.
    pub directories: Vec<PathBuf>,
    /// Files whose existence is needed.
    pub files: Vec<PathBuf>,
    /// TCP ports that may be in use.
    pub ports: Vec<u16>,
    /// A host name that should have an address; empty: none.
    pub name: String,
    /// Whose versions are needed.
    pub etcd: Option<etcd::ExternalEtcdAccess>,
}

impl ProbedMachine {
    #[must_use]
    pub(in crate::cmd) fn gather(&self, interest: &Interest) -> MachineFacts {
        let release = self.line("proc/sys/kernel/osrelease");
        let mounts = mounts::parse(&self.text("proc/self/mountinfo"));
        let processes = self.processes();
        let room = |path: &PathBuf| {
            let there = self.nearest(path);
            Some((path.clone(), node::file_system(&there).ok()?))
        };
        let directories = &interest.directories;
        MachineFacts {
            uid: self.uid,
            now: Some(self.now),
            cpus: self.cpus,
            proxies: self.proxies.clone(),
            service_environment: self.text("etc/default/agent"),
            hostname: self.line("proc/sys/kernel/hostname"),
            memory: self.memory(),
            kernel_config: self.kernel_config(&release),
            modules: self.modules(&release),
            file_systems: last_columns(&self.text("proc/filesystems")),
            command_line: self.line("proc/cmdline"),
            model: self.text("proc/device-tree/model").trim_matches(['\0', '\n']).to_owned(),
            command_line_file: COMMAND_LINE_FILES.into_iter().find(|file| self.at(file).exists()),
            cgroups: self.cgroups(&mounts),
            swaps: swaps(&self.text("proc/swaps")),
            rtcs: self.names("sys/class/rtc"),
            entropy: self.line("proc/sys/kernel/random/entropy_avail").parse().ok(),
            rotational: self.rotational(&mounts, directories),
            room: directories.iter().filter_map(room).into_map(),
            directories: directories
                .iter()
                .filter_map(|path| Some((path.clone(), names(&self.at(path)).ok()?)))
                .into_map(),
            files: interest.files.iter().filter(|file| self.at(file).exists()).cloned().collect(),
            listeners: listeners::listeners(&self.root, listeners::TCP, &interest.ports),
            services: self.services(&processes),
            processes,
            routes: routes(&self.text("proc/net/route")),
            default_routes: self.default_routes(),
            programs: PROGRAMS.into_iter().filter(|name| self.has_program(name)).collect(),
            apparmor: self.text("sys/module/apparmor/parameters/enabled").starts_with('Y'),
            init_system: self.init_system(),
            ipv4_forwarding: self.is_on("proc/sys/net/ipv4/ip_forward"),
            ipv6_forwarding: self.is_on("proc/sys/net/ipv6/conf/default/forwarding"),
            lookup_error: lookup_error(&interest.name),
            etcd: interest.etcd.as_ref().map(etcd::versions).unwrap_or_default(),
            mounts,
            release,
        }
    }

    fn at(&self, path: impl AsRef<Path>) -> PathBuf {
        let path = path.as_ref();
        self.root.join(path.strip_prefix("/").unwrap_or(path))
    }

    /// The nearest existing ancestor directory.
    fn nearest(&self, path: &Path) -> PathBuf {
        let there = path.ancestors().map(|above| self.at(above)).find(|above| above.is_dir());
        there.unwrap_or_else(|| self.root.clone())
    }

    fn read(&self, path: &str) -> Option<String> {
        let mut bytes = Vec::new();
        fs::File::open(self.at(path)).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }

    fn text(&self, path: &str) -> String {
        self.read(path).unwrap_or_default()
    }

    fn is_on(&self, path: &str) -> Option<bool> {
        self.read(path).map(|text| text.starts_with('1'))
    }

    fn line(&self, path: &str) -> String {
        self.text(path).lines().next().unwrap_or_default().trim().to_owned()
    }

    fn names(&self, path: &str) -> Vec<String> {
        names(&self.at(path)).unwrap_or_default()
    }

    fn memory(&self) -> u64 {
        let text = self.text("proc/meminfo");
        let line = text.lines().find_map(|line| line.strip_prefix("MemTotal:"));
        let kilobytes = line.and_then(|line| line.trim().strip_suffix("kB")?.trim().parse::<u64>().ok());
        kilobytes.unwrap_or(0) * 1024
    }

    /// From the places where kubeadm looks, without loading a module for it.
    fn kernel_config(&self, release: &str) -> Option<String> {
        let places = [
            "proc/config.gz".to_owned(),
            format!("boot/config-{release}"),
            format!("usr/lib/modules/{release}/config"),
            format!("lib/modules/{release}/config"),
        ];
        places.iter().find_map(|place| {
            let mut bytes = Vec::new();
            let file = fs::File::open(self.at(place)).ok()?;
            Decompress::new(file).ok()?.take(MAX_FILE).read_to_end(&mut bytes).ok()?;
            Some(String::from_utf8_lossy(&bytes).into_owned())
        })
    }

    fn modules(&self, release: &str) -> Vec<String> {
        let loaded = self.text("proc/modules");
        let mut found: Vec<String> =
            loaded.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
        for list in ["modules.builtin", "modules.dep"] {
            for directory in ["lib/modules", "usr/lib/modules"] {
                let text = self.text(&format!("{directory}/{release}/{list}"));
                let paths = text.lines().filter_map(|line| line.split(':').next());
                found.extend(paths.filter_map(|path| {
                    let (name, _) = path.rsplit('/').next()?.split_once(".ko")?;
                    Some(name.replace('-', "_"))
                }));
            }
        }
        found
    }

    fn cgroups(&self, mounts: &[Mount]) -> Cgroups {
        if let Some(text) = self.read("sys/fs/cgroup/cgroup.controllers") {
            let kind = self.line("sys/fs/cgroup/cgroup.type");
            return Cgroups::Unified {
                controllers: text.split_whitespace().map(str::to_owned).collect(),
                is_threaded: kind.contains("threaded"),
            };
        }
        let legacy: Vec<&Mount> = mounts.iter().filter(|mount| mount.kind == "cgroup").collect();
        if legacy.is_empty() {
            return Cgroups::None;
        }
        let table = self.text("proc/cgroups");
        let rows = table.lines().filter(|line| !line.starts_with('#'));
        let named = rows.filter_map(|line| line.split_whitespace().next());
        let is_mounted =
            |name: &&str| legacy.iter().any(|mount| mount.options.split(',').any(|o| o == *name));
        Cgroups::Legacy { controllers: named.filter(is_mounted).map(str::to_owned).collect() }
    }

    fn rotational(&self, mounts: &[Mount], directories: &[PathBuf]) -> BTreeMap<String, bool> {
        let devices = directories.iter().filter_map(|path| mounted_at(mounts, path)?.disk());
        devices
            .filter_map(|disk| {
                let said = self.read(&format!("sys/class/block/{disk}/queue/rotational"))?;
                Some((disk, said.starts_with('1')))
            })
            .into_map()
    }

    fn processes(&self) -> BTreeMap<String, u32> {
        let mut found = BTreeMap::new();
        for pid in listeners::process_ids(&self.root) {
            found.entry(self.line(&format!("proc/{pid}/comm"))).or_insert(pid);
        }
        found
    }

    fn services(&self, processes: &BTreeMap<String, u32>) -> BTreeMap<&'static str, Service> {
        let wants: Vec<PathBuf> = ["multi-user.target.wants", "default.target.wants", "sysinit.target.wants"]
            .iter()
            .map(|target| self.at("etc/systemd/system").join(target))
            .collect();
        let find = |(name, own): &(&'static str, &[&str])| {
            let unit = format!("{name}.service");
            let script = self.at("etc/init.d").join(name);
            let is_unit = UNIT_DIRS.iter().any(|dir| self.at(dir).join(&unit).exists());
            let link = |path: PathBuf| path.symlink_metadata().is_ok();
            let service = Service {
                installed: is_unit || script.exists(),
                enabled: wants.iter().any(|wants| link(wants.join(&unit)))
                    || link(self.at("etc/runlevels/default").join(name)),
                process: own.iter().find_map(|process| processes.get(*process).copied()),
            };
            (*name, service)
        };
        SERVICES.iter().map(find).into_map()
    }

    fn default_routes(&self) -> Vec<&'static str> {
        let ipv4 = self.text("proc/net/route");
        // Destination and mask are zero; the flags include `RTF_UP`.
        let is_default = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(1) == Some(&"00000000") && fields.get(7) == Some(&"00000000")
        };
        let ipv6 = self.text("proc/net/ipv6_route");
        let is_default_6 = |line: &str| {
            let fields: Vec<&str> = line.split_whitespace().collect();
            fields.get(1) == Some(&"00") && fields.last().is_some_and(|link| *link != "lo")
        };
        let mut found = Vec::new();
        if ipv4.lines().skip(1).any(is_default) {
            found.push("IPv4");
        }
        if ipv6.lines().any(is_default_6) {
            found.push("IPv6");
        }
        found
    }

    fn has_program(&self, name: &str) -> bool {
        PROGRAM_DIRS.iter().any(|dir| self.at(dir).join(name).is_file())
    }

    #[must_use]
    pub(in crate::cmd) fn init_system(&self) -> InitSystem {
        if self.at("run/systemd/system").is_dir() && self.has_program("systemctl") {
            InitSystem::Systemd
        } else if self.has_program("rc-service") && self.has_program("rc-update") {
            InitSystem::OpenRc
        } else {
            InitSystem::Other
        }
    }
}

fn lookup_error(name: &str) -> Option<String> {
    if name.is_empty() {
        return None;
    }
    (name, 0).to_socket_addrs().err().map(|error| error.to_string())
}

fn names(path: &Path) -> std::io::Result<Vec<String>> {
    let entries = fs::read_dir(path)?;
    let mut names: Vec<String> =
        entries.flatten().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.order_by(Ord::cmp);
    Ok(names)
}

fn routes(text: &str) -> Vec<Route> {
    let line = |line: &str| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let mask = u32::from_str_radix(fields.get(7)?, 16).ok()?;
        Some(Route {
            link: (*fields.first()?).to_owned(),
            network: address(fields.get(1)?)?,
            prefix: u8::try_from(mask.count_ones()).ok()?,
            by_gateway: fields.get(2) != Some(&"00000000"),
        })
    };
    text.lines().skip(1).filter_map(line).filter(|route| route.prefix > 0).collect()
}

fn last_columns(text: &str) -> Vec<String> {
    text.lines().filter_map(|line| line.split_whitespace().last()).map(str::to_owned).collect()
}

fn swaps(text: &str) -> Vec<Swap> {
    let lines = text.lines().skip(1).filter_map(|line| {
        let fields: Vec<&str> = line.split_whitespace().collect();
        let kilobytes: u64 = fields.get(2)?.parse().ok()?;
        Some(Swap { name: (*fields.first()?).to_owned(), bytes: kilobytes * 1024 })
    });
    lines.collect()
}
