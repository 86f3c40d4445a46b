use super::*;
use crate::cluster::client::error::{ApiError, ApiErrorKind};
use crate::cluster::link::LinkEvent;
use crate::cluster::pods::guard::GuardReason;

fn rows(identity: &ClusterIdentity, node: &NodeFromServer) -> Vec<ClusterRow> {
    vec![identity_row(identity), node_row(node)]
}

#[test]
fn what_is_remembered_of_a_cluster_survives_its_rows() {
    let node = NodeFromServer::of(&json!({
        "metadata": {"uid": "u1", "labels": {"a": "b"}, "annotations": {"c": "d"}},
        "spec": {
            "taints": [{"key": "k", "value": "v", "effect": "NoExecute", "timeAdded": "2026-01-02T03:04:05Z"}],
            "unschedulable": true,
            "podCIDRs": ["10.244.1.0/24", "fd00::/64"],
        },
        "status": {"volumesAttached": [{"name": "csi/x", "devicePath": "/dev/sda"}]},
    }));
    for guard in [
        Guard::Open,
        Guard::Holding { since: Timestamp::from_secs(1_800_000_000), why: GuardReason::AnotherNode },
        Guard::Holding { since: Timestamp::from_secs(1_800_000_000), why: GuardReason::VersionWentBack },
    ] {
        let identity = ClusterIdentity {
            server: "https://10.0.0.1:6443".into(),
            node_uid: "u1".into(),
            guard,
            last_contact: Timestamp::from_secs(1_700_000_000),
            offline: Duration::from_secs(90),
            offline_until: Timestamp::from_secs(1_750_000_000),
        };
        let restored = RestoredCluster::of(&rows(&identity, &node));
        assert_eq!(restored, RestoredCluster { identity, node: Some(node.clone()) });
    }
}

#[test]
fn a_damaged_row_of_the_cluster_is_as_none() {
    let damaged = |kind: &str| ClusterRow {
        key: ClusterKey::new(kind, "", ""),
        uid: String::new(),
        value: b"{\"server\":".to_vec(),
    };
    assert_eq!(RestoredCluster::of(&[damaged(CLUSTER), damaged(NODE)]), RestoredCluster::default());
}

#[test]
fn time_offline_counts_for_one_certificate() {
    let (clock, state) =
        (Clock::manual(Timestamp::from_secs(0)), ClusterState::new("n", &RestoredCluster::default()));
    let state = Rc::new(state);
    let offline = state.offline(&clock);
    let failed = || LinkEvent::Failed(ApiError::new(ApiErrorKind::Unreachable, "no route to host"));
    state.count_offline_for(Timestamp::from_secs(9_000));
    for (second, event, counted) in [
        (100, LinkEvent::Answered, 0),
        (200, failed(), 0),
        (230, failed(), 30),
        (250, LinkEvent::Answered, 50),
        (300, LinkEvent::Answered, 50),
        (400, failed(), 50),
        (407, failed(), 57),
        (410, LinkEvent::Answered, 60),
    ] {
        clock.set(Timestamp::from_secs(second));
        state.on_link(event, Timestamp::from_secs(second));
        assert_eq!(offline().as_secs(), counted, "at {second}");
    }
    assert_eq!(state.identity.borrow().offline.as_secs(), 50, "the last time is written with the next loss");
    state.count_offline_for(Timestamp::from_secs(9_000));
    assert_eq!(offline().as_secs(), 60);
    state.count_offline_for(Timestamp::from_secs(18_000));
    assert_eq!(offline().as_secs(), 0, "another certificate");
}
