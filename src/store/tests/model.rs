//! Random changes and restarts against a model of the store.

use super::*;

#[derive(Clone, Debug)]
enum Op {
    Commit(PodSource, Vec<(u8, u8)>, Option<u8>),
    Forget(u8),
    Restart(u8, u32),
    Status(u8, u8),
    Reopen,
}

fn any_op() -> impl Strategy<Value = Op> {
    let source = prop_oneof![Just(PodSource::File), Just(PodSource::Http)];
    let pods = prop::collection::btree_map(0u8..6, 0u8..3, 0..5);
    prop_oneof![
        4 => (source, pods, prop::option::of(0u8..3)).prop_map(|(s, p, v)| Op::Commit(s, p.into_iter().collect(), v)),
        1 => (0u8..6).prop_map(Op::Forget),
        2 => (0u8..6, 0u32..5).prop_map(|(p, c)| Op::Restart(p, c)),
        2 => (0u8..6, 0u8..3).prop_map(|(p, s)| Op::Status(p, s)),
        1 => Just(Op::Reopen),
    ]
}

#[derive(Default)]
struct Model {
    desired: BTreeMap<PodSource, (BTreeMap<PodUid, SourcePod>, Option<String>)>,
    terminating: BTreeMap<PodUid, Pod>,
    counts: BTreeMap<PodUid, u32>,
    statuses: BTreeMap<PodUid, PodStatus>,
}

impl Model {
    fn wants(&self, uid: &PodUid) -> bool {
        self.desired.values().any(|(pods, _)| pods.contains_key(uid))
    }

    fn commit(&mut self, source: PodSource, pods: &[SourcePod], validator: Option<String>) {
        let new: BTreeMap<_, _> = pods.iter().map(|p| (p.pod.metadata.uid.clone(), p.clone())).collect();
        let (old, _) = self.desired.insert(source, (new, validator)).unwrap_or_default();
        for (uid, gone) in old {
            if !self.wants(&uid) {
                self.terminating.insert(uid, Rc::unwrap_or_clone(gone.pod));
            }
        }
    }

    fn check(&self, loaded: &Loaded) {
        let desired: Vec<_> = self
            .desired
            .iter()
            .map(|(source, (pods, validator))| StoredSource {
                source: *source,
                pods: pods.values().cloned().collect(),
                objects: vec![],
                validator: validator.clone(),
            })
            .collect();
        assert_eq!(loaded.desired, desired);
        assert_eq!(loaded.terminating, self.terminating.values().cloned().collect::<Vec<_>>());
        let counts: BTreeMap<_, _> = loaded
            .container_state
            .iter()
            .map(|(uid, s)| (uid.clone(), s.values().next().unwrap().restart_count))
            .collect();
        assert_eq!(counts, self.counts);
        assert_eq!(loaded.statuses, self.statuses);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_the_store_holds_what_a_model_holds(ops in prop::collection::vec(any_op(), 1..40)) {
        run(async {
            let directory = Directory::new();
            let mut store = open_inline(&directory.db()).0;
            let mut model = Model::default();
            let uid = |number: u8| PodUid::from(format!("uid-p{number}"));
            for op in ops {
                match op {
                    Op::Commit(source, pods, validator) => {
                        let pods: Vec<_> = pods.iter().map(|(n, i)| pod(&format!("p{n}"), &format!("{i}"))).collect();
                        let validator = validator.map(|v| v.to_string());
                        store.commit_source(source, &pods, &[], validator.as_deref()).await.unwrap();
                        model.commit(source, &pods, validator);
                    }
                    Op::Forget(number) => {
                        store.forget_pod(&uid(number)).await.unwrap();
                        model.terminating.remove(&uid(number));
                        model.counts.remove(&uid(number));
                        model.statuses.remove(&uid(number));
                    }
                    Op::Restart(number, restart_count) => {
                        let state = StoredContainerState { restart_count, back_off: None };
                        store.put_container_state(&uid(number), &ContainerName::from("main"), state).await.unwrap();
                        model.counts.insert(uid(number), restart_count);
                    }
                    Op::Status(number, phase) => {
                        store.put_status(&uid(number), &status(&phase.to_string()));
                        store.flush().await.unwrap();
                        if model.wants(&uid(number)) || model.terminating.contains_key(&uid(number)) {
                            model.statuses.insert(uid(number), status(&phase.to_string()));
                        }
                    }
                    Op::Reopen => {
                        drop(store);
                        store = open_inline(&directory.db()).0;
                    }
                }
            }
            model.check(&store.load().await.unwrap());
        });
    }
}
