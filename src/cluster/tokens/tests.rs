use serde_json::json;
use tokio::time::sleep;

use super::*;
use crate::cluster::facts::{FactRow, TOKEN};
use crate::cluster::objects::Detection;
use crate::cluster::objects::references::references;
use crate::cluster::objects::tests::{HOUR, SECOND, WatchedNode, local, stored};
use crate::model::api::pod::Pod;
use crate::model::objects::ClusterFacts as _;

/// A pod with one token, on a node that has just started.
fn with_token(node: &WatchedNode, seconds: i64) -> (Pod, TokenRequest) {
    node.server.put(json!({"kind": "ServiceAccount", "metadata": {"namespace": "shop", "name": "web"}}));
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": seconds}});
    let pod = node.bind(
        "p",
        &json!({"containers": [], "serviceAccountName": "web",
            "volumes": [{"name": "v", "projected": {"sources": [token]}}]}),
    );
    let request = references(&pod).tokens.remove(0);
    node.retain(&[&pod]);
    (pod, request)
}

fn token(node: &WatchedNode, request: &TokenRequest) -> String {
    node.facts.token(request).map(|token| token.to_string()).unwrap()
}

fn asked(node: &WatchedNode) -> usize {
    node.server.calls().iter().filter(|call| call.path.ends_with("/token")).count()
}

fn token_rows(node: &WatchedNode) -> Vec<FactRow> {
    stored(&node.rows.borrow()).into_iter().filter(|row| row.kind == TOKEN).collect()
}

/// Times that a token was written.
fn writes(node: &WatchedNode) -> usize {
    let rows = node.rows.borrow();
    rows.iter().filter(|change| matches!(change, FactChange::Put(row) if row.kind == TOKEN)).count()
}

#[tokio::test(start_paused = true)]
async fn a_token_is_replaced_at_80_percent_of_its_time() {
    local(async {
        let node = WatchedNode::start();
        let (pod, request) = with_token(&node, 3600);
        assert!(node.objects.missing(&references(&pod)));
        sleep(SECOND).await;
        assert!(!node.objects.missing(&references(&pod)));
        let (first, generation) = (token(&node, &request), node.facts.generation());
        sleep(SECOND * 2860).await;
        assert_eq!((token(&node, &request), asked(&node)), (first.clone(), 1));
        sleep(SECOND * 20).await;
        assert_ne!(token(&node, &request), first);
        assert!(asked(&node) == 2 && node.facts.generation() > generation);
        node.retain(&[]);
        sleep(HOUR * 2).await;
        assert_eq!((asked(&node), token_rows(&node).len()), (2, 0), "no pod needs it any more");
        assert_eq!(node.facts.token(&request), Err(Absence::NotSynced));
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_token_past_its_time_serves_while_offline() {
    local(async {
        let node = WatchedNode::start();
        let (_, request) = with_token(&node, 3600);
        sleep(SECOND).await;
        let first = token(&node, &request);
        node.server.faults().refuse = true;
        sleep(HOUR * 24 * 3).await;
        assert_eq!(token(&node, &request), first);
        node.server.faults().refuse = false;
        node.objects.retry_now();
        sleep(SECOND).await;
        assert_ne!(token(&node, &request), first);
        // The server refuses: an account that is gone has no token.
        node.server
            .remove("/api/v1/namespaces/shop/serviceaccounts/web", crate::cluster::fake::Removal::Force);
        sleep(HOUR).await;
        let refused = node.facts.token(&request);
        assert!(matches!(&refused, Err(Absence::Refused(why)) if why.starts_with("failed to fetch token: ")));
        assert_eq!(token_rows(&node).len(), 0);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_days_tokens_are_one_row() {
    local(async {
        let node = WatchedNode::start();
        let (pod, request) = with_token(&node, 3600);
        sleep(HOUR * 23).await;
        assert_eq!((writes(&node), asked(&node)), (1, 29));
        sleep(HOUR * 3).await;
        assert_eq!(writes(&node), 2);
        // The program starts again without its cluster.
        let (rows, known) = (token_rows(&node), node.server.clone());
        known.faults().refuse = true;
        let again = WatchedNode::with(known, node.clock.clone(), Detection::Watch, Vec::new(), &rows);
        again.retain(&[&pod]);
        sleep(HOUR).await;
        assert!(again.facts.token(&request).is_ok() && again.rows.borrow().is_empty());
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn a_token_waits_for_the_authorizer() {
    local(async {
        let node = WatchedNode::start();
        node.server.faults().graph_lag = SECOND * 3;
        let (pod, request) = with_token(&node, 3600);
        sleep(SECOND).await;
        assert_eq!(node.facts.token(&request), Err(Absence::NotSynced));
        assert!(node.objects.missing(&references(&pod)));
        sleep(SECOND * 7).await;
        assert!(node.facts.token(&request).is_ok());
    })
    .await;
}
