//! Tables for sources, items and modes; properties of paths.

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::{FixedFacts, LocalObjects, NodeObjects};
use proptest::prelude::*;
use serde_json::{Value, json};

fn data(entries: &[(&str, &str)]) -> ObjectData {
    entries.iter().map(|(key, value)| ((*key).to_owned(), value.as_bytes().to_vec())).collect()
}

fn objects() -> LocalObjects {
    let objects = LocalObjects::default();
    let config =
        ConfigMapData { data: data(&[("a", "1"), ("b", "2")]), binary_data: data(&[("bin", "\u{1}")]) };
    objects.set_config_map("ns", "cm", Some(config));
    objects.set_secret("ns", "s", Some(data(&[("token", "hidden")])));
    objects.set_secret("other", "foreign", Some(data(&[("token", "hidden")])));
    objects
}

fn pod(spec: &Value) -> Pod {
    let mut spec = spec.clone();
    spec["containers"] = json!([{"name": "c", "resources": {"limits": {"cpu": "1500m"}}}]);
    let metadata = json!({"name": "web", "namespace": "ns", "uid": "u", "labels": {"app": "x", "a": "y\n"}});
    decode::<Pod>(json!({"metadata": metadata, "spec": spec})).unwrap().object
}

fn projected_from(pod: &Pod) -> Result<Payload, ProjectionError> {
    let allocatable = NodeCapacity { cpu_milli: 4000, memory_bytes: 1 << 30, ..NodeCapacity::default() };
    let context = ProjectionContext { objects: &objects(), allocatable: &allocatable };
    project(pod, &pod.spec.volumes[0], &context)
}

fn project_source(source: &Value) -> Result<Payload, ProjectionError> {
    let mut volume = source.clone();
    volume["name"] = json!("v");
    projected_from(&pod(&json!({"volumes": [volume]})))
}

/// One line per file: path, mode, content.
fn lines(source: &Value) -> Vec<String> {
    let show = |(path, file): (String, ProjectedFile)| {
        format!("{path} {:o} {:?}", file.mode, String::from_utf8(file.data).unwrap())
    };
    project_source(source).unwrap().into_iter().map(show).collect()
}

#[test]
fn keys_become_files() {
    let cases = [
        (json!({"configMap": {"name": "cm"}}), vec!["a 644 \"1\"", "b 644 \"2\"", "bin 644 \"\\u{1}\""]),
        (
            json!({"configMap": {"name": "cm", "defaultMode": 0o400, "items": [
                {"key": "b", "path": "deep/./er//b", "mode": 0o755}, {"key": "bin", "path": "x"}, {"key": "b", "path": "y"}]}}),
            vec!["deep/er/b 755 \"2\"", "x 400 \"\\u{1}\"", "y 400 \"2\""],
        ),
        (json!({"secret": {"secretName": "s", "defaultMode": 0o600}}), vec!["token 600 \"hidden\""]),
        (json!({"secret": {"secretName": "none", "optional": true}}), vec![]),
        (
            json!({"configMap": {"name": "none", "optional": true, "items": [{"key": "a", "path": "a"}]}}),
            vec![],
        ),
        (
            json!({"configMap": {"name": "cm", "optional": true, "items": [
                {"key": "gone", "path": "g"}, {"key": "a", "path": "a"}]}}),
            vec!["a 644 \"1\""],
        ),
        (
            json!({"downwardAPI": {"items": [
                {"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}},
                {"path": "name", "mode": 0o440, "fieldRef": {"fieldPath": "metadata.name"}},
                {"path": "cpu", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu", "divisor": "1m"}},
                {"path": "cpus", "resourceFieldRef": {"containerName": "c", "resource": "limits.cpu"}},
                {"path": "memory", "resourceFieldRef": {
                    "containerName": "c", "resource": "limits.memory", "divisor": "1Mi"}}]}}),
            vec![
                "cpu 644 \"1500\"",
                "cpus 644 \"2\"",
                "labels 644 \"a=\\\"y\\\\n\\\"\\napp=\\\"x\\\"\"",
                "memory 644 \"1024\"",
                "name 440 \"web\"",
            ],
        ),
        (
            json!({"projected": {"defaultMode": 0o444, "sources": [
                {"configMap": {"name": "cm", "items": [{"key": "a", "path": "same"}, {"key": "b", "path": "b"}]}},
                {"secret": {"name": "s", "items": [{"key": "token", "path": "same", "mode": 0o400}]}},
                {"secret": {"name": "none", "optional": true}},
                {"downwardAPI": {"items": [{"path": "uid", "fieldRef": {"fieldPath": "metadata.uid"}}]}},
                {"clusterTrustBundle": {"name": "b", "path": "ca.pem", "optional": true}}]}}),
            vec!["b 444 \"2\"", "ca.pem 444 \"\"", "same 400 \"hidden\"", "uid 444 \"u\""],
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(lines(&source), expected, "{source}");
    }
}

#[test]
fn missing_projection_sources_are_reported_like_upstream() {
    let item = |key: &str, path: &str| json!({"items": [{"key": key, "path": path}]});
    let with = |mut source: Value, kind: &str, key: &str, name: &str| {
        source[key] = json!(name);
        json!({ kind: source })
    };
    let cases = [
        (json!({"configMap": {"name": "y"}}), "configmap \"y\" not found"),
        (json!({"secret": {"secretName": "y"}}), "secret \"y\" not found"),
        (json!({"secret": {"secretName": "foreign"}}), "secret \"foreign\" not found"),
        (with(item("k", "p"), "configMap", "name", "cm"), "configmap references non-existent config key: k"),
        (with(item("k", "p"), "secret", "secretName", "s"), "references non-existent secret key: k"),
        (
            json!({"downwardAPI": {"items": [{"path": "p", "fieldRef": {"fieldPath": "status.podIP"}}]}}),
            "unsupported fieldPath: status.podIP",
        ),
        (
            json!({"downwardAPI": {"items": [
                {"path": "p", "resourceFieldRef": {"containerName": "no", "resource": "limits.cpu"}}]}}),
            "container no not found",
        ),
        (json!({"projected": {"sources": [{"configMap": {"name": "y"}}]}}), "configmap \"y\" not found"),
        (
            json!({"projected": {"sources": [
                {"configMap": {"name": "y"}}, {"secret": {"name": "z"}}, {"configMap": {"name": "y"}}]}}),
            "[configmap \"y\" not found, secret \"z\" not found]",
        ),
        (
            json!({"projected": {"sources": [{"serviceAccountToken": {"path": "t"}}]}}),
            "projected source serviceAccountToken requires an API server, which this pod does not have",
        ),
        (
            json!({"projected": {"sources": [{"clusterTrustBundle": {"name": "b", "path": "t"}}]}}),
            "projected source clusterTrustBundle requires an API server, which this pod does not have",
        ),
        (
            json!({"projected": {"sources": [{"podCertificate": {"keyPath": "t"}}]}}),
            "projected source podCertificate requires an API server, which this pod does not have",
        ),
        (with(item("a", "/p"), "configMap", "name", "cm"), "invalid path: must be relative path: /p"),
        (with(item("a", ""), "configMap", "name", "cm"), "invalid path: must not be empty: \"\""),
        (with(item("a", "x/../p"), "configMap", "name", "cm"), "invalid path: must not contain '..': x/../p"),
        (
            with(item("a", "..p/q"), "configMap", "name", "cm"),
            "invalid path: must not start with '..': ..p/q",
        ),
        (
            json!({"configMap": {"name": "cm", "items": [{"key": "a", "path": "p/q"}, {"key": "b", "path": "p"}]}}),
            "invalid path: p/q: p is also a file in this volume",
        ),
    ];
    for (source, expected) in cases {
        assert_eq!(project_source(&source).unwrap_err().to_string(), expected, "{source}");
    }
}

#[test]
fn long_paths_are_refused() {
    assert_eq!(
        checked_path(&"x/".repeat(2049)).unwrap_err().to_string(),
        "invalid path: must be less than or equal to 4096 characters"
    );
    assert_eq!(
        checked_path(&"x".repeat(256)).unwrap_err().to_string(),
        "invalid path: filenames must be less than or equal to 255 characters"
    );
    assert!(checked_path(&"x".repeat(255)).is_ok());
}

#[test]
fn the_pods_group_may_read() {
    let pod = pod(&json!({"securityContext": {"fsGroup": 7},
        "volumes": [{"name": "v", "secret": {"secretName": "s", "defaultMode": 0o400}}]}));
    assert_eq!(projected_from(&pod).unwrap()["token"].mode, 0o440);
}

#[test]
fn a_payload_does_not_print_its_content() {
    let payload = project_source(&json!({"secret": {"secretName": "s"}})).unwrap();
    assert_eq!(format!("{payload:?}"), "{\"token\": 6 bytes, mode 644}");
}

/// Mounts as name and path, and what is nested.
type Case<'a> = (&'a [(&'a str, &'a str)], &'a [&'a str]);

#[test]
fn mounts_inside_a_volume_are_found() {
    let mounts = |paths: &[(&str, &str)]| {
        let mounts: Vec<Value> =
            paths.iter().map(|(name, path)| json!({"name": name, "mountPath": path})).collect();
        decode::<Pod>(json!({"spec": {"containers": [{"name": "c", "volumeMounts": mounts}]}}))
            .unwrap()
            .object
    };
    let cases: [Case<'_>; 4] = [
        (&[("v", "/etc/app"), ("x", "/etc/app2"), ("y", "/etc")], &[]),
        (&[("v", "/etc/app/"), ("x", "/etc/app//sub/dir"), ("y", "/etc/app/sub/dir/deeper")], &["sub/dir"]),
        (&[("v", "etc"), ("x", "/etc/a"), ("v", "/opt"), ("y", "/opt/b")], &["a", "b"]),
        (&[("v", "/etc"), ("x", "/etc/../../root")], &[]),
    ];
    for (paths, expected) in cases {
        let found: Vec<String> = nested_mount_points(&mounts(paths), "v").into_iter().collect();
        assert_eq!(found, expected, "{paths:?}");
    }
}

proptest! {
    #[test]
    fn payload_paths_never_leave_the_volume(path in "(\\.{0,3}[a/\\x00]{0,2}){0,6}") {
        if let Ok(clean) = checked_path(&path) {
            prop_assert!(!clean.starts_with("..") && !clean.contains('\0'));
            for name in clean.split('/') {
                prop_assert!(!matches!(name, "" | "." | ".."), "{clean:?}");
            }
            prop_assert_eq!(checked_path(&clean).unwrap(), clean);
        }
    }

    #[test]
    fn no_file_of_a_payload_is_below_another(paths in proptest::collection::vec("[ab](/[ab]){0,2}", 0..5)) {
        let file = || ProjectedFile { data: Vec::new(), mode: 0o644, owner: None };
        let files: Files = paths.iter().map(|path| (path.clone(), file())).collect();
        if let Ok(payload) = checked(files, 0) {
            for path in payload.keys() {
                let below = format!("{path}/");
                prop_assert!(!payload.keys().any(|other| other.starts_with(&below)));
            }
        }
    }
}

/// The files of a projected volume of a pod of the cluster, with their owners and modes.
fn of_cluster(spec: &Value, source: &Value, facts: FixedFacts) -> Result<Vec<String>, String> {
    let mut spec = spec.clone();
    spec["volumes"] = json!([{"name": "v", "projected": {"defaultMode": 0o644, "sources": [source]}}]);
    let annotations = json!({"kubernetes.io/config.source": "cluster"});
    let metadata = json!({"name": "web", "namespace": "ns", "uid": "u", "annotations": annotations});
    let pod = decode::<Pod>(json!({"metadata": metadata, "spec": spec})).unwrap().object;
    let objects = NodeObjects::joined(objects(), LocalObjects::default(), facts);
    let context = ProjectionContext { objects: &objects, allocatable: &NodeCapacity::default() };
    let files = project(&pod, &pod.spec.volumes[0], &context).map_err(|error| error.to_string())?;
    let show = |(path, file): (String, ProjectedFile)| {
        let text = String::from_utf8(file.data).unwrap();
        format!("{path} {:o} {:?} {text}", file.mode, file.owner)
    };
    Ok(files.into_iter().map(show).collect())
}

#[test]
fn a_token_is_for_the_one_user_of_the_pod() {
    let user = |user: i64| json!({"name": "c", "securityContext": {"runAsUser": user}});
    let token = json!({"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}});
    let bundle = json!({"clusterTrustBundle": {"name": "b", "path": "ca.pem"}});
    for (spec, wanted) in [
        (json!({"containers": [{"name": "c"}]}), "644 None"),
        (json!({"containers": [user(7), user(7)]}), "600 Some(7)"),
        (json!({"containers": [user(7), user(8)]}), "644 None"),
        (json!({"containers": [user(7), {"name": "d"}]}), "644 None"),
        (
            json!({"securityContext": {"runAsUser": 5}, "containers": [{"name": "c"}], "initContainers": [user(5)]}),
            "600 Some(5)",
        ),
        (json!({"securityContext": {"fsGroup": 9}, "containers": [{"name": "c"}]}), "640 None"),
    ] {
        let facts = || FixedFacts {
            token: Ok("t1".into()).into(),
            bundle: Ok(b"PEM".to_vec()),
            ..Default::default()
        };
        assert_eq!(of_cluster(&spec, &token, facts()), Ok(vec![format!("token {wanted} t1")]), "{spec}");
        assert_eq!(of_cluster(&spec, &bundle, facts()), Ok(vec![format!("ca.pem {wanted} PEM")]), "{spec}");
    }
}

#[test]
fn what_a_cluster_has_not_given_is_named() {
    let spec = json!({"serviceAccountName": "sa", "containers": [{"name": "c"}]});
    let token = json!({"serviceAccountToken": {"path": "token"}});
    let named = json!({"clusterTrustBundle": {"name": "b", "path": "ca.pem"}});
    let signed = json!({"clusterTrustBundle": {"signerName": "s", "path": "ca.pem"}});
    let optional = json!({"clusterTrustBundle": {"name": "b", "path": "ca.pem", "optional": true}});
    let secret = json!({"secret": {"name": "s", "optional": true}});
    let with = |why: Absence| FixedFacts {
        absence: why.clone(),
        token: Err(why.clone()).into(),
        bundle: Err(why),
        ..FixedFacts::default()
    };
    let refused = Absence::Refused("no".to_owned());
    for (source, why, message) in [
        (&token, Absence::NotFound, "failed to fetch token: serviceaccounts \"sa\" not found"),
        (&token, Absence::NotSynced, "failed to fetch token: timed out waiting for the condition"),
        (&token, refused.clone(), "no"),
        (
            &named,
            Absence::NotFound,
            "while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"b\" not found",
        ),
        (
            &signed,
            Absence::NotFound,
            "combination of signerName and labelSelector matched zero ClusterTrustBundles",
        ),
        (&optional, Absence::NotSynced, "ClusterTrustBundle informer has not yet synced"),
        (&named, refused, "no"),
        (&secret, Absence::NotSynced, "failed to sync secret cache: timed out waiting for the condition"),
        (
            &json!({"podCertificate": {"keyPath": "t"}}),
            Absence::NotFound,
            "projected source podCertificate is not supported by this node",
        ),
    ] {
        assert_eq!(of_cluster(&spec, source, with(why)).unwrap_err(), message, "{source}");
    }
    let empty = of_cluster(&spec, &optional, with(Absence::NotFound));
    assert_eq!(empty, Ok(vec!["ca.pem 644 None ".to_owned()]));
    assert_eq!(
        of_cluster(&spec, &secret, with(Absence::NotFound)),
        Ok(Vec::new()),
        "the node's is another one"
    );
}
