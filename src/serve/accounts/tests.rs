#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use serde_json::json;

use super::claims::{claims, legacy_claims, read};
use super::*;
use crate::codec::base64;
use crate::model::api::decode::decode;
use crate::model::api::pod::PodStatus;
use crate::model::objects::{ObjectKey, wire};
use crate::model::revisions::Revisions;
use crate::model::source::SourceObject;
use crate::platform::testing::TempDir;
use crate::serve::localapi::implied::namespace;
use crate::store::{Mode, OpenOptions, StoreHandle};

const NOW: i64 = 1_800_000_000;
const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

fn key() -> SigningKey {
    let directory = TempDir::new();
    SigningKey::from_pkcs8(&pki::token_key(directory.path(), true).unwrap().unwrap()).unwrap()
}

fn named(name: &str, uid: &str) -> ObjectRef {
    ObjectRef { name: name.to_owned(), uid: uid.to_owned() }
}

fn of_pod(seconds: i64, audiences: &[&str]) -> NewToken<'static> {
    NewToken {
        namespace: "ns",
        account: named("robot", "u1"),
        audiences: audiences.iter().map(|audience| (*audience).to_owned()).collect(),
        seconds,
        bound: Some(Bound::Pod(named("web", "p1"))),
        node: Some(named("box", "n1")),
        id: "id1".to_owned(),
    }
}

#[test]
fn claims_are_upstreams() {
    let made = claims(&of_pod(3607, &[ISSUER]), ISSUER, NOW);
    let wanted = json!({
        "aud": [ISSUER], "iss": ISSUER, "sub": "system:serviceaccount:ns:robot", "jti": "id1",
        "iat": NOW, "nbf": NOW, "exp": NOW + 365 * 24 * 3600,
        "kubernetes.io": {"namespace": "ns", "serviceaccount": {"name": "robot", "uid": "u1"},
            "pod": {"name": "web", "uid": "p1"}, "node": {"name": "box", "uid": "n1"}, "warnafter": NOW + 3607},
    });
    assert_eq!(made, wanted);
    // Other times and audiences are as they were asked for.
    for (token, seconds) in [(of_pod(3600, &[ISSUER]), 3600), (of_pod(3607, &["vault"]), 3607)] {
        let made = claims(&token, ISSUER, NOW);
        assert_eq!(made["exp"], NOW + seconds);
        assert!(made["kubernetes.io"].get("warnafter").is_none());
    }
    let holder = read(&made, ISSUER).unwrap();
    assert_eq!(
        (holder.bound.clone(), holder.node.clone()),
        (Some(Bound::Pod(named("web", "p1"))), Some(named("box", "n1")))
    );
    assert_eq!(
        holder.extra(),
        json!({"authentication.kubernetes.io/credential-id": ["JTI=id1"],
            "authentication.kubernetes.io/pod-name": ["web"], "authentication.kubernetes.io/pod-uid": ["p1"],
            "authentication.kubernetes.io/node-name": ["box"], "authentication.kubernetes.io/node-uid": ["n1"]})
    );
}

#[test]
fn only_what_this_key_has_signed_is_read() {
    let (own, other) = (key(), key());
    let said = json!({"iss": ISSUER});
    let token = own.sign(&said).unwrap();
    assert_eq!(own.verify(&token), Some(said.clone()));
    assert_eq!(other.verify(&token), None, "another key");
    let parts: Vec<&str> = token.split('.').collect();
    let encoded = |value: Value| base64::encode_url(value.to_string().as_bytes());
    let kid = own.jwk()["kid"].clone();
    let claims = encoded(json!({"iss": ISSUER, "sub": "root"}));
    for (made, why) in [
        (format!("{}.{claims}.{}", parts[0], parts[2]), "other claims"),
        (format!("{}.{}.", encoded(json!({"alg": "none", "kid": kid})), parts[1]), "no signature"),
        (
            format!("{}.{}.{}", encoded(json!({"alg": "none", "kid": kid})), parts[1], parts[2]),
            "another header",
        ),
        (
            format!("{}.{}.{}", encoded(json!({"alg": "HS256", "kid": kid})), parts[1], parts[2]),
            "another algorithm",
        ),
        (format!("{}.{}.{}", encoded(json!({"alg": "ES256"})), parts[1], parts[2]), "no key id"),
        (format!("{}.{}", parts[0], parts[1]), "two parts"),
        (format!("{token}.x"), "four parts"),
        (format!("{token}="), "padding"),
        (format!("{token}\n"), "a line end"),
        (String::new(), "nothing"),
        ("....".to_owned(), "dots"),
        ("a".repeat(100_000), "too long"),
    ] {
        assert_eq!(own.verify(&made), None, "{why}");
    }
    for at in 0..token.len() {
        let mut bytes = token.clone().into_bytes();
        bytes[at] = if bytes[at] == b'A' { b'B' } else { b'A' };
        let changed = String::from_utf8(bytes).unwrap();
        // The last letter of a signature has bits that mean nothing.
        if at + 1 < token.len() {
            assert_eq!(own.verify(&changed), None, "{at}");
        }
    }
    let jwk = own.jwk();
    assert_eq!((&jwk["kty"], &jwk["crv"], &jwk["alg"]), (&json!("EC"), &json!("P-256"), &json!("ES256")));
    assert!(jwk.get("d").is_none());
}

#[test]
fn claims_of_another_form_are_no_token() {
    let sound = claims(&of_pod(600, &[ISSUER]), ISSUER, NOW);
    assert!(read(&sound, ISSUER).is_some() && read(&sound, "https://other").is_none());
    for (member, value) in [
        ("iss", json!("x")),
        ("sub", json!("system:serviceaccount:ns:other")),
        ("exp", json!("never")),
        ("exp", Value::Null),
        ("nbf", Value::Null),
        ("kubernetes.io", Value::Null),
        (
            "kubernetes.io",
            json!({"namespace": "kube-system", "serviceaccount": {"name": "robot", "uid": "u1"}}),
        ),
    ] {
        let mut changed = sound.clone();
        changed[member] = value.clone();
        assert_eq!(read(&changed, ISSUER), None, "{member} {value}");
    }
    let legacy = legacy_claims("ns", &named("robot", "u1"), "secret");
    let holder = read(&legacy, ISSUER).unwrap();
    assert_eq!((holder.secret.as_deref(), holder.check_times(i64::MAX)), (Some("secret"), Ok(())));
    assert_eq!(holder.audiences, [ISSUER]);
}

#[test]
fn a_token_counts_for_its_time_and_its_audiences() {
    let holder = read(&claims(&of_pod(600, &["vault", ISSUER]), ISSUER, NOW), ISSUER).unwrap();
    let expired = Err("service account token has expired");
    let early = Err("service account token is not valid yet");
    for (now, wanted) in [
        (NOW, Ok(())),
        (NOW + 600, Ok(())),
        (NOW + 660, Ok(())),
        (NOW + 661, expired),
        (NOW - 60, Ok(())),
        (NOW - 61, early),
        (0, early),
        (i64::MAX, expired),
    ] {
        assert_eq!(holder.check_times(now), wanted, "{now}");
    }
    let of = |audiences: &[&str]| {
        let wanted: Vec<String> = audiences.iter().map(|audience| (*audience).to_owned()).collect();
        holder.check_audiences(&wanted)
    };
    assert_eq!(of(&["x", "vault"]), Ok(vec!["vault".to_owned()]));
    let said = format!("token audiences [\"vault\" {ISSUER:?}] is invalid for the target audiences [\"x\"]");
    assert_eq!(of(&["x"]), Err(said));
}

/// Accounts of a node, with the clock at [`NOW`].
struct OwnNode {
    accounts: Rc<Accounts>,
    objects: Rc<LocalObjects>,
    statuses: Rc<StatusManager>,
    clock: Clock,
    _directory: TempDir,
}

fn pod(uid: &str, deleted: Option<i64>) -> Rc<Pod> {
    let deleted = deleted.map(|at| Timestamp::from_secs(at).to_rfc3339());
    let metadata = json!({"name": "web", "namespace": "ns", "uid": uid, "deletionTimestamp": deleted});
    Rc::new(decode(json!({"metadata": metadata, "spec": {"containers": []}})).unwrap().object)
}

impl OwnNode {
    fn new() -> Self {
        let directory = TempDir::new();
        let (objects, clock) = (Rc::<LocalObjects>::default(), Clock::manual(Timestamp::from_secs(NOW)));
        let options = OpenOptions { mode: Mode::Inline, ..OpenOptions::default() };
        let store = StoreHandle::open_in_memory(options).unwrap();
        let revisions = Revisions::since(Timestamp::default());
        let statuses = Rc::new(StatusManager::new(store, BTreeMap::new(), revisions));
        let config = AccountsConfig {
            cert_dir: directory.path().to_owned(),
            node_name: "box".to_owned(),
            cluster_domain: String::new(),
        };
        let accounts = Accounts::new(config, Rc::clone(&objects), Rc::clone(&statuses), clock.clone());
        Self { accounts, objects, statuses, clock, _directory: directory }
    }

    fn put(&self, kind: ObjectKind, name: &str, members: Value) {
        let mut object = json!({"metadata": {"name": name, "namespace": "ns", "uid": format!("{name}-1")}});
        object.as_object_mut().unwrap().extend(members.as_object().unwrap().clone());
        let object =
            SourceObject { object: Rc::new(wire::from_value(kind, object).unwrap()), origin: String::new() };
        let key = object.object.key.clone();
        self.objects.set(&key, Some(&object));
    }

    fn remove(&self, kind: ObjectKind, name: &str) {
        let key = ObjectKey { kind, namespace: "ns".to_owned(), name: name.to_owned() };
        self.objects.set(&key, None);
    }

    fn runs(&self, pod: &Rc<Pod>) {
        self.statuses.set(pod, PodStatus::default());
    }

    /// A request as the volume of the pod makes it.
    fn request(account: &str) -> TokenRequest {
        TokenRequest {
            namespace: "ns".to_owned(),
            account: account.to_owned(),
            pod: pod("p1", None).pod_ref(),
            audience: String::new(),
            seconds: 3607,
        }
    }

    /// The user's name, or why there is none.
    fn shows(&self, token: &str) -> Option<Result<String, String>> {
        self.accounts.authenticate(token, None).map(|judged| judged.map(|(user, _)| user.name))
    }
}

const ROBOT: &str = "system:serviceaccount:ns:robot";

#[tokio::test(start_paused = true)]
async fn a_token_ends_with_what_it_belongs_to() {
    let node = OwnNode::new();
    assert_eq!(node.shows("a.b.c"), None);
    assert!(!pki::token_key_file(&node.accounts.config.cert_dir).exists(), "strangers make no key");
    assert_eq!(node.accounts.token(&OwnNode::request("robot")), Err(Absence::NotFound));
    node.put(ObjectKind::ServiceAccount, "robot", json!({}));
    node.runs(&pod("p1", None));
    let token = node.accounts.token(&OwnNode::request("robot")).unwrap();
    assert_eq!(node.shows(&token), Some(Ok(ROBOT.to_owned())));
    let (user, audiences) = node.accounts.authenticate(&token, None).unwrap().unwrap();
    assert_eq!(audiences, [ISSUER]);
    assert_eq!(user.groups, ["system:serviceaccounts", "system:serviceaccounts:ns", "system:authenticated"]);
    assert_eq!((user.uid.as_str(), user.is_account()), ("robot-1", true));
    let other = node.accounts.authenticate(&token, Some(&["vault".to_owned()]));
    assert!(other.unwrap().unwrap_err().starts_with("token audiences "), "another audience");
    assert_eq!(OwnNode::new().shows(&token), None, "another node's key");
    // The pod is deleted, and a minute later its token ends.
    let gone = Some(Err("service account token has been invalidated".to_owned()));
    for (deleted, wanted) in [(NOW - 60, Some(Ok(ROBOT.to_owned()))), (NOW - 61, gone.clone())] {
        node.runs(&pod("p1", Some(deleted)));
        assert_eq!(node.shows(&token), wanted, "{deleted}");
    }
    // Not before its grace period has ended.
    for (seconds_ago, wanted) in [(400, Some(Ok(ROBOT.to_owned()))), (700, gone.clone())] {
        let mut ends = Pod::clone(&pod("p1", Some(NOW - seconds_ago)));
        ends.metadata.deletion_grace_period_seconds = Some(600);
        node.statuses.remove(&PodUid::from("p1"));
        node.runs(&Rc::new(ends));
        assert_eq!(node.shows(&token), wanted, "{seconds_ago}");
    }
    node.statuses.remove(&PodUid::from("p1"));
    assert_eq!(node.shows(&token), gone);
    node.runs(&pod("p2", None));
    assert_eq!(node.shows(&token), gone, "a later pod of that name");
    node.runs(&pod("p1", None));
    // An account of that name that was created later is another one.
    node.put(
        ObjectKind::ServiceAccount,
        "robot",
        json!({"metadata": {"name": "robot", "namespace": "ns", "uid": "robot-2"}}),
    );
    let said = "service account UID (robot-2) does not match claim (robot-1)";
    assert_eq!(node.shows(&token), Some(Err(said.to_owned())));
    let newer = node.accounts.token(&OwnNode::request("robot")).unwrap();
    assert_eq!(node.shows(&newer), Some(Ok(ROBOT.to_owned())), "its volume gets another token");
    node.remove(ObjectKind::ServiceAccount, "robot");
    assert_eq!(node.shows(&newer), Some(Err("service account ns/robot has been deleted".to_owned())));
}

#[tokio::test(start_paused = true)]
async fn a_token_of_a_secret_ends_with_the_secret() {
    let node = OwnNode::new();
    node.put(ObjectKind::ServiceAccount, "robot", json!({}));
    let account = node.accounts.account("ns", "robot").unwrap();
    let token = node.accounts.legacy_token("ns", &account, "kept").unwrap();
    let invalid = Some(Err("service account token has been invalidated".to_owned()));
    assert_eq!(node.shows(&token), invalid);
    let secret = |secret_type: &str, token: &str| json!({"type": secret_type, "data": {"token": base64::encode(token.as_bytes())}});
    for (secret_type, kept, wanted) in [
        (SECRET_TYPE, token.as_str(), Some(Ok(ROBOT.to_owned()))),
        (SECRET_TYPE, "another", invalid.clone()),
        ("Opaque", &token, invalid.clone()),
    ] {
        node.put(ObjectKind::Secret, "kept", secret(secret_type, kept));
        assert_eq!(node.shows(&token), wanted, "{secret_type} {kept}");
    }
    let bound = NewToken {
        namespace: "ns",
        account,
        audiences: Vec::new(),
        seconds: 600,
        bound: Some(Bound::Secret(named("kept", "kept-1"))),
        node: None,
        id: String::new(),
    };
    let (token, expires) = node.accounts.issue(bound).unwrap();
    assert_eq!(expires, Timestamp::from_secs(NOW + 600));
    assert_eq!(node.shows(&token), Some(Ok(ROBOT.to_owned())));
    node.remove(ObjectKind::Secret, "kept");
    assert_eq!(node.shows(&token), invalid);
}

#[tokio::test(start_paused = true)]
async fn tokens_are_renewed_in_time_and_when_the_clock_is_set() {
    let node = OwnNode::new();
    let local = tokio::task::LocalSet::new();
    let mut changes = node.accounts.changes();
    let mut renewed = async || {
        tokio::time::timeout(Duration::from_secs(1), changes.changed())
            .await
            .is_ok_and(|changed| changed.is_ok())
    };
    let given = || node.accounts.token(&OwnNode::request("default")).unwrap();
    let is_known = |token: &str| node.shows(token) == Some(Ok("system:serviceaccount:ns:default".to_owned()));
    local.spawn_local(Rc::clone(&node.accounts).run());
    local
        .run_until(async {
            tokio::time::sleep(Duration::from_secs(100_000)).await;
            assert!(!renewed().await && !*node.accounts.carried().borrow(), "no pod has a token");
            node.runs(&pod("p1", None));
            let first = given();
            assert!(*node.accounts.carried().borrow());
            tokio::time::sleep(Duration::from_secs(2880)).await;
            assert!(!renewed().await);
            assert_eq!(given(), first);
            tokio::time::sleep(Duration::from_secs(10)).await;
            assert!(renewed().await, "80 % of 3607 seconds");
            let second = given();
            assert!(second != first && is_known(&first) && is_known(&second));
            // Two years pass at once.
            let later = Timestamp::from_secs(NOW).saturating_add(Duration::from_secs(2 * 365 * 24 * 3600));
            node.clock.set(later);
            assert!(is_known(&second), "its pod has no other one yet");
            assert_eq!(node.shows(&first), Some(Err("service account token has expired".to_owned())));
            assert!(renewed().await);
            let third = given();
            assert!(is_known(&third) && !is_known(&second));
            node.clock.set(Timestamp::from_secs(NOW));
            assert!(is_known(&third) && renewed().await, "set back");
            let fourth = given();
            assert!(is_known(&fourth) && !is_known(&third));
            node.statuses.remove(&PodUid::from("p1"));
            tokio::time::sleep(Duration::from_secs(3000)).await;
            assert!(!*node.accounts.carried().borrow(), "its pod has gone");
        })
        .await;
}

#[test]
fn an_account_is_created_or_the_default_one() {
    let node = OwnNode::new();
    let default = node.accounts.account("ns", "default").unwrap();
    assert_eq!(node.accounts.account("ns", "default").unwrap(), default);
    assert_ne!(node.accounts.account("other", "default").unwrap().uid, default.uid);
    assert_eq!(node.accounts.account("ns", "robot"), None);
    let put_namespace = |namespace: Value| {
        let object = SourceObject {
            object: Rc::new(wire::from_value(ObjectKind::Namespace, namespace).unwrap()),
            origin: String::new(),
        };
        node.objects.set(&object.object.key.clone(), Some(&object));
    };
    // A namespace that was only in use is stored, with the uid that it was shown with.
    put_namespace(namespace("ns", Timestamp::from_secs(NOW)));
    assert_eq!(node.accounts.account("ns", "default").unwrap(), default, "the same namespace");
    put_namespace(json!({"metadata": {"name": "ns", "uid": "n1"}}));
    assert_ne!(node.accounts.account("ns", "default").unwrap(), default, "of another namespace");
    node.put(ObjectKind::ServiceAccount, "default", json!({}));
    assert_eq!(node.accounts.account("ns", "default").unwrap().uid, "default-1");
}

#[test]
fn asking_for_the_public_keys_makes_none() {
    let node = OwnNode::new();
    assert_eq!(node.accounts.jwks(), Ok(json!({"keys": []})));
    assert!(!pki::token_key_file(&node.accounts.config.cert_dir).exists());
    node.accounts.sign(&json!({})).unwrap();
    assert_eq!(node.accounts.jwks().unwrap()["keys"][0]["alg"], "ES256");
}

#[test]
fn the_key_is_kept_and_another_file_is_named() {
    let directory = TempDir::new();
    assert_eq!(pki::token_key(directory.path(), false).unwrap(), None);
    let made = pki::token_key(directory.path(), true).unwrap();
    assert_eq!(pki::token_key(directory.path(), false).unwrap(), made);
    assert_eq!(pki::token_key(directory.path(), true).unwrap(), made);
    let file = pki::token_key_file(directory.path());
    let access = std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(&file).unwrap().permissions());
    assert_eq!(access & 0o777, 0o600);
    std::fs::write(&file, "junk").unwrap();
    let said = pki::token_key(directory.path(), true).unwrap_err().to_string();
    assert!(said.contains("agent-sa.key: no private key in PEM"), "{said}");
}
