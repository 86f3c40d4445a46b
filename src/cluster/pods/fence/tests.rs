use std::cell::{Cell, RefCell};
use std::collections::{BTreeMap, BTreeSet};

use serde_json::json;

use super::*;
use crate::model::api::decode::decode;
use crate::model::disruption::Pressure;
use crate::model::revisions::Revisions;
use crate::store::{Mode, OpenOptions, StoreHandle};

#[derive(Default)]
struct Ended(RefCell<Vec<(String, &'static str, i64)>>);

impl PodPressure for Ended {
    fn evict(&self, uid: &PodUid, eviction: Eviction) {
        assert!(!eviction.is_shutdown && eviction.message.ends_with("since 2027-01-15T08:00:00Z."));
        self.0.borrow_mut().push((uid.to_string(), eviction.reason, eviction.grace_seconds));
    }

    fn set_pressure(&self, _: BTreeSet<Pressure>) {}

    fn set_short_of_disk(&self, _: bool) {}

    fn set_shutting_down(&self, _: bool) {}
}

#[tokio::test(start_paused = true)]
async fn the_fence_evicts_once_the_contact_is_too_old() {
    let lost = Timestamp::from_secs(1_800_000_000);
    let store = StoreHandle::open_in_memory(OpenOptions { mode: Mode::Inline, ..OpenOptions::default() });
    let statuses =
        StatusManager::new(store.unwrap(), BTreeMap::new(), Revisions::since(Timestamp::default()));
    for (uid, kind) in [("s", "StatefulSet"), ("d", "ReplicaSet")] {
        let raw = json!({
            "metadata": {"name": uid, "uid": uid, "ownerReferences": [{"kind": kind, "name": "o"}],
                "annotations": {"kubernetes.io/config.source": "cluster"}},
            "spec": {"terminationGracePeriodSeconds": 7, "containers": [{"name": "c"}]},
        });
        statuses.expect(&Rc::new(decode(raw).unwrap().object));
    }
    let (ended, is_lost) = (Rc::new(Ended::default()), Rc::new(Cell::new(false)));
    let parts = FenceParts {
        limit: Some(Duration::from_secs(3600)),
        statuses: Rc::new(statuses),
        pods: Rc::<Ended>::clone(&ended),
        // It was set back to the time of the loss: only the uptime tells how long ago that is.
        clock: Clock::manual(lost),
        last_contact: {
            let is_lost = Rc::clone(&is_lost);
            Rc::new(move || is_lost.get().then_some(lost))
        },
    };
    let clock = parts.clock.clone();
    let test = async {
        drop(tokio::task::spawn_local(run(parts)));
        sleep(Duration::from_secs(7200)).await;
        assert!(ended.0.borrow().is_empty(), "the cluster answers");
        is_lost.set(true);
        clock.set(lost);
        sleep(Duration::from_secs(3600)).await;
        assert!(ended.0.borrow().is_empty());
        clock.set(lost);
        sleep(Duration::from_secs(91)).await;
        assert_eq!(ended.0.borrow()[0], ("s".to_owned(), OFFLINE_TOO_LONG, 7));
        assert!(ended.0.borrow().iter().all(|(uid, ..)| uid == "s"));
    };
    tokio::task::LocalSet::new().run_until(test).await;
}
