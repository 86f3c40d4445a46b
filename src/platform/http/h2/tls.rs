//! TLS of an HTTP/2 client: whom it trusts, who it is, and at which time.
//!
//! Owns the client's configuration, made for each connection: certificates are renewed, and connections are rare.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::time_provider::TimeProvider;
use rustls::{CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio_rustls::TlsConnector;

use super::super::error::{TlsError, explain_tls};
use super::super::tls::{Roots, tls_provider};
use super::Io;
use crate::model::types::Timestamp;
use crate::platform::rt;

/// The ALPN protocol of HTTP/2.
const HTTP_2: &[u8] = b"h2";

#[derive(Debug)]
pub(crate) struct DialError {
    /// One of the sides refused the other: trying again does not help.
    pub is_tls: bool,
    pub message: String,
}

impl DialError {
    fn tls(message: String) -> Self {
        Self { is_tls: true, message }
    }

    pub(super) fn lost(message: String) -> Self {
        Self { is_tls: false, message }
    }

    /// Names the server, unless the message does.
    pub(super) fn at(self, place: &str) -> Self {
        if self.message.contains(place) {
            return self;
        }
        Self { message: format!("{place}: {}", self.message), ..self }
    }
}

/// Whom a client trusts, and who it is.
#[derive(Clone)]
pub(crate) struct ServerTls {
    /// What the server's certificate has to be for: a name or an address.
    pub name: String,
    /// PEM; `None`: the system's authorities.
    pub authorities: Option<Vec<u8>>,
    /// PEM: certificate chain and key.
    pub client: Option<(Vec<u8>, Vec<u8>)>,
    /// Accept any certificate.
    pub skip_verify: bool,
    /// Certificates are judged at this time.
    pub now: Timestamp,
}

/// Performs the handshake. With `http2`, a server that does not speak HTTP/2 is an error.
pub(super) async fn connect(io: Io, tls: &ServerTls, http2: bool) -> Result<Io, DialError> {
    let config = config(tls, http2).await?;
    let name = ServerName::try_from(tls.name.clone())
        .map_err(|_| DialError::tls(format!("{:?} is not a valid name of a TLS server", tls.name)))?;
    let stream =
        TlsConnector::from(Arc::new(config)).connect(name, io).await.map_err(|error| explain(&error))?;
    if http2 && stream.get_ref().1.alpn_protocol() != Some(HTTP_2) {
        return Err(DialError::tls("the server does not speak HTTP/2".to_owned()));
    }
    Ok(Box::new(stream))
}

async fn config(tls: &ServerTls, http2: bool) -> Result<ClientConfig, DialError> {
    let provider = tls_provider();
    let algorithms = provider.signature_verification_algorithms;
    let builder = ClientConfig::builder_with_details(provider, Arc::new(FixedTime(tls.now)))
        .with_safe_default_protocol_versions()
        .map_err(|error| DialError::tls(error.to_string()))?;
    let builder = if tls.skip_verify {
        builder.dangerous().with_custom_certificate_verifier(Arc::new(UnverifiedServer { algorithms }))
    } else {
        let pem = match &tls.authorities {
            Some(pem) => pem.clone(),
            None => system_authorities().await?,
        };
        let mut roots = RootCertStore::empty();
        let certificates = CertificateDer::pem_slice_iter(&pem).filter_map(Result::ok);
        roots.add_parsable_certificates(certificates);
        if roots.is_empty() {
            return Err(DialError::tls("the certificate authority contains no PEM certificate".to_owned()));
        }
        builder.with_root_certificates(roots)
    };
    let mut config = match &tls.client {
        Some((certificate, key)) => {
            let chain: Vec<_> = CertificateDer::pem_slice_iter(certificate).filter_map(Result::ok).collect();
            let key = PrivateKeyDer::from_pem_slice(key)
                .map_err(|_| DialError::tls("the client key contains no PEM private key".to_owned()))?;
            builder
                .with_client_auth_cert(chain, key)
                .map_err(|error| DialError::tls(format!("client certificate: {error}")))?
        }
        None => builder.with_no_client_auth(),
    };
    config.resumption = Resumption::disabled();
    if http2 {
        config.alpn_protocols = vec![HTTP_2.to_vec()];
    }
    Ok(config)
}

/// The system's bundle, for a server without an authority of its own.
async fn system_authorities() -> Result<Vec<u8>, DialError> {
    let read = rt::blocking("authorities", || {
        let roots = Roots::find(true, None).map_err(|error| error.to_string())?;
        match roots.path() {
            Some(path) => std::fs::read(path).map_err(|error| format!("{}: {error}", path.display())),
            None => Ok(Vec::new()),
        }
    });
    read.await.map_err(DialError::tls)
}

fn explain(error: &io::Error) -> DialError {
    match error.get_ref().and_then(|cause| cause.downcast_ref::<rustls::Error>()) {
        // Another authority of the same name: every cluster of kubeadm has a `kubernetes`.
        Some(rustls::Error::InvalidCertificate(CertificateError::BadSignature)) => {
            DialError::tls(format!("TLS: {}", TlsError::UnknownIssuer))
        }
        Some(cause) => DialError::tls(format!("TLS: {}", explain_tls(cause.clone()))),
        // A link that breaks looks like this, too.
        None => DialError::lost(format!("TLS handshake: {error}")),
    }
}

/// The time at which certificates are judged. Fixed, as a connection is made in seconds.
#[derive(Debug)]
struct FixedTime(Timestamp);

impl TimeProvider for FixedTime {
    fn current_time(&self) -> Option<UnixTime> {
        let seconds = u64::try_from(self.0.as_nanos() / 1_000_000_000).unwrap_or_default();
        Some(UnixTime::since_unix_epoch(Duration::from_secs(seconds)))
    }
}

/// Accepts every certificate: `insecure-skip-tls-verify`.
#[derive(Debug)]
struct UnverifiedServer {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for UnverifiedServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
