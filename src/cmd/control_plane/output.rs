//! `-o` of commands that print objects: kubeadm's forms.

use serde_json::Value;

use crate::cmd::cli::yaml;
use crate::cmd::init::args::UsageError;

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Output {
    Text,
    Json,
    Yaml,
}

impl Output {
    pub(super) fn parse(given: &str) -> Result<Self, UsageError> {
        Ok(match given {
            "text" => Self::Text,
            "json" => Self::Json,
            "yaml" => Self::Yaml,
            other => {
                let message = format!("unknown output format {other:?}: use one of text, json, yaml");
                return Err(UsageError::Option(message));
            }
        })
    }

    /// One document for each object.
    pub(super) fn documents(self, objects: &[Value]) -> String {
        let one = |object: &Value| match self {
            Self::Yaml => yaml::to_string(object),
            _ => [serde_json::to_string_pretty(object).unwrap_or_default().as_str(), "\n"].concat(),
        };
        let texts: Vec<_> = objects.iter().map(one).collect();
        texts.join(if self == Self::Yaml { "---\n" } else { "" })
    }
}
