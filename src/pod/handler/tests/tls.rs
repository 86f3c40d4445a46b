//! HTTPS without certificate verification.

use std::path::Path;
use std::process::Command;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};

use super::{SOON, aimed, request};
use crate::platform::http::testing::{Server, answer};
use crate::platform::http::tls::tls_provider;
use crate::platform::testing::TempDir;
use crate::pod::handler::{HandlerError, http_get};

/// Signed by itself, for another host.
fn worthless_certificate(directory: &Path) -> rustls::ServerConfig {
    let arguments = "req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=other.example \
                     -days 1 -keyout key.pem -out cert.pem";
    let run =
        Command::new("openssl").current_dir(directory).args(arguments.split_whitespace()).output().unwrap();
    assert!(run.status.success(), "{}", String::from_utf8_lossy(&run.stderr));
    let certificate = CertificateDer::from_pem_file(directory.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(directory.join("key.pem")).unwrap();
    rustls::ServerConfig::builder_with_provider(tls_provider())
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap()
}

#[tokio::test]
async fn any_certificate_will_do() {
    let directory = TempDir::new();
    let server = Server::tls(worthless_certificate(&directory.0), answer("200 OK", &[], "over tls"));
    for host in ["127.0.0.1", "localhost"] {
        let sent = aimed(request(server.port(), "/"), |target| {
            target.https = true;
            target.host = host.to_owned();
        });
        assert_eq!(http_get(&sent, SOON).await.unwrap().body, "over tls");
        assert!(server.request().contains(&format!("host: {host}:{}", server.port())));
    }
}

#[tokio::test]
async fn plain_http_server_is_reported_to_an_https_request() {
    let refuse = "HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = async {
        let (stream, _) = listener.accept().await.unwrap();
        let mut hello = [0; 4096];
        stream.readable().await.unwrap();
        stream.try_read(&mut hello).unwrap();
        stream.try_write(refuse.as_bytes()).unwrap();
        stream
    };
    let sent = aimed(request(port, "/"), |target| target.https = true);
    let (_stream, answer) = tokio::join!(serve, http_get(&sent, SOON));
    let error = answer.unwrap_err();
    assert_eq!(error, HandlerError::PlainHttp);
    assert_eq!(
        sent.explain(&error),
        format!("Get \"https://127.0.0.1:{port}/\": http: server gave HTTP response to HTTPS client")
    );
}
