use serde_json::json;

use super::*;

fn labels(kind: &str) -> Value {
    json!({
        KIND: kind, "io.kubernetes.pod.name": "web", "io.kubernetes.pod.namespace": "ns", "io.kubernetes.pod.uid": "u1",
        "io.kubernetes.container.name": "main", SANDBOX_ID: "s1", "annotation.io.kubernetes.container.hash": "h",
    })
}

fn inspected(state: &Value) -> Option<ObservedContainer> {
    let object = json!({
        "Id": "c1", "Name": "/k8s_main_web_ns_u1_3", "Created": "2026-11-28T12:42:02.5Z", "State": state,
        "LogPath": "/d/c1-json.log", "Config": { "Labels": labels(CONTAINER) },
        "Mounts": [{ "Source": "/srv", "Destination": "/data" }, { "Source": "/srv", "Destination": "/other" }],
        "HostConfig": { "Mounts": [
            { "Target": "/data/", "BindOptions": { "ReadOnlyForceRecursive": true } },
            { "Target": "/other", "BindOptions": { "ReadOnlyNonRecursive": true } },
        ] },
    });
    let image = ImageNames { name: "n".to_owned(), reference: "r".to_owned() };
    container_from_inspection(&object, image)
}

#[test]
fn a_listed_sandbox_is_ready_once_it_has_its_network() {
    let item = |mode: &str| {
        json!({
            "Id": "s1", "Names": ["/k8s_POD_web_ns_u1_2"], "State": "running", "Created": 7,
            "HostConfig": { "NetworkMode": mode }, "Labels": labels(SANDBOX),
        })
    };
    let found = sandbox_from_list(&item("none"), |id| *id == SandboxId::from("s1")).expect("a pod's");
    assert_eq!((found.ready, found.attempt, found.created_at), (true, 2, Timestamp::from_secs(7)));
    assert_eq!((found.pod.name.as_str(), found.pod.uid.as_str()), ("web", "u1"));
    assert!(!sandbox_from_list(&item("none"), |_| false).expect("a pod's").ready);
    assert!(sandbox_from_list(&item("host"), |_| false).expect("a pod's").ready);
    assert_eq!(container_from_list(&item("none")), None, "it is no container of a pod");
}

#[test]
fn a_listed_container_has_its_attempt_from_its_name() {
    let mut item = json!({
        "Id": "c1", "Names": ["/k8s_main_web_ns_u1_3_0badcafe"], "State": "exited", "Created": 7,
        "Image": "sha256:1", "ImageID": "sha256:1", "Labels": labels(CONTAINER),
    });
    let found = container_from_list(&item).expect("a pod's");
    assert_eq!((found.attempt, found.hash.as_str(), found.state), (3, "h", ContainerStateKind::Exited));
    assert_eq!((found.sandbox.as_str(), found.name.as_str()), ("s1", "main"));
    item["Labels"]["io.kubernetes.container.name"] = json!("../x");
    assert_eq!(container_from_list(&item), None, "names become parts of paths");
}

#[test]
fn the_state_of_a_container_says_how_it_ended() {
    let ended = |oom: bool, code: i32| {
        json!({
            "Status": "exited", "OOMKilled": oom, "ExitCode": code, "StartedAt": "2026-11-28T12:42:03Z",
            "FinishedAt": "2026-11-28T12:42:04Z",
        })
    };
    for (oom, code, reason) in [(false, 0, "Completed"), (false, 3, "Error"), (true, 137, "OOMKilled")] {
        let found = inspected(&ended(oom, code)).expect("a pod's");
        assert_eq!((found.reason.as_str(), found.exit_code), (reason, code));
        assert!(found.started_at < found.finished_at);
    }
    let found = inspected(
        &json!({ "Status": "running", "StartedAt": "2026-11-28T12:42:03Z", "FinishedAt": "0001-01-01T00:00:00Z" }),
    );
    let found = found.expect("a pod's");
    assert_eq!((found.state, found.finished_at.is_zero()), (ContainerStateKind::Running, true));
    assert_eq!((found.log_path.as_str(), found.hash.as_str()), ("/d/c1-json.log", "h"));
    assert_eq!(found.mounts[0].host_path, "/srv");
    assert!(found.mounts[0].recursive_read_only && !found.mounts[1].recursive_read_only);
}

#[test]
fn a_runtime_says_whether_it_has_recursive_read_only_mounts() {
    let runtime =
        |features: &str| json!({ "status": { "org.opencontainers.runtime-spec.features": features } });
    assert!(has_recursive_read_only(&runtime(r#"{"mountOptions":["ro","rro"]}"#)));
    assert!(!has_recursive_read_only(&runtime(r#"{"mountOptions":["ro"]}"#)));
    // The engine refuses it.
    assert!(!has_recursive_read_only(&json!({ "runtimeType": "io.containerd.x.v1" })));
}

#[test]
fn a_container_whose_program_cannot_be_started_has_ended() {
    let found = inspected(&json!({ "Status": "created", "ExitCode": 127, "Error": "no such file" }))
        .expect("a pod's");
    assert_eq!((found.state, found.reason.as_str()), (ContainerStateKind::Exited, "ContainerCannotRun"));
    assert_eq!((found.exit_code, found.message.as_str()), (127, "no such file"));
    assert_eq!(found.finished_at, found.created_at);
    let waits = inspected(&json!({ "Status": "created", "ExitCode": 0, "Error": "" })).expect("a pod's");
    assert_eq!(waits.state, ContainerStateKind::Created);
}

#[test]
fn images_are_named_in_full_and_by_digest() {
    let image = json!({
        "Id": "sha256:1", "RepoTags": ["busybox:1.36"], "RepoDigests": ["busybox@sha256:2"], "Size": 5,
        "Config": { "User": "65534:0" },
    });
    let names = image_names(&image);
    assert_eq!(names.name, "docker.io/library/busybox:1.36");
    assert_eq!(names.reference, "docker.io/library/busybox@sha256:2");
    let local = image_names(&json!({ "Id": "sha256:1", "RepoTags": [], "RepoDigests": null }));
    assert_eq!(local, ImageNames { name: "sha256:1".to_owned(), reference: "sha256:1".to_owned() });
    let status = image_status(&image);
    assert_eq!((status.uid, status.username.as_str(), status.size_bytes), (Some(65534), "", 5));
    assert_eq!(image_status(&json!({ "Config": { "User": "app" } })).username, "app");
    let listed =
        listed_image(&json!({ "Id": "sha256:1", "RepoTags": ["<none>:<none>", "a/b:1"] }), |id, _| {
            id == "sha256:1"
        });
    assert_eq!((listed.names, listed.pinned), (vec!["docker.io/a/b:1".to_owned()], true));
}
