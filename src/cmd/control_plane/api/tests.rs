use std::cell::{Cell, RefCell};

use super::*;
use crate::cluster::client::error::LinkError;
use crate::cluster::client::transport::{ApiRequest, ApiResponse, Bytes, Chunks};
use crate::cluster::fake::{FakeApiserver, FakeTransport};
use crate::model::types::Timestamp;

const LIMIT: Duration = Duration::from_secs(600);

fn server() -> FakeApiserver {
    FakeApiserver::new(Clock::manual(Timestamp::from_secs(1_800_000_000)), 1)
}

fn api<'a>(server: &FakeApiserver, say: Say<'a>) -> Api<'a, FakeTransport> {
    Api::new(Some(client(server.transport("kubernetes-admin"))), say, Instant::now() + LIMIT)
}

fn config_map(data: &Value) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "data": data,
        "metadata": {"name": "c", "namespace": "kube-system"}})
}

#[tokio::test(start_paused = true)]
async fn objects_are_created_updated_kept_or_merged() {
    let (server, say) = (server(), |_: &str| {});
    let api = api(&server, &say);
    let there =
        || server.object("/api/v1/namespaces/kube-system/configmaps/c").map(|object| object["data"].clone());
    api.apply(&config_map(&json!({"a": "1", "b": "2"}))).await.unwrap();
    assert!(!api.create(&config_map(&json!({"a": "9"}))).await.unwrap());
    assert_eq!(there(), Some(json!({"a": "1", "b": "2"})));
    api.merge(&config_map(&json!({"b": "3"}))).await.unwrap();
    assert_eq!(there(), Some(json!({"a": "1", "b": "3"})));
    api.apply(&config_map(&json!({"c": "4"}))).await.unwrap();
    assert_eq!(there(), Some(json!({"c": "4"})));
    let unknown = api.apply(&json!({"kind": "Pod", "metadata": {"name": "p"}})).await.unwrap_err();
    assert!(unknown.to_string().contains("no place"), "{unknown}");
}

#[tokio::test(start_paused = true)]
async fn a_server_that_fails_is_asked_again_until_the_deadline() {
    let (server, say) = (server(), |_: &str| {});
    let (first, second) = (server.clone(), config_map(&json!({"a": "1"})));
    first.faults().status = Some(500);
    let back = async {
        // Longer than kubeadm has patience.
        sleep(Duration::from_secs(300)).await;
        first.faults().status = None;
    };
    let api = api(&server, &say);
    let (applied, ()) = tokio::join!(api.apply(&second), back);
    applied.unwrap();
    server.faults().status = Some(500);
    let begun = Instant::now();
    let error = api.apply(&second).await.unwrap_err();
    assert!(matches!(error, ApiPhaseError::Refused { .. }));
    assert!(begun.elapsed() + Duration::from_secs(299) <= LIMIT, "{:?}", begun.elapsed());
    // What will never be accepted is not sent again.
    server.faults().status = None;
    server.faults().html = true;
    let begun = Instant::now();
    api.apply(&second).await.unwrap_err();
    assert_eq!(begun.elapsed(), Duration::ZERO);
}

#[test]
fn a_server_that_starts_gets_a_minute_for_its_roles() {
    use ApiErrorKind as Kind;
    assert_eq!(patience(Kind::Unreachable), None);
    assert_eq!(patience(Kind::Forbidden), Some(Duration::from_secs(60)));
    assert_eq!(patience(Kind::NotFound), Some(Duration::from_secs(60)));
    for kind in [Kind::Invalid, Kind::Tls, Kind::NotAnApiserver, Kind::AlreadyExists] {
        assert_eq!(patience(kind), Some(Duration::ZERO), "{kind:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_sends_nothing_and_says_what_it_would_do() {
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let mut api: Api<'_, FakeTransport> = Api::new(None, &say, Instant::now() + LIMIT);
    let object = config_map(&json!({"a": "1"}));
    api.apply(&object).await.unwrap();
    assert_eq!(
        said.take(),
        "[dryrun] Would perform action CREATE on resource \"configmaps\" in API group \"core/v1\"\n\
         [dryrun] Resource name \"c\", namespace \"kube-system\"\n[dryrun] Attached object:\n\tapiVersion: v1\n\tdata:\n\t  \
         a: \"1\"\n\tkind: ConfigMap\n\tmetadata:\n\t  name: c\n\t  namespace: kube-system\n"
    );
    assert_eq!(api.get(&place(&object).unwrap()).await.unwrap(), None);
    api.bare = true;
    api.apply(&object).await.unwrap();
    let text = said.take();
    let values = yaml_to_values(&text, true).unwrap();
    assert_eq!(values, [object]);
}

/// Answers in order, the last one for ever (a status, or no connection), and how many questions there were.
type Script = Rc<(RefCell<Vec<Option<u16>>>, Cell<u32>)>;

struct Answers(Script);

struct Nothing(Option<Bytes>);

impl Chunks for Nothing {
    async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        self.0.take().map(Ok)
    }
}

impl Transport for Answers {
    type Body = Nothing;

    async fn send(&self, _: Lane, _: ApiRequest) -> Result<ApiResponse<Nothing>, LinkError> {
        let (answers, asked) = &*self.0;
        asked.set(asked.get() + 1);
        let mut answers = answers.borrow_mut();
        let answer = if answers.len() > 1 { answers.remove(0) } else { answers[0] };
        let kind = crate::cluster::client::error::LinkErrorKind::Dial;
        let status = answer.ok_or(LinkError { kind, message: "refused".to_owned() })?;
        let reason = match status {
            403 => "Forbidden",
            409 => "AlreadyExists",
            _ => "",
        };
        let body = json!({"kind": "Status", "reason": reason, "code": status}).to_string();
        let (retry_after, content_type) = (None, "application/json".to_owned());
        Ok(ApiResponse { status, retry_after, content_type, body: Nothing(Some(body.into())) })
    }
}

fn answering(answers: &[Option<u16>]) -> (Client<Answers>, Script) {
    let state = Rc::new((RefCell::new(answers.to_vec()), Cell::new(0)));
    (client(Answers(Rc::clone(&state))), state)
}

#[tokio::test(start_paused = true)]
async fn the_first_contact_is_waited_for_and_makes_administrators() {
    let deadline = || Instant::now() + LIMIT;
    // No connection for two minutes; then the administrator may not, and the other may.
    let slow: Vec<_> = [None; 240].into_iter().chain([Some(403)]).collect();
    let (admin, asked) = answering(&slow);
    let (other, others) = answering(&[Some(503), Some(201)]);
    make_admins(&admin, Some(&other), deadline()).await.unwrap();
    assert_eq!((asked.1.get(), others.1.get()), (241, 2));
    // A second time, it is one already.
    let (admin, _) = answering(&[Some(409)]);
    make_admins(&admin, None, deadline()).await.unwrap();
    let (admin, _) = answering(&[Some(403)]);
    let why = make_admins(&admin, None, deadline()).await.unwrap_err().to_string();
    assert!(why.contains("super-admin.conf"), "{why}");
    let (admin, _) = answering(&[None]);
    let begun = Instant::now();
    let why = make_admins(&admin, None, deadline()).await.unwrap_err().to_string();
    assert!(why.starts_with("could not bootstrap the admin user in file admin.conf"), "{why}");
    assert!(begun.elapsed() + Duration::from_secs(2) > LIMIT && begun.elapsed() <= LIMIT);
}

#[test]
fn another_server_can_be_asked_with_a_kubeconfig() {
    let directory = crate::platform::testing::TempDir::new();
    directory.put(
        "admin.conf",
        "{clusters: [{name: c, cluster: {server: 'https://edge:6443'}}], users: [{name: u, user: {token: t}}], contexts: \
         [{name: x, context: {cluster: c, user: u}}], current-context: x}",
    );
    let path = directory.path().join("admin.conf");
    assert_eq!(kubeconfig(&path, None).unwrap_or_else(|error| panic!("{error}")).server, "https://edge:6443");
    let local = kubeconfig(&path, Some("https://10.0.0.1:6443")).unwrap_or_else(|error| panic!("{error}"));
    assert_eq!((local.server.as_str(), local.host.as_str()), ("https://10.0.0.1:6443", "10.0.0.1"));
    let missing = kubeconfig(&directory.path().join("none.conf"), None).err().unwrap().to_string();
    assert!(missing.contains("none.conf"), "{missing}");
}
