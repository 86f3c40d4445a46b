//! TLS without certificate verification: a probe checks that the server answers, not its identity (upstream's
//! `InsecureSkipVerify`).
//!
//! Owns the client's configuration. Data on such a connection must not be secret.

use std::io;
use std::sync::{Arc, LazyLock};

use rustls::client::Resumption;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::WebPkiSupportedAlgorithms;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, Error, InvalidMessage, SignatureScheme};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::HandlerError;
use super::dial::system_error_text;
use crate::platform::http::tls::tls_provider;

/// Created with the first HTTPS request. `None` if the provider lacks TLS 1.2 and 1.3, which does not happen.
static CONFIG: LazyLock<Option<Arc<ClientConfig>>> = LazyLock::new(|| {
    let provider = tls_provider();
    let verifier = AnyServer { algorithms: provider.signature_verification_algorithms };
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .ok()?
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(verifier))
        .with_no_client_auth();
    config.resumption = Resumption::disabled();
    Some(Arc::new(config))
});

/// Performs the TLS handshake on a new connection.
pub(super) async fn connect(host: &str, stream: TcpStream) -> Result<TlsStream<TcpStream>, HandlerError> {
    let failed = |text: &str| HandlerError::Failed(text.to_owned());
    let config = CONFIG.clone().ok_or_else(|| failed("tls: no protocol version"))?;
    let host = if host.is_empty() { "localhost" } else { host };
    let name = ServerName::try_from(host.to_owned()).map_err(|_| failed("tls: invalid server name"))?;
    TlsConnector::from(config).connect(name, stream).await.map_err(|error| explain(&error))
}

fn explain(error: &io::Error) -> HandlerError {
    let cause = error.get_ref().and_then(|cause| cause.downcast_ref::<Error>());
    match cause {
        // The first bytes are no TLS record: with a web server they are those of `HTTP/1.1 400 Bad Request`.
        Some(Error::InvalidMessage(InvalidMessage::InvalidContentType)) => HandlerError::PlainHttp,
        Some(error) => HandlerError::Failed(format!("tls: {error}")),
        None if error.kind() == io::ErrorKind::UnexpectedEof => HandlerError::Failed("EOF".to_owned()),
        None => HandlerError::Failed(format!("read tcp: {}", system_error_text(error))),
    }
}

/// Accepts every certificate.
#[derive(Debug)]
struct AnyServer {
    algorithms: WebPkiSupportedAlgorithms,
}

impl ServerCertVerifier for AnyServer {
    fn verify_server_cert(
        &self,
        _end_entity: &CertificateDer<'_>,
        _intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        _now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _message: &[u8],
        _cert: &CertificateDer<'_>,
        _dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.algorithms.supported_schemes()
    }
}
