//! Why the agent cannot start with what it was given.
//!
//! Owns messages and exit codes.

use std::fmt;
use std::path::PathBuf;

use super::value::ValueError;
use crate::codec::yaml::YamlError;
use crate::model::api::decode::DecodeError;

/// A mistake in the command line or the configuration.
#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    /// The arguments do not parse.
    #[error("failed to parse kubelet flag: {0}")]
    Flag(FlagError),
    /// The first positional argument is no command.
    #[error("unknown command {name}{hint}")]
    UnknownCommand {
        /// What was written.
        name: String,
        /// A better word, or what to do.
        hint: String,
    },
    /// Feature gates that do not exist or cannot be changed.
    #[error("failed to set feature gates: {0}")]
    FeatureGates(Findings),
    /// Values of flags that are no fields of the file.
    #[error("failed to validate kubelet flags: {0}")]
    Flags(Findings),
    /// `--config` names a directory.
    #[error(
        "failed to load kubelet config file, path: {path}, error: this is a directory; --config takes the \
         KubeletConfiguration file. For pod manifests use --manifest-dir {path}"
    )]
    ConfigIsDirectory { path: PathBuf },
    /// The `--config` file.
    #[error("failed to load kubelet config file, path: {path}, error: {error}")]
    File {
        path: PathBuf,
        /// What is wrong with it.
        error: FileError,
    },
    /// The `--config-dir` directory or a file in it.
    #[error(
        "failed to merge kubelet configs: failed to load kubelet drop-in config, path: {path}, error: {error}"
    )]
    DropIn {
        /// The file or directory.
        path: PathBuf,
        /// What is wrong with it.
        error: FileError,
    },
    /// The resolved configuration breaks rules.
    #[error("failed to validate kubelet configuration, error: {0}")]
    Configuration(Findings),
    /// `--runonce` and its relatives contradict something else.
    #[error("bad use of --runonce: {0}")]
    RunOnce(RunOnceError),
}

impl ConfigError {
    /// The status to exit with: 2 for bad usage of run-once, else 1 as the kubelet.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::RunOnce(_) => 2,
            Self::Flag(FlagError::Value { flag, .. } | FlagError::NoValue { flag })
                if flag.starts_with("runonce") =>
            {
                2
            }
            _ => 1,
        }
    }
}

/// Why the arguments do not parse.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    /// No flag of that name.
    #[error("unknown flag: --{flag}{hint}")]
    Unknown {
        flag: String,
        /// The nearest flag, if any is near.
        hint: String,
    },
    /// No short flag of that letter.
    #[error("unknown shorthand flag: '{flag}' in -{flag}")]
    UnknownShort { flag: char },
    /// The value is missing.
    #[error("flag needs an argument: --{flag}")]
    NoValue { flag: String },
    /// The value does not fit.
    #[error("invalid argument {value:?} for \"--{flag}\" flag: {error}")]
    Value {
        flag: String,
        /// As written, cut short.
        value: String,
        /// What would fit.
        error: ValueError,
    },
    /// Not UTF-8.
    #[error("argument {argument:?} is not UTF-8")]
    NotUtf8 {
        /// As far as it can be shown.
        argument: String,
    },
    /// A flag of older releases that cannot be ignored.
    #[error("flag --{flag} was removed: {advice}")]
    Removed {
        flag: String,
        /// What to do.
        advice: &'static str,
    },
}

/// Why a configuration file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum FileError {
    /// It cannot be read.
    #[error("{error}")]
    Read {
        /// From the system.
        error: std::io::Error,
    },
    /// It is too large to be a configuration.
    #[error("larger than {limit} bytes")]
    TooLarge { limit: u64 },
    /// It holds nothing.
    #[error("the file is empty; expected apiVersion: {API_VERSION}, kind: {KIND}")]
    Empty,
    /// More documents than one.
    #[error("{count} YAML documents; a configuration file must have exactly one")]
    Documents { count: usize },
    #[error("{0}")]
    Yaml(YamlError),
    /// The value has neither `apiVersion` nor `kind`.
    #[error("no apiVersion/kind; expected apiVersion: {API_VERSION}, kind: {KIND}")]
    NoKind,
    #[error("unknown apiVersion/kind {api_version}/{kind}; expected apiVersion: {API_VERSION}, kind: {KIND}")]
    WrongKind { api_version: String, kind: String },
    /// What the flag was for once: a manifest.
    #[error(
        "this is a manifest (kind {kind}); --config takes the KubeletConfiguration file. For pod manifests use \
         --manifest-dir {path}"
    )]
    Manifest {
        /// Of its first document.
        kind: String,
        path: PathBuf,
    },
    /// A field of the wrong type.
    #[error("{0}")]
    Decode(DecodeError),
    /// The directory tree is too deep or too large.
    #[error("more than {limit} files or directories")]
    TooMany { limit: usize },
}

/// The group and version of the configuration.
pub const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
/// The kind of the configuration.
pub const KIND: &str = "KubeletConfiguration";

/// How run-once contradicts something else.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunOnceError {
    /// With an apiserver.
    #[error("only pods of files and URLs are supported; remove --kubeconfig")]
    WithKubeconfig,
    /// With the server.
    #[error("the server is never started; remove --enable-server")]
    WithServer,
    /// An unknown word.
    #[error("--runonce-wait={word} is not supported; use running or completed")]
    Wait { word: String },
    /// No time at all.
    #[error("--runonce-timeout must be more than zero")]
    Timeout,
    /// A relative without the flag.
    #[error("--{flag} needs --runonce")]
    Alone { flag: &'static str },
}

/// One broken rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFinding {
    /// The field, as in the file, or `--flag`.
    pub field: String,
    /// What is wrong and what would be right.
    pub problem: String,
}

/// Every broken rule, so that the user can fix them together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings(pub Vec<ConfigFinding>);

impl Findings {
    pub(super) fn add(&mut self, field: impl Into<String>, problem: impl Into<String>) {
        self.0.push(ConfigFinding { field: field.into(), problem: problem.into() });
    }
}

impl fmt::Display for Findings {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let several = self.0.len() > 1;
        if several {
            formatter.write_str("[")?;
        }
        for (index, finding) in self.0.iter().enumerate() {
            let separator = if index == 0 { "" } else { ", " };
            write!(formatter, "{separator}{}: {}", finding.field, finding.problem)?;
        }
        if several { formatter.write_str("]") } else { Ok(()) }
    }
}
