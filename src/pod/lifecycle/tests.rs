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
        proptest::option::of(-3_i64..60)
            .prop_map(|grace_override| PodWorkerEvent::Finalizing { grace_override }),
        Just(PodWorkerEvent::NameFree),
        Just(PodWorkerEvent::PodTerminal),
        (-3_i64..60).prop_map(|grace_seconds| PodWorkerEvent::Evicted { grace_seconds }),
        (-3_i64..60).prop_map(|grace_seconds| PodWorkerEvent::Shutdown { grace_seconds }),
        Just(PodWorkerEvent::Resumed),
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
            if event == PodWorkerEvent::Resumed && matches!(state, PodWorkerState::Finished { cause: EndCause::Shutdown }) {
                // A life of its own.
                (began, grace) = (false, None);
            }
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
            let removed = matches!(before, PodWorkerState::Finished { cause } if matches!(cause, EndCause::Removed | EndCause::Replaced));
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
fn removed_pod_is_terminated_cleaned_up_and_forgotten() {
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

#[test]
fn shorter_grace_counts_from_the_request_and_never_extends() {
    let begun = |grace_seconds| PodWorkerState::Terminating {
        since: Timestamp::from_secs(40),
        grace_seconds,
        cause: EndCause::Completed,
    };
    // Grace at 40, wish at 50, what is left at 50.
    let cases = [
        (30, Some(5), 5),
        (30, Some(0), 1),
        (30, Some(25), 20),
        (30, None, 20),
        (12, Some(2), 2),
        (12, Some(3), 2),
    ];
    for (grace, wish, left) in cases {
        let (state, effects) = at(begun(grace), PodWorkerEvent::Removed { grace_override: wish });
        assert_eq!(state.grace_left(Timestamp::from_secs(50)), Some(left), "{grace} {wish:?}");
        assert!(matches!(state, PodWorkerState::Terminating { cause: EndCause::Removed, .. }));
        let is_told = effects.iter().any(|effect| matches!(effect, PodWorkerEffect::Terminate { .. }));
        assert_eq!(is_told, left < grace - 10, "{grace} {wish:?}");
    }
    assert_eq!(begun(30).grace_left(Timestamp::from_secs(1000)), Some(MIN_GRACE_SECONDS));
    assert_eq!(begun(30).grace_left(Timestamp::from_secs(10)), Some(30), "a clock that was set back");
    assert_eq!(PodWorkerState::Syncing.grace_left(Timestamp::from_secs(50)), None);
}

#[test]
fn the_next_agent_goes_on_with_what_is_left_of_the_grace() {
    let mut pod = Pod::default();
    assert_eq!(remembered_grace(&pod, Timestamp::from_secs(50)), None);
    pod.metadata.deletion_timestamp = Some(Timestamp::from_secs(40));
    assert_eq!(remembered_grace(&pod, Timestamp::from_secs(50)), None);
    pod.metadata.deletion_grace_period_seconds = Some(30);
    assert_eq!(remembered_grace(&pod, Timestamp::from_secs(50)), Some(20));
    assert_eq!(remembered_grace(&pod, Timestamp::from_secs(100)), Some(MIN_GRACE_SECONDS));
    assert_eq!(remembered_grace(&pod, Timestamp::from_secs(0)), Some(30));
}

#[test]
fn evicted_pod_keeps_only_its_status_and_is_not_restarted() {
    let (state, _) = at(PodWorkerState::Syncing, PodWorkerEvent::Evicted { grace_seconds: 5 });
    let cause = EndCause::Evicted;
    assert_eq!(
        state,
        PodWorkerState::Terminating { since: Timestamp::from_secs(50), grace_seconds: 5, cause }
    );
    assert_eq!(at(state, PodWorkerEvent::Desired).0, state, "however often it is asked for");
    let (state, effects) = at(state, PodWorkerEvent::NoLiveContainers);
    assert_eq!(
        (state, effects),
        (PodWorkerState::Terminated { cause }, vec![PodWorkerEffect::CleanUp { records: true }])
    );
    let (state, effects) = at(state, PodWorkerEvent::CleanupDone);
    assert_eq!((state, effects), (PodWorkerState::Finished { cause }, vec![]));
    assert_eq!(at(state, PodWorkerEvent::Desired).0, state);
    let (state, _) = at(state, PodWorkerEvent::Removed { grace_override: None });
    assert_eq!(state, PodWorkerState::Terminated { cause: EndCause::Removed });
}

#[test]
fn pod_ended_by_shutdown_restarts_only_if_it_is_cancelled() {
    let cause = EndCause::Shutdown;
    let (state, effects) = at(PodWorkerState::Syncing, PodWorkerEvent::Shutdown { grace_seconds: 5 });
    assert_eq!(effects, [PodWorkerEffect::Terminate { grace_seconds: 5 }]);
    assert_eq!(at(state, PodWorkerEvent::Desired).0, state, "however often it is asked for");
    let (state, effects) = at(state, PodWorkerEvent::NoLiveContainers);
    assert_eq!((state, effects), (PodWorkerState::Finished { cause }, vec![]), "nothing is cleaned up");
    assert_eq!(at(state, PodWorkerEvent::Desired).0, state);
    assert_eq!(at(state, PodWorkerEvent::Resumed).0, PodWorkerState::WaitingForName);
    let (state, _) = at(state, PodWorkerEvent::Removed { grace_override: None });
    assert_eq!(state, PodWorkerState::Terminated { cause: EndCause::Removed });
}

#[test]
fn shutdown_shortens_grace_but_keeps_the_termination_cause() {
    let going =
        |cause| PodWorkerState::Terminating { since: Timestamp::from_secs(40), grace_seconds: 30, cause };
    for cause in [EndCause::Removed, EndCause::Completed, EndCause::Evicted, EndCause::Replaced] {
        let (state, _) = at(going(cause), PodWorkerEvent::Shutdown { grace_seconds: 5 });
        let since = Timestamp::from_secs(50);
        assert_eq!(state, PodWorkerState::Terminating { since, grace_seconds: 5, cause });
        assert_eq!(at(going(cause), PodWorkerEvent::Shutdown { grace_seconds: 25 }).0, going(cause));
    }
    let (state, _) = at(going(EndCause::Shutdown), PodWorkerEvent::Resumed);
    assert_eq!(state, going(EndCause::Replaced), "half stopped: it starts over");
}

#[test]
fn deleted_pod_keeps_its_status_until_finalizers_are_gone() {
    let cause = EndCause::Finalizing;
    let deleted = PodWorkerEvent::Finalizing { grace_override: Some(20) };
    let (going, _) = at(PodWorkerState::Syncing, deleted);
    assert_eq!(
        going,
        PodWorkerState::Terminating { since: Timestamp::from_secs(50), grace_seconds: 20, cause }
    );
    let (shorter, effects) = at(going, PodWorkerEvent::Finalizing { grace_override: Some(5) });
    assert_eq!(
        shorter,
        PodWorkerState::Terminating { since: Timestamp::from_secs(50), grace_seconds: 5, cause }
    );
    assert_eq!(effects, [PodWorkerEffect::Terminate { grace_seconds: 5 }]);
    let (state, effects) = at(shorter, PodWorkerEvent::NoLiveContainers);
    assert_eq!(effects, [PodWorkerEffect::CleanUp { records: true }]);
    let (finished, effects) = at(state, PodWorkerEvent::CleanupDone);
    assert_eq!((finished, effects), (PodWorkerState::Finished { cause }, vec![]));
    for event in [deleted, PodWorkerEvent::Desired] {
        assert_eq!(at(finished, event), (finished, vec![]));
    }
    let (state, effects) = at(finished, PodWorkerEvent::Removed { grace_override: None });
    assert_eq!(state, PodWorkerState::Terminated { cause: EndCause::Removed });
    assert_eq!(effects, [PodWorkerEffect::CleanUp { records: true }]);
    // Finalizers removed while it ends: it is removed after its end. A pod that ended by itself may be kept,
    // too.
    let (state, _) = at(going, PodWorkerEvent::Removed { grace_override: None });
    assert!(matches!(state, PodWorkerState::Terminating { grace_seconds: 20, cause: EndCause::Removed, .. }));
    let (state, _) = at(PodWorkerState::Finished { cause: EndCause::Completed }, deleted);
    assert_eq!(state, PodWorkerState::Terminated { cause });
}

#[test]
fn deletion_timestamp_includes_grace_and_can_only_move_earlier() {
    let times = |pod: &Pod| (pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds);
    let mut pod = Pod::default();
    let now = Timestamp::from_secs(100);
    show_end(&mut pod);
    assert_eq!(times(&pod), (None, None), "it does not go");
    assert_eq!(requested_termination(&pod, Some(20), now), (now, 20));
    assert_eq!(requested_termination(&pod, Some(0), now), (now, MIN_GRACE_SECONDS));
    (pod.metadata.deletion_timestamp, pod.metadata.deletion_grace_period_seconds) = (Some(now), Some(20));
    let kept = pod.clone();
    show_end(&mut pod);
    assert_eq!(times(&pod), (Some(Timestamp::from_secs(120)), Some(20)));
    restore_start(&mut pod);
    assert_eq!(pod, kept);
    let later = Timestamp::from_secs(110);
    assert_eq!(requested_termination(&pod, None, later), (now, 20));
    assert_eq!(requested_termination(&pod, Some(15), later), (now, 20), "that would be later");
    assert_eq!(requested_termination(&pod, Some(5), later), (later, 5));
}
