//! Errors of the command line and the configuration.
//!
//! Owns messages and exit codes.

use std::fmt;
use std::path::PathBuf;

use super::value::ValueError;
use crate::codec::yaml::YamlError;
use crate::model::api::decode::DecodeError;

#[derive(Debug, thiserror::Error)]
pub enum ConfigError {
    #[error("failed to parse kubelet flag: {0}")]
    Flag(FlagError),
    #[error("unknown command {name}{hint}")]
    UnknownCommand {
        name: String,
        /// A similar command, or advice.
        hint: String,
    },
    /// Feature gates that do not exist or cannot be changed.
    #[error("failed to set feature gates: {0}")]
    FeatureGates(Findings),
    /// Invalid flags that are not fields of the file.
    #[error("failed to validate kubelet flags: {0}")]
    Flags(Findings),
    #[error(
        "failed to load kubelet config file, path: {path}, error: this is a directory; --config takes the \
         KubeletConfiguration file. For pod manifests use --manifest-dir {path}"
    )]
    ConfigIsDirectory { path: PathBuf },
    #[error("failed to load kubelet config file, path: {path}, error: {error}")]
    File { path: PathBuf, error: FileError },
    /// The `--config-dir` directory or a file in it.
    #[error(
        "failed to merge kubelet configs: failed to load kubelet drop-in config, path: {path}, error: {error}"
    )]
    DropIn { path: PathBuf, error: FileError },
    #[error("failed to validate kubelet configuration, error: {0}")]
    Configuration(Findings),
    /// `--runonce` or a related flag conflicts with another setting.
    #[error("bad use of --runonce: {0}")]
    RunOnce(RunOnceError),
}

impl ConfigError {
    /// The exit status: 2 for invalid usage of run-once, otherwise 1 as the kubelet.
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

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FlagError {
    #[error("unknown flag: --{flag}{hint}")]
    Unknown {
        flag: String,
        /// The nearest flag, if one is similar.
        hint: String,
    },
    #[error("unknown shorthand flag: '{flag}' in -{flag}")]
    UnknownShort { flag: char },
    #[error("flag needs an argument: --{flag}")]
    NoValue { flag: String },
    #[error("invalid argument {value:?} for \"--{flag}\" flag: {error}")]
    Value {
        flag: String,
        /// As written, truncated.
        value: String,
        error: ValueError,
    },
    #[error("argument {argument:?} is not UTF-8")]
    NotUtf8 {
        /// As far as it can be printed.
        argument: String,
    },
    /// A flag of older releases that cannot be ignored.
    #[error("flag --{flag} was removed: {advice}")]
    Removed { flag: String, advice: &'static str },
}

#[derive(Debug, thiserror::Error)]
pub enum FileError {
    #[error("{error}")]
    Read { error: std::io::Error },
    #[error("larger than {limit} bytes")]
    TooLarge { limit: u64 },
    #[error("the file is empty; expected apiVersion: {API_VERSION}, kind: {KIND}")]
    Empty,
    #[error("{count} YAML documents; a configuration file must have exactly one")]
    Documents { count: usize },
    #[error("{0}")]
    Yaml(YamlError),
    #[error("no apiVersion/kind; expected apiVersion: {API_VERSION}, kind: {KIND}")]
    NoKind,
    #[error("unknown apiVersion/kind {api_version}/{kind}; expected apiVersion: {API_VERSION}, kind: {KIND}")]
    WrongKind { api_version: String, kind: String },
    /// The flag's former meaning: a manifest.
    #[error(
        "this is a manifest (kind {kind}); --config takes the KubeletConfiguration file. For pod manifests use \
         --manifest-dir {path}"
    )]
    Manifest {
        /// The kind of its first document.
        kind: String,
        path: PathBuf,
    },
    /// A field of the wrong type.
    #[error("{0}")]
    Decode(DecodeError),
    #[error("more than {limit} files or directories")]
    TooMany { limit: usize },
}

/// The group and version of the configuration.
pub(in crate::agent) const API_VERSION: &str = "kubelet.config.k8s.io/v1beta1";
pub(in crate::agent) const KIND: &str = "KubeletConfiguration";

/// A conflict of run-once with another setting.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RunOnceError {
    #[error("only pods of files and URLs are supported; remove --kubeconfig")]
    WithKubeconfig,
    #[error("the server is never started; remove --enable-server")]
    WithServer,
    #[error("--runonce-wait={word} is not supported; use running or completed")]
    Wait { word: String },
    #[error("--runonce-timeout must be more than zero")]
    Timeout,
    #[error("--{flag} needs --runonce")]
    Alone { flag: &'static str },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConfigFinding {
    /// The field, as in the file, or `--flag`.
    pub field: String,
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
