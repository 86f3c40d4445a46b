//! The local Kubernetes API: stock kubectl, and what watches promise.

use std::fs;

use serde_json::{Value, json};

use super::node::{Node, pod};
use crate::support::agent::PATIENCE;
use crate::support::api::{Api, Person};
use crate::support::kubectl::Kubectl;
use crate::support::wait::{wait_for, wait_until};

const OBJECTS: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: settings, labels: {tier: front}}
data: {a: '1', b: '2'}
---
apiVersion: v1
kind: Secret
metadata: {name: pin, namespace: vault}
stringData: {pin: '1234'}
---
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: data}
spec: {accessModes: [ReadWriteOnce], resources: {requests: {storage: 1Gi}}}
";

fn served() -> (Node, Api) {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.scratch.path());
    node.agent.write_manifest("objects.yaml", OBJECTS);
    node.start_with_neighbour();
    api.wait(&mut node.agent);
    (node, api)
}

fn kubectl(node: &Node, api: &Api, name: &str, options: &[&str]) -> Kubectl {
    Kubectl::of(api, &node.agent, node.scratch.path(), name, options)
}

/// The words of a table's line that begins with this one.
fn row(table: &str, first: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(first));
    line.unwrap_or_else(|| panic!("no {first} in {table}")).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn stock_kubectl_reads_pods_nodes_objects_and_events() {
    let (mut node, api) = served();
    let admin = kubectl(&node, &api, "admin", &[]);
    let waited = admin.out(&["wait", "--for=condition=Ready", "pod/neighbour-edge", "--timeout=60s"]);
    assert_eq!(waited, "pod/neighbour-edge condition met\n");
    let pods = admin.out(&["get", "pods"]);
    assert_eq!(row(&pods, "NAME"), ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(row(&pods, "neighbour-edge")[..4], ["neighbour-edge", "1/1", "Running", "0"]);
    let wide = admin.out(&["get", "pods", "-A", "-o", "wide"]);
    assert!(wide.contains("NOMINATED NODE   READINESS GATES"), "{wide}");
    assert_eq!(row(&wide, "default")[7], "edge", "{wide}");
    let template = "jsonpath={.items[*].metadata.name} {.items[0].metadata.ownerReferences[0].kind}";
    assert_eq!(admin.out(&["get", "pods", "-o", template]), "neighbour-edge Node");
    let yaml = admin.out(&["get", "pod", "neighbour-edge", "-o", "yaml"]);
    assert!(
        yaml.contains("kubernetes.io/config.mirror: ") && yaml.starts_with("apiVersion: v1\nkind: Pod\n"),
        "{yaml}"
    );
    let described = admin.out(&["describe", "pod", "neighbour-edge"]);
    for part in [
        "Controlled By:  Node/edge",
        "Status:       Running",
        "Started  ",
        "kubernetes.io/config.source: file",
    ] {
        assert!(described.contains(part), "{part:?} in {described}");
    }

    let all = admin.out(&["get", "cm,secret,pvc,pv,ns", "-A"]);
    for part in [
        "configmap/settings",
        "secret/pin",
        "persistentvolumeclaim/data",
        "Bound",
        "namespace/kube-system",
        "namespace/vault",
    ] {
        assert!(all.contains(part), "{part:?} in {all}");
    }
    assert_eq!(admin.out(&["get", "cm", "-l", "tier in (front)", "-o", "name"]), "configmap/settings\n");
    assert_eq!(admin.out(&["get", "cm", "-l", "tier!=front", "-o", "name"]), "configmap/kube-root-ca.crt\n");
    let secret = admin.out(&["get", "secret", "pin", "-n", "vault", "-o", "jsonpath={.data.pin}"]);
    assert_eq!(secret, "MTIzNA==");
    let nodes = admin.out(&["get", "nodes", "-o", "wide"]);
    assert_eq!(row(&nodes, "edge")[1], "Ready", "{nodes}");
    let described = admin.out(&["describe", "node", "edge"]);
    for part in ["KubeletReady", "Kernel Version:", "Allocatable:", "neighbour-edge"] {
        assert!(described.contains(part), "{part:?} in {described}");
    }
    let events = admin.out(&[
        "get",
        "events",
        "--field-selector=involvedObject.name=neighbour-edge",
        "--chunk-size=1",
    ]);
    assert!(events.lines().count() > 2 && events.contains("pod/neighbour-edge"), "{events}");
    assert!(admin.out(&["api-resources"]).contains("PersistentVolumeClaim"));
    assert!(admin.out(&["version"]).contains("v1.36.0+agent-"));
    assert_eq!(admin.out(&["get", "--raw", "/readyz"]), "ok");
    assert_eq!(admin.out(&["get", "--raw", "/api/v1/nodes/edge/proxy/healthz"]), "ok");

    for (arguments, said) in [
        (&["get", "pod", "nobody"][..], "Error from server (NotFound): pods \"nobody\" not found"),
        (&["get", "pods", "--field-selector=spec.color=red"], "field label not supported: spec.color"),
        (&["get", "pods", "-l", "a b"], "unable to parse"),
        (&["get", "gadgets"], "the server doesn't have a resource type \"gadgets\""),
        (&["logs", "neighbour-edge", "-c", "none"], "container none is not valid for pod neighbour-edge"),
    ] {
        let answered = admin.run(arguments);
        assert!(!answered.ok && answered.err.contains(said), "{arguments:?}: {answered:?}");
    }
    node.agent.assert_alive();
}

#[test]
fn viewers_look_at_all_but_secrets_and_may_ask_what_they_may() {
    let (node, api) = served();
    let viewer = kubectl(&node, &api, "jane", &["--view"]);
    assert!(viewer.out(&["get", "pods,cm,nodes,events"]).contains("neighbour-edge"));
    for (arguments, said) in [
        (
            &["get", "secrets"][..],
            "secrets is forbidden: User \"jane\" cannot list resource \"secrets\" in API group \"\" in the namespace \"default\"",
        ),
        (
            &["exec", "neighbour-edge", "--", "id"],
            "pods \"neighbour-edge\" is forbidden: User \"jane\" cannot create resource \"pods/exec\" in API group \"\" in the namespace \"default\"",
        ),
        (&["delete", "pod", "neighbour-edge"], "cannot delete resource \"pods\""),
        (&["get", "--raw", "/api/v1/nodes/edge/proxy/configz"], "cannot get resource \"nodes/proxy\""),
    ] {
        let answered = viewer.run(arguments);
        assert!(!answered.ok && answered.err.contains("(Forbidden)"), "{arguments:?}: {answered:?}");
        assert!(answered.err.contains(said), "{arguments:?}: {answered:?}");
    }
    for (question, answer) in [
        (&["list", "pods"][..], "yes\n"),
        (&["get", "pods", "--subresource=log"], "yes\n"),
        (&["list", "secrets"], "no\n"),
        (&["create", "pods", "--subresource=exec"], "no\n"),
        (&["get", "/version"], "yes\n"),
        (&["get", "/metrics"], "no\n"),
    ] {
        let answered = viewer.run(&[&["auth", "can-i"], question].concat());
        assert!(answered.out.ends_with(answer), "{question:?}: {answered:?}");
    }
    let admin = kubectl(&node, &api, "admin", &[]);
    assert_eq!(admin.out(&["auth", "can-i", "delete", "pods"]), "yes\n");
    assert!(viewer.out(&["auth", "can-i", "--list"]).contains("pods/log"));
    let (code, body) = api.curl(None, "/api/v1/pods", &[]);
    let body: Value = serde_json::from_str(&body).expect("JSON");
    assert_eq!((code, &body["reason"]), (401, &json!("Unauthorized")));
}

#[test]
fn kubectl_get_w_shows_a_pod_come_and_go() {
    let (node, api) = served();
    let admin = kubectl(&node, &api, "admin", &[]);
    let file = node.scratch.path().join("watched");
    let watching = admin.follow(&["get", "pods", "-w"], &file);
    let told = |words: &[&str]| {
        wait_for("kubectl to tell it", PATIENCE, || {
            let text = fs::read_to_string(&file).expect("read");
            // It aligns columns to those of the rows before.
            let is_it = |line: &str| words.iter().all(|word| line.contains(word));
            if text.lines().any(is_it) { Ok(()) } else { Err(text) }
        });
    };
    told(&["neighbour-edge", "1/1", "Running"]);
    node.apply(&pod("late"));
    told(&["late-edge", "1/1", "Running"]);
    let shown = || fs::read_to_string(&file).expect("read").matches("late-edge").count();
    let before = shown();
    node.agent.remove_manifest("late.yaml");
    wait_until("the end of the pod to be shown", PATIENCE, || shown() > before);
    drop(watching);
}

const MAP: &str = "\
apiVersion: v1
kind: ConfigMap
metadata: {name: checked}
data: {a: '1'}
";

#[test]
fn every_kubectl_explains_fields_and_finds_misspelled_ones() {
    let (mut node, api) = served();
    let path = |name: &str| node.scratch.path().join(name).display().to_string();
    let (good, bad, pod) = (path("good.yaml"), path("bad.yaml"), path("pod.yaml"));
    fs::write(&good, MAP).expect("write");
    fs::write(&bad, MAP.replace("\ndata:", "\ndada:")).expect("write");
    let wrong =
        "apiVersion: v1\nkind: Pod\nmetadata: {name: p}\nspec: {containers: [{name: c, imagee: x}]}\n";
    fs::write(&pod, wrong).expect("write");
    let person = api.person(&node.agent, "admin", &[]);
    let (code, headers) = api.curl(Some(&person), "/openapi/v2", &["-D", "-"]);
    assert!(code == 200 && headers.contains("content-type: application/json"), "{headers}");
    for kubectl in kubectl(&node, &api, "admin", &[]).with_each() {
        let probe = kubectl.out(&["explain", "pod.spec.containers.livenessProbe", "--recursive"]);
        for part in ["failureThreshold", "httpGet", "httpHeaders", "port", "<integer>", "restarted"] {
            assert!(probe.contains(part), "{part:?} in {probe}");
        }
        let map = kubectl.out(&["explain", "cm"]);
        for part in ["ConfigMap", "binaryData", "<map[string]string>", "Configuration data for pods"] {
            assert!(map.contains(part), "{part:?} in {map}");
        }
        for kind in ["node.status.nodeInfo", "pvc.spec", "pv.spec.claimRef", "ns", "secret.data", "ev.source"]
        {
            assert!(kubectl.out(&["explain", kind]).contains("DESCRIPTION"), "{kind}");
        }
        let unknown = kubectl.run(&["explain", "pod.spec.colour"]);
        assert!(!unknown.ok && unknown.err.contains("colour"), "{unknown:?}");

        // An old one checks by the types, a newer one has the server check.
        for arguments in [&["apply", "-f"][..], &["create", "--validate=true", "-f"]] {
            for (file, field) in [(&bad, "dada"), (&pod, "imagee")] {
                let refused = kubectl.run(&[arguments, &[file.as_str()]].concat());
                assert!(!refused.ok && refused.err.contains("unknown field"), "{refused:?}");
                assert!(refused.err.contains(field), "{refused:?}");
            }
        }
        assert_eq!(kubectl.out(&["create", "--validate=true", "-f", &good]), "configmap/checked created\n");
        assert_eq!(kubectl.out(&["delete", "-f", &good]), "configmap \"checked\" deleted\n");
        assert_eq!(kubectl.out(&["apply", "-f", &good]), "configmap/checked created\n");
        assert_eq!(kubectl.out(&["apply", "-f", &good]), "configmap/checked unchanged\n");
        fs::write(&good, MAP.replace("'1'", "'2'")).expect("write");
        let tried = kubectl.out(&["apply", "--dry-run=server", "-f", &good]);
        assert_eq!(tried, "configmap/checked configured (server dry run)\n");
        assert_eq!(kubectl.out(&["apply", "-f", &good]), "configmap/checked configured\n");
        kubectl.out(&["delete", "cm", "checked"]);
        fs::write(&good, MAP).expect("write");
    }
    node.agent.assert_alive();
}

const NEW: &str = "\
apiVersion: v1
kind: Pod
metadata: {name: NAME, labels: {app: NAME}}
spec: {containers: [{name: main, image: 'localhost/test:1'}]}
";

#[test]
fn every_kubectl_cordons_labels_taints_and_drains_the_node() {
    let (mut node, api) = served();
    let write = |name: &str| {
        let file = node.scratch.path().join(format!("{name}.yaml"));
        fs::write(&file, NEW.replace("NAME", name)).expect("write");
        file.display().to_string()
    };
    let (early, late) = (write("early"), write("late"));
    for kubectl in kubectl(&node, &api, "admin", &[]).with_each() {
        let column =
            |kind: &str, path: &str| kubectl.out(&["get", kind, "-o", &format!("jsonpath={{{path}}}")]);
        kubectl.out(&["create", "-f", &early]);
        kubectl.out(&["wait", "--for=condition=Ready", "pod/early", "--timeout=60s"]);
        assert_eq!(kubectl.out(&["cordon", "edge"]), "node/edge cordoned\n");
        assert_eq!(row(&kubectl.out(&["get", "nodes"]), "edge")[1], "Ready,SchedulingDisabled");
        kubectl.out(&["create", "-f", &late]);
        let scheduled = "--for=condition=PodScheduled=False";
        kubectl.out(&["wait", scheduled, "pod/late", "--timeout=60s"]);
        let why = column("pod/late", ".status.conditions[?(@.type=='PodScheduled')].message");
        assert_eq!(why, "0/1 nodes are available: 1 node(s) were unschedulable.");
        assert_eq!(column("pod/early", ".status.phase"), "Running");

        let refused = kubectl.run(&["drain", "edge"]);
        assert!(!refused.ok && refused.err.contains("--force"), "{refused:?}");
        kubectl.out(&["drain", "edge", "--force", "--timeout=60s"]);
        assert_eq!(kubectl.run(&["get", "pod", "early"]).code, Some(1));
        assert_eq!(column("pod/neighbour-edge", ".status.phase"), "Running", "mirrors stay");
        kubectl.out(&["create", "-f", &late]);
        kubectl.out(&["wait", scheduled, "pod/late", "--timeout=60s"]);
        assert_eq!(kubectl.out(&["uncordon", "edge"]), "node/edge uncordoned\n");
        kubectl.out(&["wait", "--for=condition=Ready", "pod/late", "--timeout=60s"]);
        kubectl.out(&["delete", "pod", "late", "--grace-period=1"]);

        kubectl.out(&["label", "node", "edge", "disk=ssd"]);
        kubectl.out(&["annotate", "node", "edge", "who=me"]);
        assert_eq!(column("node/edge", ".metadata.labels.disk"), "ssd");
        assert_eq!(column("node/edge", ".metadata.annotations.who"), "me");
        kubectl.out(&["label", "node", "edge", "disk-"]);
        kubectl.out(&["annotate", "node", "edge", "who-"]);
        assert_eq!(column("node/edge", ".metadata.labels.disk"), "");
        let refused = kubectl.run(&["label", "node", "edge", "kubernetes.io/os-"]);
        assert!(!refused.ok && refused.err.contains("--node-labels"), "{refused:?}");
        kubectl.out(&["taint", "node", "edge", "only=gpu:NoSchedule"]);
        assert_eq!(column("node/edge", ".spec.taints[0].key"), "only");
        kubectl.out(&["create", "-f", &late]);
        kubectl.out(&["wait", scheduled, "pod/late", "--timeout=60s"]);
        kubectl.out(&["taint", "node", "edge", "only-"]);
        kubectl.out(&["wait", "--for=condition=Ready", "pod/late", "--timeout=60s"]);
        kubectl.out(&["delete", "pod", "late", "--grace-period=1"]);
        let refused = kubectl.run(&["taint", "node", "edge", "only=gpu:NoExecute"]);
        assert!(!refused.ok && refused.err.contains("kubectl drain"), "{refused:?}");
        kubectl.out(&["annotate", "node", "edge", "kept=yes", "--overwrite"]);
        kubectl.out(&["cordon", "edge"]);
        node.agent.kill9();
        node.agent.start();
        api.wait(&mut node.agent);
        assert_eq!(column("node/edge", ".metadata.annotations.kept"), "yes");
        assert_eq!(column("node/edge", ".spec.unschedulable"), "true", "over a crash, too");
        kubectl.out(&["uncordon", "edge"]);
    }
    node.agent.assert_alive();
}

/// Newer ones send these pods in Kubernetes' binary form.
#[test]
fn every_kubectl_version_can_diff_and_debug() {
    let (mut node, api) = served();
    let file = node.scratch.path().join("web.yaml");
    let text = NEW.replace("NAME", "web");
    let path = file.display().to_string();
    for kubectl in kubectl(&node, &api, "admin", &[]).with_each() {
        fs::write(&file, &text).expect("write");
        kubectl.out(&["apply", "-f", &path]);
        kubectl.out(&["wait", "--for=condition=Ready", "pod/web", "--timeout=60s"]);
        assert_eq!(kubectl.run(&["diff", "-f", &path]).code, Some(0));
        fs::write(&file, text.replace("app: web", "app: web, tier: front")).expect("write");
        let diff = kubectl.run(&["diff", "-f", &path]);
        let is_change = |line: &&str| {
            line.starts_with(['+', '-']) && !line.starts_with("+++") && !line.starts_with("---")
        };
        let changes: Vec<&str> = diff.out.lines().filter(is_change).collect();
        assert!(diff.code == Some(1) && changes.contains(&"+    tier: front"), "{diff:?}");
        // Debian's shows the owners of fields, too.
        assert!(changes.len() < 10 && !changes.concat().contains("resourceVersion"), "{diff:?}");

        let image = "--image=localhost/test:1";
        kubectl.out(&["debug", "web", "--copy-to=copy", "--attach=false", image, "--container=extra"]);
        let names = "jsonpath={.spec.containers[*].name}";
        assert_eq!(kubectl.out(&["get", "pod", "copy", "-o", names]), "main extra");
        kubectl.out(&["debug", "node/edge", "--attach=false", image]);
        assert!(kubectl.out(&["get", "pods", "-o", "name"]).contains("pod/node-debugger-edge-"));
        kubectl.out(&["delete", "pods", "--all", "--grace-period=1"]);
    }
    node.agent.assert_alive();
}

#[test]
fn every_kubectl_says_what_is_not_served_and_goes_on() {
    let (mut node, api) = served();
    let file = node.scratch.path().join("mixed.yaml");
    let unknown = "apiVersion: example.com/v1\nkind: Gadget\nmetadata: {name: web}\n";
    fs::write(&file, format!("{unknown}---\n{MAP}")).expect("write");
    let file = file.display().to_string();
    for kubectl in kubectl(&node, &api, "admin", &[]).with_each() {
        let applied = kubectl.run(&["apply", "-f", &file]);
        assert!(!applied.ok && applied.err.contains("no matches for kind \"Gadget\""), "{applied:?}");
        assert_eq!(applied.out, "configmap/checked created\n", "{applied:?}");
        kubectl.out(&["delete", "cm", "checked"]);
        assert_eq!(kubectl.out(&["get", "crd"]), "");
        let lease = kubectl.out(&["get", "lease", "-n", "kube-node-lease"]);
        assert_eq!(row(&lease, "edge")[1], "edge");
        let port = api.port;
        let health = format!("/api/v1/nodes/edge:{port}/proxy/healthz");
        assert_eq!(kubectl.out(&["get", "--raw", &health]), "ok");
        let elsewhere = kubectl.run(&["get", "--raw", "/api/v1/nodes/https:edge:1/proxy/healthz"]);
        assert!(!elsewhere.ok && elsewhere.err.contains("only serves kubelet port"), "{elsewhere:?}");
    }
    node.agent.assert_alive();
}

/// A watch from a version, as lines, for a second.
fn watch(api: &Api, who: &Person, query: &str) -> Vec<(String, Value)> {
    let path = format!("/api/v1/namespaces/default/pods?watch=1&timeoutSeconds=1&{query}");
    let (code, body) = api.curl(Some(who), &path, &[]);
    assert_eq!(code, 200, "{body}");
    let event = |line: &str| {
        let event: Value = serde_json::from_str(line).expect("each line is JSON");
        let name = event["object"]["metadata"]["name"].as_str().unwrap_or_default();
        (format!("{} {name}", event["type"].as_str().expect("a type")), event["object"].clone())
    };
    body.lines().map(event).collect()
}

fn names(events: &[(String, Value)]) -> Vec<&str> {
    events.iter().map(|(name, _)| name.as_str()).collect()
}

#[test]
fn a_watch_goes_on_where_a_list_was_and_says_when_it_cannot() {
    let (mut node, api) = served();
    let admin = api.person(&node.agent, "admin", &[]);
    let list = |query: &str| {
        let (code, body) = api.curl(Some(&admin), &format!("/api/v1/pods{query}"), &[]);
        assert_eq!(code, 200, "{body}");
        serde_json::from_str::<Value>(&body).expect("JSON")
    };
    let version =
        |value: &Value| value["metadata"]["resourceVersion"].as_str().expect("a version").to_owned();
    wait_until("the neighbour to be ready", PATIENCE, || {
        list("")["items"][0]["status"]["conditions"].to_string().matches("\"True\"").count() == 5
    });
    let before = list("");
    assert_eq!(version(&before), version(&list("")), "nothing has changed");
    assert!(watch(&api, &admin, &format!("resourceVersion={}", version(&before))).is_empty());

    node.apply(&pod("late"));
    node.running("late");
    let since = format!("resourceVersion={}", version(&before));
    wait_for("what has happened since", PATIENCE, || {
        let events = watch(&api, &admin, &since);
        if names(&events).contains(&"ADDED late-edge") {
            Ok(())
        } else {
            Err(format!("{:?}", names(&events)))
        }
    });
    assert!(watch(&api, &admin, &format!("{since}&fieldSelector=metadata.name%3Dneighbour-edge")).is_empty());
    let with_late = version(&list(""));
    node.agent.remove_manifest("late.yaml");
    wait_until("the pod to be gone", PATIENCE, || !list("").to_string().contains("late-edge"));
    let gone = watch(&api, &admin, &format!("resourceVersion={with_late}"));
    assert_eq!(names(&gone).last(), Some(&"DELETED late-edge"), "{:?}", names(&gone));
    assert!(!names(&watch(&api, &admin, &since)).contains(&"DELETED late-edge"), "it came and went since");

    let all = watch(
        &api,
        &admin,
        "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true",
    );
    assert_eq!(names(&all), ["ADDED neighbour-edge", "BOOKMARK ", "BOOKMARK "]);
    assert_eq!(all[1].1["metadata"]["annotations"]["k8s.io/initial-events-end"], "true");
    assert_eq!(all[1].1["kind"], "Pod");
    let early = watch(&api, &admin, "resourceVersion=1");
    assert_eq!((names(&early), &early[0].1["code"]), (vec!["ERROR "], &json!(410)));
    let (code, body) = api.curl(Some(&admin), "/api/v1/pods?resourceVersion=9999999999999999", &[]);
    assert!(code == 504 && body.contains("Too large resource version"), "{code} {body}");

    // Versions grow over a restart, and what was before it is not known.
    let newest = version(&list(""));
    node.agent.kill9();
    node.agent.start();
    api.wait(&mut node.agent);
    let after = version(&list(""));
    assert!(after.parse::<u64>().expect("a number") > newest.parse::<u64>().expect("a number"));
    let missed = watch(&api, &admin, &format!("resourceVersion={newest}"));
    assert_eq!((names(&missed), &missed[0].1["reason"]), (vec!["ERROR "], &json!("Expired")));
}

#[test]
fn lists_come_in_pages_and_in_the_forms_that_are_asked_for() {
    let (node, api) = served();
    let admin = api.person(&node.agent, "admin", &[]);
    let get = |path: &str, accept: &str| {
        let header = format!("Accept: {accept}");
        let (code, body) = api.curl(Some(&admin), path, &["-H", &header]);
        (code, serde_json::from_str::<Value>(&body).unwrap_or_default())
    };
    let mut names = Vec::new();
    let mut go_on = String::new();
    loop {
        let (code, page) = get(&format!("/api/v1/namespaces?limit=1&continue={go_on}"), "application/json");
        assert_eq!(code, 200, "{page}");
        let items = page["items"].as_array().expect("items");
        assert_eq!(items.len(), 1);
        names.push(items[0]["metadata"]["name"].as_str().expect("a name").to_owned());
        match page["metadata"]["continue"].as_str() {
            Some(token) => go_on = token.replace('=', "%3D").replace('+', "%2B").replace('/', "%2F"),
            None => break,
        }
    }
    assert_eq!(names, ["default", "kube-node-lease", "kube-system", "vault"]);
    let (_, table) = get("/api/v1/pods", "application/json;as=Table;v=v1;g=meta.k8s.io,application/json");
    assert_eq!((&table["kind"], &table["columnDefinitions"][1]["name"]), (&json!("Table"), &json!("Ready")));
    assert_eq!(table["rows"][0]["cells"][0], "neighbour-edge");
    assert_eq!(table["rows"][0]["object"]["kind"], "PartialObjectMetadata");
    let (_, partial) =
        get("/api/v1/pods", "application/json;as=PartialObjectMetadataList;v=v1;g=meta.k8s.io");
    assert_eq!(
        (&partial["kind"], partial["items"][0].get("spec")),
        (&json!("PartialObjectMetadataList"), None)
    );
    let (_, groups) =
        get("/apis", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList,application/json");
    assert_eq!(groups["kind"], "APIGroupDiscoveryList");
    assert_eq!(get("/api/v1/pods", "application/vnd.kubernetes.protobuf").0, 406);
    assert_eq!(get("/apis/example.com/v1/gadgets", "*/*").1["details"], json!({}));
    let (_, events) = get("/apis/events.k8s.io/v1/events", "application/json");
    assert!(events["items"][0]["regarding"]["name"].is_string(), "{events}");
}
