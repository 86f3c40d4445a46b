//! Tables and properties of the worker's life.

use proptest::prelude::*;

use super::*;

fn at(state: PodWorkerState, event: PodWorkerEvent) -> (PodWorkerState, Vec<PodWorkerEffect>) {
    transition(state, event, Timestamp::from_secs(50), 30)
}

fn events() -> impl Strategy<Value = PodWorkerEvent> {
    prop_oneof![
        Just(PodWorkerEvent::Desired),
        proptest::option::of(-3_i64..60)
            .prop_map(|grace_override| PodWorkerEvent::Removed { grace_override }),
        Just(PodWorkerEvent::NameFree),
        Just(PodWorkerEvent::PodTerminal),
        Just(PodWorkerEvent::NoLiveContainers),
        Just(PodWorkerEvent::CleanupDone),
    ]
}

proptest! {
    #[test]
    fn grace_never_grows_and_nothing_syncs_once_termination_began(
        events in proptest::collection::vec(events(), 0..40),
    ) {
        let mut state = PodWorkerState::WaitingForName;
        let mut grace = None;
        let mut began = false;
        for event in events {
            let before = state;
            let (next, effects) = at(state, event);
            if let PodWorkerState::Terminating { grace_seconds, .. } = next {
                prop_assert!(grace_seconds >= MIN_GRACE_SECONDS);
                prop_assert!(grace.is_none_or(|earlier| grace_seconds <= earlier));
                grace = Some(grace_seconds);
            }
            if began {
                prop_assert!(!effects.contains(&PodWorkerEffect::Sync));
                prop_assert!(!matches!(next, PodWorkerState::Syncing | PodWorkerState::WaitingForName));
            }
            began |= !matches!(next, PodWorkerState::Syncing | PodWorkerState::WaitingForName);
            let removed = matches!(before, PodWorkerState::Finished { cause } if cause != EndCause::Completed);
            prop_assert!(!removed || next == before, "a removed pod that is finished stays finished");
            state = next;
        }
    }

    #[test]
    fn exactly_one_incarnation_holds_a_name_and_each_gets_its_turn(
        steps in proptest::collection::vec((0..4_u8, any::<bool>()), 0..60),
    ) {
        let name = PodFullName::from("web_default");
        let mut queue = NameQueue::default();
        let mut order: Vec<PodUid> = Vec::new();
        for (uid, joins) in steps {
            let uid = PodUid::from(format!("u{uid}"));
            if joins {
                if !order.contains(&uid) {
                    order.push(uid.clone());
                }
                prop_assert_eq!(queue.request(&name, &uid), order[0] == uid);
            } else {
                let held = order.first() == Some(&uid);
                order.retain(|waiting| *waiting != uid);
                let expected = if held { order.first().cloned() } else { None };
                prop_assert_eq!(queue.release(&name, &uid), expected);
            }
            prop_assert_eq!(queue.holder(&name), order.first());
        }
    }
}

#[test]
fn a_removed_pod_is_stopped_with_its_own_grace_cleaned_up_and_forgotten() {
    let (state, effects) = at(PodWorkerState::Syncing, PodWorkerEvent::Removed { grace_override: None });
    assert_eq!(effects, [PodWorkerEffect::Terminate { grace_seconds: 30 }]);
    let (state, effects) = at(state, PodWorkerEvent::NoLiveContainers);
    assert_eq!(effects, [PodWorkerEffect::CleanUp { records: true }]);
    let (state, effects) = at(state, PodWorkerEvent::CleanupDone);
    assert_eq!(state, PodWorkerState::Finished { cause: EndCause::Removed });
    assert_eq!(effects, [PodWorkerEffect::ReleaseName, PodWorkerEffect::Forget]);
}

#[test]
fn a_completed_pod_keeps_its_records_until_it_is_removed() {
    let (state, _) = at(PodWorkerState::Syncing, PodWorkerEvent::PodTerminal);
    let (state, effects) = at(state, PodWorkerEvent::NoLiveContainers);
    assert_eq!(effects, [PodWorkerEffect::CleanUp { records: false }]);
    let (state, effects) = at(state, PodWorkerEvent::CleanupDone);
    assert_eq!((state, effects), (PodWorkerState::Finished { cause: EndCause::Completed }, vec![]));
    let (state, effects) = at(state, PodWorkerEvent::Desired);
    assert_eq!((state, effects), (PodWorkerState::Finished { cause: EndCause::Completed }, vec![]));
    let (_, effects) = at(state, PodWorkerEvent::Removed { grace_override: None });
    assert_eq!(effects, [PodWorkerEffect::CleanUp { records: true }]);
}

#[test]
fn a_pod_wanted_again_while_it_goes_starts_over_afterwards() {
    let (state, _) = at(PodWorkerState::Syncing, PodWorkerEvent::Removed { grace_override: Some(0) });
    assert_eq!(state.terminating_grace(), Some(MIN_GRACE_SECONDS));
    let (state, _) = at(state, PodWorkerEvent::Desired);
    let (state, _) = at(state, PodWorkerEvent::NoLiveContainers);
    let (_, effects) = at(state, PodWorkerEvent::CleanupDone);
    assert_eq!(effects, [PodWorkerEffect::ReleaseName, PodWorkerEffect::StartOver]);
}
