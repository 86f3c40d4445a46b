use std::cell::RefCell;
use std::error::Error as _;

use rcgen::{CertificateParams, KeyPair};
use ring::hmac;
use serde_json::json;

use super::*;
use crate::codec::x509::{CERTIFICATE, pem_blocks, spki_sha256};

const LIMIT: Duration = Duration::from_secs(300);

/// Answers in order, the last one for ever; remembers with which authorities it was asked.
struct InfoFake {
    answers: RefCell<Vec<Result<Value, CallErrorKind>>>,
    asked: RefCell<Vec<Option<String>>>,
}

impl InfoFake {
    fn of(answers: Vec<Result<Value, CallErrorKind>>) -> Self {
        Self { answers: RefCell::new(answers), asked: RefCell::default() }
    }
}

impl InfoServer for InfoFake {
    async fn cluster_info(&self, authorities: Option<&str>) -> Result<Value, CallError> {
        self.asked.borrow_mut().push(authorities.map(str::to_owned));
        let mut answers = self.answers.borrow_mut();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0].clone() };
        answer.map_err(|kind| CallError { kind, message: "refused".to_owned() })
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
    let answers = vec![Err(CallErrorKind::Failed), Ok(unsigned), Ok(good)];
    let server = InfoFake::of(answers);
    let began = Instant::now();
    let found = by_token(&server, &token(), &[[0; 32], pin(&ca)], LIMIT).await.unwrap();
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
    let said = async |answers: Vec<Result<Value, CallErrorKind>>| {
        let found = by_token(&InfoFake::of(answers), &token(), &[pin(&ca)], LIMIT).await;
        found.unwrap_err().to_string()
    };
    let (good, moved) = (info(&ca, "https://10.0.0.1:6443"), info(&ca, "https://10.0.0.2:6443"));
    assert!(said(vec![Ok(info(&other, "https://10.0.0.1:6443"))]).await.contains("are pinned"));
    assert!(said(vec![Ok(good.clone()), Ok(moved)]).await.contains("was different from the first"));
    let mut forged = good.clone();
    forged["data"]["kubeconfig"] = "clusters: []".into();
    assert!(said(vec![Ok(forged)]).await.contains("failed to verify JWS signature"));
    let unpinned = by_token(&InfoFake::of(vec![Ok(good)]), &token(), &[], LIMIT).await.unwrap();
    assert_eq!(unpinned.server, "https://10.0.0.1:6443", "the user has said so");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_does_not_answer_is_given_up() {
    let server = InfoFake::of(vec![Err(CallErrorKind::Failed)]);
    let error = by_token(&server, &token(), &[], LIMIT).await.unwrap_err();
    assert_eq!(error.to_string(), "failed to request the cluster-info ConfigMap");
    assert_eq!(error.source().unwrap().to_string(), "refused");
    assert_eq!(server.asked.borrow().len(), 61);
    let unsigned = InfoFake::of(vec![Ok(json!({ "data": { "kubeconfig": "x" } }))]);
    let error = by_token(&unsigned, &token(), &[], RETRY).await.unwrap_err().to_string();
    assert!(error.contains("could not find a JWS signature") && error.contains("abcdef"), "{error}");
}

#[tokio::test(start_paused = true)]
async fn a_file_is_trusted_and_its_server_asked() {
    let ca = authority();
    let entry = || ClusterEntry { server: "https://10.0.0.1:6443".into(), ..ClusterEntry::default() };
    let other_server = info(&ca, "https://10.0.0.2:6443");
    let server = InfoFake::of(vec![Err(CallErrorKind::Failed), Ok(other_server)]);
    let found = by_file(&server, entry(), LIMIT).await.unwrap();
    assert_eq!(found.server, "https://10.0.0.1:6443");
    assert_eq!(base64::decode(&found.authority_data).unwrap(), ca.as_bytes());
    let private = InfoFake::of(vec![Err(CallErrorKind::Forbidden)]);
    assert_eq!(by_file(&private, entry(), LIMIT).await.unwrap(), entry());
    let broken = InfoFake::of(vec![Ok(json!({}))]);
    assert_eq!(by_file(&broken, entry(), LIMIT).await.unwrap(), entry());
    let gone = InfoFake::of(vec![Err(CallErrorKind::Failed)]);
    let error = by_file(&gone, entry(), LIMIT).await.unwrap_err().to_string();
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
