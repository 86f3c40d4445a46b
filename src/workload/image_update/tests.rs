use super::*;
use crate::model::api::pod::{ContainerStatus, PodStatus};
use crate::model::objects::ObjectKind::{Deployment, ReplicaSet};
use crate::workload::testing::{FakeNode, document, template};

const IMAGE: &str = "web:1";

fn web(more: &Value) -> Value {
    let mut web = document(
        "Deployment",
        "web",
        json!({
            "replicas": 1, "progressDeadlineSeconds": 60,
            "selector": {"matchLabels": {"app": "web"}},
            "template": template(IMAGE, "Always"),
        }),
    );
    web["metadata"]["annotations"] = json!({UPDATE: "registry"});
    for (name, value) in more.as_object().into_iter().flatten() {
        web["spec"][name] = value.clone();
    }
    web
}

/// All pods that wait get ready; the tag names this digest.
fn run(node: &mut FakeNode, digest: &str) {
    for uid in node.uids(|pod| pod.is_active() && !pod.is_ready()) {
        node.set_pod(&uid, "Running", true);
        let pod = node.pods.get_mut(&uid).unwrap();
        let image_id = format!("docker.io/library/web@{digest}");
        let container = ContainerStatus { name: "c".to_owned(), image_id, ..ContainerStatus::default() };
        pod.status =
            Rc::new(PodStatus { container_statuses: vec![container], ..PodStatus::clone(&pod.status) });
    }
    node.end_deleted();
    node.wait(1);
    node.end_deleted();
    node.wait(1);
}

fn all_followers(node: &FakeNode) -> Vec<Follower> {
    let item = |object: &Rc<LocalObject>| Item::new(Rc::clone(object), node.read_only.contains(&object.key));
    let items: Vec<Item> = node.objects.values().map(item).collect();
    followers(&items, &node.pods.values().cloned().collect::<Vec<_>>())
}

/// What is said of a check that finds this digest; `None` if nothing is written.
fn check(node: &mut FakeNode, digest: &str) -> Option<String> {
    let answers = BTreeMap::from([(IMAGE.to_owned(), digest.to_owned())]);
    let mut message = None;
    for updated in all_followers(node).into_iter().filter_map(|follower| follower.update(&answers)) {
        for object in updated.objects {
            node.objects.insert(object.key.clone(), object);
        }
        message = Some(updated.message);
    }
    node.pass();
    message
}

/// Those of the pods that are there.
fn pod_images(node: &FakeNode) -> Vec<String> {
    let mut images: Vec<String> =
        node.active().iter().map(|pod| pod.pod.spec.containers[0].image.clone()).collect();
    images.sort();
    images
}

fn annotation(node: &FakeNode, kind: ObjectKind, name: &str, annotation: &str) -> String {
    node.get(kind, name)["metadata"]["annotations"][annotation].as_str().unwrap_or_default().to_owned()
}

fn digests_of_template(node: &FakeNode) -> String {
    of_template(&node.get(Deployment, "web")["spec"]["template"]).to_owned()
}

/// One that runs the digest `one`, which is known.
fn running_one(more: &Value) -> FakeNode {
    let mut node = FakeNode::new();
    node.apply(web(more));
    node.pass();
    run(&mut node, "sha256:one");
    assert_eq!(check(&mut node, "sha256:one"), Some(String::new()));
    node
}

#[test]
fn first_check_records_what_runs_and_the_next_writes_nothing() {
    let mut node = FakeNode::new();
    node.apply(web(&json!({})));
    node.pass();
    assert_eq!(check(&mut node, "sha256:two"), None, "nothing runs yet");
    run(&mut node, "sha256:one");
    let before = node.pod_names();
    assert_eq!(check(&mut node, "sha256:one"), Some(String::new()));
    assert_eq!(annotation(&node, Deployment, "web", SEEN), "web:1@sha256:one");
    let set = &node.names(ReplicaSet)[0];
    assert_eq!(annotation(&node, ReplicaSet, set, DIGESTS), "web:1@sha256:one");
    assert_eq!(annotation(&node, ReplicaSet, set, SEEN), "");
    assert_eq!(digests_of_template(&node), "");
    assert_eq!(node.pod_names(), before, "the pods stay");
    assert_eq!(check(&mut node, "sha256:one"), None);
    // A pod that follows has the digest that was found.
    node.delete_pod(&node.uids(|_| true)[0].clone());
    node.end_deleted();
    node.pass();
    assert_eq!(pod_images(&node), ["web:1@sha256:one"]);
}

#[test]
fn another_digest_is_an_ordinary_rollout() {
    let mut node = running_one(&json!({}));
    let message = check(&mut node, "sha256:two").unwrap();
    assert_eq!(message, "Registry has another digest, rolling out web:1@sha256:two");
    let deployment = node.get(Deployment, "web");
    assert_eq!(text(&deployment, "/spec/template/spec/containers/0/image"), IMAGE, "as the user wrote it");
    assert_eq!(digests_of_template(&node), "web:1@sha256:two");
    assert_eq!(pod_images(&node), ["web:1", "web:1@sha256:two"]);
    run(&mut node, "sha256:two");
    assert_eq!(pod_images(&node), ["web:1@sha256:two"]);
    assert_eq!(node.condition(Deployment, "web", "Progressing")[1], "NewReplicaSetAvailable");
    assert_eq!(annotation(&node, Deployment, "web", REVISION), "2");
    assert_eq!(check(&mut node, "sha256:two"), None);
    // The publisher takes it back.
    assert!(check(&mut node, "sha256:one").is_some());
    run(&mut node, "sha256:one");
    assert_eq!(pod_images(&node), ["web:1@sha256:one"]);
    assert_eq!(check(&mut node, "sha256:one"), None);
}

#[test]
fn digest_that_does_not_get_ready_is_left_and_not_tried_again() {
    let mut node = running_one(&json!({}));
    let first = node.pod_names();
    check(&mut node, "sha256:two").unwrap();
    node.wait(61);
    assert_eq!(node.condition(Deployment, "web", "Progressing")[1], "ProgressDeadlineExceeded");
    node.take_events();
    node.wait(6);
    let events = node.take_events();
    assert!(events.iter().any(|event| event.contains("DeploymentRollback: Rolled back")), "{events:?}");
    node.end_deleted();
    node.wait(1);
    assert_eq!(node.pod_names(), first, "the pod that ran still does");
    assert_eq!(digests_of_template(&node), "");
    assert_eq!(check(&mut node, "sha256:two"), None);
    // What is made from now on runs the digest from before, wherever the tag is.
    node.edit(Deployment, "web", |web| {
        web["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    });
    node.pass();
    run(&mut node, "sha256:two");
    assert_eq!(pod_images(&node), ["web:1@sha256:one"]);
    assert_eq!(check(&mut node, "sha256:two"), None);
    assert!(check(&mut node, "sha256:three").is_some());
    assert_eq!(pod_images(&node), ["web:1@sha256:one", "web:1@sha256:three"]);
}

#[test]
fn change_of_a_user_is_not_rolled_back_by_itself() {
    let mut node = running_one(&json!({}));
    node.edit(Deployment, "web", |web| {
        web["spec"]["template"]["spec"]["containers"][0]["env"] = json!([{"name": "A", "value": "b"}]);
    });
    node.pass();
    node.wait(61);
    node.wait(6);
    assert_eq!(node.condition(Deployment, "web", "Progressing")[1], "ProgressDeadlineExceeded");
}

#[test]
fn digest_that_was_undone_by_hand_is_not_tried_again() {
    let mut node = running_one(&json!({}));
    let earlier = node.get(ReplicaSet, &node.names(ReplicaSet)[0].clone());
    check(&mut node, "sha256:two").unwrap();
    run(&mut node, "sha256:two");
    // kubectl takes the template and the annotations of the revision.
    let key = all_followers(&node)[0].key().clone();
    let mut item = Item::new(Rc::clone(&node.objects[&key]), false);
    let mut template = earlier["spec"]["template"].clone();
    template["metadata"]["labels"].as_object_mut().unwrap().remove("pod-template-hash");
    item.set_spec("template", template);
    item.annotate(SEEN, None);
    node.objects.insert(key, item.into_object());
    node.pass();
    run(&mut node, "sha256:two");
    assert_eq!(pod_images(&node), ["web:1@sha256:one"]);
    assert_eq!(check(&mut node, "sha256:two"), Some(String::new()), "recorded, not rolled out");
    assert_eq!(pod_images(&node), ["web:1@sha256:one"]);
    assert_eq!(check(&mut node, "sha256:two"), None);
    assert!(!check(&mut node, "sha256:three").unwrap().is_empty());
}

#[test]
fn nothing_is_asked_about_what_is_not_followed() {
    let objections = |node: &FakeNode| all_followers(node)[0].objections();
    let is_asked = |node: &FakeNode| !all_followers(node)[0].questions().is_empty();
    let mut node = running_one(&json!({}));
    assert!(objections(&node).is_empty() && is_asked(&node));
    node.edit(Deployment, "web", |web| web["spec"]["paused"] = json!(true));
    assert!(!is_asked(&node), "paused");
    node.edit(Deployment, "web", |web| web["spec"]["paused"] = json!(false));
    let key = all_followers(&node)[0].key().clone();
    node.read_only.insert(key);
    assert!(objections(&node)[0].contains("change the manifest") && !is_asked(&node));
    node.read_only.clear();
    node.edit(Deployment, "web", |web| web["metadata"]["annotations"][UPDATE] = json!("local"));
    assert_eq!(
        objections(&node),
        ["annotation workloads.agent.edge/image-update: \"local\" is not supported; use \"registry\""]
    );
    assert!(!is_asked(&node));

    let mut node = FakeNode::new();
    node.apply(web(&json!({"replicas": 0})));
    node.pass();
    assert!(!is_asked(&node), "without a pod");

    let mut node = FakeNode::new();
    let mut set = document(
        "DaemonSet",
        "web",
        json!({"selector": {"matchLabels": {"app": "web"}}, "template": template(IMAGE, "Always")}),
    );
    set["metadata"]["annotations"] = json!({UPDATE: "registry"});
    node.apply(set);
    node.pass();
    assert_eq!(objections(&node), ["images of a DaemonSet are not updated, only those of a Deployment"]);
    assert!(!is_asked(&node));
}

#[test]
fn pinned_images_and_those_never_pulled_are_left_out() {
    let template = json!({"spec": {
        "initContainers": [{"image": "a@sha256:x"}, {"image": "b:1", "imagePullPolicy": "Never"}, {"image": "c"}],
        "containers": [{"image": "c"}, {"image": "d:1"}],
    }});
    let (asked, skipped) = images(&template);
    assert_eq!(asked, ["c", "d:1"]);
    assert_eq!(
        skipped,
        [
            "image a@sha256:x has a digest and is not updated",
            "image b:1 has the pull policy Never and is not updated"
        ]
    );
}

#[test]
fn entries_belong_to_the_exact_image() {
    let list = "web:1@sha256:a,web@sha256:b,r:5000/web:1@sha256:c";
    for (image, expected) in [
        ("web:1", Some("web:1@sha256:a")),
        ("web", Some("web@sha256:b")),
        ("r:5000/web:1", Some("r:5000/web:1@sha256:c")),
        ("web:12", None),
        ("we", None),
    ] {
        assert_eq!(entry(list, image), expected, "{image}");
    }
    assert_eq!(entry("", "web"), None);
}

#[test]
fn digest_of_what_runs_counts_for_its_own_repository() {
    for (image, id, expected) in [
        ("web:1", "docker.io/library/web@sha256:a", Some("sha256:a")),
        ("web", "docker-pullable://web@sha256:a", Some("sha256:a")),
        ("r:5000/a/web", "r:5000/a/web@sha256:a", Some("sha256:a")),
        ("r:5000/a/web:1", "r:5000/b/web@sha256:a", None),
        ("web:1", "sha256:a", None),
    ] {
        assert_eq!(repository_digest(image, id).as_deref(), expected, "{image} {id}");
    }
}

#[test]
fn templates_differ_in_digests_and_nothing_else() {
    let with =
        |annotations: Value, image: &str| json!({"metadata": {"annotations": annotations}, "spec": image});
    let bare = json!({"metadata": {}, "spec": "a"});
    let pinned = with(json!({DIGESTS: "x"}), "a");
    assert!(differ_in_digests(&bare, &pinned) && differ_in_digests(&pinned, &with(json!({}), "a")));
    assert!(!differ_in_digests(&pinned, &pinned));
    assert!(!differ_in_digests(&bare, &with(json!({DIGESTS: "x"}), "b")));
    assert!(!differ_in_digests(&bare, &with(json!({DIGESTS: "x", "a": "b"}), "a")));
}

#[test]
fn first_check_comes_within_a_quarter_of_the_interval() {
    let hour = Duration::from_secs(3600);
    let delays: Vec<Duration> = (0..50).map(|number| first_delay(&format!("uid-{number}"), hour)).collect();
    let minutes = |minutes: u64| Duration::from_secs(60 * minutes);
    assert!(delays.iter().all(|delay| (minutes(5)..minutes(15)).contains(delay)), "{delays:?}");
    assert!(delays.iter().max() > delays.iter().min(), "they are spread");
}
