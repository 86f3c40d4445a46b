//! Arguments of `agent init --control-plane`: kubeadm's flags of `init` and of its phases.
//!
//! Owns their names and help, and where a flag's value belongs in the configuration.

use std::path::PathBuf;
use std::time::Duration;

use lexopt::Arg;
use serde_json::{Value, json};

use super::config::read::Documents;
use super::select::INIT;
use crate::cmd::init::args::{UsageError, text};
use crate::cmd::init::preflight::Ignored;
use crate::model::duration::GoDuration;

pub(super) const HELP: &str = "\
Make this machine the first control-plane node of a Kubernetes cluster, as kubeadm init does: certificates, kubeconfigs,
static pods of etcd, kube-apiserver, kube-controller-manager and kube-scheduler, with the agent as the node's kubelet.

Usage: agent init --control-plane [options]
       agent init phase NAME [SUB-PHASE] --control-plane [options]

Options:
      --apiserver-advertise-address IP   Address of the API server (default: that of the default route)
      --apiserver-bind-port PORT         Port of the API server (default 6443)
      --apiserver-cert-extra-sans LIST   More names and addresses for the API server's certificate
      --cert-dir DIR                     Directory of certificates (default /etc/kubernetes/pki)
      --certificate-key KEY              Key that encrypts the certificates of --upload-certs
      --config FILE                      Documents of kubeadm.k8s.io/v1beta4, instead of flags
      --control-plane-endpoint HOST      Stable address of the control plane, with or without a port
      --cri-socket PATH                  Socket of the container runtime (default: the agent's own)
      --dry-run                          Print what would be done, without changing anything
      --feature-gates LIST               NAME=true or NAME=false, for kubeadm's gates
      --ignore-preflight-errors LIST     Checks whose errors are shown as warnings: names, or 'all'
      --image-repository NAME            Where images come from (default registry.k8s.io)
      --kubeconfig FILE                  kubeconfig of an administrator (default /etc/kubernetes/admin.conf)
      --kubeconfig-dir DIR               Of the phase kubeconfig: where they are written (default /etc/kubernetes)
      --kubernetes-version VERSION       Version of the control plane (default: the agent's Kubernetes release)
      --node-name NAME                   Name of the node (default: the host name, in lower case)
  -o, --output yaml                      With --dry-run: only the files, as YAML documents
      --print-manifest                   Of the phases of addons: print the objects, nothing else
      --patches DIR                      Patches of manifests, as TARGET[SUFFIX][+strategic|+merge|+json].yaml
      --pod-network-cidr CIDR            Addresses of pods, of which each node gets a part
      --service-cidr CIDR                Addresses of Services (default 10.96.0.0/12)
      --service-dns-domain NAME          Domain of Services (default cluster.local)
      --skip-certificate-key-print       Do not print the key of --upload-certs
      --skip-phases LIST                 Phases to skip
      --skip-self-test                   Do not run the test container
      --skip-token-print                 Do not print the bootstrap token
      --timeout TIME                     Deadline of all that waits for the control plane (default 10m)
      --token TOKEN                      Bootstrap token (default: a random one)
      --token-ttl TIME                   How long it is valid; 0: for ever (default 24h)
      --upload-certs                     Upload the certificates for further control-plane nodes
  -h, --help                             Show this help

Phases, in this order:
";

/// How a flag's text becomes the value of its field.
#[derive(Clone, Copy)]
enum FlagForm {
    Text,
    Number,
    List,
    Gates,
    Arguments,
}

/// Flags that say what a configuration file says: the document, and the field.
const FIELDS: [(&str, bool, &str, FlagForm); 19] = [
    ("apiserver-advertise-address", true, "localAPIEndpoint.advertiseAddress", FlagForm::Text),
    ("apiserver-bind-port", true, "localAPIEndpoint.bindPort", FlagForm::Number),
    ("certificate-key", true, "certificateKey", FlagForm::Text),
    ("cri-socket", true, "nodeRegistration.criSocket", FlagForm::Text),
    ("patches", true, "patches.directory", FlagForm::Text),
    ("apiserver-cert-extra-sans", false, "apiServer.certSANs", FlagForm::List),
    ("apiserver-extra-args", false, "apiServer.extraArgs", FlagForm::Arguments),
    ("cert-dir", false, "certificatesDir", FlagForm::Text),
    ("control-plane-endpoint", false, "controlPlaneEndpoint", FlagForm::Text),
    ("controller-manager-extra-args", false, "controllerManager.extraArgs", FlagForm::Arguments),
    ("feature-gates", false, "featureGates", FlagForm::Gates),
    ("image-repository", false, "imageRepository", FlagForm::Text),
    ("kubernetes-version", false, "kubernetesVersion", FlagForm::Text),
    ("pod-network-cidr", false, "networking.podSubnet", FlagForm::Text),
    ("scheduler-extra-args", false, "scheduler.extraArgs", FlagForm::Arguments),
    ("service-cidr", false, "networking.serviceSubnet", FlagForm::Text),
    ("service-dns-domain", false, "networking.dnsDomain", FlagForm::Text),
    ("token", true, "bootstrapTokens.token", FlagForm::Text),
    ("token-ttl", true, "bootstrapTokens.ttl", FlagForm::Text),
];
const DEFAULT_TIMEOUT: Duration = Duration::from_secs(600);

pub(super) struct ControlPlaneOptions {
    /// Of `init phase`: `certs/ca`.
    pub phase: Option<&'static str>,
    pub config: Option<PathBuf>,
    /// What the flags say.
    pub documents: Documents,
    pub node_name: Option<String>,
    pub skip_phases: Vec<String>,
    pub ignored: Ignored,
    pub dry_run: bool,
    pub yaml: bool,
    pub upload_certs: bool,
    pub hides_token: bool,
    pub hides_key: bool,
    pub no_self_test: bool,
    pub prints_manifest: bool,
    pub kubeconfig: Option<PathBuf>,
    pub kubeconfig_dir: Option<PathBuf>,
    pub timeout: Duration,
    /// Of `agent preflight`.
    pub json: bool,
    pub verbose: bool,
    /// What follows `--`: flags of the agent itself.
    pub agent_flags: Vec<String>,
    pub help: bool,
}

impl Default for ControlPlaneOptions {
    fn default() -> Self {
        let mut documents = Documents::default();
        // As kubeadm describes the token of its flags.
        let description = "The default bootstrap token generated by 'kubeadm init'.";
        documents.init["bootstrapTokens"] = json!([{ "description": description }]);
        Self {
            phase: None,
            config: None,
            documents,
            node_name: None,
            skip_phases: Vec::new(),
            ignored: Ignored::default(),
            dry_run: false,
            yaml: false,
            upload_certs: false,
            hides_token: false,
            hides_key: false,
            no_self_test: false,
            prints_manifest: false,
            kubeconfig: None,
            kubeconfig_dir: None,
            timeout: DEFAULT_TIMEOUT,
            json: false,
            verbose: false,
            agent_flags: Vec::new(),
            help: false,
        }
    }
}

/// Whether the arguments of `agent init` are those of a control plane: they say so, or name a phase that only it has.
pub(crate) fn selects(arguments: &[String], standalone: &[&str]) -> bool {
    let own = arguments.iter().take_while(|argument| *argument != "--");
    if own.clone().any(|argument| argument == "--control-plane") {
        return true;
    }
    let names = own.skip_while(|argument| *argument != "phase").skip(1);
    let names: Vec<String> = names.take_while(|argument| !argument.starts_with('-')).cloned().collect();
    let Some(first) = names.first() else { return false };
    let is_theirs = names.len() == 1 && standalone.contains(&first.as_str());
    !is_theirs && (INIT.named(&names).is_ok() || INIT.all().any(|(name, _)| name == first))
}

pub(super) fn help() -> String {
    format!("{HELP}{}\nExit status: 0 on success, 1 on failure, 2 for bad usage.\n", INIT.listed())
}

impl ControlPlaneOptions {
    /// `is_check`: of `agent preflight`.
    pub(super) fn parse(arguments: &[String], is_check: bool) -> Result<Self, UsageError> {
        let mut options = Self::default();
        let end = arguments.iter().position(|argument| is_check && argument == "--");
        let (own, flags) = arguments.split_at(end.unwrap_or(arguments.len()));
        options.agent_flags = flags.iter().skip(1).cloned().collect();
        let mut words = Vec::new();
        let mut mixed = Vec::new();
        let mut parser = lexopt::Parser::from_args(own);
        let bad = |error: lexopt::Error| UsageError::Option(error.to_string());
        while let Some(argument) = parser.next().map_err(bad)? {
            match argument {
                Arg::Long("control-plane") => {}
                Arg::Long("config") => options.config = Some(text(&mut parser)?.into()),
                Arg::Long("node-name") => options.node_name = Some(text(&mut parser)?),
                Arg::Long("skip-phases") => {
                    options.skip_phases.extend(list(&text(&mut parser)?));
                }
                Arg::Long("ignore-preflight-errors") => {
                    options.ignored.add(&text(&mut parser)?).map_err(UsageError::Option)?;
                }
                Arg::Long("kubeconfig") => options.kubeconfig = Some(text(&mut parser)?.into()),
                Arg::Long("kubeconfig-dir") => options.kubeconfig_dir = Some(text(&mut parser)?.into()),
                Arg::Long("timeout") => {
                    let given = text(&mut parser)?;
                    let time =
                        GoDuration::parse(&given).ok().filter(|time| !time.is_negative() && !time.is_zero());
                    let time = time.ok_or_else(|| {
                        UsageError::Option(format!("--timeout {given:?}: must be a duration such as 10m"))
                    })?;
                    options.timeout = time.to_std();
                }
                Arg::Long("dry-run") => options.dry_run = true,
                Arg::Long("upload-certs") => options.upload_certs = true,
                Arg::Long("skip-token-print") => options.hides_token = true,
                Arg::Long("skip-certificate-key-print") => options.hides_key = true,
                Arg::Long("skip-self-test") => options.no_self_test = true,
                Arg::Long("print-manifest") => options.prints_manifest = true,
                Arg::Short('v') | Arg::Long("verbose") if is_check => options.verbose = true,
                Arg::Short('o') | Arg::Long("output") => match (text(&mut parser)?.as_str(), is_check) {
                    ("yaml", false) => options.yaml = true,
                    ("json", true) => options.json = true,
                    ("text", true) => options.json = false,
                    (other, _) => {
                        let known = if is_check { "one of text, json" } else { "yaml" };
                        let message = format!("unknown output format {other:?}: use {known}");
                        return Err(UsageError::Option(message));
                    }
                },
                Arg::Short('h') | Arg::Long("help") => options.help = true,
                Arg::Long(name) => {
                    let name = name.to_owned();
                    let Some(field) = FIELDS.iter().find(|(flag, ..)| *flag == name) else {
                        return Err(UsageError::Option(format!("invalid option '--{name}'")));
                    };
                    mixed.push(field.0);
                    let given = text(&mut parser)?;
                    options.set(field, &given)?;
                }
                Arg::Value(word) => words.push(word.to_string_lossy().into_owned()),
                other @ Arg::Short(_) => return Err(UsageError::Option(other.unexpected().to_string())),
            }
        }
        match words.split_first() {
            None => {}
            Some((first, _)) if first == "phase" && options.help => {}
            Some((first, names)) if first == "phase" && !is_check => {
                options.phase = Some(INIT.named(names).map_err(UsageError::Option)?);
            }
            Some((word, _)) => return Err(UsageError::Unexpected(word.clone())),
        }
        if options.config.is_some() && !mixed.is_empty() {
            let message = format!("can not mix '--config' with arguments [{}]", mixed.join(" "));
            return Err(UsageError::Option(message));
        }
        // The static pods mount kubeconfigs from the usual place.
        if options.phase.is_none() && options.kubeconfig_dir.is_some() && !options.help {
            let message = "--kubeconfig-dir is an option of agent init phase kubeconfig";
            return Err(UsageError::Option(message.to_owned()));
        }
        if options.yaml && !options.dry_run {
            return Err(UsageError::Option("--output yaml requires --dry-run".to_owned()));
        }
        Ok(options)
    }

    fn set(
        &mut self,
        (flag, is_init, path, form): &(&str, bool, &str, FlagForm),
        given: &str,
    ) -> Result<(), UsageError> {
        let wrong = |what: &str| UsageError::Option(format!("--{flag} {given:?}: must be {what}"));
        let value = match form {
            FlagForm::Text => json!(given),
            FlagForm::Number => json!(given.parse::<u32>().map_err(|_| wrong("a number"))?),
            FlagForm::List => json!(list(given)),
            FlagForm::Gates => gates(given).ok_or_else(|| wrong("a list of NAME=true or NAME=false"))?,
            FlagForm::Arguments => pairs(given)
                .map(|pair| pair.map(|(name, value)| json!({ "name": name, "value": value })))
                .collect::<Option<Vec<_>>>()
                .map(Value::Array)
                .ok_or_else(|| wrong("a list of NAME=VALUE"))?,
        };
        let mut place = if *is_init { &mut self.documents.init } else { &mut self.documents.cluster };
        for name in path.split('.') {
            place = &mut place[name];
            if name == "bootstrapTokens" {
                place = &mut place[0];
            }
        }
        *place = value;
        Ok(())
    }
}

fn list(text: &str) -> Vec<String> {
    text.split(',').map(|item| item.trim().to_owned()).filter(|item| !item.is_empty()).collect()
}

/// The value of `--feature-gates`.
pub(super) fn gates(text: &str) -> Option<Value> {
    let gate = |pair: Option<(String, String)>| {
        let (name, on) = pair?;
        Some((name, Value::Bool(on.parse().ok()?)))
    };
    pairs(text).map(gate).collect::<Option<serde_json::Map<_, _>>>().map(Value::Object)
}

fn pairs(text: &str) -> impl Iterator<Item = Option<(String, String)>> {
    text.split(',').filter(|pair| !pair.is_empty()).map(|pair| {
        let (name, value) = pair.split_once('=')?;
        Some((name.trim().to_owned(), value.to_owned()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(line: &str) -> Result<ControlPlaneOptions, String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        ControlPlaneOptions::parse(&words, false).map_err(|error| error.to_string())
    }

    #[test]
    fn flags_are_fields_of_the_documents() {
        let options = parse(
            "--apiserver-advertise-address 192.0.2.1 --apiserver-bind-port 7443 --apiserver-cert-extra-sans a,b \
             --cert-dir /pki --feature-gates NodeLocalCRISocket=false --pod-network-cidr 10.0.0.0/16 --token a.b \
             --token-ttl 0 --apiserver-extra-args v=4,x=a=b --skip-phases addon,preflight --timeout 20m --dry-run -o yaml \
             --ignore-preflight-errors Mem --node-name x",
        )
        .unwrap();
        assert_eq!(
            options.documents.init,
            json!({
                "localAPIEndpoint": {"advertiseAddress": "192.0.2.1", "bindPort": 7443},
                "bootstrapTokens": [{
                    "description": "The default bootstrap token generated by 'kubeadm init'.",
                    "token": "a.b",
                    "ttl": "0",
                }],
            })
        );
        assert_eq!(
            options.documents.cluster,
            json!({
                "apiServer": {
                    "certSANs": ["a", "b"],
                    "extraArgs": [{"name": "v", "value": "4"}, {"name": "x", "value": "a=b"}],
                },
                "certificatesDir": "/pki",
                "featureGates": {"NodeLocalCRISocket": false},
                "networking": {"podSubnet": "10.0.0.0/16"},
            })
        );
        assert_eq!(options.skip_phases, ["addon", "preflight"]);
        assert_eq!(options.timeout, Duration::from_secs(1200));
        assert!(options.dry_run && options.yaml);
        assert_eq!(parse("phase certs apiserver").unwrap().phase, Some("certs/apiserver"));
    }

    #[test]
    fn bad_usage_is_named() {
        for (line, expected) in [
            (
                "--config f --token a.b --cert-dir /x --node-name n",
                "can not mix '--config' with arguments [token cert-dir]",
            ),
            ("--apiserver-bind-port x", "--apiserver-bind-port \"x\": must be a number"),
            ("--feature-gates A=maybe", "NAME=true or NAME=false"),
            ("--scheduler-extra-args v", "NAME=VALUE"),
            ("--timeout 0", "--timeout"),
            ("--volumes", "--volumes"),
            ("-o json --dry-run", "use yaml"),
            ("-o yaml", "requires --dry-run"),
            ("--kubeconfig-dir /x", "agent init phase kubeconfig"),
            ("now", "unexpected argument \"now\""),
            ("phase", "subcommand is required"),
            ("phase certs nothing", "invalid phase name: certs/nothing"),
        ] {
            let error = parse(line).map(drop).unwrap_err();
            assert!(error.contains(expected), "{line}: {error}");
        }
    }

    #[test]
    fn a_control_plane_is_chosen_by_its_flag_or_a_phase_of_its_own() {
        let chosen = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            selects(&words, &["preflight", "certs", "kubeconfig", "start"])
        };
        for (line, expected) in [
            ("--control-plane", true),
            ("--dry-run --control-plane", true),
            ("phase certs --control-plane", true),
            ("phase certs apiserver", true),
            ("--dry-run phase etcd local -o yaml", true),
            ("phase etcd", true),
            ("phase kubelet-start --dry-run", true),
            ("", false),
            ("--dry-run", false),
            ("phase certs", false),
            ("phase start", false),
            ("phase unknown", false),
            ("phase", false),
            ("-- --control-plane", false),
        ] {
            assert_eq!(chosen(line), expected, "{line}");
        }
    }

    #[test]
    fn checks_alone_have_the_options_of_agent_preflight() {
        let check = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            ControlPlaneOptions::parse(&words, true).map_err(|error| error.to_string())
        };
        let options =
            check("--control-plane --apiserver-bind-port 7443 -o json -v -- --root-dir /r").unwrap();
        assert!(options.json && options.verbose);
        assert_eq!(options.agent_flags, ["--root-dir", "/r"]);
        assert_eq!(options.documents.init["localAPIEndpoint"]["bindPort"], 7443);
        let said = |line| check(line).err().unwrap();
        assert!(said("-o yaml").contains("text, json"));
        assert_eq!(said("phase preflight"), "unexpected argument \"phase\"");
        assert!(parse("-v").err().unwrap().contains("-v"));
        assert!(parse("--dry-run -o json").err().unwrap().contains("use yaml"));
    }
}
