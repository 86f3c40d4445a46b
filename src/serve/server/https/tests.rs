//! Requests of users of the node and of its cluster, with certificates and tokens.

use http_body_util::BodyExt;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use tokio::task::LocalSet;

use super::*;
use crate::cluster::client::Client;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::fake::FakeApiserver;
use crate::cluster::review::rules::ReviewTimes;
use crate::model::types::Timestamp;
use crate::platform::dice::Dice;
use crate::platform::testing::TempDir;
use crate::serve::server::AgentReport;
use crate::serve::server::access::{MASTERS, Policy};
use crate::serve::server::delegate::Delegate;
use crate::serve::server::identity::Believed;
use crate::serve::server::node::testing;
use crate::serve::server::pki::{Authority, authority_file};
use crate::serve::server::tls::{Source, TlsSettings};
use crate::serve::streaming::Pending;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);
const DAY: Duration = Duration::from_secs(24 * 3600);

/// The box's own API.
struct OwnApi;

impl Delegate for OwnApi {
    fn serves(&self, path: &str) -> bool {
        path == "/api"
    }

    fn answer(self: Rc<Self>, visit: DelegatedRequest) -> Pending<Response<Body>> {
        Box::pin(async move { text(StatusCode::OK, format!("{} {:?}", visit.user.name, visit.policy)) })
    }
}

/// A node with two authorities: its own, and `clientCAFile`.
struct ServedNode {
    own: Rc<Authority>,
    others: Authority,
    server: FakeApiserver,
    reviews: Rc<Reviews>,
    shared: ApiInner,
    local: LocalSet,
    _directory: TempDir,
}

#[derive(Clone, Copy)]
enum By {
    Own,
    ClientCa,
    Token(&'static str),
    None,
}

impl ServedNode {
    fn new(mode: Option<Policy>, anonymous: bool) -> Self {
        let directory = TempDir::new();
        let own = Rc::new(Authority::open(&directory.join("own"), "box").unwrap());
        let others = Authority::open(&directory.join("others"), "others").unwrap();
        let clock = Clock::manual(NOW);
        let server = FakeApiserver::new(clock.clone(), 1);
        let times = ReviewTimes::of(Duration::ZERO, Duration::ZERO, Duration::ZERO);
        let reviews = Reviews::new("box", times, clock.clone(), Dice::seeded(1));
        let (own_pem, file) = (own.certificate().to_owned(), authority_file(&directory.join("others")));
        let asks = mode.is_none();
        let identities = Identities::open(Vec::new(), move || {
            let mut believed = Believed::new(anonymous).reviewing_tokens(asks);
            believed.trust(&own_pem, &file)?;
            believed.trust_file(&file).map(|()| believed)
        });
        let source = Source::Own {
            directory: directory.join("own"),
            node_name: "box".to_owned(),
            names: Rc::new(Vec::new),
        };
        let tls = Tls::open(source, TlsSettings::default(), Rc::clone(&own), clock.clone());
        let api = Api {
            node: Rc::new(testing::Shown(AgentReport {
                node_name: "box".to_owned(),
                ..AgentReport::default()
            })),
            delegate: Some(Rc::new(OwnApi)),
            tls: Rc::new(tls.unwrap()),
            identities: identities.unwrap(),
            authorizer: mode.map_or_else(|| Authorizer::Reviews(Rc::clone(&reviews)), Authorizer::Policy),
            tokens: asks.then(|| Rc::clone(&reviews)),
            accounts: None,
            roles: Rc::new(Roles::new(None)),
            debugging: true,
            system_logs: SystemLogs::Off,
            clock,
        };
        let shared = ApiInner { api: Rc::new(api), streams: Rc::default(), turns: Turns::default() };
        Self { own, others, server, reviews, shared, local: LocalSet::new(), _directory: directory }
    }

    /// In mode Webhook, with its cluster.
    fn joined(anonymous: bool) -> Self {
        let node = Self::new(None, anonymous);
        let config =
            ClientConfig { limit: Limit { qps: 50, burst: 100 }, timeout: DAY, heartbeat_timeout: DAY };
        let transport = Rc::new(node.server.transport("system:node:box"));
        node.reviews.connect(Rc::new(Client::new(transport, config, Dice::seeded(1))));
        node
    }

    fn allow(&self, user: &str, verb: &str, part: &str) {
        self.server.reviews().allowed.insert((user.to_owned(), verb.to_owned(), format!("nodes/{part}")));
    }

    /// What `jane` of the group of administrators gets.
    async fn send(&self, by: By, method: &str, path: &str) -> (u16, String) {
        let issued = |authority: &Authority| {
            let pair = authority.client("jane", MASTERS, DAY, NOW).unwrap();
            CertificateDer::pem_slice_iter(pair.certificate.as_bytes()).map(Result::unwrap).collect()
        };
        let shown = match by {
            By::Own => issued(&self.own),
            By::ClientCa => issued(&self.others),
            By::Token(_) | By::None => Vec::new(),
        };
        let client = PeerClient { shown: Shown::new(shown), place: Rc::new(ConnectionSlot::unlimited()) };
        let mut request = Request::builder().method(method).uri(path);
        if let By::Token(token) = by {
            request = request.header(AUTHORIZATION, format!("Bearer {token}"));
        }
        let request = request.body(IncomingBody::none()).unwrap();
        let answered = async {
            let response = respond(request, &self.shared, &client).await;
            let status = response.status().as_u16();
            let body = response.into_body().collect().await.map(|body| body.to_bytes().to_vec());
            (status, String::from_utf8(body.unwrap_or_default()).unwrap())
        };
        self.local.run_until(answered).await
    }

    async fn status(&self, by: By, method: &str, path: &str) -> u16 {
        self.send(by, method, path).await.0
    }

    /// The subresources that the cluster was asked about.
    fn asked(&self) -> Vec<String> {
        let part = |body: &serde_json::Value| {
            body["spec"]["resourceAttributes"]["subresource"].as_str().unwrap_or("token").to_owned()
        };
        self.server.calls().iter().map(|call| part(&call.body)).collect()
    }
}

#[tokio::test(start_paused = true)]
async fn a_node_ca_user_needs_no_review() {
    let node = ServedNode::joined(false);
    for (method, path) in [("GET", "/pods"), ("GET", "/configz"), ("GET", "/metrics"), ("GET", "/api")] {
        assert_eq!(node.status(By::Own, method, path).await, 200, "{path}");
    }
    assert_eq!(node.send(By::Own, "GET", "/api").await.1, "jane Local");
    assert_eq!(node.asked(), Vec::<String>::new());
}

#[tokio::test(start_paused = true)]
async fn a_cluster_admin_is_no_node_admin() {
    let node = ServedNode::joined(false);
    node.server.reviews().tokens.insert("t".to_owned(), ("jane".to_owned(), vec![MASTERS.to_owned()]));
    for by in [By::ClientCa, By::Token("t")] {
        let (code, text) = node.send(by, "GET", "/pods").await;
        assert_eq!(code, 403);
        let said = "Forbidden (user=jane, verb=get, resource=nodes, subresource(s)=[pods proxy], node=box)\n";
        assert_eq!(text, said);
        for (method, path) in [("GET", "/configz"), ("POST", "/exec/a/b/c?command=sh"), ("GET", "/metrics")] {
            assert_eq!(node.status(by, method, path).await, 403, "{path}");
        }
        let (code, text) = node.send(by, "GET", "/api").await;
        assert!(code == 403 && text.contains("use the cluster's API"), "{code} {text}");
    }
    assert_eq!(&node.asked()[..2], ["pods", "proxy"], "the finest first");
    // What the cluster allows is the kubelet's API, and nothing of the box's.
    for part in ["pods", "proxy", "metrics"] {
        node.allow("jane", "get", part);
    }
    tokio::time::advance(Duration::from_secs(30)).await;
    for (path, code) in
        [("/pods", 200), ("/configz", 200), ("/metrics", 200), ("/stats/summary", 403), ("/api", 403)]
    {
        assert_eq!(node.status(By::ClientCa, "GET", path).await, code, "{path}");
    }
    assert_eq!(node.status(By::ClientCa, "POST", "/exec/a/b/c?command=sh").await, 403, "another verb");
}

#[tokio::test(start_paused = true)]
async fn the_cluster_is_asked_as_upstream_asks() {
    let node = ServedNode::joined(true);
    node.allow("system:anonymous", "get", "healthz");
    assert_eq!(node.status(By::None, "GET", "/healthz").await, 200);
    assert_eq!(node.status(By::None, "GET", "/pods").await, 403);
    assert_eq!(node.status(By::None, "GET", "/api").await, 403);
    assert_eq!(node.status(By::ClientCa, "GET", "/stats/summary").await, 403);
    let specs: Vec<_> = node.server.calls().iter().map(|call| call.body["spec"].clone()).collect();
    assert_eq!(specs[0]["groups"], serde_json::json!(["system:unauthenticated"]));
    let last = specs.last().unwrap();
    assert_eq!(last["groups"], serde_json::json!([MASTERS, "system:authenticated"]));
    assert_eq!(
        last["resourceAttributes"],
        serde_json::json!({"verb": "get", "version": "v1", "resource": "nodes", "subresource": "stats", "name": "box"})
    );
}

#[tokio::test(start_paused = true)]
async fn no_answer_means_no_access() {
    let apart = ServedNode::new(None, true);
    let joined = ServedNode::joined(true);
    joined.server.faults().refuse = true;
    for node in [&apart, &joined] {
        let (code, text) = node.send(By::ClientCa, "GET", "/pods").await;
        assert_eq!(code, 500);
        assert_eq!(text, "Authorization error (user=jane, verb=get, resource=nodes, subresource=pods)");
        assert_eq!(node.status(By::Token("t"), "GET", "/healthz").await, 401, "not anonymous either");
        assert_eq!(node.status(By::None, "GET", "/healthz").await, 500);
        assert_eq!(node.status(By::ClientCa, "GET", "/api").await, 403);
        assert_eq!(node.status(By::Own, "GET", "/pods").await, 200, "the node's own users come in offline");
    }
}

#[tokio::test(start_paused = true)]
async fn kubeconfig_alone_opens_to_the_cluster_only() {
    let node = ServedNode::joined(false);
    node.server.reviews().tokens.insert("t".to_owned(), ("prometheus".to_owned(), Vec::new()));
    for path in ["/pods", "/healthz", "/api", "/nothing"] {
        assert_eq!(node.status(By::None, "GET", path).await, 401, "{path}");
        assert_eq!(node.status(By::Token("guessed"), "GET", path).await, 401, "{path}");
    }
    assert_eq!(node.status(By::Token("t"), "GET", "/metrics").await, 403);
    node.allow("prometheus", "get", "metrics");
    tokio::time::advance(Duration::from_secs(30)).await;
    assert_eq!(node.status(By::Token("t"), "GET", "/metrics").await, 200);
    assert_eq!(node.status(By::Token("t"), "GET", "/pods").await, 403);
}

#[tokio::test(start_paused = true)]
async fn without_a_cluster_groups_decide() {
    let local = ServedNode::new(Some(Policy::Local), true);
    for by in [By::Own, By::ClientCa] {
        assert_eq!(
            (local.status(by, "GET", "/pods").await, local.status(by, "GET", "/api").await),
            (200, 200)
        );
    }
    for by in [By::None, By::Token("t")] {
        assert_eq!(local.status(by, "GET", "/pods").await, 403, "no webhook: a token is nothing");
    }
    assert_eq!(local.send(By::None, "GET", "/api").await.1, "system:anonymous Local");
    let closed = ServedNode::new(Some(Policy::AlwaysAllow), false);
    assert_eq!(closed.status(By::Token("t"), "GET", "/pods").await, 401);
    assert_eq!(closed.send(By::ClientCa, "GET", "/api").await.1, "jane AlwaysAllow");
    assert!(local.asked().is_empty() && closed.asked().is_empty());
}
