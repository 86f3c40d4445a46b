//! An apiserver on a port of the loopback: the simulated one of the library behind HTTP/2 and TLS, on a thread of its own.
//!
//! Beside what the simulation knows, it knows who its clients are, counts the bytes of its connections, and can be killed
//! and started again with what it has stored.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::convert::Infallible;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll, ready};
use std::thread::JoinHandle;

use edge_agent::cluster::client::transport::{
    Accept, ApiRequest, ApiResponse, Chunks, Content, Lane, Method, Transport,
};
use edge_agent::cluster::fake::{ApiCall, FakeApiserver, FakeBody};
use edge_agent::platform::clock::Clock;
use http_body_util::BodyExt;
use hyper::body::{Body, Bytes, Frame, Incoming};
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};
use rustls::client::danger::HandshakeSignatureValid;
use rustls::crypto::{CryptoProvider, ring, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, UnixTime};
use rustls::server::danger::{ClientCertVerified, ClientCertVerifier};
use rustls::{DigitallySignedStruct, DistinguishedName, ServerConfig, SignatureScheme};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::{JoinSet, LocalSet, spawn_local};
use tokio_rustls::TlsAcceptor;

/// What a test does on the server's thread.
type Job = Box<dyn FnOnce(&mut Served)>;

/// As which a node logs in.
pub const NODE_USER: &str = "system:node:edge";

/// The server; it ends with the value.
pub struct Apiserver {
    port: u16,
    directory: PathBuf,
    authority: Issuer<'static, KeyPair>,
    authority_pem: String,
    jobs: Option<mpsc::UnboundedSender<SendJob>>,
    wire: Arc<Wire>,
    thread: Option<JoinHandle<()>>,
}

/// A job on its way to the server's thread.
type SendJob = Box<dyn FnOnce(&mut Served) + Send>;

/// Bytes of TCP connections in both directions, TLS included.
#[derive(Default)]
struct Wire {
    received: AtomicU64,
    sent: AtomicU64,
    connections: AtomicU64,
}

/// What lives on the server's thread.
struct Served {
    api: FakeApiserver,
    /// By certificate; `None`: it has expired.
    clients: Rc<RefCell<BTreeMap<Vec<u8>, Option<String>>>>,
    port: u16,
    tls: TlsAcceptor,
    wire: Arc<Wire>,
    /// The listener and all connections; none when it is down.
    tasks: JoinSet<()>,
}

impl Apiserver {
    /// Starts one without objects. Its files are below `directory`.
    pub fn start(directory: &Path) -> Self {
        let directory = directory.join("apiserver");
        fs::create_dir_all(&directory).expect("make the server's directory");
        let (authority_pem, authority) = new_authority("kubernetes");
        let (chain, key) = signed(&authority, &server_params());
        let wire = Arc::new(Wire::default());
        let (jobs, todo) = mpsc::unbounded_channel();
        let (tell, told) = std::sync::mpsc::channel();
        let shared = Arc::clone(&wire);
        let thread = std::thread::Builder::new().name("apiserver".into()).spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
            let runtime = runtime.expect("start a runtime");
            let tls = acceptor(&chain, &key);
            let served = LocalSet::new().block_on(&runtime, async move {
                let mut served = Served {
                    api: FakeApiserver::new(Clock::System, 7),
                    clients: Rc::default(),
                    port: 0,
                    tls,
                    wire: shared,
                    tasks: JoinSet::new(),
                };
                served.listen().await;
                tell.send(served.port).expect("the test waits");
                served.work(todo).await
            });
            drop(served);
        });
        let thread = Some(thread.expect("start the server's thread"));
        let port = told.recv().expect("the server listens");
        Self { port, directory, authority, authority_pem, jobs: Some(jobs), wire, thread }
    }

    pub fn url(&self) -> String {
        format!("https://127.0.0.1:{}", self.port)
    }

    fn job<T: Send + 'static>(&self, job: impl FnOnce(&mut Served) -> T + Send + 'static) -> T {
        let (tell, told) = std::sync::mpsc::channel();
        let job: SendJob = Box::new(move |served| {
            // The test waits below.
            let _ = tell.send(job(served));
        });
        let jobs = self.jobs.as_ref().expect("it runs");
        assert!(jobs.send(job).is_ok(), "the server's thread has ended");
        told.recv().expect("the server's thread works")
    }

    /// Reads or changes what the server has, on its thread.
    pub fn with<T: Send + 'static>(&self, job: impl FnOnce(&FakeApiserver) -> T + Send + 'static) -> T {
        self.job(move |served| job(&served.api))
    }

    /// The object at a path.
    pub fn object(&self, path: &str) -> Option<Value> {
        let path = path.to_owned();
        self.with(move |api| api.object(&path))
    }

    /// Creates or replaces an object.
    pub fn put(&self, object: Value) {
        self.with(move |api| drop(api.put(object)));
    }

    /// Assigns a pod to the node of the test.
    pub fn bind(&self, pod: Value) {
        self.with(move |api| api.bind(pod, super::agent::NODE));
    }

    /// All requests so far.
    pub fn calls(&self) -> Vec<ApiCall> {
        self.with(FakeApiserver::calls)
    }

    /// A token that counts from now on.
    pub fn allow_token(&self, token: &str, user: &str, groups: &[&str]) {
        let (token, user) = (token.to_owned(), user.to_owned());
        let groups = groups.iter().map(|&group| group.to_owned()).collect();
        self.with(move |api| api.reviews().tokens.insert(token, (user, groups)));
    }

    /// It dies: no connection is left, and no new one is accepted.
    pub fn kill(&self) {
        self.job(|served| served.tasks.abort_all());
        super::wait::wait_until("the server's port to be closed", super::agent::PATIENCE, || {
            std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err()
        });
    }

    /// Starts again, with all it had stored.
    pub fn start_again(&self) {
        self.job(|served| {
            let (listener, state) = (rebind(served.port), served.connections());
            served.tasks.spawn_local(accept(listener, state));
        });
    }

    /// Connections so far.
    pub fn connections(&self) -> u64 {
        self.wire.connections.load(Ordering::Relaxed)
    }

    /// Certificate and key of a user, PEM; `expired`: they were good until the spring of 2026.
    pub fn issue(&self, user: &str, expired: bool) -> (String, String) {
        let mut params = CertificateParams::new(Vec::new()).expect("no names");
        params.distinguished_name.push(DnType::CommonName, user);
        params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        params.not_after = rcgen::date_time_ymd(if expired { 2026 } else { 2046 }, 4, 1);
        let (certificate, key) = signed(&self.authority, &params);
        let der = CertificateDer::from_pem_slice(certificate.as_bytes()).expect("PEM").to_vec();
        let user = (!expired).then(|| user.to_owned());
        self.job(move |served| drop(served.clients.borrow_mut().insert(der, user)));
        (certificate, key)
    }

    /// The `user` of a kubeconfig: the node's certificate.
    pub fn node_certificate(&self) -> Value {
        self.certificate(false)
    }

    pub fn certificate(&self, expired: bool) -> Value {
        let (certificate, key) = self.issue(NODE_USER, expired);
        let file = |name: &str, text: &str| {
            let path = self.directory.join(format!("{name}-{expired}.pem"));
            fs::write(&path, text).expect("write a credential");
            path
        };
        json!({"client-certificate": file("node", &certificate), "client-key": file("node-key", &key)})
    }

    /// Writes a kubeconfig with this `user`.
    pub fn kubeconfig(&self, user: &Value) -> PathBuf {
        self.kubeconfig_with(user, &json!({}))
    }

    /// As `kubeconfig`, with more members of its cluster.
    pub fn kubeconfig_with(&self, user: &Value, more: &Value) -> PathBuf {
        let authority = self.directory.join("ca.crt");
        fs::write(&authority, &self.authority_pem).expect("write the authority");
        let mut cluster = json!({"server": self.url(), "certificate-authority": authority});
        for (name, value) in more.as_object().expect("members") {
            cluster[name] = value.clone();
        }
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "here",
            "clusters": [{"name": "here", "cluster": cluster}],
            "users": [{"name": "node", "user": user}],
            "contexts": [{"name": "here", "context": {"cluster": "here", "user": "node"}}],
        });
        let path = self.directory.join("kubelet.conf");
        fs::write(&path, config.to_string()).expect("write the kubeconfig");
        path
    }

    /// The authority of another cluster, in a file.
    pub fn other_authority(&self) -> PathBuf {
        let path = self.directory.join("other.crt");
        fs::write(&path, new_authority("other").0).expect("write an authority");
        path
    }
}

impl Drop for Apiserver {
    fn drop(&mut self) {
        self.jobs = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// What each connection needs.
#[derive(Clone)]
struct Connections {
    api: FakeApiserver,
    clients: Rc<RefCell<BTreeMap<Vec<u8>, Option<String>>>>,
    tls: TlsAcceptor,
    wire: Arc<Wire>,
}

impl Served {
    fn connections(&self) -> Connections {
        Connections {
            api: self.api.clone(),
            clients: Rc::clone(&self.clients),
            tls: self.tls.clone(),
            wire: Arc::clone(&self.wire),
        }
    }

    async fn listen(&mut self) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("listen on the loopback");
        self.port = listener.local_addr().expect("it is bound").port();
        self.tasks.spawn_local(accept(listener, self.connections()));
    }

    /// Does what the test wants until the test has ended.
    async fn work(mut self, mut todo: mpsc::UnboundedReceiver<SendJob>) -> Self {
        while let Some(job) = todo.recv().await {
            let job: Job = job;
            job(&mut self);
        }
        self
    }
}

/// The port of a server that was killed.
fn rebind(port: u16) -> TcpListener {
    let socket = tokio::net::TcpSocket::new_v4().expect("a socket");
    socket.set_reuseaddr(true).expect("an option");
    socket.bind(([127, 0, 0, 1], port).into()).expect("bind the port again");
    socket.listen(64).expect("listen")
}

/// Accepts connections until it is aborted, which ends them, too.
async fn accept(listener: TcpListener, state: Connections) {
    let mut served = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        state.wire.connections.fetch_add(1, Ordering::Relaxed);
        let stream = Counted { stream, wire: Arc::clone(&state.wire) };
        served.spawn_local(serve(stream, state.clone()));
    }
}

async fn serve(stream: Counted, state: Connections) {
    let Ok(stream) = state.tls.accept(stream).await else { return };
    let certificate = stream.get_ref().1.peer_certificates().map(|chain| chain[0].to_vec());
    let by_certificate =
        certificate.and_then(|certificate| state.clients.borrow().get(&certificate).cloned().flatten());
    let api = state.api.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let (api, by_certificate) = (api.clone(), by_certificate.clone());
        async move { answer(api, by_certificate, request).await }
    });
    // A client that hangs up is no business of the server's.
    let _ = http2::Builder::new(Here).serve_connection(TokioIo::new(stream), service).await;
}

async fn answer(
    api: FakeApiserver,
    by_certificate: Option<String>,
    request: Request<Incoming>,
) -> io::Result<Response<Answered>> {
    let (head, body) = request.into_parts();
    let header =
        |name: &str| head.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default();
    let token = header("authorization").strip_prefix("Bearer ").unwrap_or_default();
    let by_token = api.reviews().tokens.get(token).map(|(user, _)| user.clone());
    let Some(user) = by_token.or(by_certificate) else {
        let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": "Unauthorized", "reason": "Unauthorized", "code": 401});
        let (sender, receiver) = mpsc::channel(1);
        let _ = sender.try_send(Bytes::from(status.to_string()));
        let answer = Response::builder().status(401).header("content-type", "application/json");
        return answer.body(Answered(receiver)).map_err(io::Error::other);
    };
    let method = match head.method.as_str() {
        "POST" => Method::Post,
        "PUT" => Method::Put,
        "PATCH" => Method::Patch,
        "DELETE" => Method::Delete,
        _ => Method::Get,
    };
    let content = match header("content-type") {
        "application/strategic-merge-patch+json" => Content::StrategicMerge,
        "application/merge-patch+json" => Content::MergePatch,
        _ => Content::Json,
    };
    let is_metadata = header("accept").contains("as=PartialObjectMetadata");
    let bytes = body.collect().await.map_err(io::Error::other)?.to_bytes().to_vec();
    let request = ApiRequest {
        method,
        path: head.uri.path_and_query().map(ToString::to_string).unwrap_or_default(),
        accept: if is_metadata { Accept::Metadata } else { Accept::Json },
        body: (!bytes.is_empty()).then_some((content, bytes)),
        limit: None,
    };
    let lost = |error| io::Error::other(format!("{error}"));
    let answer = api.transport(&user).send(Lane::Main, request).await.map_err(lost)?;
    let ApiResponse { status, retry_after, content_type, body } = answer;
    let mut response = Response::builder().status(status).header("content-type", content_type);
    if let Some(wait) = retry_after {
        response = response.header("retry-after", wait.as_secs());
    }
    let (sender, receiver) = mpsc::channel(1);
    spawn_local(pump(body, sender));
    response.body(Answered(receiver)).map_err(io::Error::other)
}

/// Hands an answer on until the client has hung up.
async fn pump(mut body: FakeBody, into: mpsc::Sender<Bytes>) {
    loop {
        let next = tokio::select! {
            next = body.next() => next,
            () = into.closed() => return,
        };
        let Some(Ok(bytes)) = next else { return };
        if into.send(bytes).await.is_err() {
            return;
        }
    }
}

/// The body of an answer.
struct Answered(mpsc::Receiver<Bytes>);

impl Body for Answered {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        self.0.poll_recv(context).map(|part| part.map(|part| Ok(Frame::data(part))))
    }
}

#[derive(Clone)]
struct Here;

impl<F: Future + 'static> hyper::rt::Executor<F> for Here {
    fn execute(&self, future: F) {
        spawn_local(async move {
            future.await;
        });
    }
}

/// A connection whose bytes are counted.
struct Counted {
    stream: TcpStream,
    wire: Arc<Wire>,
}

fn count(counter: &AtomicU64, bytes: usize) {
    counter.fetch_add(u64::try_from(bytes).expect("a length"), Ordering::Relaxed);
}

impl AsyncRead for Counted {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.stream).poll_read(context, buffer))?;
        count(&self.wire.received, buffer.filled().len() - before);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Counted {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.stream).poll_write(context, bytes))?;
        count(&self.wire.sent, written);
        Poll::Ready(Ok(written))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

fn new_authority(name: &str) -> (String, Issuer<'static, KeyPair>) {
    let mut params = CertificateParams::new(Vec::new()).expect("no names");
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    let key = KeyPair::generate().expect("a key");
    let pem = params.self_signed(&key).expect("an authority").pem();
    (pem, Issuer::new(params, key))
}

fn server_params() -> CertificateParams {
    let mut params =
        CertificateParams::new(vec!["127.0.0.1".to_owned(), "localhost".to_owned()]).expect("names");
    params.not_before = rcgen::date_time_ymd(2026, 1, 1);
    params
}

/// Certificate and key, PEM.
fn signed(authority: &Issuer<'static, KeyPair>, params: &CertificateParams) -> (String, String) {
    let key = KeyPair::generate().expect("a key");
    (params.signed_by(&key, authority).expect("a certificate").pem(), key.serialize_pem())
}

fn acceptor(chain: &str, key: &str) -> TlsAcceptor {
    let provider = Arc::new(ring::default_provider());
    let chain = vec![CertificateDer::from_pem_slice(chain.as_bytes()).expect("PEM")];
    let mut config = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_client_cert_verifier(Arc::new(AnyClient(provider)))
        .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("PEM"))
        .expect("a pair");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

/// As the apiserver: a certificate is looked at by the request, not by the handshake.
#[derive(Debug)]
struct AnyClient(Arc<CryptoProvider>);

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
        verify_tls12_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signature: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        verify_tls13_signature(message, certificate, signature, &self.0.signature_verification_algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}
