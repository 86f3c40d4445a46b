//! Kinds beyond pods: what every kubectl does with them, what is kept with a warning, what hangs on owners, and
//! definitions of kinds.

use std::fs;
use std::path::Path;
use std::time::Duration;

use edge_agent::runtime::fake::{OnStop, Program, Run};
use serde_json::{Value, json};

use super::api_writes::{APPLY, JSON, MERGE, PODS, Served, pod};
use super::node::Node;
use crate::support::agent::PATIENCE;
use crate::support::kubectl::Kubectl;
use crate::support::wait::wait_for;

const DEPLOYMENTS: &str = "/apis/apps/v1/namespaces/default/deployments";
const MAPS: &str = "/api/v1/namespaces/default/configmaps";
const GAUGES: &str = "/apis/edge.example/v1/namespaces/default/gauges";
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

const KEPT: &str = "\
apiVersion: networking.k8s.io/v1
kind: Ingress
metadata: {name: front}
spec:
  ingressClassName: nginx
  rules:
  - host: box.example
    http: {paths: [{path: /, pathType: Prefix, backend: {service: {name: web, port: {number: 80}}}}]}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata: {name: closed}
spec: {podSelector: {matchLabels: {app: web}}, policyTypes: [Ingress]}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: budget}
spec: {minAvailable: 1, selector: {matchLabels: {app: web}}}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata: {name: scaler}
spec:
  scaleTargetRef: {apiVersion: apps/v1, kind: Deployment, name: web}
  maxReplicas: 3
  metrics: [{type: Resource, resource: {name: cpu, target: {type: Utilization, averageUtilization: 80}}}]
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata: {name: fast}
provisioner: edge.example/disk
---
apiVersion: v1
kind: ResourceQuota
metadata: {name: quota}
spec: {hard: {pods: '4'}}
";

fn kubectl(served: &Served, name: &str) -> Kubectl {
    Kubectl::of(&served.api, &served.node.agent, served.node.scratch.path(), name, &[])
}

fn written(directory: &Path, name: &str, text: &str) -> String {
    let file = directory.join(name);
    fs::write(&file, text).expect("write");
    file.display().to_string()
}

fn words(table: &str, first: &str) -> Vec<String> {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(first));
    line.unwrap_or_else(|| panic!("no {first} in {table}")).split_whitespace().map(str::to_owned).collect()
}

#[test]
fn kinds_without_a_controller_are_kept_and_the_warning_says_so() {
    let mut served = Served::new();
    let file = written(served.node.scratch.path(), "kept.yaml", KEPT);
    for kubectl in kubectl(&served, "admin").with_each() {
        let made = kubectl.run(&["apply", "-f", &file]);
        assert!(made.ok && made.out.contains("ingress.networking.k8s.io/front created"), "{made:?}");
        for said in [
            "Warning: Ingress is stored and has no effect by itself",
            "Warning: NetworkPolicy is stored and not enforced",
            "Warning: PodDisruptionBudget is stored",
            "Warning: HorizontalPodAutoscaler is stored",
            "Warning: ResourceQuota is stored",
        ] {
            assert!(made.err.contains(said), "{said:?} in {made:?}");
        }
        let again = kubectl.out(&["apply", "-f", &file]);
        assert!(again.lines().all(|line| line.ends_with(" unchanged")), "{again}");
        assert_eq!(
            words(&kubectl.out(&["get", "ing"]), "front")[..4],
            ["front", "nginx", "box.example", "80"]
        );
        assert_eq!(words(&kubectl.out(&["get", "netpol"]), "closed")[1], "app=web");
        let scaler = kubectl.out(&["get", "hpa"]);
        assert_eq!(
            words(&scaler, "scaler")[..5],
            ["scaler", "Deployment/web", "cpu:", "<unknown>/80%", "<unset>"]
        );
        assert_eq!(words(&kubectl.out(&["get", "pdb"]), "budget")[..4], ["budget", "1", "N/A", "0"]);
        assert_eq!(words(&kubectl.out(&["get", "sc"]), "fast")[..3], ["fast", "edge.example/disk", "Delete"]);
        let all = kubectl.out(&["get", "all"]);
        assert!(all.contains("horizontalpodautoscaler.autoscaling/scaler"), "{all}");
        let percent = "jsonpath={.spec.targetCPUUtilizationPercentage}";
        let v1 = kubectl.out(&["get", "horizontalpodautoscalers.v1.autoscaling", "scaler", "-o", percent]);
        assert_eq!(v1, "80");
        let explained = kubectl.out(&["explain", "ingress.spec.rules.host"]);
        assert!(explained.contains("Host name"), "{explained}");
        let wrong = kubectl.run(&["apply", "-f", &written(
            served.node.scratch.path(),
            "wrong.yaml",
            "apiVersion: policy/v1\nkind: PodDisruptionBudget\nmetadata: {name: b}\nspec: {minAvailabel: 1}\n",
        )]);
        // An old one finds it itself.
        assert!(
            !wrong.ok && wrong.err.contains("unknown field") && wrong.err.contains("minAvailabel"),
            "{wrong:?}"
        );
        kubectl.out(&["label", "ingress", "front", "tier=edge"]);
        let patch = r#"{"spec":{"rules":[{"host":"other.example"}]}}"#;
        kubectl.out(&["patch", "ingress", "front", "--type=merge", "-p", patch]);
        let generation = "jsonpath={.metadata.generation} {.metadata.labels.tier} {.spec.rules[0].host}";
        assert_eq!(kubectl.out(&["get", "ing", "front", "-o", generation]), "2 edge other.example");
        let gone = kubectl.out(&["delete", "-f", &file]);
        assert!(gone.contains("storageclass.storage.k8s.io \"fast\" deleted"), "{gone}");
        assert_eq!(kubectl.out(&["get", "ing,netpol,pdb,hpa,sc,quota", "-o", "name"]), "");
    }
    served.node.agent.assert_alive();
}

/// kubectl writes these through typed clients, the newer ones in protobuf.
/// The second number of its version.
fn minor(kubectl: &Kubectl) -> u32 {
    let version: Value =
        serde_json::from_str(&kubectl.out(&["version", "--client", "-o", "json"])).expect("JSON");
    let minor = version["clientVersion"]["minor"].as_str().expect("a number");
    minor.trim_end_matches('+').parse().expect("a number")
}

#[test]
fn every_kubectl_creates_kinds_by_command() {
    let mut served = Served::new();
    for kubectl in kubectl(&served, "admin").with_each() {
        for (arguments, name) in [
            (&["deployment", "web", "--image=localhost/test:1", "--replicas=0"][..], "deployment.apps/web"),
            (&["job", "once", "--image=localhost/test:1"], "job.batch/once"),
            (
                &["cronjob", "daily", "--image=localhost/test:1", "--schedule=0 3 * * *"],
                "cronjob.batch/daily",
            ),
            (&["ingress", "front", "--rule=box.example/*=web:80"], "ingress.networking.k8s.io/front"),
            (&["role", "reader", "--verb=get", "--resource=pods"], "role.rbac.authorization.k8s.io/reader"),
            (
                &["rolebinding", "readers", "--role=reader", "--user=me"],
                "rolebinding.rbac.authorization.k8s.io/readers",
            ),
            (
                &["clusterrole", "all", "--verb=*", "--resource=pods"],
                "clusterrole.rbac.authorization.k8s.io/all",
            ),
            (&["serviceaccount", "robot"], "serviceaccount/robot"),
            (&["quota", "few", "--hard=pods=2"], "resourcequota/few"),
            (&["priorityclass", "high", "--value=1000"], "priorityclass.scheduling.k8s.io/high"),
            (
                &["poddisruptionbudget", "budget", "--selector=app=web", "--min-available=1"],
                "poddisruptionbudget.policy/budget",
            ),
        ] {
            // Before 1.21 it knows the beta versions of these only.
            if minor(&kubectl) < 21 && name.starts_with("poddisruptionbudget") {
                continue;
            }
            if minor(&kubectl) < 21 && name.starts_with("cronjob") {
                served.create("/apis/batch/v1/namespaces/default/cronjobs", &daily());
                continue;
            }
            let created = kubectl.out(&[&["create"], arguments].concat());
            assert_eq!(created, format!("{name} created\n"));
            let applied = kubectl.out(&["get", name, "-o", "name"]);
            assert_eq!(applied.trim(), name);
        }
        let schedule = "jsonpath={.spec.schedule} {.spec.jobTemplate.spec.template.spec.containers[0].image}";
        assert_eq!(kubectl.out(&["get", "cj", "daily", "-o", schedule]), "0 3 * * * localhost/test:1");
        kubectl.out(&["autoscale", "deployment", "web", "--max=4", "--cpu-percent=70"]);
        kubectl.out(&["scale", "deployment", "web", "--replicas=2"]);
        assert_eq!(
            kubectl.out(&["get", "deploy", "web", "-o", "jsonpath={.spec.replicas} {.metadata.generation}"]),
            "2 2"
        );
        kubectl.out(&["set", "image", "deployment/web", "test=localhost/test:1"]);
        for kind in ["deploy", "job", "cj", "ing", "role", "rolebinding", "quota", "pdb", "hpa"] {
            kubectl.out(&["delete", kind, "--all"]);
        }
        kubectl.out(&["delete", "clusterrole/all", "priorityclass/high", "sa/robot"]);
    }
    served.node.agent.assert_alive();
}

fn daily() -> Value {
    json!({"apiVersion": "batch/v1", "kind": "CronJob", "metadata": {"name": "daily"}, "spec": {
        "schedule": "0 3 * * *", "jobTemplate": {"spec": {"template": {"spec": {"restartPolicy": "OnFailure",
            "containers": [{"name": "daily", "image": "localhost/test:1"}]}}}}}})
}

fn deployment(name: &str) -> Value {
    json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name}, "spec": {
        "replicas": 0, "selector": {"matchLabels": {"app": name}},
        "template": {"metadata": {"labels": {"app": name}}, "spec": {"containers": [{"name": "c", "image": "localhost/test:1"}]}}}})
}

#[test]
fn status_and_scale_are_parts_of_their_own() {
    let mut served = Served::new();
    let mut object = deployment("web");
    object["status"] = json!({"replicas": 7});
    let made = served.create(DEPLOYMENTS, &object);
    assert_ne!(made["status"]["replicas"], 7, "a client does not write the status with the object");
    assert_eq!(made["metadata"]["generation"], 1);
    let web = format!("{DEPLOYMENTS}/web");
    let conditions = json!([{"type": "edge.example/Checked", "status": "True"}]);
    let patch = json!({"status": {"conditions": conditions}, "spec": {"paused": true}});
    let (code, patched) = served.ask("PATCH", &format!("{web}/status"), MERGE, &patch);
    assert_eq!((code, &patched["metadata"]["generation"]), (200, &json!(1)), "{patched}");
    assert!(patched["spec"]["paused"].is_null(), "{patched}");
    let (_, scale) = served.get(&format!("{web}/scale"));
    assert_eq!(
        (&scale["kind"], &scale["spec"]["replicas"], &scale["status"]["selector"]),
        (&json!("Scale"), &json!(0), &json!("app=web"))
    );
    let mut wanted = scale.clone();
    wanted["spec"]["replicas"] = json!(0);
    let (code, same) = served.ask("PUT", &format!("{web}/scale"), JSON, &wanted);
    assert_eq!((code, &same["metadata"]["resourceVersion"]), (200, &scale["metadata"]["resourceVersion"]));
    wanted["spec"]["replicas"] = json!(-1);
    let refused = served.refused(422, "PUT", &format!("{web}/scale"), JSON, &wanted);
    assert!(refused.contains("must be greater than or equal to 0"), "{refused}");
    wanted["spec"]["replicas"] = json!(3);
    wanted["metadata"]["resourceVersion"] = json!("1");
    let refused = served.refused(409, "PUT", &format!("{web}/scale"), JSON, &wanted);
    assert!(refused.contains("the object has been modified"), "{refused}");
    served.node.agent.assert_alive();
}

fn owned(name: &str, owner: &Value, blocks: bool) -> Value {
    let mut map =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"a": "b"}});
    map["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "ConfigMap",
        "name": owner["metadata"]["name"], "uid": owner["metadata"]["uid"], "blockOwnerDeletion": blocks}]);
    map
}

fn map(name: &str) -> Value {
    json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}})
}

fn names(served: &Served, path: &str) -> Vec<String> {
    let (_, list) = served.get(path);
    let items = list["items"].as_array().expect("a list").iter();
    let names = items.map(|item| item["metadata"]["name"].as_str().unwrap_or_default().to_owned());
    // It is in every namespace.
    names.filter(|name| name != "kube-root-ca.crt").collect()
}

#[test]
fn dependents_go_with_their_owner_in_three_ways() {
    let mut served = Served::new();
    let delete = |name: &str, policy: &str| {
        let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": policy});
        let (code, answer) = served.ask("DELETE", &format!("{MAPS}/{name}"), JSON, &options);
        assert_eq!(code, 200, "{answer}");
    };
    let owner = served.create(MAPS, &map("owner"));
    let middle = served.create(MAPS, &owned("middle", &owner, true));
    served.create(MAPS, &owned("leaf", &middle, false));
    delete("owner", "Background");
    assert_eq!(names(&served, MAPS), [""; 0]);

    let owner = served.create(MAPS, &map("owner"));
    served.create(MAPS, &owned("middle", &owner, true));
    delete("owner", "Orphan");
    assert_eq!(names(&served, MAPS), ["middle"]);
    let (_, middle) = served.get(&format!("{MAPS}/middle"));
    assert_eq!(middle["metadata"].get("ownerReferences"), None);
    delete("middle", "Background");

    // Several at once: one of them depends on another, and what stays on both.
    let labelled = |mut object: Value| {
        object["metadata"]["labels"] = json!({"set": "a"});
        served.create(MAPS, &object)
    };
    let one = labelled(map("one"));
    let two = labelled(owned("two", &one, true));
    let mut both = owned("both", &one, true);
    let second = owned("x", &two, true)["metadata"]["ownerReferences"][0].take();
    both["metadata"]["ownerReferences"].as_array_mut().expect("a list").push(second);
    served.create(MAPS, &both);
    let options = json!({"apiVersion": "v1", "kind": "DeleteOptions", "propagationPolicy": "Orphan"});
    let (code, _) = served.ask("DELETE", &format!("{MAPS}?labelSelector=set%3Da"), JSON, &options);
    assert_eq!((code, names(&served, MAPS)), (200, vec!["both".to_owned()]));
    let (_, both) = served.get(&format!("{MAPS}/both"));
    assert_eq!(both["metadata"].get("ownerReferences"), None);
    delete("both", "Background");

    // A pod takes its time, and its owner waits for it.
    let owner = served.create(MAPS, &map("owner"));
    let mut slow = pod("slow");
    slow["metadata"]["ownerReferences"] = owned("x", &owner, true)["metadata"]["ownerReferences"].clone();
    served.node.cri.script(
        "main",
        Program { run: Run::Forever, on_stop: OnStop::Exits { after: Duration::from_millis(800), code: 0 } },
    );
    served.create(PODS, &slow);
    served.wait_for_phase("slow", "Running");
    delete("owner", "Foreground");
    let (_, waiting) = served.get(&format!("{MAPS}/owner"));
    assert_eq!(waiting["metadata"]["finalizers"], json!(["foregroundDeletion"]), "{waiting}");
    wait_for("the owner to go after its pod", PATIENCE, || {
        let (map, pod) = (served.get(&format!("{MAPS}/owner")).0, served.get(&format!("{PODS}/slow")).0);
        assert!(map == 200 || pod == 404, "the owner went before its pod");
        if (map, pod) == (404, 404) { Ok(()) } else { Err(format!("{map} {pod}")) }
    });

    // An owner that never was.
    let ghost = json!({"metadata": {"name": "ghost", "uid": "0f8fad5b-d9cb-469f-a165-70867728950e"}});
    served.create(MAPS, &owned("orphan", &ghost, true));
    assert_eq!(names(&served, MAPS), [""; 0]);
    served.node.agent.assert_alive();
}

#[test]
fn a_namespace_and_what_a_pod_owns_stay_until_it_has_ended() {
    let mut served = Served::new();
    let (shop, pods) = ("/api/v1/namespaces/shop", "/api/v1/namespaces/shop/pods");
    served.create("/api/v1/namespaces", &json!({"metadata": {"name": "shop"}}));
    served.node.cri.script(
        "main",
        Program { run: Run::Forever, on_stop: OnStop::Exits { after: Duration::from_millis(800), code: 0 } },
    );
    served.create(pods, &pod("till"));
    let owner = served.create(PODS, &pod("owner"));
    let mut of_pod = map("of-pod");
    of_pod["metadata"]["ownerReferences"] = json!([{"apiVersion": "v1", "kind": "Pod", "name": "owner",
        "uid": owner["metadata"]["uid"]}]);
    served.create(MAPS, &of_pod);
    served.wait_for_phase("owner", "Running");
    wait_for("the other to run", PATIENCE, || {
        let (_, till) = served.get(&format!("{pods}/till"));
        if till["status"]["phase"] == "Running" { Ok(()) } else { Err(till.to_string()) }
    });

    let goes_after_pod = |object: &str, pod: &str| {
        wait_for(&format!("{object} to go after its pod"), PATIENCE, || {
            let (object, pod) = (served.get(object).0, served.get(pod).0);
            assert!(object == 200 || pod == 404, "it went before its pod");
            if (object, pod) == (404, 404) { Ok(()) } else { Err(format!("{object} {pod}")) }
        });
    };
    assert_eq!(served.ask("DELETE", shop, JSON, &Value::Null).0, 200);
    let (_, waiting) = served.get(shop);
    assert_eq!(waiting["status"]["phase"], "Terminating", "{waiting}");
    served.refused(403, "POST", "/api/v1/namespaces/shop/configmaps", JSON, &map("late"));
    goes_after_pod(shop, &format!("{pods}/till"));
    assert_eq!(served.ask("DELETE", &format!("{PODS}/owner"), JSON, &Value::Null).0, 200);
    assert_eq!(served.get(&format!("{MAPS}/of-pod")).0, 200);
    goes_after_pod(&format!("{MAPS}/of-pod"), &format!("{PODS}/owner"));
    served.node.agent.assert_alive();
}

fn definition() -> Value {
    json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gauges.edge.example"},
    "spec": {"group": "edge.example", "scope": "Namespaced",
        "names": {"kind": "Gauge", "plural": "gauges", "shortNames": ["ga"], "categories": ["all"]},
        "versions": [
            {"name": "v1", "served": true, "storage": true,
                "subresources": {"status": {}, "scale": {"specReplicasPath": ".spec.count", "statusReplicasPath": ".status.count"}},
                "additionalPrinterColumns": [{"name": "Unit", "type": "string", "jsonPath": ".spec.unit"}],
                "schema": {"openAPIV3Schema": {"type": "object", "properties": {
                    "spec": {"type": "object", "required": ["unit"], "properties": {
                        "unit": {"type": "string", "description": "Unit of the value."},
                        "count": {"type": "integer", "default": 1}}},
                    "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}}}},
            {"name": "v1beta1", "served": true, "storage": false,
                "schema": {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": true}}},
        ]}})
}

fn gauge(name: &str, spec: &Value) -> Value {
    json!({"apiVersion": "edge.example/v1", "kind": "Gauge", "metadata": {"name": name}, "spec": spec})
}

#[test]
fn definitions_add_resources_and_take_their_objects_along() {
    let mut served = Served::new();
    assert_eq!(served.get(GAUGES).0, 404);
    served.create(DEFINITIONS, &definition());
    let made = served.create(GAUGES, &gauge("one", &json!({"unit": "bar", "odd": 1})));
    assert_eq!(made["spec"], json!({"unit": "bar", "count": 1}), "pruned, and with defaults");
    let refused = served.refused(422, "POST", GAUGES, JSON, &gauge("two", &json!({"count": "x"})));
    for part in ["spec.unit: Required value", "spec.count in body must be of type integer"] {
        assert!(refused.contains(part), "{refused}");
    }
    let (_, beta) = served.get(&GAUGES.replace("/v1/", "/v1beta1/"));
    assert_eq!(
        (&beta["apiVersion"], &beta["items"][0]["apiVersion"]),
        (&json!("edge.example/v1beta1"), &json!("edge.example/v1beta1"))
    );
    let one = format!("{GAUGES}/one");
    let (code, status) =
        served.ask("PATCH", &format!("{one}/status"), MERGE, &json!({"status": {"count": 4, "any": true}}));
    assert_eq!(
        (code, &status["status"], &status["metadata"]["generation"]),
        (200, &json!({"count": 4, "any": true}), &json!(1))
    );
    let (_, scale) = served.get(&format!("{one}/scale"));
    assert_eq!((&scale["spec"]["replicas"], &scale["status"]["replicas"]), (&json!(1), &json!(4)));
    let (code, scaled) =
        served.ask("PATCH", &format!("{one}/scale"), MERGE, &json!({"spec": {"replicas": 3}}));
    assert_eq!((code, &scaled["spec"]["replicas"]), (200, &json!(3)));
    let (code, applied) = served.ask(
        "PATCH",
        &format!("{GAUGES}/two?fieldManager=me"),
        APPLY,
        &gauge("two", &json!({"unit": "K"})),
    );
    assert_eq!(code, 201, "{applied}");
    for kubectl in kubectl(&served, "admin").with_each() {
        kubectl.out(&["wait", "--for=condition=Established", "crd/gauges.edge.example"]);
        let table = kubectl.out(&["get", "ga"]);
        assert_eq!(
            (words(&table, "NAME"), words(&table, "one")),
            (vec!["NAME".to_owned(), "UNIT".to_owned()], vec!["one".to_owned(), "bar".to_owned()])
        );
        let resources = kubectl.out(&["api-resources", "--api-group=edge.example"]);
        assert!(words(&resources, "gauges").contains(&"Gauge".to_owned()), "{resources}");
        if minor(&kubectl) >= 27 {
            let explained = kubectl.out(&["explain", "gauges.spec.unit"]);
            assert!(explained.contains("Unit of the value."), "{explained}");
        }
        let file = written(
            served.node.scratch.path(),
            "gauge.yaml",
            "apiVersion: edge.example/v1\nkind: Gauge\nmetadata: {name: three}\nspec: {unit: V}\n",
        );
        kubectl.out(&["apply", "-f", &file]);
        assert!(kubectl.out(&["apply", "-f", &file]).ends_with("unchanged\n"));
        let wrong = written(
            served.node.scratch.path(),
            "wrong.yaml",
            "apiVersion: edge.example/v1\nkind: Gauge\nmetadata: {name: four}\nspec: {unit: V, unti: V}\n",
        );
        let said = kubectl.run(&["apply", "-f", &wrong]);
        // An old one asks for no refusal, and shows the warning.
        let is_warned = minor(&kubectl) < 25;
        assert!(said.ok == is_warned && said.err.contains("unknown field \"spec.unti\""), "{said:?}");
        if is_warned {
            kubectl.out(&["delete", "gauge", "four"]);
        }
        kubectl.out(&["delete", "gauge", "three"]);
    }
    // They are there after a kill, and gone with their definition.
    served.node.agent.kill9();
    served.node.agent.start();
    served.api.wait(&mut served.node.agent);
    assert_eq!(names(&served, GAUGES), ["one", "two"]);
    let (code, _) =
        served.ask("PATCH", &one, MERGE, &json!({"metadata": {"finalizers": ["edge.example/hold"]}}));
    assert_eq!(code, 200);
    served.ask("DELETE", &format!("{DEFINITIONS}/gauges.edge.example"), JSON, &Value::Null);
    assert_eq!(names(&served, GAUGES), ["one"], "a finalizer keeps one of them, and that the definition");
    let refused = served.refused(405, "POST", GAUGES, JSON, &gauge("late", &json!({"unit": "bar"})));
    assert!(
        refused.contains("create not allowed while custom resource definition is terminating"),
        "{refused}"
    );
    served.ask("PATCH", &one, MERGE, &json!({"metadata": {"finalizers": null}}));
    assert_eq!(
        (served.get(GAUGES).0, served.get(&format!("{DEFINITIONS}/gauges.edge.example")).0),
        (404, 404)
    );
    served.node.agent.assert_alive();
}

#[test]
fn kinds_of_a_manifest_are_read_only_and_own_what_the_api_made() {
    let mut served = Served::new();
    let manifest = format!("{KEPT}---\n{}", deployment("fixed"));
    served.node.agent.write_manifest("kinds.yaml", &manifest);
    let path = format!("{DEPLOYMENTS}/fixed");
    wait_for("the manifest to be read", PATIENCE, || {
        if served.get(&path).0 == 200 { Ok(()) } else { Err(served.node.agent.log_tail()) }
    });
    let refused = served.refused(403, "PATCH", &path, MERGE, &json!({"spec": {"paused": true}}));
    assert!(refused.contains("is defined by manifest") && refused.contains("kinds.yaml"), "{refused}");
    let ingress = "/apis/networking.k8s.io/v1/namespaces/default/ingresses/front";
    let status = json!({"status": {"loadBalancer": {"ingress": [{"ip": "10.0.0.9"}]}}});
    let (code, changed) = served.ask("PATCH", &format!("{ingress}/status"), MERGE, &status);
    assert_eq!(code, 200, "{changed}");
    let (_, fixed) = served.get(&path);
    let mut replica_set = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "of-fixed"}});
    replica_set["metadata"]["ownerReferences"] = json!([{"apiVersion": "apps/v1", "kind": "Deployment", "name": "fixed",
        "uid": fixed["metadata"]["uid"], "controller": true, "blockOwnerDeletion": true}]);
    served.create(MAPS, &replica_set);
    // The status stays with a change of the manifest.
    served.node.agent.write_manifest("kinds.yaml", &manifest.replace("box.example", "new.example"));
    wait_for("the change to be read", PATIENCE, || {
        let (_, object) = served.get(ingress);
        if object["spec"]["rules"][0]["host"] == "new.example" { Ok(object) } else { Err(object.to_string()) }
    });
    let (_, object) = served.get(ingress);
    assert_eq!(object["status"], status["status"]);
    assert_eq!(object["metadata"]["generation"], 2);
    served.node.agent.remove_manifest("kinds.yaml");
    wait_for("the dependent to go with the manifest", PATIENCE, || {
        let code = served.get(&format!("{MAPS}/of-fixed")).0;
        if code == 404 { Ok(()) } else { Err(code.to_string()) }
    });
    served.node.agent.assert_alive();
}

#[test]
fn kinds_without_a_controller_can_be_refused() {
    let mut node = Node::new();
    node.agent.argument("--unacted-kinds=refuse");
    let mut served = Served::of(node);
    let budget = json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "b"},
        "spec": {"minAvailable": 1, "selector": {}}});
    let path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets";
    let refused = served.refused(403, "POST", path, JSON, &budget);
    assert!(refused.contains("--unacted-kinds=refuse"), "{refused}");
    assert_eq!(names(&served, path), [""; 0]);
    served.create(MAPS, &map("other"));
    served.node.agent.assert_alive();
}

#[test]
fn a_pod_gets_the_priority_of_its_class() {
    let mut served = Served::new();
    let class = json!({"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass", "metadata": {"name": "high"},
        "value": 1000, "preemptionPolicy": "Never"});
    served.create("/apis/scheduling.k8s.io/v1/priorityclasses", &class);
    let mut wanted = pod("important");
    wanted["spec"]["priorityClassName"] = json!("high");
    let made = served.create(PODS, &wanted);
    assert_eq!(
        (&made["spec"]["priority"], &made["spec"]["preemptionPolicy"]),
        (&json!(1000), &json!("Never"))
    );
    wanted["metadata"]["name"] = json!("other");
    wanted["spec"]["priorityClassName"] = json!("none");
    let refused = served.refused(403, "POST", PODS, JSON, &wanted);
    assert!(refused.contains("no PriorityClass with name none was found"), "{refused}");
    served.node.agent.assert_alive();
}
