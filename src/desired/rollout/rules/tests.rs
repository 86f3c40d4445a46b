use proptest::prelude::*;

use super::*;
use crate::model::api::pod::{Container, ContainerState, ContainerStateWaiting, PodCondition};
use crate::model::objects::{ObjectKind, wire};

const AFTER: Duration = Duration::from_secs(400);

fn pod(name: &str, image: &str) -> SourcePod {
    let mut pod = Pod::default();
    pod.metadata.name = name.to_owned();
    pod.metadata.namespace = "default".to_owned();
    pod.metadata.uid = name.into();
    pod.spec.containers = vec![Container { image: image.to_owned(), ..Container::default() }];
    SourcePod { pod: Rc::new(pod), origin: "http://host/pods".to_owned() }
}

fn secret(value: &str) -> SourceObject {
    let text = serde_json::json!({"metadata": {"name": "db"}, "stringData": {"password": value}});
    SourceObject {
        object: Rc::new(wire::from_value(ObjectKind::Secret, text).unwrap()),
        origin: String::new(),
    }
}

fn progressing(parts_left: u8) -> RolloutPhase {
    let last_good = SourceSet { pods: vec![pod("web", "1")], objects: Vec::new() };
    RolloutPhase::Progressing { last_good, digest: "b".to_owned(), parts_left }
}

fn waits(why: &str) -> (String, Progress) {
    ("default/web".to_owned(), Progress::Waiting(why.to_owned()))
}

fn started() -> (String, Progress) {
    ("default/web".to_owned(), Progress::Started)
}

fn times(in_part: u64, all_started: Option<u64>) -> RolloutTimes {
    RolloutTimes {
        after: AFTER,
        in_part: Duration::from_secs(in_part),
        all_started: all_started.map(Duration::from_secs),
    }
}

#[test]
fn trial_starts_only_with_a_known_good_fallback() {
    let known = || Some(SourceSet { pods: vec![pod("web", "1")], objects: Vec::new() });
    let next = |phase: RolloutPhase, is_change, known| phase.after_answer("b".to_owned(), is_change, known);
    assert_eq!(next(RolloutPhase::Good, true, None), RolloutPhase::Unproven, "the first answer ever");
    assert_eq!(next(RolloutPhase::Good, true, known()), progressing(PARTS));
    assert_eq!(next(RolloutPhase::Good, false, known()), RolloutPhase::Good);
    assert_eq!(next(RolloutPhase::Unproven, true, known()), RolloutPhase::Unproven, "it never was good");
    let rolled_back = || RolloutPhase::RolledBack {
        digest: "a".to_owned(),
        why: String::new(),
        since: Timestamp::default(),
    };
    assert_eq!(next(rolled_back(), true, known()), progressing(PARTS));
    assert_eq!(next(rolled_back(), false, known()), RolloutPhase::Good, "the source says the good one again");
    let other = Some(SourceSet { pods: vec![pod("web", "2")], objects: Vec::new() });
    assert_eq!(
        next(progressing(1), true, other.clone()),
        progressing(PARTS),
        "what was good stays what it was"
    );
    assert_eq!(next(progressing(1), false, other), progressing(1));
    assert!(rolled_back().refuses("a") && !rolled_back().refuses("b") && !progressing(1).refuses("b"));
}

#[test]
fn trial_passes_when_all_pods_stay_up_and_fails_on_timeout() {
    let verdict = |parts, pods: &[(String, Progress)], times| progressing(parts).verdict(pods, times);
    let seconds = |seconds| RolloutVerdict::Wait(Some(Duration::from_secs(seconds)));
    assert_eq!(verdict(4, &[started()], times(1, Some(0))), seconds(10));
    assert_eq!(verdict(4, &[started()], times(1, Some(9))), seconds(1));
    assert_eq!(verdict(4, &[started()], times(1, Some(10))), RolloutVerdict::Good);
    assert_eq!(verdict(4, &[], times(0, Some(0))), RolloutVerdict::Good, "nothing but removals");
    assert_eq!(verdict(4, &[started(), waits("x")], times(99, None)), seconds(1));
    assert_eq!(verdict(4, &[started(), waits("x")], times(100, None)), RolloutVerdict::EndPart);
    assert_eq!(verdict(1, &[waits("x")], times(99, None)), seconds(1));
    let why = "pod default/web: x".to_owned();
    assert_eq!(verdict(1, &[started(), waits("x")], times(100, None)), RolloutVerdict::RollBack(why.clone()));
    assert_eq!(verdict(0, &[waits("x")], times(0, None)), RolloutVerdict::RollBack(why), "used up by starts");
    assert_eq!(verdict(0, &[started()], times(0, Some(3))), seconds(7), "what is up gets its ten seconds");
    assert_eq!(RolloutPhase::Unproven.verdict(&[waits("x")], times(1000, None)), RolloutVerdict::Wait(None));
    assert_eq!(RolloutPhase::Unproven.verdict(&[started()], times(1000, Some(10))), RolloutVerdict::Good);
    let many: Vec<_> = (0..5).map(|_| waits("x")).collect();
    let RolloutVerdict::RollBack(why) = verdict(0, &many, times(0, None)) else { panic!("its time is over") };
    assert!(why.ends_with("x; and 2 more"), "{why}");
    let short = RolloutTimes { after: Duration::from_secs(4), ..times(0, Some(1)) };
    assert_eq!(
        progressing(4).verdict(&[started()], short),
        RolloutVerdict::Good,
        "a short trial has less to wait for"
    );
}

#[test]
fn only_new_and_changed_pods_decide() {
    let new_pods = |phase: &RolloutPhase, wanted: &[SourcePod]| -> Vec<String> {
        phase.new_pods(wanted.iter()).map(|pod| pod.metadata.name.clone()).collect()
    };
    let (same, new) = (pod("web", "1"), pod("db", "1"));
    assert_eq!(new_pods(&progressing(4), &[same.clone(), new.clone()]), ["db"]);
    assert_eq!(new_pods(&progressing(4), &[pod("web", "2")]), ["web"]);
    assert_eq!(new_pods(&RolloutPhase::Unproven, &[same.clone(), new]), ["web", "db"]);
    assert!(new_pods(&RolloutPhase::Good, &[same]).is_empty());
}

#[test]
fn progress_says_what_is_in_the_way() {
    let mut status = PodStatus { phase: "Pending".to_owned(), ..PodStatus::default() };
    let why = |status: &PodStatus| match progress(Some(status)) {
        Progress::Started => "started".to_owned(),
        Progress::Waiting(why) => why,
    };
    assert_eq!(progress(None), Progress::Waiting("not started yet".to_owned()));
    assert_eq!(why(&status), "phase Pending");
    let waiting = |reason: &str, message: &str| ContainerStatus {
        name: "main".to_owned(),
        state: ContainerState {
            waiting: Some(ContainerStateWaiting { reason: reason.to_owned(), message: message.to_owned() }),
            ..ContainerState::default()
        },
        ..ContainerStatus::default()
    };
    status.container_statuses = vec![waiting("ContainerCreating", "")];
    assert_eq!(why(&status), "phase Pending");
    status.container_statuses = vec![waiting("ImagePullBackOff", "no such image")];
    assert_eq!(why(&status), "main: ImagePullBackOff: no such image");
    status.reason = "OutOfcpu".to_owned();
    assert_eq!(why(&status), "OutOfcpu");
    let ready = |status: &str, message: &str| PodCondition {
        type_: "Ready".to_owned(),
        status: status.to_owned(),
        message: message.to_owned(),
        ..PodCondition::default()
    };
    let with = |phase: &str, condition| PodStatus {
        phase: phase.to_owned(),
        conditions: vec![condition],
        ..PodStatus::default()
    };
    assert_eq!(why(&with("Running", ready("True", ""))), "started");
    assert_eq!(
        why(&with("Running", ready("False", "containers with unready status: [main]"))),
        "containers with unready status: [main]"
    );
    assert_eq!(why(&with("Succeeded", ready("False", ""))), "started");
    assert_eq!(why(&with("Failed", ready("False", ""))), "phase Failed");
}

#[test]
fn an_answer_is_named_by_what_it_means() {
    let digest = |pods: &[SourcePod], objects: &[SourceObject]| answer_digest(pods, objects);
    let (web, db) = (pod("web", "1"), pod("db", "1"));
    let one = digest(&[web.clone(), db.clone()], &[secret("x")]);
    let mut seen = web.clone();
    seen.origin = "elsewhere".to_owned();
    Rc::make_mut(&mut seen.pod)
        .metadata
        .annotations
        .insert(crate::model::provenance::CONFIG_SEEN_ANNOTATION.to_owned(), "2026".to_owned());
    Rc::make_mut(&mut seen.pod).status.phase = "Running".to_owned();
    let mut dated = secret("x");
    Rc::make_mut(&mut dated.object).created = Timestamp::from_secs(7);
    assert_eq!(digest(&[db.clone(), seen], &[dated]), one, "order, place and first sight do not count");
    assert_ne!(digest(&[web.clone(), db.clone()], &[secret("y")]), one, "a value of a Secret does");
    assert_ne!(digest(&[pod("web", "2"), db], &[secret("x")]), one);
    assert_ne!(digest(&[web], &[secret("x")]), one);
}

proptest! {
    /// Whatever the pods' progress, and however often the agent restarts, a trial ends after a bounded time,
    /// and the last good set is never lost.
    #[test]
    fn a_trial_always_ends(steps in proptest::collection::vec((0_u8..4, 0_u64..200), 0..60)) {
        let mut phase = progressing(PARTS);
        let (mut in_part, mut parts) = (0, 0);
        for (event, seconds) in steps {
            in_part += seconds;
            match event {
                0 => {
                    phase = phase.after_start();
                    (in_part, parts) = (0, parts + 1);
                }
                1 => phase = phase.after_answer("b".to_owned(), false, Some(SourceSet::default())),
                _ => {}
            }
            let keeps = matches!(&phase, RolloutPhase::Progressing { last_good, .. } if last_good.pods == [pod("web", "1")]);
            prop_assert!(keeps, "lost what was good");
            match phase.verdict(&[waits("x")], times(in_part, None)) {
                RolloutVerdict::EndPart => {
                    let RolloutPhase::Progressing { parts_left, .. } = &mut phase else { unreachable!("seen above") };
                    *parts_left -= 1;
                    (in_part, parts) = (0, parts + 1);
                }
                RolloutVerdict::Wait(Some(rest)) => {
                    prop_assert!(!rest.is_zero() && rest <= AFTER / u32::from(PARTS));
                }
                RolloutVerdict::RollBack(_) => {
                    prop_assert!(parts + 1 >= PARTS, "not before its time");
                    return Ok(());
                }
                other => prop_assert!(false, "{other:?}"),
            }
            prop_assert!(parts < PARTS, "it should have ended");
        }
    }
}
