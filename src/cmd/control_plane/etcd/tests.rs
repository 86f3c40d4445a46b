use std::cell::{Cell, RefCell};
use std::rc::Rc;

use super::*;
use crate::cluster::client::error::{LinkError, LinkErrorKind};
use crate::cluster::client::transport::{ApiResponse, Bytes};

const ONE: &str = "https://192.0.2.10:2380";
const TWO: &str = "https://192.0.2.11:2380";

/// An etcd of a few members in memory.
#[derive(Clone, Default)]
struct FakeEtcd {
    members: Rc<RefCell<Vec<Value>>>,
    /// Calls until a learner has all data.
    lag: Rc<Cell<u32>>,
    calls: Rc<RefCell<Vec<String>>>,
    is_down: Rc<Cell<bool>>,
    /// An answer that arrives nowhere.
    loses_next: Rc<Cell<bool>>,
}

struct Whole(Option<Bytes>);

impl Chunks for Whole {
    async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        self.0.take().map(Ok)
    }
}

impl FakeEtcd {
    fn of(peers: &[&str]) -> Self {
        let fake = Self::default();
        for (index, peer) in peers.iter().enumerate() {
            fake.members.borrow_mut().push(json!({
                "ID": (index + 10).to_string(), "name": format!("n{index}"), "peerURLs": [peer],
            }));
        }
        fake
    }

    fn client(&self) -> EtcdClient<Self> {
        let dead = Self::default();
        dead.is_down.set(true);
        let endpoints =
            vec![("https://down:2379".to_owned(), dead), ("https://up:2379".to_owned(), self.clone())];
        EtcdClient { endpoints, deadline: Instant::now() + Duration::from_secs(120) }
    }

    fn carry_out(&self, verb: &str, body: &Value) -> (u16, Value) {
        let refused = |status, why: &str| (status, json!({ "code": 9, "message": why }));
        let mut members = self.members.borrow_mut();
        let known = members.iter().position(|member| member["ID"] == body["ID"]);
        match verb {
            "add" => {
                members.push(
                    json!({ "ID": "255", "peerURLs": body["peerURLs"], "isLearner": body["isLearner"] }),
                );
            }
            "promote" if self.lag.get() > 0 => {
                self.lag.set(self.lag.get() - 1);
                return refused(
                    400,
                    "etcdserver: can only promote a learner member which is in sync with leader",
                );
            }
            "promote" => members[known.unwrap()]["isLearner"] = json!(false),
            "remove" => drop(members.remove(known.unwrap())),
            "list" => {}
            other => return refused(404, other),
        }
        (200, json!({ "members": *members }))
    }
}

impl Transport for FakeEtcd {
    type Body = Whole;

    async fn send(&self, _: Lane, request: ApiRequest) -> Result<ApiResponse<Whole>, LinkError> {
        let lost = || LinkError { kind: LinkErrorKind::Lost, message: "connection refused".to_owned() };
        if self.is_down.get() {
            return Err(lost());
        }
        let verb = request.path.strip_prefix("/v3/cluster/member/").unwrap().to_owned();
        let body = serde_json::from_slice(&request.body.unwrap().1).unwrap();
        let (status, said) = self.carry_out(&verb, &body);
        self.calls.borrow_mut().push(verb.clone());
        if verb != "list" && self.loses_next.take() {
            return Err(lost());
        }
        let body = Whole(Some(Bytes::from(said.to_string())));
        Ok(ApiResponse { status, retry_after: None, content_type: String::new(), body })
    }
}

#[tokio::test(start_paused = true)]
async fn a_member_is_added_once_and_promoted_when_in_step() {
    let fake = FakeEtcd::of(&[ONE]);
    let client = fake.client();
    fake.loses_next.set(true);
    let added = client.add(TWO).await.unwrap();
    assert_eq!(initial_cluster(&added, "n1", TWO), format!("n0={ONE},n1={TWO}"));
    assert!(added[1].is_learner);
    client.add(TWO).await.unwrap();
    let adds = || fake.calls.borrow().iter().filter(|verb| *verb == "add").count();
    assert_eq!((adds(), fake.members.borrow().len()), (1, 2));
    fake.lag.set(5);
    client.promote(TWO).await.unwrap();
    assert_eq!(fake.members.borrow()[1]["isLearner"], false);
    client.promote(TWO).await.unwrap();
    let why = client.promote("https://192.0.2.12:2380").await.unwrap_err().to_string();
    assert!(why.contains("no member with the URL https://192.0.2.12:2380"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_learner_that_stays_behind_is_named_at_the_deadline() {
    let fake = FakeEtcd::of(&[ONE]);
    fake.lag.set(u32::MAX);
    let client = fake.client();
    client.add(TWO).await.unwrap();
    let why = client.promote(TWO).await.unwrap_err().to_string();
    assert!(why.contains("https://up:2379: etcdserver: can only promote"), "{why}");
    fake.is_down.set(true);
    let why = fake.client().list().await.unwrap_err().to_string();
    assert!(why.contains("member list: https://up:2379: connection refused"), "{why}");
}

#[tokio::test(start_paused = true)]
async fn a_member_is_removed_and_the_last_one_stays() {
    let fake = FakeEtcd::of(&[ONE, TWO]);
    let client = fake.client();
    assert_eq!(client.remove(TWO).await.unwrap(), EtcdRemoval::Done);
    assert_eq!(client.remove(TWO).await.unwrap(), EtcdRemoval::Absent);
    assert_eq!(client.remove(ONE).await.unwrap(), EtcdRemoval::Last);
    assert_eq!(fake.members.borrow().len(), 1);
}

#[test]
fn a_member_without_a_name_goes_by_its_number() {
    let answer = json!({ "members": [{ "ID": "255", "peerURLs": [ONE] }, { "ID": "1", "peerURLs": [TWO] }] });
    assert_eq!(initial_cluster(&members(&answer), "x", TWO), format!("ff={ONE},x={TWO}"));
}

#[test]
fn a_manifest_says_where_the_data_and_the_others_are() {
    let pod = json!({ "spec": {
        "containers": [{ "command": [
            "etcd", "--advertise-client-urls=https://192.0.2.11:2379", "--initial-advertise-peer-urls=https://192.0.2.11:2380",
            "--initial-cluster=n0=https://192.0.2.10:2380,n1=https://192.0.2.11:2380",
        ] }],
        "volumes": [{ "name": "etcd-certs", "hostPath": { "path": "/x" } }, { "name": "etcd-data", "hostPath": { "path": "/d" } }],
    } });
    let local = LocalMember::of(&pod);
    assert_eq!(local.endpoints, ["https://192.0.2.11:2379", "https://192.0.2.10:2379"]);
    assert_eq!((local.data_dir, local.peer_url.as_str()), (Some("/d".into()), TWO));
    assert_eq!(LocalMember::of(&json!({})), LocalMember::default());
}
