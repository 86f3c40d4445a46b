//! The command line and the JoinConfiguration of `agent join --control-plane`, which mean the same.
//!
//! Pure: words and the text of a file in, a plan or a complaint out.

use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use crate::cluster::discovery::jws::{BootstrapToken, parse_pin};
use crate::cmd::control_plane::config::fields::DocumentField;
use crate::cmd::control_plane::config::read::single;
use crate::cmd::control_plane::select::JOIN;
use crate::cmd::control_plane::words::{CommandWords, Known};
use crate::cmd::init::JoinOptions;
use crate::cmd::init::args::UsageError;
use crate::cmd::init::preflight::Ignored;
use crate::model::duration::GoDuration;

const OPTIONS: [Known; 19] = [
    ("apiserver-advertise-address", true),
    ("apiserver-bind-port", true),
    ("certificate-key", true),
    ("config", true),
    ("control-plane", false),
    ("cri-socket", true),
    ("discovery-file", true),
    ("discovery-token", true),
    ("discovery-token-ca-cert-hash", true),
    ("discovery-token-unsafe-skip-ca-verification", false),
    ("dry-run", false),
    ("ignore-preflight-errors", true),
    ("node-name", true),
    ("patches", true),
    ("skip-phases", true),
    ("skip-self-test", false),
    ("timeout", true),
    ("tls-bootstrap-token", true),
    ("token", true),
];
/// Flags that go with a file.
const BESIDE_FILE: [&str; 7] =
    ["config", "dry-run", "ignore-preflight-errors", "node-name", "skip-phases", "skip-self-test", "timeout"];
const TOKEN: &str = "discovery.bootstrapToken";
/// Flags that say what a file says, and the field.
const FIELDS: [(&str, &str); 9] = [
    ("apiserver-advertise-address", "controlPlane.localAPIEndpoint.advertiseAddress"),
    ("certificate-key", "controlPlane.certificateKey"),
    ("cri-socket", "nodeRegistration.criSocket"),
    ("discovery-file", "discovery.file.kubeConfigPath"),
    ("node-name", "nodeRegistration.name"),
    ("patches", "patches.directory"),
    ("token", "discovery.bootstrapToken.token"),
    ("discovery-token", "discovery.bootstrapToken.token"),
    ("tls-bootstrap-token", "discovery.tlsBootstrapToken"),
];
/// Of what waits for the new instance, unless another time is given.
const PATIENCE: GoDuration = GoDuration::from_secs(600);

/// What is to be done, without `Debug`: it contains tokens.
pub(super) struct JoinPlan {
    pub(super) phase: Option<&'static str>,
    pub(super) chosen: Vec<&'static str>,
    pub(super) discovery: JoinOptions,
    /// The fields that an InitConfiguration has, too.
    pub(super) init: Value,
    /// `caCertPath`.
    pub(super) authority: String,
    pub(super) node_name: Option<String>,
    pub(super) ignored: Ignored,
    pub(super) dry_run: bool,
    pub(super) no_self_test: bool,
    /// `--timeout`, or the longest time of the file.
    pub(super) patience: Duration,
    pub(super) tls_bootstrap: Duration,
    pub(super) warnings: Vec<String>,
}

/// Whether the arguments of `agent join` are for a control plane.
pub(super) fn is_wanted(arguments: &[String]) -> bool {
    let is_config = |argument: &String| argument == "--config" || argument.starts_with("--config=");
    arguments
        .iter()
        .any(|argument| argument == "--control-plane" || argument == "phase" || is_config(argument))
}

fn usage(why: impl Into<String>) -> UsageError {
    UsageError::Option(why.into())
}

/// `None`: only help is wanted.
pub(super) fn words(arguments: &[String]) -> Result<Option<CommandWords>, UsageError> {
    let given = CommandWords::parse(arguments, &OPTIONS)?;
    Ok((!given.help).then_some(given))
}

impl JoinPlan {
    /// `file`: the text of `--config`.
    pub(super) fn of(given: &CommandWords, file: Option<&str>) -> Result<Self, UsageError> {
        let (phase, endpoint) = split(&given.words)?;
        if file.is_some() {
            let mixed: Vec<&str> =
                OPTIONS.iter().map(|(name, _)| *name).filter(|name| given.has(name)).collect();
            let mixed: Vec<&str> = mixed.into_iter().filter(|name| !BESIDE_FILE.contains(name)).collect();
            if !mixed.is_empty() {
                return Err(usage(format!("can not mix '--config' with arguments [{}]", mixed.join(" "))));
            }
        }
        let (mut document, warnings) = match file {
            Some(text) => single(text, "JoinConfiguration").map_err(usage)?,
            None => (json!({ "controlPlane": {} }), Vec::new()),
        };
        if !document["controlPlane"].is_object() {
            return Err(usage(
                "controlPlane is not set in the JoinConfiguration: --config is for control-plane nodes; other nodes join by \
                 flags (agent join --help)",
            ));
        }
        for (flag, field) in FIELDS {
            if let Some(value) = given.text(flag) {
                put(&mut document, field, json!(value));
            }
        }
        if let Some(port) = given.text("apiserver-bind-port") {
            let number = port.parse::<u16>().ok().filter(|port| *port > 0);
            let number =
                number.ok_or_else(|| usage(format!("--apiserver-bind-port {port:?}: must be a number")))?;
            put(&mut document, "controlPlane.localAPIEndpoint.bindPort", json!(number));
        }
        if let Some(endpoint) = endpoint.filter(|_| file.is_none()) {
            put(&mut document, "discovery.bootstrapToken.apiServerEndpoint", json!(endpoint));
            let pins = given.list("discovery-token-ca-cert-hash");
            put(&mut document, "discovery.bootstrapToken.caCertHashes", json!(pins));
            let skips = given.has("discovery-token-unsafe-skip-ca-verification");
            put(&mut document, "discovery.bootstrapToken.unsafeSkipCAVerification", json!(skips));
        }
        Self::read(&document, given, phase, warnings).map_err(usage)
    }

    fn read(
        document: &Value,
        given: &CommandWords,
        phase: Option<&'static str>,
        warnings: Vec<String>,
    ) -> Result<Self, String> {
        let root = DocumentField::of(document);
        let mut skipped = given.list("skip-phases");
        if skipped.is_empty() {
            skipped = root.at("skipPhases").texts()?;
        }
        let mut ignored = Ignored::default();
        for name in given.list("ignore-preflight-errors") {
            ignored.add(&name)?;
        }
        for name in root.at("nodeRegistration").at("ignorePreflightErrors").texts()? {
            ignored.add(&name)?;
        }
        let times = root.at("timeouts");
        let mut patience = PATIENCE;
        for name in
            ["controlPlaneComponentHealthCheck", "kubeletHealthCheck", "kubernetesAPICall", "etcdAPICall"]
        {
            patience = patience.max(times.at(name).duration(PATIENCE)?);
        }
        if let Some(time) = given.duration("timeout", "10m").map_err(|error| error.to_string())? {
            patience = time;
        }
        let tls_bootstrap = times.at("tlsBootstrap").duration(GoDuration::from_secs(300))?;
        let authority = root.at("caCertPath").text_or("/etc/kubernetes/pki/ca.crt")?;
        if !authority.starts_with('/')
            || Path::new(&authority).extension().is_none_or(|extension| extension != "crt")
        {
            return Err(format!(
                "caCertPath: Invalid value: {authority:?}: must be an absolute path that ends in .crt"
            ));
        }
        let control_plane = &document["controlPlane"];
        let mut init = json!({
            "localAPIEndpoint": control_plane["localAPIEndpoint"],
            "certificateKey": control_plane["certificateKey"],
        });
        for name in ["nodeRegistration", "patches", "timeouts"] {
            init[name] = document[name].clone();
        }
        let node_name = root.at("nodeRegistration").at("name").text()?;
        Ok(Self {
            phase,
            chosen: JOIN.select(phase, &skipped)?,
            discovery: discovery(&root)?,
            init,
            authority,
            node_name: (!node_name.is_empty()).then(|| node_name.trim().to_lowercase()),
            ignored,
            dry_run: given.has("dry-run") || root.at("dryRun").flag(false)?,
            no_self_test: given.has("skip-self-test"),
            patience: patience.to_std(),
            tls_bootstrap: tls_bootstrap.to_std().max(patience.to_std()),
            warnings,
        })
    }
}

/// The phase, and the API server.
fn split(words: &[String]) -> Result<(Option<&'static str>, Option<&str>), UsageError> {
    let (named, mut rest) = match words.split_first() {
        Some((first, rest)) if first == "phase" => {
            // A name of a phase has no port.
            let names = rest.iter().take_while(|word| !word.contains(':')).count();
            let (names, rest) = rest.split_at(names);
            (Some(JOIN.named(names).map_err(usage)?), rest.iter())
        }
        _ => (None, words.iter()),
    };
    let endpoint = rest.next().map(String::as_str);
    match rest.next() {
        None => Ok((named, endpoint)),
        Some(word) => Err(UsageError::Unexpected(word.clone())),
    }
}

fn put(document: &mut Value, field: &str, value: Value) {
    let mut place = document;
    for name in field.split('.') {
        place = &mut place[name];
    }
    *place = value;
}

fn discovery(root: &DocumentField<'_>) -> Result<JoinOptions, String> {
    let of = root.at("discovery");
    let token_of = |field: DocumentField<'_>| {
        let text = field.text()?;
        let read =
            || BootstrapToken::parse(&text).map_err(|why| format!("{}: Invalid value: {why}", field.path));
        (!text.is_empty()).then(read).transpose()
    };
    let by_token = of.at("bootstrapToken");
    let mut found = JoinOptions {
        token: token_of(by_token.at("token"))?,
        tls_token: token_of(of.at("tlsBootstrapToken"))?,
        skips_pins: by_token.at("unsafeSkipCAVerification").flag(false)?,
        ..JoinOptions::default()
    };
    let text = |field: DocumentField<'_>| field.text().map(|text| (!text.is_empty()).then_some(text));
    found.endpoint = text(by_token.at("apiServerEndpoint"))?;
    found.file = text(of.at("file").at("kubeConfigPath"))?;
    for hash in by_token.at("caCertHashes").texts()? {
        found.pins.push(parse_pin(hash.trim()).map_err(|why| format!("{TOKEN}.caCertHashes: {why}"))?);
    }
    let limit = root.at("timeouts").at("discovery");
    if limit.is_set() {
        found.limit = Some(limit.duration(PATIENCE)?.to_std());
    }
    Ok(found)
}

#[cfg(test)]
mod tests;
