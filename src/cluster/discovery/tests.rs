use std::cell::RefCell;
use std::error::Error as _;
use std::rc::Rc;

use rcgen::{CertificateParams, KeyPair};
use ring::hmac;
use serde_json::json;

use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::error::LinkError;
use crate::cluster::client::limits::Limit;
use crate::cluster::client::transport::{ApiRequest, ApiResponse, Bytes, Chunks};
use crate::platform::dice::Dice;
use crate::platform::x509::{CERTIFICATE, pem_blocks, spki_sha256};

const LIMIT: Duration = Duration::from_secs(300);
const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);

/// Answers in order, the last one for ever; `Err` is a status. Remembers with which authorities it was asked.
struct InfoFake {
    answers: RefCell<Vec<Result<Value, u16>>>,
    asked: RefCell<Vec<Option<String>>>,
}

struct InfoTransport(Rc<InfoFake>, Option<String>);

struct InfoBody(Option<Bytes>);

impl Chunks for InfoBody {
    async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        self.0.take().map(Ok)
    }
}

impl Transport for InfoTransport {
    type Body = InfoBody;

    async fn send(&self, _: Lane, request: ApiRequest) -> Result<ApiResponse<InfoBody>, LinkError> {
        assert_eq!(request.path, "/api/v1/namespaces/kube-public/configmaps/cluster-info");
        self.0.asked.borrow_mut().push(self.1.clone());
        let mut answers = self.0.answers.borrow_mut();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        let (status, body) = match answer {
            Ok(info) => (200, info),
            Err(status) => (status, json!({ "kind": "Status", "message": "refused" })),
        };
        let body = InfoBody(Some(body.to_string().into()));
        Ok(ApiResponse { status, retry_after: None, content_type: "application/json".into(), body })
    }
}

impl InfoFake {
    fn of(answers: Vec<Result<Value, u16>>) -> Rc<Self> {
        Rc::new(Self { answers: RefCell::new(answers), asked: RefCell::default() })
    }

    fn connect(self: &Rc<Self>) -> impl Fn(Option<&str>) -> Client<InfoTransport> {
        let fake = Rc::clone(self);
        let config = ClientConfig {
            limit: Limit { qps: 0, burst: 0 },
            timeout: Duration::from_secs(10),
            heartbeat_timeout: Duration::from_secs(10),
        };
        move |authorities| {
            let transport = InfoTransport(Rc::clone(&fake), authorities.map(str::to_owned));
            Client::new(Rc::new(transport), config, Dice::seeded(1))
        }
    }
}

fn token() -> BootstrapToken {
    BootstrapToken::parse("abcdef.0123456789abcdef").ok().unwrap()
}

fn authority() -> String {
    CertificateParams::new(Vec::new()).unwrap().self_signed(&KeyPair::generate().unwrap()).unwrap().pem()
}

fn pin(pem: &str) -> CaPin {
    spki_sha256(&pem_blocks(pem, CERTIFICATE)[0]).unwrap()
}

/// As the controller manager writes it.
fn info(authority: &str, server: &str) -> Value {
    let data = base64::encode(authority.as_bytes());
    let text = format!(
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {data}\n    server: {server}\n  \
         name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n"
    );
    let header = base64::encode_url(br#"{"alg":"HS256","kid":"abcdef"}"#);
    let key = hmac::Key::new(hmac::HMAC_SHA256, b"0123456789abcdef");
    let tag = hmac::sign(&key, format!("{header}.{}", base64::encode_url(text.as_bytes())).as_bytes());
    let signature = format!("{header}..{}", base64::encode_url(tag.as_ref()));
    json!({ "data": { "kubeconfig": text, "jws-kubeconfig-abcdef": signature } })
}

#[tokio::test(start_paused = true)]
async fn a_token_and_a_pin_find_the_cluster() {
    let ca = authority();
    let good = info(&ca, "https://10.0.0.1:6443");
    let unsigned = json!({ "data": { "kubeconfig": "" } });
    let answers = vec![Err(502), Ok(unsigned), Ok(good)];
    let server = InfoFake::of(answers);
    let began = Instant::now();
    let found = by_token(&server.connect(), &token(), &[[0; 32], pin(&ca)], LIMIT, NOW).await.unwrap();
    assert_eq!(began.elapsed(), RETRY * 2);
    assert_eq!(found.server, "https://10.0.0.1:6443");
    assert_eq!(*server.asked.borrow(), [None, None, None, Some(ca.clone())], "the last one is verified");
    let file = bootstrap_kubeconfig(&found, &token());
    let file = yaml_to_values(&file, true).unwrap().remove(0);
    assert_eq!(file["current-context"], "tls-bootstrap-token-user@kubernetes");
    assert_eq!(file["users"][0]["user"], json!({ "token": "abcdef.0123456789abcdef" }));
    assert_eq!(cluster_of(&bootstrap_kubeconfig(&found, &token())), Ok(found));
}

#[tokio::test(start_paused = true)]
async fn what_is_not_pinned_or_differs_is_not_believed() {
    let (ca, other) = (authority(), authority());
    let said = async |answers: Vec<Result<Value, u16>>| {
        let found = by_token(&InfoFake::of(answers).connect(), &token(), &[pin(&ca)], LIMIT, NOW).await;
        found.unwrap_err().to_string()
    };
    let (good, moved) = (info(&ca, "https://10.0.0.1:6443"), info(&ca, "https://10.0.0.2:6443"));
    assert!(said(vec![Ok(info(&other, "https://10.0.0.1:6443"))]).await.contains("are pinned"));
    assert!(said(vec![Ok(good.clone()), Ok(moved)]).await.contains("was different from the first"));
    let mut forged = good.clone();
    forged["data"]["kubeconfig"] = "clusters: []".into();
    assert!(said(vec![Ok(forged)]).await.contains("failed to verify JWS signature"));
    // It would be refused for as long as discovery takes, without a word of the clock.
    let early = InfoFake::of(vec![Ok(good.clone())]);
    let error = by_token(&early.connect(), &token(), &[pin(&ca)], LIMIT, Timestamp::default()).await;
    assert!(error.unwrap_err().to_string().contains("set the clock"));
    assert_eq!(early.asked.borrow().len(), 1);
    let unpinned =
        by_token(&InfoFake::of(vec![Ok(good)]).connect(), &token(), &[], LIMIT, NOW).await.unwrap();
    assert_eq!(unpinned.server, "https://10.0.0.1:6443", "the user has said so");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_given_up() {
    let server = InfoFake::of(vec![Err(502)]);
    let error = by_token(&server.connect(), &token(), &[], LIMIT, NOW).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to request the cluster-info ConfigMap");
    assert_eq!(error.source().unwrap().to_string(), "refused (HTTP status 502)");
    assert_eq!(server.asked.borrow().len(), 61);
    let unsigned = InfoFake::of(vec![Ok(json!({ "data": { "kubeconfig": "x" } }))]);
    let error = by_token(&unsigned.connect(), &token(), &[], RETRY, NOW).await.unwrap_err().to_string();
    assert!(error.contains("could not find a JWS signature") && error.contains("abcdef"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_file_is_trusted_and_its_server_asked() {
    let ca = authority();
    let entry = || ClusterEntry { server: "https://10.0.0.1:6443".into(), ..ClusterEntry::default() };
    let other_server = info(&ca, "https://10.0.0.2:6443");
    let server = InfoFake::of(vec![Err(502), Ok(other_server)]);
    let found = by_file(&server.connect(), entry(), LIMIT).await.unwrap();
    assert_eq!(found.server, "https://10.0.0.1:6443");
    assert_eq!(base64::decode(&found.authority_data).unwrap(), ca.as_bytes());
    let private = InfoFake::of(vec![Err(403)]);
    assert_eq!(by_file(&private.connect(), entry(), LIMIT).await.unwrap(), entry());
    let broken = InfoFake::of(vec![Ok(json!({}))]);
    assert_eq!(by_file(&broken.connect(), entry(), LIMIT).await.unwrap(), entry());
    let gone = InfoFake::of(vec![Err(502)]);
    let error = by_file(&gone.connect(), entry(), LIMIT).await.unwrap_err().to_string();
    assert_eq!(error, "abort reading the cluster-info ConfigMap after timeout of 300s");
}

#[test]
fn the_cluster_is_unnamed_or_of_the_context() {
    let text = "current-context: c2\ncontexts:\n- {name: c1, context: {cluster: one}}\n- {name: c2, context: \
                {cluster: two}}\nclusters:\n- {name: one, cluster: {server: 'https://one'}}\n- {name: two, \
                cluster: {server: 'https://two', certificate-authority: /ca, proxy-url: 'http://p', \
                tls-server-name: sni, insecure-skip-tls-verify: true}}\n";
    let found = cluster_of(text).unwrap();
    assert_eq!((found.server.as_str(), found.authority_file.as_str()), ("https://two", "/ca"));
    assert_eq!((found.proxy_url.as_str(), found.server_name.as_str()), ("http://p", "sni"));
    assert!(found.insecure);
    for bad in ["", "a: b", "clusters: []\ncurrent-context: b", "clusters: [{name: '', cluster: {}}]", "{{"] {
        assert!(cluster_of(bad).unwrap_err().starts_with("malformed kubeconfig"), "{bad}");
    }
}
