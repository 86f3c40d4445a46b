//! The phases of `init` that talk to the API server: from the settings to what each of them needs.
//!
//! Owns the connection and the deadline that all of them share.

use std::cell::Cell;
use std::fs;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Paths;
use super::api::{self, Api, ApiPhaseError, Say};
use super::config::InitSettings;
use super::join_command::{Join, WITHHELD, done};
use super::objects::{self, CERTIFICATE_KEY_BYTES};
use super::tokens::record::Record;
use super::{addons, finalize, mark, tokens, upload, wait};
use crate::cluster::client::h2::H2Transport;
use crate::cluster::discovery::cluster_of;
use crate::cluster::pki::files::ClusterEntry;
use crate::codec::base64;
use crate::codec::hex;
use crate::model::duration::GoDuration;
use crate::model::types::Timestamp;
use crate::platform::rt;

/// What is asked for besides the configuration.
#[derive(Clone, Default)]
pub(crate) struct ApiOptions {
    /// `--kubeconfig`; `None`: `admin.conf`.
    pub kubeconfig: Option<PathBuf>,
    pub upload_certs: bool,
    pub skip_token_print: bool,
    pub skip_certificate_key_print: bool,
    /// `--print-manifest`: the objects of an addon are printed, nothing else.
    pub print_manifest: bool,
    pub dry_run: bool,
    /// Of a dry run, `-o yaml`.
    pub bare: bool,
    /// Whether the user has written the KubeletConfiguration and the KubeProxyConfiguration.
    pub is_kubelet_given: bool,
    pub is_proxy_given: bool,
    /// Variables of the machine that name proxies.
    pub proxies: Vec<(String, String)>,
    /// For everything after the kubelet's start; kubeadm gives up after four minutes, and one for the first contact.
    pub timeout: Duration,
}

/// In kubeadm's order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ApiPhase {
    WaitControlPlane,
    UploadConfigKubeadm,
    UploadConfigKubelet,
    UploadCerts,
    MarkControlPlane,
    BootstrapToken,
    /// Of an upgrade.
    BootstrapRules,
    KubeletFinalize,
    AddonCoreDns,
    AddonKubeProxy,
    ShowJoinCommand,
}

pub(crate) struct ApiPhases<'a> {
    pub settings: &'a InitSettings,
    pub options: &'a ApiOptions,
    pub paths: &'a Paths,
    pub say: Say<'a>,
    pub now: Timestamp,
    /// Applied to the Deployment of CoreDNS.
    pub patch: &'a dyn Fn(serde_json::Value) -> Result<serde_json::Value, String>,
    deadline: Instant,
    /// The first contact has been made.
    is_admin: Cell<bool>,
    /// Of the certificates that have been uploaded.
    key: Cell<Option<[u8; CERTIFICATE_KEY_BYTES]>>,
    /// kubelet.conf has changed: the kubelet is to be restarted.
    pub restarts_kubelet: Cell<bool>,
}

impl<'a> ApiPhases<'a> {
    pub(crate) fn new(
        (settings, options, paths): (&'a InitSettings, &'a ApiOptions, &'a Paths),
        say: Say<'a>,
        now: Timestamp,
        patch: &'a dyn Fn(serde_json::Value) -> Result<serde_json::Value, String>,
    ) -> Self {
        let times = [settings.timeouts.control_plane, settings.timeouts.kubelet, settings.timeouts.api_call];
        let longest = times.into_iter().map(GoDuration::to_std).fold(options.timeout, Duration::max);
        Self {
            settings,
            options,
            paths,
            say,
            now,
            patch,
            deadline: Instant::now() + longest,
            is_admin: Cell::new(false),
            key: Cell::new(None),
            restarts_kubelet: Cell::new(false),
        }
    }

    /// # Errors
    /// What could not be done in time, or at all.
    pub(crate) fn run(&self, phase: ApiPhase) -> Result<(), ApiPhaseError> {
        match phase {
            ApiPhase::KubeletFinalize => return self.finalize(),
            ApiPhase::ShowJoinCommand => return self.show_join_command(),
            ApiPhase::AddonCoreDns | ApiPhase::AddonKubeProxy if self.options.print_manifest => {
                return self.print_manifest(phase);
            }
            ApiPhase::WaitControlPlane if self.options.dry_run => return Ok(()),
            ApiPhase::UploadCerts if !self.options.upload_certs => {
                (self.say)("[upload-certs] Skipping phase. Please see --upload-certs\n");
                return Ok(());
            }
            _ => {}
        }
        let asked = rt::run(async { Box::pin(self.talk(phase)).await });
        asked.map_err(|error| ApiPhaseError::Broken(error.to_string()))?
    }

    fn admin(&self) -> PathBuf {
        self.options.kubeconfig.clone().unwrap_or_else(|| self.paths.conf("admin.conf"))
    }

    async fn talk(&self, phase: ApiPhase) -> Result<(), ApiPhaseError> {
        let (settings, say) = (self.settings, self.say);
        let cluster = &settings.cluster;
        let deadline = tokio::time::Instant::from_std(self.deadline);
        if phase == ApiPhase::WaitControlPlane {
            let manifests = self.paths.manifests();
            say(&format!(
                "[wait-control-plane] Waiting for the kubelet to boot up the control plane as static Pods from directory \
                 {:?}\n",
                manifests.display().to_string()
            ));
            wait::kubelet(say, kubelet_health(&settings.kubelet), deadline).await?;
            self.connect(deadline).await?;
            let local = api::kubeconfig(&self.admin(), Some(&settings.endpoint.url()))?;
            return wait::control_plane(say, &manifests, &local, deadline).await;
        }
        let api = self.connect(deadline).await?;
        match phase {
            ApiPhase::UploadConfigKubeadm => upload::kubeadm_config(&api, &cluster.document()).await,
            ApiPhase::UploadConfigKubelet => {
                upload::kubelet_config(&api, &settings.kubelet, self.options.is_kubelet_given).await
            }
            ApiPhase::UploadCerts => self.upload_certs(&api).await,
            ApiPhase::MarkControlPlane => mark::run(&api, &settings.node.name, &settings.node.taints).await,
            ApiPhase::BootstrapToken => {
                let records: Vec<_> = settings.tokens.iter().map(|token| self.record(token)).collect();
                let entry = self.cluster_entry()?;
                let shown = (entry.server.as_str(), entry.authority_data.as_str());
                tokens::bootstrap(&api, &records, shown, !self.options.skip_token_print).await
            }
            ApiPhase::BootstrapRules => tokens::all_rules(&api).await,
            ApiPhase::AddonCoreDns => {
                let address = self.dns_address()?;
                let place = (cluster.dns_domain.as_str(), &*cluster.dns_image(), &*address);
                addons::coredns(&api, place, self.patch).await
            }
            ApiPhase::AddonKubeProxy => addons::kube_proxy(&api, &self.kube_proxy()).await,
            ApiPhase::WaitControlPlane | ApiPhase::KubeletFinalize | ApiPhase::ShowJoinCommand => Ok(()),
        }
    }

    /// As an administrator. With the kubeconfig of `init`, this node's own API server is asked, and the first contact makes
    /// the administrator one.
    async fn connect(&self, deadline: tokio::time::Instant) -> Result<Api<'a, H2Transport>, ApiPhaseError> {
        let local = self.settings.endpoint.url();
        let is_own = self.options.kubeconfig.is_none();
        let dial = |path: &Path| {
            let kubeconfig = api::kubeconfig(path, is_own.then_some(local.as_str()));
            kubeconfig.map(|kubeconfig| api::client(api::transport(kubeconfig)))
        };
        let client = if self.options.dry_run { None } else { Some(dial(&self.admin())?) };
        if let Some(client) = client.as_ref().filter(|_| is_own && !self.is_admin.get()) {
            let path = self.paths.conf("super-admin.conf");
            let other = if path.exists() { Some(dial(&path)?) } else { None };
            api::make_admins(client, other.as_ref(), deadline).await?;
            self.is_admin.set(true);
        }
        let mut api = Api::new(client, self.say, deadline);
        api.bare = self.options.bare;
        Ok(api)
    }

    fn record(&self, token: &super::config::BootstrapToken) -> Record {
        let ends = || self.now.saturating_add(token.ttl.to_std());
        Record {
            id: token.id.clone(),
            secret: token.secret.clone(),
            description: token.description.clone(),
            expires: token.expires.or_else(|| (!token.ttl.is_zero()).then(ends)),
            usages: token.usages.clone(),
            groups: token.groups.clone(),
        }
    }

    async fn upload_certs(&self, api: &Api<'_, H2Transport>) -> Result<(), ApiPhaseError> {
        let key = match (self.key.get(), self.settings.certificate_key.as_str()) {
            (Some(key), _) => key,
            (None, "") => upload::certificate_key()?,
            (None, text) => objects::parse_certificate_key(text).map_err(ApiPhaseError::Broken)?,
        };
        upload::certificates(api, &key, &self.shared_files()?, self.now).await?;
        self.key.set(Some(key));
        if !self.options.skip_certificate_key_print {
            (self.say)(&format!("[upload-certs] Using certificate key:\n{}\n", hex::encode(&key)));
        }
        Ok(())
    }

    /// What further control-plane nodes need, by its name in the Secret. A file that is not there is empty.
    fn shared_files(&self) -> Result<Vec<(&'static str, Vec<u8>)>, ApiPhaseError> {
        let read = |(name, path): (&'static str, PathBuf)| match fs::read(&path) {
            Ok(text) => Ok((name, text)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok((name, Vec::new())),
            Err(source) => Err(ApiPhaseError::File { action: "read", path, source }),
        };
        upload::shared(&self.settings.cluster).into_iter().map(read).collect()
    }

    /// The cluster as the administrator's kubeconfig has it.
    fn cluster_entry(&self) -> Result<ClusterEntry, ApiPhaseError> {
        let path = self.admin();
        if self.options.dry_run && !path.exists() {
            let server = self.settings.cluster.server(&self.settings.endpoint);
            return Ok(ClusterEntry { server, ..ClusterEntry::default() });
        }
        entry_of(&path)
    }

    fn dns_address(&self) -> Result<String, ApiPhaseError> {
        let address = self.settings.cluster.service_address(10).map(|address| address.to_string());
        address.ok_or_else(|| ApiPhaseError::Broken("the service subnet has no address for DNS".to_owned()))
    }

    fn kube_proxy(&self) -> Vec<serde_json::Value> {
        let cluster = &self.settings.cluster;
        let config = (&self.settings.kube_proxy, self.options.is_proxy_given);
        let server = cluster.server(&self.settings.endpoint);
        addons::kube_proxy_objects(config, &server, &cluster.image("kube-proxy"), &self.options.proxies)
    }

    fn print_manifest(&self, phase: ApiPhase) -> Result<(), ApiPhaseError> {
        let cluster = &self.settings.cluster;
        let objects = match phase {
            ApiPhase::AddonKubeProxy => self.kube_proxy(),
            _ => addons::coredns_objects(&cluster.dns_domain, &cluster.dns_image(), &self.dns_address()?),
        };
        for object in &objects {
            (self.say)(&["---\n", &crate::cmd::cli::yaml::to_string(object)].concat());
        }
        Ok(())
    }

    fn finalize(&self) -> Result<(), ApiPhaseError> {
        if self.options.dry_run {
            return Ok(());
        }
        let extra = self.settings.node.kubelet_extra_args.iter().find(|(name, _)| name == "cert-dir");
        let directory = extra.map_or_else(|| self.paths.kubelet.join("pki"), |(_, value)| value.into());
        let pem = directory.join("kubelet-client-current.pem");
        let is_changed = finalize::run(self.say, &self.paths.conf("kubelet.conf"), &pem)?;
        self.restarts_kubelet.set(is_changed);
        Ok(())
    }

    fn show_join_command(&self) -> Result<(), ApiPhaseError> {
        if self.options.bare {
            return Ok(());
        }
        if self.options.dry_run && !self.admin().exists() {
            (self.say)("[dryrun] Would show the commands by which machines join\n");
            return Ok(());
        }
        let entry = self.cluster_entry()?;
        let authorities = authorities_of(&entry);
        let key = match (self.key.get(), self.options.skip_certificate_key_print) {
            (None, _) => String::new(),
            (Some(_), true) => WITHHELD.to_owned(),
            (Some(key), false) => hex::encode(&key),
        };
        let has_endpoint = !self.settings.cluster.control_plane_endpoint.is_empty();
        for token in &self.settings.tokens {
            let token = if self.options.skip_token_print { WITHHELD.to_owned() } else { token.text() };
            let join = Join { server: &entry.server, authorities: &authorities, token: &token };
            let admin = self.admin().display().to_string();
            (self.say)(&done(&join, &admin, has_endpoint.then_some(key.as_str())));
        }
        Ok(())
    }
}

/// Where the kubelet of this configuration answers for its health, if it does.
pub(super) fn kubelet_health(kubelet: &serde_json::Value) -> Option<SocketAddr> {
    let port = kubelet["healthzPort"].as_u64().unwrap_or(10248);
    let port = u16::try_from(port).ok().filter(|port| *port > 0)?;
    let address = kubelet["healthzBindAddress"].as_str().and_then(|address| address.parse().ok());
    let address = address.filter(|address: &IpAddr| !address.is_unspecified());
    Some(SocketAddr::new(address.unwrap_or(IpAddr::from([127, 0, 0, 1])), port))
}

/// The cluster of a kubeconfig, its authorities in it.
pub(crate) fn entry_of(path: &Path) -> Result<ClusterEntry, ApiPhaseError> {
    let file = |path: &Path| {
        let path = path.to_owned();
        move |source| ApiPhaseError::File { action: "read", path, source }
    };
    let text = fs::read_to_string(path).map_err(file(path))?;
    let broken = |why: String| ApiPhaseError::Broken(format!("{}: {why}", path.display()));
    let mut entry = cluster_of(&text).map_err(broken)?;
    if !entry.authority_file.is_empty() {
        let named = path.parent().unwrap_or(Path::new("/")).join(&entry.authority_file);
        entry.authority_data = base64::encode(&fs::read(&named).map_err(file(&named))?);
        entry.authority_file.clear();
    }
    Ok(entry)
}

/// The authorities as PEM; empty where there are none.
pub(crate) fn authorities_of(entry: &ClusterEntry) -> String {
    String::from_utf8(base64::decode(&entry.authority_data).unwrap_or_default()).unwrap_or_default()
}
