//! Arguments of `agent upgrade plan|apply|node|diff`: kubeadm's flags.
//!
//! Owns their names and help, and which command has which.

use lexopt::Arg;

use super::phases;
use crate::cmd::help;
use crate::cmd::init::args::{UsageError, text};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum UpgradeVerb {
    Plan = 1,
    Apply = 2,
    Node = 4,
    Diff = 8,
}

/// The commands by their words.
pub(super) const VERBS: [(&str, UpgradeVerb); 4] = [
    ("plan", UpgradeVerb::Plan),
    ("apply", UpgradeVerb::Apply),
    ("node", UpgradeVerb::Node),
    ("diff", UpgradeVerb::Diff),
];
const PLAN: u8 = UpgradeVerb::Plan as u8;
const APPLY: u8 = UpgradeVerb::Apply as u8;
const NODE: u8 = UpgradeVerb::Node as u8;
const DIFF: u8 = UpgradeVerb::Diff as u8;
const ALL: u8 = PLAN | RUN | DIFF;
const RUN: u8 = APPLY | NODE;

/// Options: the name, the commands that have it, whether it is a switch (`--NAME` or `--NAME=false`), whether it may stand
/// beside `--config`.
const OPTIONS: [(&str, u8, bool, bool); 16] = [
    ("allow-experimental-upgrades", PLAN | APPLY, true, false),
    ("allow-release-candidate-upgrades", PLAN | APPLY, true, false),
    ("certificate-renewal", RUN, true, false),
    ("config", ALL, false, true),
    ("context-lines", DIFF, false, false),
    ("dry-run", RUN, true, true),
    ("etcd-upgrade", PLAN | RUN, true, false),
    ("force", APPLY, true, false),
    ("ignore-preflight-errors", PLAN | RUN, false, true),
    ("kubeconfig", ALL, false, true),
    ("output", PLAN, false, true),
    ("patches", RUN, false, false),
    ("print-config", PLAN | APPLY, true, false),
    ("skip-phases", RUN, false, true),
    ("timeout", RUN, false, true),
    ("yes", APPLY, true, true),
];

pub(super) fn help() -> String {
    let listed = phases::help();
    let options = help::text("upgrade-control-plane");
    format!("{options}{listed}\nExit status: 0 on success, 1 on failure, 2 for bad usage.\n")
}

#[derive(Debug)]
pub(super) struct ClusterUpgradeOptions {
    pub verb: UpgradeVerb,
    pub version: Option<String>,
    pub phase: Option<&'static str>,
    pub help: bool,
    given: Vec<(&'static str, String)>,
}

fn wrong(why: impl Into<String>) -> UsageError {
    UsageError::Option(why.into())
}

impl ClusterUpgradeOptions {
    /// The first word is one of [`VERBS`].
    pub(super) fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let mut words: Vec<String> = Vec::new();
        let mut given: Vec<(&'static str, String)> = Vec::new();
        let mut help = false;
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(|error| wrong(error.to_string()))? {
            let name = match argument {
                Arg::Value(word) => {
                    words.push(word.to_string_lossy().into_owned());
                    continue;
                }
                Arg::Short('h') | Arg::Long("help") => {
                    help = true;
                    continue;
                }
                Arg::Short('c') => "context-lines",
                Arg::Short('f') => "force",
                Arg::Short('o') => "output",
                Arg::Short('y') => "yes",
                Arg::Long(name) => name,
                Arg::Short(_) => return Err(wrong(argument.unexpected().to_string())),
            };
            let found = OPTIONS.iter().find(|(known, ..)| *known == name);
            let (name, _, is_switch, _) = found.ok_or_else(|| wrong(format!("invalid option '--{name}'")))?;
            let value = if *is_switch {
                let value = parser
                    .optional_value()
                    .map_or_else(|| "true".into(), |value| value.to_string_lossy().into_owned());
                if !["true", "false"].contains(&value.as_str()) {
                    return Err(wrong(format!("--{name} {value:?}: must be true or false")));
                }
                value
            } else {
                text(&mut parser)?
            };
            given.push((name, value));
        }
        let verb = words.first().and_then(|word| VERBS.iter().find(|(known, _)| known == word));
        let Some(&(verb_name, verb)) = verb else {
            return Err(wrong("subcommand is required: plan, apply, node or diff"));
        };
        let mut options = Self { verb, version: None, phase: None, help, given };
        if help {
            return Ok(options);
        }
        for (name, verbs, ..) in OPTIONS {
            if options.text(name).is_some() && verbs & verb as u8 == 0 {
                return Err(wrong(format!("--{name} is no option of agent upgrade {verb_name}")));
            }
        }
        let mut words = &words[1..];
        if let Some(at) = words.iter().position(|word| word == "phase").filter(|_| RUN & verb as u8 != 0) {
            let names = &words[at + 1..];
            options.phase = Some(phases::named(names, verb == UpgradeVerb::Node).map_err(wrong)?);
            words = &words[..at];
        }
        match words {
            [] => {}
            [version] if verb != UpgradeVerb::Node => options.version = Some(version.clone()),
            [.., word] => return Err(UsageError::Unexpected(word.clone())),
        }
        let is_mixed =
            |name: &&str| OPTIONS.iter().any(|(known, _, _, is_allowed)| known == name && !is_allowed);
        let mixed: Vec<&str> = options.given.iter().map(|(name, _)| *name).filter(is_mixed).collect();
        if options.text("config").is_some() && !mixed.is_empty() {
            return Err(wrong(format!("can not mix '--config' with arguments [{}]", mixed.join(" "))));
        }
        Ok(options)
    }

    /// The last value of an option.
    pub(super) fn text(&self, name: &str) -> Option<&str> {
        self.given.iter().rev().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// Of a switch; `None`: it is not given.
    pub(super) fn switch(&self, name: &str) -> Option<bool> {
        self.text(name).map(|value| value == "true")
    }

    /// All values of an option, which may be repeated and have commas.
    pub(super) fn list(&self, name: &str) -> Vec<String> {
        let of = self.given.iter().filter(|(given, _)| *given == name);
        let items = of.flat_map(|(_, value)| value.split(',')).map(str::trim);
        items.filter(|item| !item.is_empty()).map(str::to_owned).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ClusterUpgradeOptions, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        ClusterUpgradeOptions::parse(&words).map_err(|error| error.to_string())
    }

    #[test]
    fn commands_have_kubeadms_options() {
        let options =
            parse("apply v1.36.2 -y --etcd-upgrade=false --skip-phases addon,preflight --dry-run").unwrap();
        assert_eq!((options.verb, options.version.as_deref()), (UpgradeVerb::Apply, Some("v1.36.2")));
        assert_eq!((options.switch("yes"), options.switch("etcd-upgrade")), (Some(true), Some(false)));
        assert_eq!(options.switch("force"), None);
        assert_eq!(options.list("skip-phases"), ["addon", "preflight"]);
        let options = parse("apply v1.36.2 phase upload-config all --kubeconfig k").unwrap();
        assert_eq!((options.phase, options.version.as_deref()), (Some("upload-config"), Some("v1.36.2")));
        let options = parse("node phase kubelet-config").unwrap();
        assert_eq!((options.verb, options.phase), (UpgradeVerb::Node, Some("kubelet-config")));
        assert_eq!(parse("diff -c 5").unwrap().text("context-lines"), Some("5"));
        assert_eq!(parse("plan -o json").unwrap().text("output"), Some("json"));
        assert!(parse("apply --help nonsense more").unwrap().help);
    }

    #[test]
    fn bad_usage_of_upgrades_is_named() {
        for (line, expected) in [
            ("", "subcommand is required: plan, apply, node or diff"),
            ("plan --yes", "--yes is no option of agent upgrade plan"),
            ("diff --dry-run", "--dry-run is no option of agent upgrade diff"),
            ("node v1.36.2", "unexpected argument \"v1.36.2\""),
            ("apply v1 v2", "unexpected argument \"v2\""),
            ("apply phase addon", "subcommand is required"),
            ("node phase bootstrap-token", "invalid phase name: bootstrap-token"),
            ("plan phase preflight", "unexpected argument \"preflight\""),
            ("apply --yes=maybe", "--yes \"maybe\": must be true or false"),
            ("apply --config f --force --patches p", "can not mix '--config' with arguments [force patches]"),
            ("apply --volumes", "--volumes"),
            ("apply -x", "-x"),
        ] {
            let why = parse(line).unwrap_err();
            assert!(why.contains(expected), "{line}: {why}");
        }
        assert!(parse("apply --config f --yes --dry-run --skip-phases addon").is_ok());
    }
}
