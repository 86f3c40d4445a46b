//! The TLS side of the node's API: which certificate, which versions, and when the certificate is reread or
//! recreated.
//!
//! Owns the server configuration that new connections get.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, SupportedProtocolVersion};
use tokio::time::Instant;

use super::identity::AnyClient;
use super::pki::{self, Authority, Pair, PkiError};
use crate::cluster::pki::deadline::{Usability, usable, validity};
use crate::platform::clock::Clock;
use crate::platform::http::tls::tls_provider;
use crate::platform::logging::chain;
use crate::platform::metrics::{self, Family, MetricKind};
use crate::platform::x509::not_after;

/// How often files are checked for changes, and only on new connections.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// The ALPN protocol of HTTP/2.
pub(super) const HTTP_2: &[u8] = b"h2";

#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    #[error(transparent)]
    Pki(#[from] PkiError),
    #[error("{field} {}: {message}", path.display())]
    File {
        /// The setting that names the file.
        field: &'static str,
        path: PathBuf,
        message: String,
    },
    #[error("{0}")]
    Setting(String),
    /// rustls' error, for example that the two files do not belong together.
    #[error("serve with {files}")]
    Use {
        /// The certificate and its key.
        files: String,
        source: rustls::Error,
    },
}

#[derive(Clone)]
pub(crate) enum Source {
    /// `tlsCertFile` and `tlsPrivateKeyFile`.
    Files {
        /// The certificate, then its intermediates.
        certificate: PathBuf,
        key: PathBuf,
    },
    /// Issued by the node's own authority, in this directory.
    Own {
        /// `--cert-dir`.
        directory: PathBuf,
        node_name: String,
        /// The names and addresses by which clients reach the node now: a box may get its address some time
        /// after its start.
        names: Rc<dyn Fn() -> Vec<String>>,
    },
    /// Signed by the cluster (`serverTLSBootstrap`): certificate and key in one file, whose content changes.
    Cluster {
        file: PathBuf,
        /// Until there is one, and when it has expired.
        until: Box<Self>,
    },
}

impl Source {
    fn files(&self) -> String {
        let (certificate, key) = match self {
            Self::Files { certificate, key } => (certificate.clone(), key.clone()),
            Self::Own { directory, .. } => (directory.join("kubelet.crt"), directory.join("kubelet.key")),
            Self::Cluster { file, until } => return format!("{} or {}", file.display(), until.files()),
        };
        format!("{} and {}", certificate.display(), key.display())
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct TlsSettings {
    /// `tlsMinVersion`; empty for the default, 1.2.
    pub min_version: String,
    /// `tlsCipherSuites`, IANA's names; empty for the library's defaults.
    pub cipher_suites: Vec<String>,
    /// `tlsCurvePreferences`, IANA's ids; empty for the library's defaults.
    pub curves: Vec<i32>,
}

static RENEW_ERRORS: Family = Family::counter(
    "kubelet_server_expiration_renew_errors",
    "Number of serving certificate renewal errors",
    &[],
);
static ROTATED: Family = Family::seconds(
    "kubelet_certificate_manager_server_rotation_seconds",
    "Seconds the previous serving certificate lived before being rotated",
    &[],
)
.with_buckets(&[
    60.0,
    3600.0,
    14_400.0,
    86_400.0,
    604_800.0,
    2_592_000.0,
    7_776_000.0,
    15_552_000.0,
    31_104_000.0,
    124_416_000.0,
]);
/// The prefix that selects these metrics for a page.
pub(super) const SHOWN: &str = "kubelet_certificate_manager_";
const TTL: &str = "kubelet_certificate_manager_server_ttl_seconds";

/// The configuration of new connections.
pub(crate) struct Tls {
    source: Source,
    settings: TlsSettings,
    authority: Rc<Authority>,
    clock: Clock,
    state: RefCell<TlsState>,
}

struct TlsState {
    config: Arc<ServerConfig>,
    pair: Pair,
    checked_at: Instant,
    /// Since when this process serves with the pair.
    since: Instant,
    /// The last problem that was reported.
    trouble: Option<String>,
}

impl TlsSettings {
    /// Whether the settings leave a usable version, curve and cipher suite.
    pub(crate) fn check(&self) -> Result<(), BadSetting> {
        allowed_protocols(self).map(drop)
    }
}

impl Tls {
    /// Reads or creates the certificate.
    pub(crate) fn open(
        source: Source,
        settings: TlsSettings,
        authority: Rc<Authority>,
        clock: Clock,
    ) -> Result<Self, TlsError> {
        let mut pair = read(&source, &authority, &clock)?;
        let config = match (configure(&settings, &source, &pair), &source) {
            (Err(error), Source::Cluster { until, .. }) => {
                log::warn!(err:% = chain(&error); "Failed to use the cluster's serving certificate");
                pair = read(until, &authority, &clock)?;
                configure(&settings, until, &pair)?
            }
            (config, _) => config?,
        };
        let state = RefCell::new(TlsState {
            config,
            pair,
            checked_at: Instant::now(),
            since: Instant::now(),
            trouble: None,
        });
        // Initialized to zero, so that the first error shows as an increase.
        metrics::begin(&RENEW_ERRORS);
        Ok(Self { source, settings, authority, clock, state })
    }

    /// Exports the certificate's remaining lifetime as a metric, in seconds: negative once it has expired,
    /// `+Inf` for one that cannot be parsed (upstream).
    pub(crate) fn show_end(self: &Rc<Self>) {
        let tls = Rc::downgrade(self);
        metrics::show(SHOWN, move |text| {
            let Some(tls) = tls.upgrade() else { return };
            text.family(MetricKind::Gauge, TTL, "Seconds until the serving certificate expires");
            let first = CertificateDer::from_pem_slice(tls.state.borrow().pair.certificate.as_bytes());
            match first.ok().and_then(|first| not_after(&first)) {
                Some(end) => {
                    let now = tls.clock.now();
                    let (left, over) =
                        (end.saturating_since(now).as_secs(), now.saturating_since(end).as_secs());
                    text.sample(&[], &(i128::from(left) - i128::from(over)));
                }
                None => text.sample(&[], &"+Inf"),
            }
        });
    }

    /// The configuration for a new connection. Checks at most every ten seconds whether the files have
    /// changed or the certificate expires. A file that cannot be used is reported once, and the last good one
    /// stays.
    pub(crate) fn current(&self) -> Arc<ServerConfig> {
        if self.state.borrow().checked_at.elapsed() >= LOOK_EVERY {
            self.refresh();
        }
        Arc::clone(&self.state.borrow().config)
    }

    fn refresh(&self) {
        let mut state = self.state.borrow_mut();
        state.checked_at = Instant::now();
        let due = match &self.source {
            Source::Files { .. } | Source::Cluster { .. } => true,
            Source::Own { directory, names, .. } => {
                // Another process has replaced the agent's pair or removed it.
                fs::read_to_string(directory.join("kubelet.crt"))
                    .map_or(true, |found| found != state.pair.certificate)
                    || pki::is_due(&state.pair, &self.authority, &names(), self.clock.now())
            }
        };
        if !due {
            return;
        }
        let renewed = read(&self.source, &self.authority, &self.clock).and_then(|pair| {
            let config =
                if pair == state.pair { None } else { Some(configure(&self.settings, &self.source, &pair)?) };
            Ok((pair, config))
        });
        match renewed {
            Ok((_, None)) => state.trouble = None,
            Ok((pair, Some(config))) => {
                log::info!("Reloaded serving certificate");
                metrics::observe(&ROTATED, &[], state.since.elapsed());
                state.since = Instant::now();
                (state.pair, state.config, state.trouble) = (pair, config, None);
            }
            Err(error) => {
                metrics::count(&RENEW_ERRORS, &[]);
                let trouble = chain(&error);
                if state.trouble.as_ref() != Some(&trouble) {
                    log::warn!(err:% = trouble; "Failed to renew serving certificate, keeping the previous \
                         one");
                }
                state.trouble = Some(trouble);
            }
        }
    }
}

fn read(source: &Source, authority: &Authority, clock: &Clock) -> Result<Pair, TlsError> {
    match source {
        Source::Files { certificate, key } => {
            let read = |field: &'static str, path: &Path| {
                fs::read_to_string(path).map_err(|error| TlsError::File {
                    field,
                    path: path.to_owned(),
                    message: error.to_string(),
                })
            };
            Ok(Pair { certificate: read("tlsCertFile", certificate)?, key: read("tlsPrivateKeyFile", key)? })
        }
        Source::Own { directory, node_name, names } => {
            Ok(pki::serving_pair(directory, authority, node_name, &names(), clock.now())?)
        }
        Source::Cluster { file, until } => {
            let signed = fs::read_to_string(file).ok().filter(|pair| {
                let holds = |validity| usable(validity, clock.now()) != Usability::Expired;
                validity(pair).is_some_and(holds)
            });
            match signed {
                Some(pair) => Ok(Pair { certificate: pair.clone(), key: pair }),
                None => read(until, authority, clock),
            }
        }
    }
}

fn configure(settings: &TlsSettings, source: &Source, pair: &Pair) -> Result<Arc<ServerConfig>, TlsError> {
    let allowed = allowed_protocols(settings);
    let (provider, versions) =
        allowed.map_err(|(field, problem)| TlsError::Setting(format!("{field}: {problem}")))?;
    let files = source.files();
    let bad = |what: &str| TlsError::Setting(format!("serve with {files}: no {what} in PEM"));
    let unusable = |source| TlsError::Use { files: files.clone(), source };
    let certificates: Vec<_> = CertificateDer::pem_slice_iter(pair.certificate.as_bytes())
        .collect::<Result<_, _>>()
        .map_err(|_| bad("certificates"))?;
    let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes()).map_err(|_| bad("private key"))?;
    let verifier = Arc::new(AnyClient(Arc::clone(&provider)));
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_protocol_versions(&versions)
        .map_err(unusable)?
        .with_client_cert_verifier(verifier)
        .with_single_cert(certificates, key)
        .map_err(unusable)?;
    // Streams into containers need upgrades, which HTTP/2 does not have: their clients do not offer it.
    config.alpn_protocols = vec![HTTP_2.to_vec(), b"http/1.1".to_vec()];
    // Session tickets cost memory here, for clients that rarely reconnect.
    config.send_tls13_tickets = 0;
    config.session_storage = Arc::new(rustls::server::NoServerSessionStorage {});
    Ok(Arc::new(config))
}

type Spoken = (Arc<CryptoProvider>, Vec<&'static SupportedProtocolVersion>);

/// A field that leaves nothing usable, and why.
pub(crate) type BadSetting = (&'static str, String);

/// The part of the library's versions and suites that the settings allow.
fn allowed_protocols(settings: &TlsSettings) -> Result<Spoken, BadSetting> {
    let versions = match settings.min_version.as_str() {
        "" | "VersionTLS10" | "VersionTLS11" | "VersionTLS12" => {
            vec![&rustls::version::TLS13, &rustls::version::TLS12]
        }
        "VersionTLS13" => vec![&rustls::version::TLS13],
        other => {
            let problem = format!("{other:?} is not supported: use VersionTLS12 or VersionTLS13");
            return Err(("tlsMinVersion", problem));
        }
    };
    if settings.cipher_suites.is_empty() && settings.curves.is_empty() {
        return Ok((tls_provider(), versions));
    }
    let mut provider = CryptoProvider::clone(&tls_provider());
    if !settings.curves.is_empty() {
        // The order is the library's, as in Go.
        provider.kx_groups.retain(|group| settings.curves.contains(&i32::from(u16::from(group.name()))));
        if provider.kx_groups.is_empty() {
            let known = tls_provider();
            let known = known.kx_groups.iter().map(|group| u16::from(group.name()).to_string());
            let problem = format!(
                "none of {:?} is supported: use one of {}",
                settings.curves,
                known.collect::<Vec<_>>().join(", ")
            );
            return Err(("tlsCurvePreferences", problem));
        }
    }
    if settings.cipher_suites.is_empty() {
        return Ok((Arc::new(provider), versions));
    }
    let name = |suite: &rustls::SupportedCipherSuite| format!("{:?}", suite.suite());
    let wanted = |suite: &rustls::SupportedCipherSuite| {
        // As upstream: the names are those of TLS 1.2, and TLS 1.3 always has all of its own.
        suite.tls13().is_some() || settings.cipher_suites.contains(&name(suite))
    };
    provider.cipher_suites.retain(wanted);
    if provider.cipher_suites.iter().all(|suite| suite.tls13().is_some()) && versions.len() > 1 {
        let known = tls_provider();
        let known: Vec<String> =
            known.cipher_suites.iter().filter(|suite| suite.tls13().is_none()).map(name).collect();
        let problem = format!(
            "none of {} is supported: use one of {}, or set tlsMinVersion: VersionTLS13",
            settings.cipher_suites.join(", "),
            known.join(", ")
        );
        return Err(("tlsCipherSuites", problem));
    }
    Ok((Arc::new(provider), versions))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::types::Timestamp;
    use crate::platform::testing::TempDir;

    fn settings(min_version: &str, suites: &[&str]) -> TlsSettings {
        let cipher_suites = suites.iter().map(|suite| (*suite).to_owned()).collect();
        TlsSettings { min_version: min_version.to_owned(), cipher_suites, curves: Vec::new() }
    }

    #[test]
    fn curves_are_selected_or_the_valid_ones_listed() {
        let with = |curves: &[i32]| TlsSettings { curves: curves.to_vec(), ..TlsSettings::default() };
        let names = |settings: &TlsSettings| {
            let (provider, _) =
                allowed_protocols(settings).map_err(|(field, problem)| field.to_owned() + &problem)?;
            Ok::<_, String>(
                provider.kx_groups.iter().map(|group| u16::from(group.name())).collect::<Vec<_>>(),
            )
        };
        assert_eq!(names(&with(&[])).unwrap().len(), tls_provider().kx_groups.len());
        assert_eq!(names(&with(&[24, 4588])).unwrap(), [24]);
        let refused = names(&with(&[25])).unwrap_err();
        assert!(refused.contains("tlsCurvePreferences") && refused.contains("29"), "{refused}");
    }

    #[test]
    fn tls_settings_select_versions_and_suites_or_list_valid_ones() {
        let count = |settings: &TlsSettings| {
            allowed_protocols(settings)
                .map(|(provider, versions)| (provider.cipher_suites.len(), versions.len()))
        };
        let all = tls_provider().cipher_suites.len();
        assert_eq!(count(&settings("", &[])).unwrap(), (all, 2));
        assert_eq!(count(&settings("VersionTLS13", &[])).unwrap(), (all, 1));
        let one = settings("", &["TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256", "TLS_RSA_WITH_AES_128_CBC_SHA"]);
        assert_eq!(count(&one).unwrap(), (4, 2), "three of TLS 1.3 and the one");
        let (field, none) = count(&settings("", &["TLS_RSA_WITH_AES_128_CBC_SHA"])).unwrap_err();
        assert_eq!(field, "tlsCipherSuites");
        assert!(none.contains("TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384"), "{none}");
        assert!(count(&settings("VersionTLS13", &["TLS_RSA_WITH_AES_128_CBC_SHA"])).is_ok());
        assert!(count(&settings("1.3", &[])).unwrap_err().1.contains("VersionTLS13"));
    }

    #[tokio::test(start_paused = true)]
    async fn the_clusters_certificate_is_served_while_valid() {
        let directory = TempDir::new();
        let authority = Rc::new(Authority::open(&directory.join("own"), "box").unwrap());
        let now = Timestamp::from_secs(1_800_000_000);
        let clock = Clock::manual(now);
        let file = directory.join("kubelet-server-current.pem");
        let own = Source::Own {
            directory: directory.join("own"),
            node_name: "box".to_owned(),
            names: Rc::new(Vec::new),
        };
        let source = Source::Cluster { file: file.clone(), until: Box::new(own) };
        let open = || {
            Tls::open(source.clone(), TlsSettings::default(), Rc::clone(&authority), clock.clone()).unwrap()
        };
        let tls = open();
        let shown = |tls: &Tls| tls.state.borrow().pair.certificate.clone();
        let own = shown(&tls);
        let cluster = Authority::open(&directory.join("cluster"), "cluster").unwrap();
        let signed = pki::serving_pair(&directory.join("signed"), &cluster, "box", &[], now).unwrap();
        let signed = format!("{}{}", signed.certificate, signed.key);
        fs::write(&file, &signed).unwrap();
        tokio::time::advance(LOOK_EVERY).await;
        let config = tls.current();
        assert_eq!(shown(&tls), signed);
        assert!(Arc::ptr_eq(&config, &tls.current()));
        assert_eq!(shown(&open()), signed, "after a restart");
        clock.set(now.saturating_add(Duration::from_secs(400 * 24 * 3600)));
        tokio::time::advance(LOOK_EVERY).await;
        let _ = tls.current();
        assert!(shown(&tls) != signed, "it has expired");
        clock.set(now);
        // Without its key.
        fs::write(&file, &own).unwrap();
        let renewed = fs::read_to_string(directory.join("own/kubelet.crt")).unwrap();
        assert!(shown(&open()) == renewed && renewed != own, "the node's own pair serves");
    }

    #[tokio::test(start_paused = true)]
    async fn serving_files_are_reread_on_change_and_bad_ones_ignored() {
        let directory = TempDir::new();
        let authority = Rc::new(Authority::open(&directory.join("pki"), "box").unwrap());
        let now = Timestamp::from_secs(1_800_000_000);
        let make =
            |name: &str| pki::serving_pair(&directory.join(name), &authority, "box", &[], now).unwrap();
        let put = |pair: &Pair| {
            fs::write(directory.join("tls.crt"), &pair.certificate).unwrap();
            fs::write(directory.join("tls.key"), &pair.key).unwrap();
        };
        put(&make("one"));
        let source = Source::Files { certificate: directory.join("tls.crt"), key: directory.join("tls.key") };
        let tls =
            Tls::open(source.clone(), TlsSettings::default(), Rc::clone(&authority), Clock::System).unwrap();
        let first = tls.current();
        put(&make("two"));
        assert!(Arc::ptr_eq(&first, &tls.current()), "not at every connection");
        tokio::time::advance(LOOK_EVERY).await;
        let second = tls.current();
        assert!(!Arc::ptr_eq(&first, &second));
        for bad in ["", "junk"] {
            fs::write(directory.join("tls.key"), bad).unwrap();
            tokio::time::advance(LOOK_EVERY).await;
            assert!(Arc::ptr_eq(&second, &tls.current()), "{bad:?}");
        }
        let tls = Rc::new(tls);
        tls.show_end();
        let mut text = metrics::Text::default();
        metrics::write_recorded(&mut text, &["kubelet_server_", ROTATED.name, SHOWN]);
        let text = text.finish();
        // The clock at the certificate's creation is ahead of the current one.
        let left = now.saturating_since(Clock::System.now()).as_secs() + 365 * 24 * 3600;
        let shown = |line: &str| assert!(text.contains(line), "{line}: {text}");
        shown("kubelet_server_expiration_renew_errors 2\n");
        shown("kubelet_certificate_manager_server_rotation_seconds_bucket{le=\"60\"} 1\n");
        shown(&format!("{TTL} {}", left / 1000));
        fs::write(directory.join("tls.key"), make("three").key).unwrap();
        tokio::time::advance(LOOK_EVERY).await;
        assert!(Arc::ptr_eq(&second, &tls.current()), "of another certificate");
        put(&make("three"));
        tokio::time::advance(LOOK_EVERY).await;
        assert!(!Arc::ptr_eq(&second, &tls.current()));
        fs::remove_file(directory.join("tls.crt")).unwrap();
        let error =
            Tls::open(source, TlsSettings::default(), authority, Clock::System).map(drop).unwrap_err();
        assert!(error.to_string().starts_with("tlsCertFile "), "{error}");
    }
}
