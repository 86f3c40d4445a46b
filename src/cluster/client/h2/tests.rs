//! The transport against a server on the loopback.

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};

use hyper::body::{Body, Frame, Incoming};
use hyper::http::request::Parts;
use hyper::server::conn::http2;
use hyper::service::service_fn;
use hyper_util::rt::TokioIo;
use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, mpsc};
use tokio_rustls::TlsAcceptor;

use super::*;
use crate::cluster::client::transport::{Accept, Content};
use crate::cluster::kubeconfig::Kubeconfig;
use crate::codec::base64;
use crate::platform::http::tls::tls_provider;

/// An authority; all of it is valid from 2026 on.
struct TestAuthority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl TestAuthority {
    fn new() -> Self {
        let mut params = CertificateParams::new(Vec::new()).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { pem, issuer: Issuer::new(params, key) }
    }

    /// Certificate and key, PEM.
    fn issue(&self, name: &str) -> (String, String) {
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        params.not_before = rcgen::date_time_ymd(2026, 1, 1);
        let key = KeyPair::generate().unwrap();
        (params.signed_by(&key, &self.issuer).unwrap().pem(), key.serialize_pem())
    }
}

/// What the server does with a request.
enum Act {
    Answer(u16),
    /// A body that goes on.
    Stream,
    /// Ends the connection, without an answer.
    Cut,
    /// Says that the connection takes no more requests, and answers this one.
    GoAway,
}

type Behave = Rc<dyn Fn(usize, &Parts) -> Act>;

struct ServedApi {
    port: u16,
    authority: TestAuthority,
    most_streams: u32,
    behave: Behave,
    /// Each with the number of its connection, counted from 1.
    requests: RefCell<Vec<String>>,
    /// The client certificate of each connection.
    clients: RefCell<Vec<Vec<u8>>>,
    streams: RefCell<Vec<mpsc::Sender<Bytes>>>,
}

struct TestBody {
    first: Option<Bytes>,
    rest: Option<mpsc::Receiver<Bytes>>,
}

impl Body for TestBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        if let Some(first) = self.first.take() {
            return Poll::Ready(Some(Ok(Frame::data(first))));
        }
        match &mut self.rest {
            Some(rest) => rest.poll_recv(context).map(|part| part.map(|part| Ok(Frame::data(part)))),
            None => Poll::Ready(None),
        }
    }
}

#[derive(Clone)]
struct Here;

impl<F: Future + 'static> hyper::rt::Executor<F> for Here {
    fn execute(&self, future: F) {
        tokio::task::spawn_local(async move {
            future.await;
        });
    }
}

impl ServedApi {
    async fn start(
        most_streams: u32,
        name: &str,
        behave: impl Fn(usize, &Parts) -> Act + 'static,
    ) -> Rc<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let authority = TestAuthority::new();
        let (certificate, key) = authority.issue(name);
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(authority.pem.as_bytes()).unwrap()).unwrap();
        let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls_provider());
        let chain = vec![CertificateDer::from_pem_slice(certificate.as_bytes()).unwrap()];
        let mut config = rustls::ServerConfig::builder_with_provider(tls_provider())
            .with_safe_default_protocol_versions()
            .unwrap()
            .with_client_cert_verifier(verifier.allow_unauthenticated().build().unwrap())
            .with_single_cert(chain, PrivateKeyDer::from_pem_slice(key.as_bytes()).unwrap())
            .unwrap();
        config.alpn_protocols = vec![b"h2".to_vec()];
        let served = Rc::new(Self {
            port: listener.local_addr().unwrap().port(),
            authority,
            most_streams,
            behave: Rc::new(behave),
            requests: RefCell::default(),
            clients: RefCell::default(),
            streams: RefCell::default(),
        });
        let acceptor = TlsAcceptor::from(Arc::new(config));
        let shared = Rc::clone(&served);
        rt::spawn("server", async move {
            loop {
                let (stream, _) = listener.accept().await.unwrap();
                let (acceptor, shared) = (acceptor.clone(), Rc::clone(&shared));
                rt::spawn("served", async move { shared.serve(acceptor, stream).await });
            }
        });
        served
    }

    async fn serve(self: Rc<Self>, acceptor: TlsAcceptor, stream: TcpStream) {
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let client = stream.get_ref().1.peer_certificates().map(|chain| chain[0].to_vec());
        self.clients.borrow_mut().push(client.unwrap_or_default());
        let number = self.clients.borrow().len();
        let (cut, leave) = (Rc::new(Notify::new()), Rc::new(Notify::new()));
        let (shared, cutting, leaving) = (Rc::clone(&self), Rc::clone(&cut), Rc::clone(&leave));
        let service = service_fn(move |request: Request<Incoming>| {
            let (shared, cut, leave) = (Rc::clone(&shared), Rc::clone(&cutting), Rc::clone(&leaving));
            async move {
                let (head, _body) = request.into_parts();
                let login = head.headers.get("authorization").and_then(|value| value.to_str().ok());
                let line =
                    format!("{number} {} {} {}", head.method, head.uri.path(), login.unwrap_or_default());
                shared.requests.borrow_mut().push(line.trim_end().to_owned());
                let mut body = TestBody { first: Some(Bytes::from_static(b"{}")), rest: None };
                let status = match (shared.behave)(number, &head) {
                    Act::Answer(status) => status,
                    Act::Stream => {
                        let (sender, rest) = mpsc::channel(1);
                        shared.streams.borrow_mut().push(sender);
                        body = TestBody { first: None, rest: Some(rest) };
                        200
                    }
                    Act::Cut => {
                        cut.notify_one();
                        std::future::pending().await
                    }
                    Act::GoAway => {
                        leave.notify_one();
                        200
                    }
                };
                let answer = Response::builder().status(status).header("retry-after", "7");
                Ok::<_, Infallible>(answer.header("content-type", "application/json").body(body).unwrap())
            }
        });
        let mut builder = http2::Builder::new(Here);
        builder.max_concurrent_streams(self.most_streams);
        let mut connection = pin!(builder.serve_connection(TokioIo::new(stream), service));
        loop {
            tokio::select! {
                _ = connection.as_mut() => return,
                () = cut.notified() => return,
                () = leave.notified() => connection.as_mut().graceful_shutdown(),
            }
        }
    }

    fn connections(&self) -> usize {
        self.clients.borrow().len()
    }

    /// The numbers of connections and the methods, in order.
    fn seen(&self) -> String {
        let requests = self.requests.borrow();
        let short: Vec<String> =
            requests.iter().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
        short.join(", ")
    }

    /// A client of this server. The members of the cluster and the user are added, or removed with null.
    fn client(&self, cluster: &Value, user: &Value, clock: Clock) -> (H2Transport, Rc<Credentials>) {
        let mut whole = json!({"server": format!("https://127.0.0.1:{}", self.port),
            "certificate-authority-data": base64::encode(self.authority.pem.as_bytes())});
        for (name, value) in cluster.as_object().unwrap() {
            whole[name] = value.clone();
        }
        let value = json!({"current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "k", "user": "u"}}],
            "clusters": [{"name": "k", "cluster": whole}], "users": [{"name": "u", "user": user}]});
        let config = Kubeconfig::parse(&value, Path::new("/")).ok().unwrap();
        let credentials = Rc::new(Credentials::of(config, clock.clone()));
        let config = H2Config { user_agent: "kubelet/test".to_owned(), floor: Timestamp::from_secs(0) };
        (H2Transport::new(config, Rc::clone(&credentials), clock), credentials)
    }

    fn plain_client(&self) -> H2Transport {
        self.client(&json!({}), &json!({}), Clock::System).0
    }
}

fn request(method: Method) -> ApiRequest {
    let body = (method == Method::Post).then(|| (Content::Json, b"{}".to_vec()));
    let limit = Some(Duration::from_secs(20));
    ApiRequest { method, path: "/api/v1/nodes/n?a=b".to_owned(), accept: Accept::Json, body, limit }
}

async fn status(transport: &H2Transport, lane: Lane) -> Result<u16, LinkError> {
    transport.send(lane, request(Method::Get)).await.map(|answer| answer.status)
}

fn directory(name: &str) -> PathBuf {
    let directory = std::env::temp_dir().join(format!("edge-agent-link-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

#[test]
fn a_request_and_its_answer_cross_the_link() {
    let done = rt::run(async {
        let server = ServedApi::start(100, "127.0.0.1", |_, _| Act::Answer(503)).await;
        let (transport, _) = server.client(&json!({}), &json!({"token": "t"}), Clock::System);
        let mut answer = transport.send(Lane::Main, request(Method::Post)).await.unwrap();
        assert_eq!((answer.status, answer.retry_after), (503, Some(Duration::from_secs(7))));
        assert_eq!(answer.content_type, "application/json");
        assert_eq!(answer.body.next().await, Some(Ok(Bytes::from_static(b"{}"))));
        assert_eq!(answer.body.next().await, None);
        let seen = server.requests.borrow().clone();
        assert_eq!(seen, ["1 POST /api/v1/nodes/n Bearer t"]);
    });
    done.unwrap();
}

#[test]
fn a_lease_never_waits_for_watches() {
    let done = rt::run(async {
        let server = ServedApi::start(5, "127.0.0.1", |_, head| {
            if head.uri.path().ends_with("watch") { Act::Stream } else { Act::Answer(200) }
        });
        let server = server.await;
        let transport = server.plain_client();
        let mut watches = Vec::new();
        for _ in 0..8 {
            let watch = ApiRequest { path: "/watch".to_owned(), ..request(Method::Get) };
            watches.push(transport.send(Lane::Main, watch).await.unwrap());
        }
        assert_eq!(server.connections(), 2, "the server permits 5 streams on each");
        assert_eq!(status(&transport, Lane::Heartbeat).await, Ok(200));
        assert_eq!(status(&transport, Lane::Heartbeat).await, Ok(200));
        assert_eq!(server.seen().rsplit(", ").take(2).collect::<Vec<_>>(), ["3 GET", "3 GET"]);
    });
    done.unwrap();
}

#[test]
fn the_91st_stream_opens_a_connection() {
    let done = rt::run(async {
        let server = ServedApi::start(1000, "127.0.0.1", |_, _| Act::Stream).await;
        let transport = server.plain_client();
        let mut watches = Vec::new();
        for count in 1..=91 {
            watches.push(transport.send(Lane::Main, request(Method::Get)).await.unwrap());
            assert_eq!(server.connections(), if count > 90 { 2 } else { 1 }, "{count}");
        }
        watches.clear();
        watches.push(transport.send(Lane::Main, request(Method::Get)).await.unwrap());
        assert_eq!(server.connections(), 2, "freed streams are used again");
        assert_eq!(transport.0.pools[0].borrow().connections.len(), 1, "the idle one was dropped");
    });
    done.unwrap();
}

#[test]
fn go_away_resends_only_what_is_safe() {
    let done = rt::run(async {
        let uid = Some((Content::Json, br#"{"preconditions":{"uid":"1"}}"#.to_vec()));
        for (method, body, wanted) in [
            (Method::Get, None, "1 GET, 2 GET"),
            (Method::Put, None, "1 PUT, 2 PUT"),
            (Method::Patch, None, "1 PATCH, 2 PATCH"),
            (Method::Delete, uid, "1 DELETE, 2 DELETE"),
            (Method::Delete, None, "1 DELETE"),
            (Method::Post, None, "1 POST"),
        ] {
            let server = ServedApi::start(100, "127.0.0.1", |connection, _| match connection {
                1 => Act::Cut,
                _ => Act::Answer(200),
            });
            let server = server.await;
            let sent = ApiRequest { body, ..request(method) };
            let outcome = server.plain_client().send(Lane::Main, sent).await.map(|answer| answer.status);
            if wanted.contains('2') {
                assert_eq!(outcome, Ok(200), "{wanted}");
            } else {
                assert_eq!(outcome.unwrap_err().kind, LinkErrorKind::Lost, "{wanted}");
            }
            assert_eq!(server.seen(), wanted);
        }
        let server = ServedApi::start(100, "127.0.0.1", |_, _| Act::GoAway).await;
        let transport = server.plain_client();
        for _ in 0..3 {
            let answer = transport.send(Lane::Main, request(Method::Post)).await.unwrap();
            assert_eq!(answer.status, 200);
            drop(answer);
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(server.seen(), "1 POST, 2 POST, 3 POST");
    });
    done.unwrap();
}

#[test]
fn a_clock_of_1970_still_shakes_hands() {
    let done = rt::run(async {
        let server = ServedApi::start(100, "127.0.0.1", |_, _| Act::Answer(200)).await;
        let clock = Clock::manual(Timestamp::from_secs(100));
        let (transport, _) = server.client(&json!({}), &json!({}), clock);
        let error = status(&transport, Lane::Main).await.unwrap_err();
        assert!(error.kind == LinkErrorKind::Tls && error.message.contains("not valid yet"), "{error}");
        transport.not_before(Timestamp::from_secs(1_780_000_000));
        assert_eq!(status(&transport, Lane::Main).await, Ok(200));
    });
    done.unwrap();
}

#[test]
fn a_renewed_certificate_file_is_used() {
    let done = rt::run(async {
        let server = ServedApi::start(100, "127.0.0.1", |_, head| match head.method.as_str() {
            "GET" => Act::Stream,
            _ => Act::Answer(200),
        });
        let server = server.await;
        let file = directory("renewed").join("current.pem");
        let write = |(certificate, key): (String, String)| {
            let renewed = file.with_extension("new");
            std::fs::write(&renewed, format!("{certificate}{key}")).unwrap();
            std::fs::rename(renewed, &file).unwrap();
        };
        write(server.authority.issue("first"));
        let user = json!({"client-certificate": file, "client-key": file});
        let (transport, credentials) = server.client(&json!({}), &user, Clock::System);
        let mut watch = transport.send(Lane::Main, request(Method::Get)).await.unwrap();
        write(server.authority.issue("second"));
        credentials.renewed().await;
        let answer = transport.send(Lane::Main, request(Method::Post)).await.unwrap();
        assert_eq!((answer.status, server.seen().as_str()), (200, "1 GET, 2 POST"));
        let clients = server.clients.borrow().clone();
        assert!(clients[0] != clients[1] && !clients[0].is_empty() && !clients[1].is_empty());
        let sender = server.streams.borrow()[0].clone();
        sender.send(Bytes::from_static(b"event")).await.unwrap();
        assert_eq!(watch.body.next().await, Some(Ok(Bytes::from_static(b"event"))), "it goes on");
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    });
    done.unwrap();
}

#[test]
fn a_401_is_followed_by_the_new_token() {
    let done = rt::run(async {
        let server = ServedApi::start(100, "127.0.0.1", |_, head| {
            let is_new = head.headers["authorization"] == "Bearer new";
            Act::Answer(if is_new { 200 } else { 401 })
        });
        let server = server.await;
        let file = directory("token").join("token");
        std::fs::write(&file, "old").unwrap();
        let (transport, _) = server.client(&json!({}), &json!({"tokenFile": file}), Clock::System);
        assert_eq!(status(&transport, Lane::Main).await, Ok(401), "there is no other token");
        std::fs::write(&file, "new").unwrap();
        assert_eq!(status(&transport, Lane::Main).await, Ok(200));
        assert_eq!(server.requests.borrow().len(), 3);
        std::fs::remove_dir_all(file.parent().unwrap()).unwrap();
    });
    done.unwrap();
}

#[test]
fn the_servers_certificate_is_verified_as_configured() {
    let done = rt::run(async {
        let server = ServedApi::start(100, "api.test", |_, _| Act::Answer(200)).await;
        let other = base64::encode(TestAuthority::new().pem.as_bytes());
        for (cluster, wanted) in [
            (json!({}), Err("not for this host name")),
            (json!({"tls-server-name": "api.test"}), Ok(200)),
            (
                json!({"tls-server-name": "api.test", "certificate-authority-data": other}),
                Err("unknown authority"),
            ),
            (json!({"insecure-skip-tls-verify": true, "certificate-authority-data": null}), Ok(200)),
        ] {
            let (transport, _) = server.client(&cluster, &json!({}), Clock::System);
            match (status(&transport, Lane::Main).await, wanted) {
                (Err(error), Err(words)) => {
                    assert!(error.kind == LinkErrorKind::Tls && error.message.contains(words), "{error}");
                }
                (outcome, wanted) => assert_eq!(outcome, Ok(wanted.unwrap()), "{cluster}"),
            }
        }
    });
    done.unwrap();
}

#[test]
fn a_proxy_carries_the_connection() {
    let done = rt::run(async {
        let server = ServedApi::start(100, "127.0.0.1", |_, _| Act::Answer(200)).await;
        let proxy = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = proxy.local_addr().unwrap().port();
        let target = server.port;
        rt::spawn("proxy", async move {
            let (mut client, _) = proxy.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.ends_with(b"\r\n\r\n") {
                head.push(client.read_u8().await.unwrap());
            }
            let wanted = format!("CONNECT 127.0.0.1:{target} HTTP/1.1");
            assert!(String::from_utf8(head).unwrap().starts_with(&wanted));
            client.write_all(b"HTTP/1.1 200 Connection established\r\n\r\n").await.unwrap();
            let mut server = TcpStream::connect(("127.0.0.1", target)).await.unwrap();
            let _ = tokio::io::copy_bidirectional(&mut client, &mut server).await;
        });
        let cluster = json!({"proxy-url": format!("http://127.0.0.1:{port}")});
        let (transport, _) = server.client(&cluster, &json!({}), Clock::System);
        assert_eq!(status(&transport, Lane::Main).await, Ok(200));
    });
    done.unwrap();
}

#[test]
fn a_server_that_is_away_is_a_dial_error() {
    let done = rt::run(async {
        let server = ServedApi::start(100, "127.0.0.1", |_, _| Act::Answer(200)).await;
        // A port that was free a moment ago.
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap().port();
        let cluster = json!({"server": format!("https://127.0.0.1:{port}")});
        let (transport, _) = server.client(&cluster, &json!({}), Clock::System);
        let error = status(&transport, Lane::Main).await.unwrap_err();
        let words = format!("connect to 127.0.0.1:{port}: Connection refused");
        assert!(error.kind == LinkErrorKind::Dial && error.message.starts_with(&words), "{error}");
        // The attempts after the free ones wait; who waits less long hears the last failure.
        let hurried = ApiRequest { limit: Some(Duration::from_millis(100)), ..request(Method::Get) };
        for _ in 0..2 {
            let error = transport.send(Lane::Main, hurried.clone()).await.map(|_| ()).unwrap_err();
            assert!(error.kind == LinkErrorKind::Dial && error.message.contains("refused"), "{error}");
        }
    });
    done.unwrap();
}

#[test]
fn the_servers_clock_is_read_from_its_answers() {
    let read = |text: &str| http_date(text).map(Timestamp::to_rfc3339);
    assert_eq!(read("Tue, 24 Nov 2026 02:46:05 GMT").as_deref(), Some("2026-11-24T02:46:05Z"));
    for text in
        ["", "Tue, 24 Nov 2026 02:46:05", "Tue, 24 ovD 2026 02:46:05 GMT", "Tuesday, 24-Nov-26 02:46:05 GMT"]
    {
        assert_eq!(read(text), None, "{text}");
    }
}
