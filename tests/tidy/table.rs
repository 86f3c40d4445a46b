//! The tables the rules read. An exception is a row with a reason.

/// Modules from the bottom up. A module may know those above it in this table (lower ranks, and earlier ones of its own
/// rank); what is below a module inherits its place unless it has a row of its own.
pub const RANKS: &[(u8, &[&str])] = &[
    (0, &["ordered", "types", "api", "observed", "runtime_config", "labels", "objects", "desired"]),
    (1, &["reconcile"]),
    (2, &["clock", "metrics", "runtime", "rt", "logging"]),
    (3, &["proto", "sys"]),
    (
        4,
        &[
            "dbus",
            "logind",
            "openrc",
            "cgroup",
            "http",
            "store",
            "runtime::convert",
            "runtime::cri",
            "runtime::embedded",
            "runtime::fake",
        ],
    ),
    (5, &["apiserver"]),
    (
        6,
        &[
            "events",
            "mailbox",
            "observe",
            "source",
            "cdi",
            "pod_config",
            "volume",
            "pod_start",
            "image",
            "status",
            "stats",
            "handler",
            "devices",
            "executor",
            "prober",
            "admission",
            "pleg",
            "pod_worker",
            "container_logs",
            "node",
            "streaming",
            "server",
            "localapi",
            "cri_server",
            "device_plugins",
        ],
    ),
    (7, &["config", "kubelet", "cli", "init", "upgrade"]),
    (8, &["main"]),
];

/// Arrows that break the order: from, to, why. A row stands for what is below its modules, too.
pub const ARROW_EXCEPTIONS: &[(&str, &str, &str)] = &[
    ("config::validate", "config::typed", "checks the flags' type, which is declared where it is read"),
    (
        "config::validate",
        "config::validate::configuration",
        "`Check` collects findings where the checks begin",
    ),
    ("reconcile", "reconcile::plan", "the plan's words are declared beside the decision that makes plans"),
];

/// Modules without effects.
pub const PURE: &[&str] =
    &["ordered", "types", "api", "observed", "runtime_config", "labels", "objects", "desired", "reconcile"];

/// What the pure zone must not mention.
pub const BANNED_IN_PURE: &[(&str, &str)] = &[
    ("tokio", "decisions wait for nothing"),
    ("log", "return the reason; the caller logs it once"),
    ("std::fs", "facts arrive as arguments"),
    ("std::env", "facts arrive as arguments"),
    ("std::process", "decisions do nothing"),
    ("std::thread", "decisions do nothing"),
    ("std::io", "decisions do nothing"),
    ("std::time::SystemTime", "now is an argument"),
    ("std::time::Instant", "now is an argument"),
    ("std::collections::HashMap", "plans must print the same every time"),
    ("std::collections::HashSet", "plans must print the same every time"),
];

/// External crates with a home: only these modules (and what is below them) may name them.
pub const HOMES: &[(&str, &[&str])] = &[
    ("env_logger", &["logging"]),
    ("flate2", &["runtime::embedded::images", "streaming", "api::schema"]),
    ("http_body_util", &["runtime::cri", "handler", "server", "localapi", "cli", "streaming", "cri_server"]),
    (
        "hyper",
        &[
            "runtime::cri",
            "handler",
            "server",
            "localapi",
            "cli",
            "streaming",
            "cri_server",
            "device_plugins",
        ],
    ),
    ("hyper_util", &["runtime::cri", "handler", "server", "cli", "streaming", "cri_server"]),
    ("lexopt", &["config", "cli", "init", "upgrade", "main"]),
    ("minisign_verify", &["source::signature"]),
    ("nix", &["sys"]),
    ("prost", &["proto", "runtime::cri", "runtime::convert", "devices", "cri_server", "device_plugins"]),
    ("ring", &["store", "streaming", "runtime::embedded::registry::signature"]),
    ("percent_encoding", &["server"]),
    ("rcgen", &["server::pki"]),
    ("rusqlite", &["store"]),
    ("rustls", &["http", "handler", "server"]),
    ("serde_saphyr", &["source::manifest"]),
    ("tokio_rustls", &["handler", "server"]),
    ("tonic", &["proto", "runtime::cri", "runtime::convert", "handler::grpc", "devices::client"]),
    ("tonic_prost", &["proto"]),
    ("tower_service", &["runtime::cri", "handler::grpc"]),
    ("webpki", &["server"]),
    ("zstd", &["runtime::embedded::images"]),
    ("ureq", &["http"]),
];

/// External crates anyone may use: plain values and the words of the language. (The pure zone's bans still hold.)
pub const HOMELESS: &[&str] = &["log", "serde", "serde_json", "sha2", "thiserror", "time", "tokio"];

/// Crates outside their home: crate, module, why.
pub const HOME_EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// A file longer than this asks what is living together in it.
pub const LONG_FILE: usize = 600;

/// Longer files: file, why it is one thing.
pub const LONG_FILES: &[(&str, &str)] =
    &[("src/api/pod.rs", "one flat list of wire types; splitting it would scatter one upstream file")];

/// Words that must not appear in the repository, with the files that may hold them nevertheless.
pub const BANNED_WORDS: &[(&str, &str)] = &[
    (concat!("/wo", "rk/"), "a path of somebody's machine"),
    (concat!("/ro", "ot/"), "a path of somebody's machine"),
    (concat!("/ho", "me/"), "a path of somebody's machine"),
    (concat!("TO", "DO"), "finish it or write an issue"),
    (concat!("FIX", "ME"), "finish it or write an issue"),
    (concat!("to", "do!("), "finish it"),
    (concat!("unimple", "mented!("), "finish it"),
];

/// Files that are not ours to word.
pub const FOREIGN: &[&str] = &["proto/", "LICENSE", "Cargo.lock"];

/// Messages of `docs/troubleshooting.md` that others print: runtimes, the kernel. Message, whose.
pub const OTHERS_WORDS: &[(&str, &str)] = &[
    ("unclosed bracket", "the YAML reader"),
    ("expected cgroupsPath to be of format \"slice:prefix:name\" for systemd cgroups", "runc"),
    ("oom_score_adj: permission denied", "runc"),
];
