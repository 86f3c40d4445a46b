//! The tables the rules read. An exception is a row with a reason.

/// Rooms that hold values alone. Elsewhere a file is pure when its module documentation has a line that begins with [`PURE_LINE`].
pub const PURE: &[&str] = &["codec", "model"];

/// Marks a file, and the files it is split into, as decisions without effects.
pub const PURE_LINE: &str = "//! Pure: ";

/// What pure files must not mention.
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
    ("env_logger", &["platform::logging"]),
    ("flate2", &["codec::packed", "runtime::embedded::images", "serve::streaming"]),
    (
        "http_body_util",
        &[
            "platform::grpc",
            "platform::http",
            "runtime::cri",
            "runtime::docker",
            "pod::handler",
            "serve::server",
            "serve::localapi",
            "cmd::cli",
            "serve::streaming",
            "serve::cri",
        ],
    ),
    (
        "hyper",
        &[
            "platform::grpc",
            "platform::http",
            "cluster::client",
            "runtime::cri",
            "runtime::docker",
            "pod::handler",
            "serve::server",
            "serve::localapi",
            "cmd::cli",
            "serve::streaming",
            "serve::cri",
            "devices::plugins",
        ],
    ),
    (
        "hyper_util",
        &[
            "platform::grpc",
            "platform::http",
            "runtime::cri",
            "runtime::docker",
            "pod::handler",
            "serve::server",
            "cmd::cli",
            "serve::streaming",
            "serve::cri",
        ],
    ),
    ("lexopt", &["agent::config", "cmd::cli", "cmd::control_plane", "cmd::init", "cmd::upgrade", "main"]),
    ("minisign_verify", &["codec::signature"]),
    ("nix", &["platform::sys"]),
    (
        "prost",
        &[
            "platform::proto",
            "runtime::cri",
            "platform::grpc",
            "runtime::convert",
            "devices",
            "serve::cri",
            "pod::csi",
        ],
    ),
    (
        "ring",
        &[
            "store",
            "serve::accounts",
            "serve::streaming",
            "runtime::embedded::registry::signature",
            "cluster::discovery",
            "cluster::pki",
            "cmd::control_plane",
        ],
    ),
    (
        "percent_encoding",
        &[
            "platform::grpc",
            "platform::http",
            "runtime::docker",
            "pod::handler",
            "serve::server",
            "serve::localapi",
            "cmd::cli",
        ],
    ),
    ("rcgen", &["serve::server::pki", "cluster::pki", "agent::control_plane"]),
    ("rusqlite", &["store"]),
    ("rustls", &["platform::http", "pod::handler", "serve::server"]),
    ("granit_parser", &["codec::yaml"]),
    ("tokio_rustls", &["platform::http", "pod::handler", "serve::server"]),
    (
        "tonic",
        &[
            "platform::proto",
            "platform::grpc",
            "platform::http::h2",
            "runtime::cri",
            "runtime::convert",
            "pod::handler::grpc",
            "devices::client",
        ],
    ),
    ("tonic_prost", &["platform::proto"]),
    ("tower_service", &["platform::grpc"]),
    ("webpki", &["serve::server"]),
    ("zstd", &["runtime::embedded::images"]),
    ("ureq", &["platform::http"]),
];

/// External crates anyone may use: plain values and the words of the language. (The pure zone's bans still hold.)
pub const HOMELESS: &[&str] = &["log", "serde", "serde_json", "sha2", "thiserror", "time", "tokio"];

/// Crates outside their home: crate, module, why.
pub const HOME_EXCEPTIONS: &[(&str, &str, &str)] = &[];

/// A file longer than this asks what is living together in it.
pub const LONG_FILE: usize = 600;

/// Longer files: file, why it is one thing.
pub const LONG_FILES: &[(&str, &str)] =
    &[("src/model/api/pod.rs", "one flat list of wire types; splitting it would scatter one upstream file")];

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
