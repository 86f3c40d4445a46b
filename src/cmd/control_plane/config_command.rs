//! `agent config print|validate|migrate|images`: kubeadm's documents, and the images of a control plane. Words and forms are
//! kubeadm's.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};

use super::Paths;
use super::args::gates;
use super::config::read::{Documents, HostFacts, settle};
use super::config::{InitSettings, complete};
use super::images::images;
use super::output::Output;
use super::phases::host;
use super::preflight::OWN_SOCKET;
use super::words::{CommandWords, Known, Small};
use crate::cmd::cli::{self, Environment};
use crate::cmd::init::args::UsageError;
use crate::cmd::init::install::File;
use crate::cmd::init::{InitError, InitSession, write};
use crate::platform::logging::chain;
use crate::platform::rt;
use crate::runtime::chosen::NodeRuntime;
use crate::runtime::cri::CriConfig;
use crate::runtime::docker::DockerConfig;
use crate::runtime::{Runtime as _, SandboxConfig};

const OPTIONS: [Known; 13] = [
    ("component-configs", true),
    ("config", true),
    ("old-config", true),
    ("new-config", true),
    ("feature-gates", true),
    ("image-repository", true),
    ("kubernetes-version", true),
    ("cri-socket", true),
    ("output", true),
    // kubeadm's, without an effect here.
    ("kubeconfig", true),
    ("allow-deprecated-api", false),
    ("allow-experimental-api", false),
    ("show-managed-fields", false),
];
const IMAGES: [&str; 4] = ["config", "feature-gates", "image-repository", "kubernetes-version"];
/// Flags that say what a file says, and the field.
const FIELDS: [(&str, &str); 2] =
    [("image-repository", "imageRepository"), ("kubernetes-version", "kubernetesVersion")];
/// For one image over a slow link.
const LIMIT: Duration = Duration::from_secs(3600);

/// Runs `agent config` with one of these words; returns the exit code.
pub fn run(arguments: &[String], environment: Environment<'_>) -> u8 {
    Small { name: "config", help: "config", options: &OPTIONS, run: command }.run(arguments, environment)
}

fn usage(why: &str) -> InitError {
    InitError::Usage(UsageError::Option(why.to_owned()))
}

fn command(session: &mut InitSession<'_>, given: &CommandWords) -> Result<(), InitError> {
    let words: Vec<&str> = given.words.iter().map(String::as_str).collect();
    // kubeadm takes it for all of them, and needs it for none.
    let only = |subcommand: &str, has: &[&str]| given.only(subcommand, &[has, &["kubeconfig"]].concat());
    match words[..] {
        ["print", which @ ("init-defaults" | "join-defaults" | "reset-defaults" | "upgrade-defaults")] => {
            let has = if which == "init-defaults" { &["component-configs"][..] } else { &[] };
            only(&format!("print {which}"), has)?;
            let components = given.list("component-configs");
            let made = complete::defaults(which, &components, host()?, &Paths::system());
            let made = made.map_err(InitError::ControlPlane)?;
            session.print(&Output::Yaml.documents(&made))
        }
        ["validate"] => {
            only("validate", &["config", "allow-deprecated-api", "allow-experimental-api"])?;
            completed(session, given.text("config").ok_or_else(|| usage("the --config flag is mandatory"))?)?;
            session.print("ok\n")
        }
        ["migrate"] => {
            only("migrate", &["old-config", "new-config", "allow-experimental-api"])?;
            let old = given.text("old-config").ok_or_else(|| usage("the --old-config flag is mandatory"))?;
            let text = Output::Yaml.documents(&completed(session, old)?);
            match given.text("new-config") {
                Some(new) => write(&File { path: new.into(), mode: 0o600, content: text }),
                None => session.print(&text),
            }
        }
        ["images", "list"] => {
            only("images list", &[&IMAGES[..], &["output", "show-managed-fields"]].concat())?;
            let form = given.text("output").map_or(Ok(Output::Text), Output::parse)?;
            let images = images(&settings(session, given)?.cluster);
            let shown = json!({
                "apiVersion": "output.kubeadm.k8s.io/v1alpha3", "kind": "Images", "images": images,
            });
            match form {
                Output::Text => session.print(&[images.join("\n").as_str(), "\n"].concat()),
                _ => session.print(&form.documents(&[shown])),
            }
        }
        ["images", "pull"] => {
            only("images pull", &[&IMAGES[..], &["cri-socket"]].concat())?;
            let settings = settings(session, given)?;
            let socket = given.text("cri-socket").unwrap_or(&settings.node.cri_socket).to_owned();
            for image in images(&settings.cluster) {
                pull(session, &socket, &image)?;
                session.print(&format!("[config/images] Pulled {image}\n"))?;
            }
            Ok(())
        }
        _ => {
            let why = "subcommand is required: print init-defaults|join-defaults|reset-defaults|upgrade-defaults, \
                       validate, migrate, or images list|pull";
            Err(usage(why))
        }
    }
}

fn read(file: &str) -> Result<String, InitError> {
    let failed = |source| InitError::File { action: "open", path: PathBuf::from(file), source };
    fs::read_to_string(file).map_err(failed)
}

/// The documents of a file with all defaults.
fn completed(session: &mut InitSession<'_>, file: &str) -> Result<Vec<Value>, InitError> {
    let made = complete::file(&read(file)?, &host()?, &Paths::system());
    let (made, warnings) = made.map_err(InitError::ControlPlane)?;
    session.warn(&warnings);
    Ok(made)
}

/// What the file or the flags say. The machine's addresses do not matter here.
fn settings(session: &mut InitSession<'_>, given: &CommandWords) -> Result<InitSettings, InitError> {
    let mut documents = Documents::default();
    let mut mixed = Vec::new();
    for (flag, field) in FIELDS {
        if let Some(value) = given.text(flag) {
            documents.cluster[field] = value.into();
            mixed.push(flag);
        }
    }
    if let Some(value) = given.text("feature-gates") {
        let wrong = || usage("--feature-gates: must be a list of NAME=true or NAME=false");
        documents.cluster["featureGates"] = gates(value).ok_or_else(wrong)?;
        mixed.push("feature-gates");
    }
    if let Some(file) = given.text("config") {
        if !mixed.is_empty() {
            return Err(usage(&format!("can not mix '--config' with arguments [{}]", mixed.join(" "))));
        }
        documents = Documents::parse(&read(file)?).map_err(InitError::ControlPlane)?;
    }
    let host = HostFacts { addresses: vec![[1, 2, 3, 4].into()], ..host()? };
    let (settings, warnings) =
        settle(&documents, &host, &Paths::system()).map_err(InitError::ControlPlane)?;
    session.warn(&warnings);
    Ok(settings)
}

/// Pulls an image, whether it is there or not.
fn pull(session: &mut InitSession<'_>, socket: &str, image: &str) -> Result<(), InitError> {
    let failed = |why: &str| InitError::ControlPlane(format!("failed to pull image {image:?}: {why}"));
    let environment = &mut session.environment;
    if socket == OWN_SOCKET {
        // The agent's own images, whether it runs or not.
        let mut out = Vec::new();
        let (err, now) = (&mut *environment.err, environment.now);
        let own = Environment { out: &mut out, err, terminal: false, colour: false, now };
        let code = cli::run("image", &["pull", image].map(str::to_owned), own);
        return if code == 0 { Ok(()) } else { Err(failed("see above")) };
    }
    let endpoint =
        if Path::new(socket).is_absolute() { format!("unix://{socket}") } else { socket.to_owned() };
    let config = CriConfig { endpoint, image_endpoint: String::new(), request_timeout: LIMIT };
    let pulled = rt::run(async {
        let runtime = NodeRuntime::connect(config, DockerConfig::default()).map_err(|error| chain(&error))?;
        let pulled = runtime.pull_image(image, None, &SandboxConfig::default()).await;
        pulled.map_err(|error| chain(&error))
    });
    match pulled {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(why)) => Err(failed(&why)),
        Err(error) => Err(failed(&error.to_string())),
    }
}
