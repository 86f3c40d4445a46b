//! ConfigMaps, Secrets and claims of manifests, as pods see them.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::Node;
use crate::support::agent::PATIENCE;
use crate::support::wait::wait_for;

/// A value that must be found nowhere but where the pod asks for it.
const HUNTER: &str = "hunter2-correct-horse";

fn config_map(name: &str, data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": name }, "data": data })
}

fn secret(name: &str, data: &Value) -> Value {
    json!({ "apiVersion": "v1", "kind": "Secret", "metadata": { "name": name }, "stringData": data })
}

fn claim(name: &str) -> Value {
    json!({ "apiVersion": "v1", "kind": "PersistentVolumeClaim", "metadata": { "name": name },
        "spec": { "accessModes": ["ReadWriteOnce"], "resources": { "requests": { "storage": "64Mi" } } } })
}

/// Puts several documents into one file.
fn write(node: &Node, file: &str, documents: &[&Value]) {
    let text = documents.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n---\n");
    node.agent.write_manifest(file, &text);
}

fn mount(pod: &mut Value, volume: Value, mount: Value) {
    pod["spec"]["volumes"].as_array_mut().expect("a list").push(volume);
    pod["spec"]["containers"][0]["volumeMounts"].as_array_mut().expect("a list").push(mount);
}

/// Mounts one volume of everything and has a variable of it.
fn user(node: &Node, name: &str, command: &str) -> Value {
    let mut pod = node.pod(name, command);
    pod["spec"]["containers"][0]["env"] = json!([
        { "name": "WORD", "valueFrom": { "configMapKeyRef": { "name": "conf", "key": "word" } } },
        { "name": "MAYBE", "valueFrom": { "secretKeyRef": { "name": "absent", "key": "k", "optional": true } } },
    ]);
    pod["spec"]["containers"][0]["envFrom"] = json!([{ "prefix": "DB_", "secretRef": { "name": "db" } }]);
    mount(
        &mut pod,
        json!({ "name": "all", "projected": { "sources": [
            { "configMap": { "name": "conf" } },
            { "secret": { "name": "db", "items": [{ "key": "password", "path": "private/password", "mode": 0o400 }] } },
        ] } }),
        json!({ "name": "all", "mountPath": "/etc/all" }),
    );
    pod
}

fn objects_reach_env_and_volumes_and_updates_only_volumes() {
    let mut node = Node::new();
    let mut pod = user(
        &node,
        "user",
        "echo $WORD/$DB_password/$MAYBE > /out/env; cat /one > /out/one; echo >> /out/one; stat -Lc %a /etc/all/private/password > /out/mode; \
         while true; do echo $WORD $(cat /etc/all/word /etc/all/private/password) > /out/now.new; mv /out/now.new /out/now; sleep 0.05; done",
    );
    mount(
        &mut pod,
        json!({ "name": "part", "configMap": { "name": "conf" } }),
        json!({ "name": "part", "mountPath": "/one", "subPath": "word" }),
    );
    let db = secret("db", &json!({ "password": HUNTER }));
    write(&node, "all.yaml", &[&config_map("conf", &json!({ "word": "first" })), &db, &pod]);
    node.agent.start();
    assert_eq!(node.written("env"), format!("first/{HUNTER}/\n"));
    assert_eq!((node.written("one"), node.written("mode")), ("first\n".to_owned(), "400\n".to_owned()));
    let before = node.running("user");
    let changed = Instant::now();
    write(&node, "all.yaml", &[&config_map("conf", &json!({ "word": "second" })), &db, &pod]);
    node.wait_written("now", &format!("first second{HUNTER}\n"));
    assert!(changed.elapsed() < Duration::from_secs(30), "{:?}", changed.elapsed());
    assert_eq!(node.running("user"), before, "nothing was restarted");
    // Nothing of the Secret is said anywhere.
    let mut said = node.agent.log();
    for command in
        ["status", "get pods -A", "get configmaps", "get secrets", "describe secret db", "describe pod user"]
    {
        for output in ["", "-o yaml", "-o json", "-o wide"] {
            let words: Vec<&str> = command.split_whitespace().chain(output.split_whitespace()).collect();
            said.push_str(&node.agent.cli(&words).unwrap_or_default());
        }
    }
    assert!(said.contains("<21 bytes, hidden>") && said.contains("password:  21 bytes"), "{said}");
    assert!(!said.contains(HUNTER) && !said.contains("aHVudGVy"), "{said}");
    let shown =
        node.agent.cli(&["get", "secret", "db", "-o", "yaml", "--show-secrets"]).expect("ask the agent");
    assert!(shown.contains("password: aHVudGVy"), "{shown}");
}

fn pod_waits_until_its_missing_objects_exist() {
    let mut node = Node::new();
    let mut pod = user(
        &node,
        "waits",
        "echo $WORD $(cat /data/seen 2>/dev/null) > /out/started; echo kept > /data/seen; sleep 1000",
    );
    mount(
        &mut pod,
        json!({ "name": "data", "persistentVolumeClaim": { "claimName": "data" } }),
        json!({ "name": "data", "mountPath": "/data" }),
    );
    node.apply(&pod);
    node.agent.start();
    let mounting = |node: &mut Node, words: &str| {
        node.agent.wait_for_pod("waits", words, |pod| {
            let status = pod["status"].to_string();
            status.contains(words).then_some(())
        });
    };
    mounting(&mut node, "configmap \\\"conf\\\" not found");
    write(&node, "db.yaml", &[&secret("db", &json!({ "password": "x" }))]);
    write(&node, "conf.yaml", &[&config_map("conf", &json!({ "other": "" }))]);
    mounting(&mut node, "persistentvolumeclaim \\\"data\\\" not found");
    write(&node, "data.yaml", &[&claim("data")]);
    mounting(&mut node, "couldn't find key word in ConfigMap default/conf");
    write(&node, "conf.yaml", &[&config_map("conf", &json!({ "word": "here" }))]);
    assert_eq!(node.written("started"), "here\n");
    // The claim's directory outlives the pod, the claim's manifest and the agent.
    let directory = node.agent.root_dir().join("volumes/default/data");
    wait_for("the pod to write", PATIENCE, || {
        fs::read_to_string(directory.join("seen")).map_err(|error| error.to_string())
    });
    assert_eq!(fs::metadata(&directory).expect("look at the claim's directory").mode() & 0o7777, 0o777);
    let shown = node.agent.cli(&["get", "pvc", "-o", "wide"]).expect("ask the agent");
    assert!(
        shown.contains("Bound") && shown.contains("64Mi") && shown.contains(&*directory.to_string_lossy()),
        "{shown}"
    );
    node.delete("waits");
    node.gone("waits");
    node.agent.remove_manifest("data.yaml");
    wait_for("the claim to be gone and its data kept", PATIENCE, || {
        let shown = node.agent.cli(&["get", "pvc"])?;
        if shown.contains("Released") { Ok(()) } else { Err(shown) }
    });
    write(&node, "data.yaml", &[&claim("data")]);
    fs::remove_file(node.out("started")).expect("forget the first start");
    node.apply(&pod);
    assert_eq!(node.written("started"), "here kept\n");
}

fn rwop_claim_serves_one_pod_and_is_kept_while_in_use() {
    let mut node = Node::new();
    let mut only = claim("only");
    only["spec"]["accessModes"] = json!(["ReadWriteOncePod"]);
    write(&node, "only.yaml", &[&only]);
    let user = |name: &str| {
        let mut pod = node.pod(name, &format!("echo {name} >> /data/users; sleep 1000"));
        mount(
            &mut pod,
            json!({ "name": "data", "persistentVolumeClaim": { "claimName": "only" } }),
            json!({ "name": "data", "mountPath": "/data" }),
        );
        pod
    };
    let (first, second) = (user("first"), user("second"));
    node.apply(&first);
    node.agent.start();
    node.running("first");
    node.apply(&second);
    node.agent.wait_for_pod("second", "refused", |pod| {
        let status = pod["status"].to_string();
        status
            .contains("volume uses the ReadWriteOncePod access mode and is already in use by another pod")
            .then_some(())
    });
    let shown = node.agent.cli(&["get", "pvc"]).expect("ask the agent");
    assert!(shown.contains("RWOP") && shown.contains("64Mi"), "{shown}");
    // A restart changes nothing about who has it.
    let before = node.running("first");
    node.agent.kill9();
    node.agent.start();
    assert_eq!(node.running("first"), before);
    node.delete("first");
    node.gone("first");
    node.running("second");
    let directory = node.agent.root_dir().join("volumes/default/only");
    wait_for("both to have had it", PATIENCE, || match fs::read_to_string(directory.join("users")) {
        Ok(users) if users == "first\nsecond\n" => Ok(()),
        other => Err(format!("{other:?}")),
    });

    let delete = |node: &Node| node.agent.cli(&["delete", "pvc", "only", "--yes"]);
    assert!(delete(&node).is_err_and(|said| said.contains("still defined in")));
    node.agent.remove_manifest("only.yaml");
    wait_for("the claim to be released", PATIENCE, || {
        let shown = node.agent.cli(&["get", "pvc"])?;
        if shown.contains("Released") { Ok(()) } else { Err(shown) }
    });
    assert!(delete(&node).is_err_and(|said| said.contains("still used by pod second-")));
    node.delete("second");
    node.gone("second");
    wait_for("the data to be deleted", PATIENCE, || delete(&node));
    assert!(!directory.exists());
    assert_eq!(node.agent.cli(&["get", "pvc", "-o", "name"]), Ok(String::new()));
}

fn store_key_keeps_secrets_encrypted_and_recoverable() {
    let mut node = Node::new();
    let key = node.runtime.scratch().path().join("store.key");
    let pod =
        user(&node, "keeps", "echo $DB_password $(cat /etc/all/private/password) >> /out/runs; sleep 1000");
    let objects = [config_map("conf", &json!({ "word": "w" })), secret("db", &json!({ "password": HUNTER }))];
    write(&node, "all.yaml", &[&objects[0], &objects[1], &pod]);
    node.agent.start();
    let run = format!("{HUNTER} {HUNTER}\n");
    assert_eq!(node.written("runs"), run);
    let in_store = |node: &Node| {
        ["", "-wal", "-shm"].iter().any(|suffix| {
            let bytes = fs::read(node.agent.root_dir().join(format!("agent.db{suffix}"))).unwrap_or_default();
            bytes.windows(HUNTER.len()).any(|part| part == HUNTER.as_bytes())
        })
    };
    assert!(in_store(&node), "without a key it is in there, for root alone");
    node.agent.kill9();
    fs::write(&key, "QUJDREVGR0hJSktMTU5PUFFSU1RVVldYWVphYmNkZWY=\n").expect("write the key");
    node.agent.argument(format!("--store-key-file={}", key.display()));
    let away = node.agent.manifest_dir().with_extension("away");
    fs::rename(node.agent.manifest_dir(), &away).expect("take the manifests away");
    node.agent.start();
    wait_for("the agent to answer", PATIENCE, || node.agent.status_json());
    assert!(!in_store(&node), "turning encryption on leaves no trace");
    // Its container dies: the new one gets the Secret from the store.
    let before = node.running("keeps");
    let pid = i32::try_from(before.pid.expect("it runs")).expect("process ids are small");
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(pid), nix::sys::signal::Signal::SIGKILL)
        .expect("kill it");
    node.running_other_than("keeps", &before.id);
    node.wait_written("runs", &format!("{run}{run}"));
    // The key is lost: the pod that runs goes on, and the agent says what is wrong.
    node.agent.kill9();
    fs::remove_file(&key).expect("lose the key");
    node.agent.start();
    let status = wait_for("the agent to answer", PATIENCE, || node.agent.status_json());
    assert!(
        status["store"]["message"].as_str().is_some_and(|message| message.contains("store.key")),
        "{status}"
    );
    assert_eq!(status["objectCounts"]["secrets"], 0);
    assert_eq!(status["objectCounts"]["configMaps"], 1);
    fs::rename(&away, node.agent.manifest_dir()).expect("bring the manifests back");
    wait_for("the Secret to be known again", PATIENCE, || {
        let status = node.agent.status_json()?;
        if status["objectCounts"]["secrets"] == 1 { Ok(()) } else { Err(status["objectCounts"].to_string()) }
    });
    assert!(!in_store(&node), "nothing is written in the clear instead");
}

fn ephemeral_volume_lives_as_long_as_its_pod() {
    let mut node = Node::new();
    let mut pod = node.pod("scratch", "cat /data/seen > /out/before; echo x >> /data/seen; sleep 1000");
    let template = json!({ "spec": claim("unused")["spec"] });
    mount(
        &mut pod,
        json!({ "name": "data", "ephemeral": { "volumeClaimTemplate": template } }),
        json!({ "name": "data", "mountPath": "/data" }),
    );
    node.apply(&pod);
    node.agent.start();
    let first = node.running("scratch");
    let directory = node.agent.root_dir().join("volumes/.ephemeral");
    let data = || {
        let entries = fs::read_dir(&directory).map_err(|error| error.to_string())?;
        Ok::<_, String>(entries.map(|entry| entry.expect("list the data").path()).collect::<Vec<_>>())
    };
    let seen = |what: &str| {
        wait_for(what, PATIENCE, || match &data()?[..] {
            [only] => match fs::read_to_string(only.join("seen")) {
                Ok(text) if !text.is_empty() => Ok(text),
                other => Err(format!("{other:?}")),
            },
            other => Err(format!("{other:?}")),
        })
    };
    let empty = |what: &str| {
        wait_for(what, PATIENCE, || match data()? {
            left if left.is_empty() => Ok(()),
            left => Err(format!("{left:?}")),
        });
    };
    assert_eq!(seen("the pod to write"), "x\n");
    let shown = node.agent.cli(&["get", "pvc", "-o", "wide"]).expect("ask the agent");
    let name = format!("{}-data", crate::support::agent::pod_name("scratch"));
    assert!(shown.contains(&name) && shown.contains("64Mi") && shown.contains("/.ephemeral/"), "{shown}");
    // A restart changes nothing.
    node.agent.kill9();
    node.agent.start();
    assert_eq!(node.running("scratch"), first);
    assert_eq!(seen("the data to be there"), "x\n");
    node.delete("scratch");
    node.gone("scratch");
    empty("the data to go with the pod");
    assert_eq!(node.agent.cli(&["get", "pvc", "-o", "name"]), Ok(String::new()));
    // The same pod begins with nothing; it goes while no agent runs.
    node.apply(&pod);
    node.running("scratch");
    assert_eq!(seen("the pod to write again"), "x\n");
    node.agent.terminate();
    node.delete("scratch");
    node.agent.start();
    node.gone("scratch");
    empty("the data to go after a restart");
}

fn a_volume_of_a_removed_driver_says_what_to_use_instead() {
    let mut node = Node::new();
    let mut pod = node.pod("old", "sleep 1000");
    mount(
        &mut pod,
        json!({ "name": "code", "gitRepo": { "repository": "https://host.invalid/x.git" } }),
        json!({ "name": "code", "mountPath": "/code" }),
    );
    node.apply(&pod);
    node.agent.start();
    node.agent.wait_for_pod("old", "the reason", |pod| {
        let status = pod["status"].to_string();
        (status.contains("git-repo volume plugin has been disabled") && status.contains("init container"))
            .then_some(())
    });
}

super::on_every_runtime! {
    objects_reach_env_and_volumes_and_updates_only_volumes,
    pod_waits_until_its_missing_objects_exist,
    rwop_claim_serves_one_pod_and_is_kept_while_in_use,
    store_key_keeps_secrets_encrypted_and_recoverable,
    ephemeral_volume_lives_as_long_as_its_pod,
    a_volume_of_a_removed_driver_says_what_to_use_instead,
}
