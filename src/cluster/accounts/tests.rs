use std::time::Duration;

use super::*;
use crate::cluster::client::ClientConfig;
use crate::cluster::client::limits::Limit;
use crate::cluster::fake::FakeApiserver;
use crate::model::types::{PodRef, Timestamp};
use crate::platform::dice::Dice;

const MINUTE: Duration = Duration::from_secs(60);

fn asked(server: &FakeApiserver) -> usize {
    server.calls().iter().filter(|call| call.path.ends_with("/token")).count()
}

#[tokio::test]
async fn a_token_is_bound_to_the_pod_and_kept_for_its_time() {
    let clock = Clock::manual(Timestamp::from_secs(1_800_000_000));
    let server = FakeApiserver::new(clock.clone(), 1);
    let accounts = Accounts::new(clock.clone());
    let early = accounts.account("default", "web").await;
    assert_eq!(early, Err("the cluster has not been reached yet".to_owned()));
    let limit = Limit { qps: 50, burst: 100 };
    let config = ClientConfig { limit, timeout: MINUTE, heartbeat_timeout: MINUTE };
    let transport = Rc::new(server.transport("system:node:n1"));
    accounts.connect(Rc::new(Client::new(transport, config, Dice::seeded(1))), Rc::new(|| true));

    server.put(
        json!({"kind": "ServiceAccount", "metadata": {"name": "web", "annotations": {"a.example/b": "c"}}}),
    );
    let pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p", "namespace": "default"},
        "spec": {"serviceAccountName": "web", "containers": []}});
    server.bind(pod, "n1");
    let account = accounts.account("default", "web").await.unwrap();
    assert_eq!(account["metadata"]["annotations"]["a.example/b"], "c");
    let uid = account["metadata"]["uid"].as_str().unwrap().to_owned();

    let pod = server.object("/api/v1/namespaces/default/pods/p").unwrap();
    let request = TokenRequest {
        namespace: "default".to_owned(),
        account: "web".to_owned(),
        pod: PodRef {
            namespace: "default".to_owned(),
            name: "p".to_owned(),
            uid: pod["metadata"]["uid"].as_str().unwrap().into(),
        },
        audience: "registry".to_owned(),
        seconds: 3600,
    };
    let token = async |uid: &str| Rc::clone(&accounts).token(request.clone(), uid).await;
    let first = token(&uid).await.unwrap();
    assert!(first.ends_with("default:web-registry"), "{first}");
    assert_eq!((token(&uid).await.unwrap(), asked(&server)), (Rc::clone(&first), 1));
    // Another account of the same name has another token.
    assert_ne!(token("other").await.unwrap(), first);
    let later = |minutes| clock.set(Timestamp::from_secs(1_800_000_000).saturating_add(MINUTE * minutes));
    later(47);
    assert_eq!((token(&uid).await.unwrap(), asked(&server)), (Rc::clone(&first), 2));
    later(49);
    assert_ne!(token(&uid).await.unwrap(), first);
    assert_eq!((asked(&server), accounts.tokens.borrow().len()), (3, 1), "old ones are dropped");
}
