//! The agent's API over TLS, and clients of it: curl, and a plain port on loopback that leads into TLS.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;

use edge_agent::codec::base64;
use http_body_util::Empty;
use hyper::body::Bytes;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::agent::{AgentProcess, PATIENCE};
use super::wait::wait_until;

/// An agent's API.
pub struct Api {
    /// Where it listens, on 127.0.0.1.
    pub port: u16,
    directory: PathBuf,
}

/// Many requests over one connection.
pub type Http2 = http2::SendRequest<Empty<Bytes>>;

/// Somebody's certificate, in files.
#[derive(Clone, Debug)]
pub struct Person {
    certificate: PathBuf,
    key: PathBuf,
}

/// A port that nobody has now.
pub fn free_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bind");
    listener.local_addr().expect("an address").port()
}

impl Api {
    /// Has the agent, which is not started yet, serve its API.
    pub fn of(agent: &mut AgentProcess, directory: &Path) -> Self {
        let port = free_port();
        let directory = directory.join("pki");
        agent.argument("--enable-server=true");
        agent.argument("--address=127.0.0.1");
        agent.argument(format!("--port={port}"));
        agent.argument(format!("--cert-dir={}", directory.display()));
        Self { port, directory }
    }

    /// Waits until it listens.
    pub fn wait(&self, agent: &mut AgentProcess) {
        wait_until("the API to listen", PATIENCE, || {
            agent.assert_alive();
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_ok()
        });
    }

    /// The node's authority.
    pub fn authority(&self) -> PathBuf {
        self.directory.join("agent-ca.crt")
    }

    /// What `agent kubeconfig` prints for somebody, with these options.
    pub fn kubeconfig(&self, agent: &AgentProcess, name: &str, options: &[&str]) -> String {
        let cert_dir = format!("--cert-dir={}", self.directory.display());
        let server = format!("--server=https://127.0.0.1:{}", self.port);
        let mut command = agent.command_of("kubeconfig");
        command.args([cert_dir, server]).args(["--user", name]).args(options);
        let output = command.output().expect("run it");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        String::from_utf8(output.stdout).expect("text")
    }

    /// Somebody with a certificate by `agent kubeconfig` and these options.
    pub fn person(&self, agent: &AgentProcess, name: &str, options: &[&str]) -> Person {
        let text = self.kubeconfig(agent, name, options);
        let field = |name: &str| {
            let line = text.lines().find_map(|line| line.trim().strip_prefix(name)).expect(name);
            base64::decode(line.trim_start_matches(':').trim().trim_matches('"')).expect("base64")
        };
        let file = |kind: &str| self.directory.join(format!("{name}.{kind}"));
        let person = Person { certificate: file("crt"), key: file("pem") };
        fs::write(&person.certificate, field("client-certificate-data")).expect("write");
        fs::write(&person.key, field("client-key-data")).expect("write");
        assert_eq!(field("certificate-authority-data"), fs::read(self.authority()).expect("read"));
        person
    }

    /// The status and the body of a request by curl.
    pub fn curl(&self, who: Option<&Person>, path: &str, more: &[&str]) -> (u16, String) {
        let mut command = Command::new("curl");
        command
            .args(["-sS", "--max-time", "60", "-o", "-", "-w", "\n%{http_code}", "--cacert"])
            .arg(self.authority());
        if let Some(person) = who {
            command.arg("--cert").arg(&person.certificate).arg("--key").arg(&person.key);
        }
        let url = format!("https://127.0.0.1:{}{path}", self.port);
        let output = command.args(more).arg(url).output().expect("run curl");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let (body, code) = text.rsplit_once('\n').unwrap_or(("", &text));
        assert!(output.status.success(), "{path}: {}", String::from_utf8_lossy(&output.stderr));
        (code.parse().expect("a status"), body.to_owned())
    }

    /// Speaks TLS to the API as this person, and what comes above it.
    fn connector(&self, who: &Person, above: &[u8]) -> TlsConnector {
        let read = |path: &Path| fs::read(path).expect("read");
        let mut roots = RootCertStore::empty();
        roots
            .add(CertificateDer::from_pem_slice(&read(&self.authority())).expect("PEM"))
            .expect("an authority");
        let certificates =
            CertificateDer::pem_slice_iter(&read(&who.certificate)).map(|one| one.expect("PEM")).collect();
        let key = PrivateKeyDer::from_pem_slice(&read(&who.key)).expect("PEM");
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("versions")
            .with_root_certificates(roots)
            .with_client_auth_cert(certificates, key)
            .expect("a pair");
        config.alpn_protocols = vec![above.to_vec()];
        TlsConnector::from(Arc::new(config))
    }

    /// A connection of HTTP/1.1, as this person. Needs a tokio runtime.
    pub async fn stream(&self, who: &Person) -> TlsStream<TcpStream> {
        Self::connect(self.port, self.connector(who, b"http/1.1")).await
    }

    async fn connect(port: u16, connector: TlsConnector) -> TlsStream<TcpStream> {
        let far = TcpStream::connect(("127.0.0.1", port)).await.expect("it listens");
        // A small request would wait for the acknowledgement of the handshake.
        far.set_nodelay(true).expect("set");
        let name = ServerName::try_from("localhost").expect("a name");
        connector.connect(name, far).await.expect("it speaks TLS")
    }

    /// A connection of HTTP/2, as this person. Streams have this window. Needs a tokio runtime.
    pub async fn http2(&self, who: &Person, window: u32) -> Http2 {
        let stream = Self::connect(self.port, self.connector(who, b"h2")).await;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder.initial_stream_window_size(window).initial_connection_window_size(16 * 1024 * 1024);
        let (client, connection) = builder.handshake(TokioIo::new(stream)).await.expect("it speaks HTTP/2");
        tokio::spawn(connection);
        client
    }

    /// A port on loopback: what goes into it comes to the API over TLS, as this person. Needs a tokio runtime.
    pub async fn plain_port(&self, who: &Person) -> u16 {
        let connector = self.connector(who, b"http/1.1");
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("bind");
        let (plain, port) = (listener.local_addr().expect("an address").port(), self.port);
        tokio::spawn(async move {
            while let Ok((mut near, _)) = listener.accept().await {
                let connector = connector.clone();
                tokio::spawn(async move {
                    let mut far = Self::connect(port, connector).await;
                    let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
                });
            }
        });
        plain
    }
}
