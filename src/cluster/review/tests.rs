use super::rules::ReviewTimes;
use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::fake::{ApiFaults, FakeApiserver, FakeTransport};
use crate::model::types::Timestamp;

const MINUTE: Duration = Duration::from_secs(60);

struct AskingNode {
    server: FakeApiserver,
    reviews: Rc<Reviews>,
}

impl AskingNode {
    fn new() -> Self {
        let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
        let server = FakeApiserver::new(clock.clone(), 1);
        let allowed = [("jane", "get", "nodes/pods"), ("joe", "get", "nodes/proxy")];
        let allowed = allowed.map(|(user, verb, part)| (user.to_owned(), verb.to_owned(), part.to_owned()));
        server.reviews().allowed.extend(allowed);
        server.reviews().tokens.insert("t".to_owned(), ("jane".to_owned(), vec!["people".to_owned()]));
        let times = ReviewTimes::of(Duration::ZERO, Duration::ZERO, Duration::ZERO);
        Self { server, reviews: Reviews::new("n1", times, clock, Dice::seeded(1)) }
    }

    fn connected() -> Self {
        let node = Self::new();
        node.reviews.connect(node.client());
        node
    }

    /// Each call takes a tenth of a second.
    fn slow() -> Self {
        let node = Self::new();
        let client = node.client();
        let call: ReviewCall = Box::new(move |path, body| {
            let client = Rc::clone(&client);
            Box::pin(async move {
                sleep(Duration::from_millis(100)).await;
                client.create(Lane::Heartbeat, &path, &body).await
            })
        });
        assert!(node.reviews.call.set(call).is_ok());
        node
    }

    fn client(&self) -> Rc<Client<FakeTransport>> {
        let config =
            ClientConfig { limit: Limit { qps: 50, burst: 100 }, timeout: MINUTE, heartbeat_timeout: MINUTE };
        let transport = Rc::new(self.server.transport("system:node:n1"));
        Rc::new(Client::new(transport, config, Dice::seeded(1)))
    }

    async fn may(&self, name: &str) -> Result<bool, String> {
        let user = ReviewedUser { name: name.to_owned(), ..ReviewedUser::default() };
        self.reviews.allows(&user, "get", "pods").await
    }

    fn asked(&self) -> usize {
        self.server.calls().len()
    }
}

#[tokio::test(start_paused = true)]
async fn no_answer_means_no_access() {
    let apart = AskingNode::new();
    assert!(apart.may("jane").await.unwrap_err().contains("not connected"));
    assert!(apart.reviews.user("t").await.is_err());

    let node = AskingNode::connected();
    assert_eq!((node.may("jane").await, node.may("joe").await), (Ok(true), Ok(false)));
    node.server.faults().refuse = true;
    tokio::time::advance(4 * MINUTE).await;
    assert_eq!(node.may("jane").await, Ok(true), "what the cluster has said holds for its time");
    assert!(node.may("joe").await.is_err(), "half a minute is over");
    tokio::time::advance(MINUTE).await;
    assert!(node.may("jane").await.is_err());
    for faults in [
        ApiFaults { html: true, ..ApiFaults::default() },
        ApiFaults { status: Some(500), ..ApiFaults::default() },
        ApiFaults { too_many: Some(Duration::ZERO), ..ApiFaults::default() },
        ApiFaults { too_many: Some(MINUTE), ..ApiFaults::default() },
    ] {
        *node.server.faults() = faults.clone();
        assert!(node.may("jane").await.is_err() && node.reviews.user("t").await.is_err(), "{faults:?}");
    }
    *node.server.faults() = ApiFaults { hang: true, ..ApiFaults::default() };
    let began = tokio::time::Instant::now();
    assert!(node.may("jane").await.unwrap_err().contains("within 10s"));
    assert_eq!(began.elapsed(), LONGEST);
    *node.server.faults() = ApiFaults::default();
    assert_eq!(node.may("jane").await, Ok(true));
}

#[tokio::test(start_paused = true)]
async fn a_failing_server_is_asked_five_times() {
    let node = AskingNode::connected();
    for (status, tries) in [(500, 5), (403, 1), (503, 1)] {
        *node.server.faults() = ApiFaults { status: Some(status), ..ApiFaults::default() };
        let before = node.asked();
        assert!(node.may("jane").await.is_err());
        assert_eq!(node.asked() - before, tries, "{status}");
    }
}

#[tokio::test(start_paused = true)]
async fn equal_questions_share_a_review() {
    let node = AskingNode::slow();
    let (one, other, second) = tokio::join!(node.may("jane"), node.may("jane"), node.may("joe"));
    assert_eq!((one, other, second, node.asked()), (Ok(true), Ok(true), Ok(false), 2));
    assert_eq!((node.may("jane").await, node.asked()), (Ok(true), 2), "now it is known");

    // The client whose question it was disconnects: the one that waited with it asks.
    tokio::time::advance(6 * MINUTE).await;
    let leaves = tokio::time::timeout(Duration::from_millis(50), node.may("jane"));
    let (left, stayed) = tokio::join!(leaves, node.may("jane"));
    assert!(left.is_err());
    assert_eq!((stayed, node.asked()), (Ok(true), 3));
    assert!(node.reviews.asked.borrow().is_empty());
}

#[tokio::test(start_paused = true)]
async fn tokens_name_users_of_the_cluster() {
    let node = AskingNode::connected();
    let jane = node.reviews.user("t").await.unwrap().unwrap();
    assert_eq!((jane.name.as_str(), jane.groups.join(" ")), ("jane", "people".to_owned()));
    node.server.reviews().tokens.clear();
    tokio::time::advance(MINUTE).await;
    assert_eq!(node.reviews.user("t").await.unwrap(), Some(jane), "for two minutes");
    tokio::time::advance(MINUTE).await;
    assert_eq!(node.reviews.user("t").await, Err("invalid bearer token".to_owned()));
    assert_eq!(node.asked(), 2);
}
