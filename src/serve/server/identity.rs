//! Authentication by client certificate or by token.
//!
//! Owns whose credentials the node trusts.

use std::cell::RefCell;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, SignatureScheme};
use tokio::time::Instant;
use webpki::EndEntityCert;

use super::access::User;
use super::pki::unix_time;
use crate::cluster::review::rules::UserRealm;
use crate::model::types::Timestamp;
use crate::platform::logging::chain;
use crate::platform::x509::Subject;

/// A CA or token file cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{}: {message}", path.display())]
pub struct IdentityError {
    path: PathBuf,
    message: String,
}

/// How often the files are checked for changes, and only on requests.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// Identifies a version of a file: inode, length, time.
type Stamp = Option<(u64, u64, i64, i64)>;

fn stamp(path: &Path) -> Stamp {
    let metadata = fs::metadata(path).ok()?;
    Some((metadata.ino(), metadata.len(), metadata.mtime(), metadata.mtime_nsec()))
}

/// The identities that are trusted now. The CA and token files are reread when they have changed. A file that
/// cannot be used is reported once, and the last good version stays.
pub(crate) struct Identities {
    files: Vec<PathBuf>,
    read: Box<dyn Fn() -> Result<Believed, String>>,
    state: RefCell<IdentityState>,
}

struct IdentityState {
    believed: Rc<Believed>,
    stamps: Vec<Stamp>,
    checked_at: Instant,
}

impl Identities {
    /// Reads the files for the first time.
    pub(crate) fn open<E: std::error::Error>(
        files: Vec<PathBuf>,
        read: impl Fn() -> Result<Believed, E> + 'static,
    ) -> Result<Self, E> {
        let stamps = files.iter().map(|file| stamp(file)).collect();
        let believed = Rc::new(read()?);
        let state = RefCell::new(IdentityState { believed, stamps, checked_at: Instant::now() });
        Ok(Self { files, read: Box::new(move || read().map_err(|error| chain(&error))), state })
    }

    #[must_use]
    pub(crate) fn current(&self) -> Rc<Believed> {
        let mut state = self.state.borrow_mut();
        if !self.files.is_empty() && state.checked_at.elapsed() >= LOOK_EVERY {
            state.checked_at = Instant::now();
            let stamps: Vec<Stamp> = self.files.iter().map(|file| stamp(file)).collect();
            if stamps != state.stamps {
                state.stamps = stamps;
                match (self.read)() {
                    Ok(believed) => {
                        log::info!("Reloaded credentials");
                        state.believed = Rc::new(believed);
                    }
                    Err(error) => {
                        log::warn!(err = error; "Failed to reload credentials, keeping the previous ones");
                    }
                }
            }
        }
        Rc::clone(&state.believed)
    }
}

/// The credentials that the node trusts.
#[derive(Default)]
pub(crate) struct Believed {
    /// Sign client certificates, the node's own those of its users.
    authorities: Vec<(UserRealm, CertificateDer<'static>)>,
    tokens: Vec<(String, User)>,
    /// A token file is configured; it may be empty.
    reads_tokens: bool,
    /// The cluster is asked for tokens that the file does not have.
    reviews_tokens: bool,
    anonymous: bool,
}

impl Believed {
    /// Trusts no credentials. With `anonymous`, requests without any are accepted as `system:anonymous`.
    #[must_use]
    pub(crate) fn new(anonymous: bool) -> Self {
        Self { anonymous, ..Self::default() }
    }

    /// `authentication.webhook.enabled`: only the cluster knows whose a token is that no file has.
    #[must_use]
    pub(crate) fn reviewing_tokens(self, reviews_tokens: bool) -> Self {
        Self { reviews_tokens, ..self }
    }

    /// Trusts the node's own authority, a PEM text.
    ///
    /// # Errors
    /// It contains none. `path` is for the message.
    pub(crate) fn trust(&mut self, pem: &str, path: &Path) -> Result<(), IdentityError> {
        self.trust_as(UserRealm::Node, pem, path)
    }

    fn trust_as(&mut self, realm: UserRealm, pem: &str, path: &Path) -> Result<(), IdentityError> {
        let error = |message: String| IdentityError { path: path.to_owned(), message };
        let before = self.authorities.len();
        for certificate in CertificateDer::pem_slice_iter(pem.as_bytes()) {
            let certificate =
                certificate.map_err(|source| error(format!("no certificates in PEM: {source}")))?;
            if webpki::anchor_from_trusted_cert(&certificate).is_err() {
                return Err(error("contains an invalid X.509 certificate".to_owned()));
            }
            self.authorities.push((realm, certificate));
        }
        if self.authorities.len() == before {
            return Err(error("no certificate in PEM".to_owned()));
        }
        Ok(())
    }

    /// Trusts a file of authorities, `clientCAFile`.
    pub(crate) fn trust_file(&mut self, path: &Path) -> Result<(), IdentityError> {
        let read = fs::read_to_string(path);
        let pem =
            read.map_err(|source| IdentityError { path: path.to_owned(), message: source.to_string() })?;
        self.trust_as(UserRealm::Cluster, &pem, path)
    }

    /// Reads a token file in the API server's format: `token,user,uid[,"group,group"]` a line.
    ///
    /// # Errors
    /// It cannot be read or a line is malformed. The message has the line's number and never its token.
    pub(crate) fn read_tokens(&mut self, path: &Path) -> Result<(), IdentityError> {
        let error = |message: String| IdentityError { path: path.to_owned(), message };
        let text = fs::read_to_string(path).map_err(|source| error(source.to_string()))?;
        self.reads_tokens = true;
        for (index, line) in text.lines().enumerate() {
            let line = line.trim();
            if line.is_empty() || line.starts_with('#') {
                continue;
            }
            let number = index + 1;
            let wanted =
                || error(format!("line {number}: must be token,user,uid or token,user,uid,\"group,group\""));
            let mut fields = line.splitn(4, ',').map(str::trim);
            let (Some(token), Some(name), Some(_)) = (fields.next(), fields.next(), fields.next()) else {
                return Err(wanted());
            };
            if token.is_empty() || name.is_empty() {
                return Err(wanted());
            }
            let groups = fields.next().unwrap_or_default();
            let groups = groups.strip_prefix('"').and_then(|inner| inner.strip_suffix('"')).unwrap_or(groups);
            let groups = groups.split(',').map(str::trim).filter(|group| !group.is_empty());
            let user = User::of_node(name.to_owned(), groups.map(str::to_owned).collect());
            self.tokens.push((token.to_owned(), user));
        }
        Ok(())
    }

    /// The user, from the credentials of the connection and the request; `None`: an unknown client.
    #[cfg(test)]
    #[must_use]
    pub(crate) fn recognise(
        &self,
        certificates: &[CertificateDer<'_>],
        authorization: Option<&str>,
        now: Timestamp,
    ) -> Option<User> {
        let user = self.of_certificate(certificates, now);
        match self.authenticate(user, !certificates.is_empty(), authorization) {
            Recognised::User(user) => Some(user),
            Recognised::Token(_) | Recognised::Unknown => None,
        }
    }

    /// As upstream: the certificate takes precedence over the token, and an invalid certificate or token never
    /// makes a client anonymous. With neither a token file nor the cluster to ask, tokens are ignored, and the
    /// request counts as one without.
    fn authenticate<'a>(
        &self,
        user: Option<User>,
        has_certificate: bool,
        authorization: Option<&'a str>,
    ) -> Recognised<'a> {
        let judges_tokens = self.reads_tokens || self.reviews_tokens;
        let token = authorization.and_then(bearer).filter(|_| judges_tokens);
        if let Some(user) = user.or_else(|| self.of_token(token?)) {
            return Recognised::User(user);
        }
        match token {
            Some(token) if self.reviews_tokens => Recognised::Token(token),
            None if self.anonymous && !has_certificate => Recognised::User(User::anonymous()),
            _ => Recognised::Unknown,
        }
    }

    fn of_certificate(&self, certificates: &[CertificateDer<'_>], now: Timestamp) -> Option<User> {
        let (first, intermediates) = certificates.split_first()?;
        let parsed = EndEntityCert::try_from(first).ok()?;
        let verified = |realm: &UserRealm| {
            let known = self.authorities.iter().filter(|(of, _)| of == realm);
            let anchors: Vec<_> =
                known.filter_map(|(_, known)| webpki::anchor_from_trusted_cert(known).ok()).collect();
            let verified = parsed.verify_for_usage(
                webpki::ALL_VERIFICATION_ALGS,
                &anchors,
                intermediates,
                unix_time(now),
                webpki::KeyUsage::client_auth(),
                None,
                None,
            );
            if let Err(error) = &verified {
                log::debug!(err:% = error, realm:? = realm; "Client certificate is not of this authority");
            }
            verified.is_ok()
        };
        let realm = [UserRealm::Node, UserRealm::Cluster].into_iter().find(verified)?;
        let subject = Subject::parse(parsed.subject());
        // Kubernetes has no user without a name.
        if subject.common_name.is_empty() {
            return None;
        }
        Some(User { name: subject.common_name, groups: subject.organizations, realm, ..User::default() })
    }

    fn of_token(&self, token: &str) -> Option<User> {
        // All tokens are compared, each in constant time, so that the duration reveals nothing.
        let mut found = None;
        for (known, user) in &self.tokens {
            if is_same(known.as_bytes(), token.as_bytes()) {
                found = Some(user);
            }
        }
        found.cloned()
    }
}

/// What the credentials of a request say.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Recognised<'a> {
    User(User),
    /// A token whose user only the cluster knows.
    Token(&'a str),
    Unknown,
}

/// The credentials of a connection, valid for all of its requests.
pub(super) struct Shown {
    certificates: Vec<CertificateDer<'static>>,
    judged: RefCell<Option<Judged>>,
}

/// The result of verifying a certificate, the trust it was verified by, and the time.
struct Judged {
    user: Option<User>,
    by: Rc<Believed>,
    at: Instant,
}

impl Shown {
    pub(super) fn new(certificates: Vec<CertificateDer<'static>>) -> Self {
        Self { certificates, judged: RefCell::default() }
    }

    /// Who sends a request. Verifying signatures costs as much as a small answer, so a certificate is not
    /// verified again for ten seconds while the same authorities are trusted.
    pub(super) fn recognise<'a>(
        &self,
        by: &Rc<Believed>,
        authorization: Option<&'a str>,
        now: Timestamp,
    ) -> Recognised<'a> {
        let mut judged = self.judged.borrow_mut();
        let holds = |judged: &Judged| Rc::ptr_eq(&judged.by, by) && judged.at.elapsed() < LOOK_EVERY;
        let user = if let Some(judged) = judged.as_ref().filter(|judged| holds(judged)) {
            judged.user.clone()
        } else {
            let user = by.of_certificate(&self.certificates, now);
            *judged = Some(Judged { user: user.clone(), by: Rc::clone(by), at: Instant::now() });
            user
        };
        by.authenticate(user, !self.certificates.is_empty(), authorization)
    }
}

fn bearer(header: &str) -> Option<&str> {
    let (scheme, token) = header.trim().split_once(' ')?;
    let token = token.trim();
    (scheme.eq_ignore_ascii_case("bearer") && !token.is_empty()).then_some(token)
}

fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0, |difference, (a, b)| difference | (a ^ b)) == 0
}

/// Accepts any certificate at the handshake, as long as the client has its key. [`Believed`] authenticates
/// later, so that an unknown client gets an answer it understands (401) instead of a broken connection.
/// Upstream's `RequestClientCert`.
#[derive(Debug)]
pub(super) struct AnyClient(pub(super) Arc<CryptoProvider>);

impl ClientCertVerifier for AnyClient {
    fn root_hint_subjects(&self) -> &[DistinguishedName] {
        &[]
    }

    fn client_auth_mandatory(&self) -> bool {
        false
    }

    fn verify_client_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: UnixTime,
    ) -> Result<ClientCertVerified, rustls::Error> {
        Ok(ClientCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signature, known)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let known = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signature, known)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;
    use crate::serve::server::access::MASTERS;
    use crate::serve::server::pki::Authority;

    const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
    const DAY: Duration = Duration::from_secs(24 * 3600);

    fn certificates(authority: &Authority, user: &str) -> Vec<CertificateDer<'static>> {
        let pair = authority.client(user, MASTERS, DAY, NOW).unwrap();
        CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).map(Result::unwrap).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn token_file_is_reread_on_change_and_a_bad_one_ignored() {
        let directory = TempDir::new();
        let file = directory.join("tokens");
        fs::write(&file, "one,jane,1\n").unwrap();
        let read = file.clone();
        let identities = Identities::open(vec![file.clone()], move || {
            let mut believed = Believed::new(false);
            believed.read_tokens(&read).map(|()| believed)
        });
        let identities = identities.unwrap();
        let name = |token: &str| {
            let user = identities.current().recognise(&[], Some(&format!("Bearer {token}")), NOW);
            user.map(|user| user.name)
        };
        assert_eq!(name("one").as_deref(), Some("jane"));
        fs::write(&file, "two,john,2\n").unwrap();
        assert_eq!(name("two"), None, "not at every request");
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!((name("two").as_deref(), name("one")), (Some("john"), None), "who was taken out is out");
        for bad in [Some("two"), None] {
            match bad {
                Some(text) => fs::write(&file, text).unwrap(),
                None => fs::remove_file(&file).unwrap(),
            }
            tokio::time::advance(LOOK_EVERY).await;
            assert_eq!(name("two").as_deref(), Some("john"), "{bad:?}");
        }
        fs::write(&file, "three,jack,3\n").unwrap();
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(name("three").as_deref(), Some("jack"));
    }

    #[test]
    fn trusted_client_certificate_names_its_user_while_valid() {
        let directory = TempDir::new();
        let authority = Authority::open(directory.path(), "box").unwrap();
        let other = Authority::open(&directory.join("other"), "box").unwrap();
        let mut believed = Believed::new(true);
        believed.trust(authority.certificate(), Path::new("ca")).unwrap();
        let shown = certificates(&authority, "jane");
        let jane = User::of_node("jane".into(), vec![MASTERS.into()]);
        assert_eq!(believed.recognise(&shown, None, NOW), Some(jane.clone()));
        assert_eq!(believed.recognise(&shown, None, Timestamp::from_secs(1)), Some(jane), "in 1970");
        assert_eq!(
            believed.recognise(&shown, None, NOW.saturating_add(2 * DAY)),
            None,
            "too old, and not anonymous"
        );
        assert_eq!(believed.recognise(&certificates(&other, "jane"), None, NOW), None);
        assert_eq!(believed.recognise(&certificates(&authority, ""), None, NOW), None);
        assert_eq!(believed.recognise(&[CertificateDer::from(vec![1, 2, 3])], None, NOW), None);
        assert_eq!(believed.recognise(&[], None, NOW), Some(User::anonymous()));
        assert_eq!(Believed::new(false).recognise(&[], None, NOW), None);
        // A serving certificate is not valid for clients.
        let pair =
            crate::serve::server::pki::serving_pair(directory.path(), &authority, "box", &[], NOW).unwrap();
        let served = CertificateDer::from_pem_slice(pair.certificate.as_bytes()).unwrap();
        assert_eq!(believed.recognise(&[served], None, NOW), None);
    }

    #[test]
    fn a_token_means_nothing_where_no_file_of_tokens_is() {
        let recognised = |believed: &Believed| believed.recognise(&[], Some("Bearer guessed"), NOW);
        let mut believed = Believed::new(true);
        assert_eq!(recognised(&believed), Some(User::anonymous()), "as a kubelet without a token webhook");
        assert_eq!(recognised(&Believed::new(false)), None);
        let directory = TempDir::new();
        fs::write(directory.join("tokens"), "# none yet\n").unwrap();
        believed.read_tokens(&directory.join("tokens")).unwrap();
        assert_eq!(recognised(&believed), None, "a wrong token never makes a client anonymous");
    }

    #[tokio::test(start_paused = true)]
    async fn a_connections_certificate_is_judged_again_after_a_while() {
        let directory = TempDir::new();
        let authority = Authority::open(directory.path(), "box").unwrap();
        let trusting = |authority: &Authority| {
            let mut believed = Believed::new(false);
            believed.trust(authority.certificate(), Path::new("ca")).unwrap();
            Rc::new(believed)
        };
        let believed = trusting(&authority);
        let shown = Shown::new(certificates(&authority, "jane"));
        let name = |by: &Rc<Believed>, now| match shown.recognise(by, None, now) {
            Recognised::User(user) => Some(user.name),
            _ => None,
        };
        assert_eq!(name(&believed, NOW).as_deref(), Some("jane"));
        let late = NOW.saturating_add(2 * DAY);
        assert_eq!(name(&believed, late).as_deref(), Some("jane"), "within ten seconds");
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(name(&believed, late), None, "it has ended");
        tokio::time::advance(LOOK_EVERY).await;
        assert_eq!(name(&believed, NOW).as_deref(), Some("jane"));
        let other = Authority::open(&directory.join("other"), "box").unwrap();
        assert_eq!(name(&trusting(&other), NOW), None, "other authorities count at once");
    }

    #[test]
    fn who_vouches_for_a_user_decides_its_realm() {
        let directory = TempDir::new();
        let own = Authority::open(&directory.join("own"), "box").unwrap();
        let cluster = Authority::open(&directory.join("cluster"), "cluster").unwrap();
        fs::write(directory.join("tokens"), "listed,jane,1\n").unwrap();
        let mut believed = Believed::new(true).reviewing_tokens(true);
        believed.trust(own.certificate(), Path::new("ca")).unwrap();
        believed.trust_file(&crate::serve::server::pki::authority_file(&directory.join("cluster"))).unwrap();
        believed.read_tokens(&directory.join("tokens")).unwrap();
        let realm = |shown: &[CertificateDer<'_>], header| {
            believed.recognise(shown, header, NOW).map(|user| user.realm)
        };
        assert_eq!(realm(&certificates(&own, "jane"), None), Some(UserRealm::Node));
        assert_eq!(realm(&certificates(&cluster, "jane"), None), Some(UserRealm::Cluster));
        // An intermediate certificate that a client sends along is no one's word.
        let mut chain = certificates(&cluster, "jane");
        chain.extend(certificates(&own, "joe"));
        assert_eq!(realm(&chain, None), Some(UserRealm::Cluster));
        assert_eq!(realm(&[], Some("Bearer listed")), Some(UserRealm::Node));
        assert_eq!(realm(&[], None), Some(UserRealm::Cluster), "anonymous");
        let asked = believed.authenticate(None, false, Some("Bearer other"));
        assert_eq!(asked, Recognised::Token("other"));
        let stranger = believed.authenticate(None, true, None);
        assert_eq!(stranger, Recognised::Unknown, "a certificate of others is not anonymous");
    }

    #[test]
    fn tokens_name_their_users_and_bad_files_their_lines() {
        let directory = TempDir::new();
        let file = directory.join("tokens.csv");
        fs::write(&file, "# people\n\nsecret1,jane,1\nsecret2, joe ,2,\"a, b\"\nsecret3,jim,3,c\n").unwrap();
        let mut believed = Believed::new(true);
        believed.read_tokens(&file).unwrap();
        let user = |header: &str| {
            believed.recognise(&[], Some(header), NOW).map(|user| (user.name, user.groups.join(" ")))
        };
        assert_eq!(user("Bearer secret1"), Some(("jane".into(), String::new())));
        assert_eq!(user("bearer  secret2 "), Some(("joe".into(), "a b".into())));
        assert_eq!(user("Bearer secret3"), Some(("jim".into(), "c".into())));
        assert_eq!(user("Bearer secret"), None, "wrong is not anonymous");
        assert_eq!(
            user("Basic secret1").map(|user| user.0),
            Some("system:anonymous".into()),
            "as upstream: not for us"
        );
        for (text, said) in [("a,b", "line 1"), ("# x\n,b,c", "line 2"), ("hidden,,1", "line 1")] {
            fs::write(&file, text).unwrap();
            let error = Believed::new(false).read_tokens(&file).unwrap_err().to_string();
            assert!(
                error.contains(said) && error.contains("tokens.csv") && !error.contains("hidden"),
                "{error}"
            );
        }
        assert!(
            Believed::new(false)
                .trust_file(&file)
                .unwrap_err()
                .to_string()
                .contains("tokens.csv: no certificate")
        );
        assert!(Believed::new(false).trust_file(&directory.join("none")).is_err());
    }
}
