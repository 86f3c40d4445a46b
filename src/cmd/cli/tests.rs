//! The commands as a user runs them: against a served socket, against a store, and without either.

use std::fs;
use std::rc::Rc;

use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;
use crate::model::objects::{ObjectKind, wire};
use crate::model::source::{SourceObject, SourcePod, SourceProblem};
use crate::model::types::PodSource;
use crate::platform::clock::Clock;
use crate::platform::testing::TempDir;
use crate::serve::server::node::testing::Shown;
use crate::serve::server::{self, AgentReport};
use crate::store::{Mode, OpenOptions, StoreHandle, StoredEvent, meta};

const NOW: Timestamp = Timestamp::from_secs(1_795_040_000);

struct CliDirectory(TempDir);

impl CliDirectory {
    fn new() -> Self {
        Self(TempDir::new())
    }

    /// Runs a command line in this directory and returns exit code, standard output and standard error.
    fn run(&self, line: &str) -> (u8, String, String) {
        let mut words: Vec<_> = line.split_whitespace().map(str::to_owned).collect();
        let command = words.remove(0);
        words.push(format!("--socket={}", self.0.join("agent.sock").display()));
        words.push(format!("--root-dir={}", self.0.display()));
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let code = run(
            &command,
            &words,
            Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW },
        );
        let root = self.0.display().to_string();
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap().replace(&root, "ROOT");
        (code, text(out), text(err))
    }

    /// Serves a report on the socket, for the life of the process.
    fn serve(&self, report: Value) {
        let socket = self.0.join("agent.sock");
        let (ready, wait) = std::sync::mpsc::channel();
        std::thread::Builder::new()
            .spawn(move || {
                let report: AgentReport = decode(report).unwrap().object;
                let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
                tokio::task::LocalSet::new().block_on(&runtime, async {
                    let listener = server::bind(&socket).await.unwrap();
                    ready.send(()).unwrap();
                    server::serve(listener, Rc::new(Shown(report)), None, Clock::System).await;
                });
            })
            .unwrap();
        wait.recv().unwrap();
    }
}

fn running_pod(namespace: &str, name: &str) -> Value {
    json!({
        "metadata": {"name": name, "namespace": namespace, "uid": format!("uid-{name}"),
            "creationTimestamp": "2026-11-18T21:13:20Z"},
        "spec": {"nodeName": "n1", "containers": [{"name": "main", "image": "i"}]},
        "status": {"phase": "Running", "podIP": "10.0.0.7",
            "containerStatuses": [{"name": "main", "ready": true, "state": {"running": {}}}]},
    })
}

fn crashing_pod() -> Value {
    let mut pod = running_pod("default", "crash");
    pod["status"]["containerStatuses"] = json!([{
        "name": "main", "ready": false, "restartCount": 3,
        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s restarting failed container"}},
        "lastState": {"terminated": {"exitCode": 2, "reason": "Error", "finishedAt": "2026-11-18T22:08:20Z",
            "message": "no such table\nexiting\n"}},
    }]);
    pod
}

fn well() -> Value {
    json!({
        "version": "0.1.0", "pid": 42, "startedAt": "2026-11-18T22:08:20Z", "nodeName": "n1",
        "runtime": {"endpoint": "unix:///run/containerd/containerd.sock", "name": "containerd",
            "version": "2.1.0", "ready": true},
        "sources": [{"name": "file", "origin": "/etc/kubernetes/manifests", "state": "ok",
            "lastAnswer": "2026-11-18T22:13:10Z", "pods": 2}],
        "pods": [running_pod("kube-system", "dns"), running_pod("default", "web")],
        "store": {"path": "/var/lib/kubelet/agent.db", "ok": true},
    })
}

#[test]
fn status_of_a_healthy_agent_is_short_and_exits_zero() {
    let directory = CliDirectory::new();
    directory.serve(well());
    let expected = "\
Node:      n1
Agent:     0.1.0 running (pid 42) for 5m
Runtime:   containerd 2.1.0 unix:///run/containerd/containerd.sock (ready)
Store:     /var/lib/kubelet/agent.db

SOURCE   STATE   ANSWERED   PODS   PROBLEMS   ORIGIN
file     ok      10s ago    2      0          /etc/kubernetes/manifests

NAMESPACE     NAME   READY   STATUS    RESTARTS   AGE
default       web    1/1     Running   0          60m
kube-system   dns    1/1     Running   0          60m

All is well.
";
    assert_eq!(directory.run("status"), (EXIT_OK, expected.into(), String::new()));
    let (code, out, _) = directory.run("status -o json");
    let value: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((code, &value["nodeName"]), (EXIT_OK, &json!("n1")));
    let (_, out, _) = directory.run("status -o yaml");
    assert!(out.contains("\nmode: running\nnodeName: n1\n"), "{out}");
}

#[test]
fn status_says_what_is_wrong_and_why_and_exits_one() {
    let directory = CliDirectory::new();
    let mut report = well();
    report["runtime"] = json!({"endpoint": "unix:///run/crio.sock", "message": "connection refused",
        "since": "2026-11-18T22:12:20Z"});
    report["store"] = json!({"path": "/s/agent.db", "message": "the disk is full"});
    report["sources"] = json!([
        {"name": "file", "origin": "/m", "state": "ok", "problems": [{"origin": "/m/a.yaml",
            "reason": "FailedValidation", "message": "spec.containers: required", "since": "2026-11-18T22:12:20Z"}]},
        {"name": "http", "origin": "https://x/p", "state": "failing", "lastAnswer": "2026-11-18T20:13:20Z"},
    ]);
    let mut stuck = running_pod("default", "stuck");
    stuck["status"] = json!({"phase": "Pending", "containerStatuses": [
        {"name": "main", "state": {"waiting": {"reason": "ContainerCreating"}}}]});
    let mut refused = running_pod("default", "refused");
    refused["status"] =
        json!({"phase": "Pending", "reason": "OutOfcpu", "message": "Pod was rejected: no room"});
    let mut growing = running_pod("default", "growing");
    growing["status"]["conditions"] = json!([{"type": "PodResizePending", "status": "True", "reason": "Deferred",
        "message": "Node didn't have enough resource: cpu"}]);
    report["pods"] = json!([crashing_pod(), stuck, refused, growing]);
    report["events"] = json!([{"involvedObject": {"kind": "Pod", "uid": "uid-stuck"}, "type": "Warning",
        "reason": "FailedMount", "message": "no such directory /data", "count": 3,
        "lastTimestamp": "2026-11-18T22:12:20Z"},
        {"involvedObject": {"kind": "Pod", "uid": "uid-stuck"}, "type": "Warning", "reason": "MissingClusterDNS",
        "message": "it starts with the node's servers", "lastTimestamp": "2026-11-18T22:13:00Z"}]);
    directory.serve(report);
    let (code, out, err) = directory.run("status");
    let expected = "\
What is wrong:
  runtime: unix:///run/crio.sock is not ready for 60s: connection refused
  store: /s/agent.db: the disk is full
  /m/a.yaml: FailedValidation (60s ago): spec.containers: required
  source http: no valid response from https://x/p for 120m; keeping the last good pods
  pod default/crash: container main: CrashLoopBackOff: back-off 40s restarting failed container (last run: Error, exit code 2: no such table
      exiting)
  pod default/growing: resize: Deferred: Node didn't have enough resource: cpu
  pod default/refused: OutOfcpu: Pod was rejected: no room
  pod default/stuck: FailedMount: no such directory /data
";
    assert_eq!((code, &*err), (EXIT_FAILED, ""));
    assert_eq!(&out[out.find("What is wrong").unwrap()..], expected);
    assert_eq!(directory.run("status --exit-zero").0, EXIT_OK);
}

#[test]
fn get_pods_prints_kubectls_tables() {
    let directory = CliDirectory::new();
    let mut report = well();
    report["pods"].as_array_mut().unwrap().push(crashing_pod());
    directory.serve(report);
    let show = |line: &str| directory.run(line);
    let table = "\
NAME    READY   STATUS             RESTARTS     AGE
crash   0/1     CrashLoopBackOff   3 (5m ago)   60m
web     1/1     Running            0            60m
";
    assert_eq!(show("get pods"), (EXIT_OK, table.into(), String::new()));
    let wide = "\
NAMESPACE     NAME    READY   STATUS             RESTARTS     AGE   IP         NODE   NOMINATED NODE   READINESS GATES
default       crash   0/1     CrashLoopBackOff   3 (5m ago)   60m   10.0.0.7   n1     <none>           <none>
default       web     1/1     Running            0            60m   10.0.0.7   n1     <none>           <none>
kube-system   dns     1/1     Running            0            60m   10.0.0.7   n1     <none>           <none>
";
    assert_eq!(show("get po -A -o wide").1, wide);
    assert_eq!(show("get pod -n kube-system --no-headers").1, "dns   1/1   Running   0   60m\n");
    assert_eq!(show("get pods -o name").1, "pod/crash\npod/web\n");
    let (_, out, _) = show("get pod/web -o json");
    let pod: Value = serde_json::from_str(&out).unwrap();
    assert_eq!((&pod["kind"], &pod["metadata"]["name"]), (&json!("Pod"), &json!("web")));
    let list: Value = serde_json::from_str(&show("get pods -o json").1).unwrap();
    assert_eq!((&list["kind"], list["items"].as_array().unwrap().len()), (&json!("List"), 2));
    let (_, out, _) = show("get pods web -o yaml");
    assert!(out.starts_with("apiVersion: v1\nkind: Pod\nmetadata:\n"), "{out}");
    let none = show("get pods -n nowhere");
    assert_eq!(none, (EXIT_OK, String::new(), "No resources found in nowhere namespace.\n".into()));
    let (code, out, err) = show("get pods web ghost");
    assert!(out.contains("web ") && !out.contains("crash"), "{out}");
    assert_eq!((code, &*err), (EXIT_FAILED, "error: pods \"ghost\" not found in namespace \"default\"\n"));
}

#[test]
fn bad_usage_exits_two_and_says_what_is_wrong() {
    let directory = CliDirectory::new();
    for (line, message) in [
        ("get", "missing resource type"),
        (
            "get gadgets",
            "the server doesn't have a resource type \"gadgets\": use one of configmaps, endpoints, events,",
        ),
        ("get gadgets", ", deployments, "),
        ("get pods -A web", "use --namespace"),
        ("get pods -o table", "unknown output format \"table\": use one of json, yaml, wide, name"),
        ("status now", "unexpected argument \"now\""),
        ("status --verbose", "--verbose"),
        ("fly", "unknown command \"fly\""),
    ] {
        let (code, out, err) = directory.run(line);
        assert_eq!((code, &*out), (EXIT_USAGE, ""), "{line}");
        assert!(err.starts_with("error: ") && err.contains(message), "{line}: {err}");
    }
    assert!(directory.run("get --help").1.contains("Usage: agent get RESOURCE [NAME...]"));
    assert!(directory.run("status -h").1.contains("Exit status:"));
}

#[test]
fn without_agent_and_without_store_the_error_names_both() {
    let directory = CliDirectory::new();
    let (code, out, err) = directory.run("get pods");
    assert_eq!((code, &*out), (EXIT_FAILED, ""));
    assert_eq!(
        err,
        "error: the agent is not running, and its last known state cannot be read: no store found at \
         ROOT/agent.db: the agent has not run with this --root-dir\n"
    );
    assert_eq!(fs::read_dir(&directory.0).unwrap().count(), 0, "looking creates nothing");
}

/// A store with a pod that ran, one that terminates, a problem and an event; the agent is not running.
fn fill(directory: &CliDirectory) {
    let source_pod =
        |value: Value| SourcePod { pod: Rc::new(decode(value).unwrap().object), origin: "/m/x.yaml".into() };
    let options = OpenOptions { mode: Mode::Inline, now: NOW, ..OpenOptions::default() };
    let (store, _) = StoreHandle::open(&directory.0.join("agent.db"), options).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let web = source_pod(running_pod("default", "web"));
        let old = source_pod(running_pod("default", "old"));
        store.commit_source(PodSource::File, &[web.clone(), old], &[], None).await.unwrap();
        store.commit_source(PodSource::File, std::slice::from_ref(&web), &[], None).await.unwrap();
        store.put_status(&web.pod.metadata.uid, &web.pod.status);
        store.put_event(StoredEvent::default());
        let problem = SourceProblem {
            origin: "/m/b.yaml".into(),
            reason: "FailedValidation".into(),
            message: "metadata.name: required".into(),
            since: NOW,
            pod: String::new(),
        };
        store.put_problems(PodSource::File, &[problem]).await.unwrap();
        store.put_meta(meta::NODE_NAME, Some("n1")).await.unwrap();
        store.shutdown().await.unwrap();
    });
}

#[test]
fn last_known_state_is_shown_when_the_agent_is_not_running() {
    let directory = CliDirectory::new();
    fill(&directory);
    let told = "agent is not running; showing the last known state\n";
    let table = "\
NAME   READY   STATUS        RESTARTS   AGE
old    1/1     Terminating   0          60m
web    1/1     Running       0          60m
";
    assert_eq!(directory.run("get pods"), (EXIT_OK, table.into(), told.into()));
    let (code, out, err) = directory.run("status");
    assert_eq!((code, &*err), (EXIT_FAILED, told));
    assert!(out.starts_with("Node:      n1\nAgent:     not running\n"), "{out}");
    let wrong = "\
What is wrong:
  agent: not running
  /m/b.yaml: FailedValidation (0s ago): metadata.name: required
";
    assert_eq!(&out[out.find("What is wrong").unwrap()..], wrong);
}

#[test]
fn get_prints_the_same_with_and_without_an_agent() {
    let [online, offline] = [CliDirectory::new(), CliDirectory::new()];
    fill(&offline);
    let mut old = running_pod("default", "old");
    old["metadata"]["deletionTimestamp"] = json!(NOW.to_rfc3339());
    let mut report = well();
    report["pods"] = json!([running_pod("default", "web"), old]);
    online.serve(report);
    for line in [
        "get pods",
        "get po -A -o wide",
        "get pods --no-headers web old",
        "get pods -o name",
        "get pods -o json",
        "get pod/web -o yaml",
        "get pods -n nowhere",
    ] {
        let (code, out, err) = online.run(line);
        let (offline_code, offline_out, offline_err) = offline.run(line);
        assert_eq!((offline_code, offline_out), (code, out), "{line}");
        let warning = "agent is not running; showing the last known state\n";
        assert_eq!(offline_err, format!("{warning}{err}"), "{line}");
    }
    let (code, out, _) = offline.run("get pods --field-selector metadata.name=web -o name");
    assert_eq!((code, &*out), (EXIT_OK, "pod/web\n"));
    let (code, out, _) = offline.run("get pods old -o jsonpath={.metadata.uid}");
    assert_eq!((code, &*out), (EXIT_OK, "uid-old"));
    assert_eq!(
        offline.run("get pods -w").2,
        format!(
            "error: connect to the agent: the agent is not running: no process listens on ROOT/agent.sock\n"
        )
    );
}

/// A store with an object of each kind.
fn fill_with_objects(directory: &CliDirectory) {
    let object = |kind, value: Value| SourceObject {
        object: Rc::new(wire::from_value(kind, value).unwrap()),
        origin: "/m/x.yaml".into(),
    };
    let metadata =
        |name: &str| json!({"name": name, "creationTimestamp": "2026-11-18T21:13:20Z", "labels": {"a": "b"}});
    let spec = json!({"accessModes": ["ReadWriteOnce", "ReadOnlyMany"], "resources": {"requests": {"storage": "1Gi"}}});
    let objects = [
        object(
            ObjectKind::ConfigMap,
            json!({"metadata": metadata("conf"), "data": {"word": "one\ntwo\u{1b}[31m"}, "binaryData": {"bin": "AP8="}}),
        ),
        object(
            ObjectKind::Secret,
            json!({"metadata": metadata("db"), "stringData": {"password": "hunter2"}}),
        ),
        object(ObjectKind::PersistentVolumeClaim, json!({"metadata": metadata("data"), "spec": spec})),
    ];
    let options = OpenOptions { mode: Mode::Inline, now: NOW, ..OpenOptions::default() };
    let (store, _) = StoreHandle::open(&directory.0.join("agent.db"), options).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        store.commit_source(PodSource::File, &[], &objects, None).await.unwrap();
        store.shutdown().await.unwrap();
    });
}

#[test]
fn objects_print_like_kubectl_and_secret_values_are_hidden() {
    let directory = CliDirectory::new();
    fill_with_objects(&directory);
    let shown = |line: &str| {
        let (code, out, _) = directory.run(line);
        assert_eq!(code, EXIT_OK, "{line}");
        out
    };
    assert_eq!(shown("get cm"), "NAME   DATA   AGE\nconf   2      60m\n");
    assert_eq!(
        shown("get secrets -A -o wide"),
        "NAMESPACE   NAME   TYPE     DATA   AGE   ORIGIN\ndefault     db     Opaque   1      60m   /m/x.yaml\n"
    );
    let claims = shown("get pvc --no-headers -o wide");
    assert!(claims.contains("Bound") && claims.contains("1Gi   RWO,ROX"), "{claims}");
    assert!(claims.contains("ROOT/volumes/default/data"), "{claims}");
    assert_eq!(shown("get secret/db -o name"), "secret/db\n");
    let (hidden, all) = (shown("get secret db -o yaml"), shown("get secret db -o json --show-secrets"));
    assert!(hidden.contains("password: \"<7 bytes, hidden>\""), "{hidden}");
    assert!(all.contains("\"aHVudGVyMg==\""), "{all}");
    assert!(shown("get cm -o yaml").contains("kind: List"));
    let page = shown("describe configmap co");
    let data = "\nData\n====\nword:\n----\none\ntwo?[31m\n\n\nBinaryData\n====\nbin: 2 bytes\n";
    assert!(page.starts_with("Name:") && page.ends_with(data), "{page}");
    assert!(shown("describe secret db").ends_with("\nData\n====\npassword:  7 bytes\n"));
    assert!(shown("describe secret db --show-secrets").contains("aHVudGVyMg=="));
    assert!(shown("describe pvc").contains("Directory:"));
    assert!(directory.run("status").1.contains("1 configmaps, 1 secrets, 1 persistentvolumeclaims"));
    let status = directory.run("status -o json").1;
    assert!(status.contains("objectCounts") && !status.contains("aHVudGVyMg") && !status.contains("hunter2"));
    for line in ["get pods web -l app=web", "get pod/web --field-selector metadata.name=web"] {
        let (code, out, err) = directory.run(line);
        let said = "error: name cannot be provided when a selector is specified\n";
        assert_eq!((code, &*out, &*err), (EXIT_FAILED, "", said), "{line}");
    }
    let (code, out, err) = directory.run("get secret ghost");
    assert_eq!((code, out.as_str()), (EXIT_FAILED, ""));
    assert!(err.ends_with("error: secrets \"ghost\" not found in namespace \"default\"\n"), "{err}");
    assert_eq!(
        directory.run("get cm -n other").2.lines().last(),
        Some("No resources found in other namespace.")
    );
}

#[test]
fn a_reader_that_went_away_is_not_an_error() {
    struct Closed;
    impl Write for Closed {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::BrokenPipe.into())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let mut err = Vec::new();
    let environment = Environment { out: &mut Closed, err: &mut err, terminal: true, colour: true, now: NOW };
    assert_eq!(run("get", &["--help".to_owned()], environment), EXIT_OK);
    assert!(err.is_empty());
}

#[test]
fn broken_pipe_is_quiet_on_standard_output_alone() {
    let broken = || io::Error::from(io::ErrorKind::BrokenPipe);
    let (path, port) = ("/a.sock".into(), broken());
    for (error, code, said) in [
        (CliError::Output(broken()), EXIT_OK, ""),
        (
            CliError::CommandOutput(broken()),
            EXIT_FAILED,
            "error: write the output of the command: broken pipe\n",
        ),
        (
            CliError::Client(ClientError::Connect { path, source: port }),
            EXIT_FAILED,
            "error: connect to the agent: connect to /a.sock: broken pipe\n",
        ),
    ] {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let mut environment =
            Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW };
        assert_eq!(finish("exec", Err(error), &mut environment), code);
        assert_eq!(String::from_utf8(err).unwrap(), said);
    }
}

#[test]
fn describe_finds_pods_by_prefix_and_lists_existing_ones() {
    let directory = CliDirectory::new();
    let mut report = well();
    report["pods"].as_array_mut().unwrap().push(crashing_pod());
    directory.serve(report);
    let (code, out, err) = directory.run("describe pod cra");
    assert_eq!((code, &*err), (EXIT_OK, ""));
    assert!(out.starts_with("Name:         crash\nNamespace:    default\n"), "{out}");
    let (_, all, _) = directory.run("describe pods -A");
    assert_eq!(all.matches("\nNamespace: ").count(), 3, "{all}");
    let (code, out, err) = directory.run("describe pod/ghost");
    assert_eq!((code, &*out), (EXIT_FAILED, ""));
    assert_eq!(err, "error: pods \"ghost\" not found in namespace \"default\"; existing pods: crash, web\n");
    let (code, _, err) = directory.run("describe");
    assert_eq!(
        (code, err.lines().next()),
        (
            EXIT_USAGE,
            Some("error: missing resource type: agent describe pod|node|configmap|secret|pvc|namespace NAME")
        )
    );
    assert!(directory.run("describe --help").1.contains("Usage: agent describe pod|node|configmap"));
    assert!(directory.run("describe pod -o json").2.contains("'-o'"));
}

#[test]
fn describe_without_an_agent_reads_the_store() {
    let directory = CliDirectory::new();
    fill(&directory);
    let (code, out, err) = directory.run("describe pod old");
    assert_eq!((code, &*err), (EXIT_OK, "agent is not running; showing the last known state\n"));
    assert!(out.contains("\nStatus:                    Terminating (lasts 0s)\n"), "{out}");
}

#[test]
fn images_are_imported_listed_and_removed_without_an_agent() {
    let directory = CliDirectory::new();
    let (code, out, err) = directory.run("image ls");
    assert_eq!((code, out.as_str(), err.as_str()), (EXIT_OK, "IMAGE   TAG   IMAGE ID   SIZE\n", ""));
    let broken = directory.0.join("broken.tar");
    fs::write(&broken, "nothing of an archive").unwrap();
    let (code, _, err) = directory.run(&format!("image import {}", broken.display()));
    assert_eq!(code, EXIT_FAILED);
    assert!(err.starts_with("error: import \"ROOT/broken.tar\": read the archive: damaged"), "{err}");
    // A layout without layers, like a `FROM scratch` image with only metadata.
    let layout = directory.0.join("layout");
    let put = |document: &Value| {
        let bytes = document.to_string().into_bytes();
        let digest = crate::runtime::embedded::images::digest_of(&bytes);
        fs::create_dir_all(layout.join("blobs/sha256")).unwrap();
        fs::write(layout.join("blobs/sha256").join(&digest[7..]), &bytes).unwrap();
        json!({"digest": digest, "size": bytes.len()})
    };
    let config = put(&json!({"os": "linux", "config": {"Cmd": ["/x"]}, "rootfs": {"diff_ids": []}}));
    let mut manifest = put(&json!({"config": config, "layers": []}));
    manifest["annotations"] = json!({"org.opencontainers.image.ref.name": "edge.example/app:v1"});
    fs::write(layout.join("index.json"), json!({"manifests": [manifest]}).to_string()).unwrap();
    fs::write(layout.join("oci-layout"), "{}").unwrap();
    let (code, out, err) = directory.run(&format!("image import {}", layout.display()));
    assert_eq!((code, out.as_str(), err.as_str()), (EXIT_OK, "Imported edge.example/app:v1\n", ""));
    let id = config["digest"].as_str().unwrap();
    let short = &id[7..20];
    let table = format!(
        "IMAGE              TAG   IMAGE ID        SIZE\nedge.example/app   v1    {short}   {}B\n",
        fs::metadata(layout.join("blobs/sha256").join(&id[7..])).unwrap().len()
            + manifest["size"].as_u64().unwrap()
    );
    assert_eq!(directory.run("image ls").1, table);
    assert_eq!(directory.run("image ls -q edge.example/app").1, format!("{short}\n"));
    assert_eq!(directory.run("image ls edge.example/other").1.lines().count(), 1);
    let inspected: Value =
        serde_json::from_str(&directory.run("image inspect edge.example/app:v1").1).unwrap();
    assert_eq!(inspected[0]["config"]["cmd"], json!(["/x"]));
    assert_eq!(directory.run("image prune").1, "0 images, 0 layers, 0B freed\n");
    assert_eq!(directory.run("image rm edge.example/app:v1").1, format!("Removed {id}\n"));
    let (code, _, err) = directory.run("image rm edge.example/app:v1");
    assert_eq!((code, err.as_str()), (EXIT_FAILED, "error: image \"edge.example/app:v1\" not found\n"));
    assert_eq!(directory.run("image rm").0, EXIT_USAGE);
    assert_eq!(directory.run("image fetch").0, EXIT_USAGE);
}

/// Data of a claim is deleted only when no pod or manifest refers to it, and only with `--yes`.
#[test]
fn claim_data_is_deleted_only_after_its_claim_and_pods() {
    let directory = CliDirectory::new();
    fill_with_objects(&directory);
    let volumes = directory.0.join("volumes/default");
    for claim in ["data", "old", "other"] {
        fs::create_dir_all(volumes.join(claim).join("deep")).unwrap();
        fs::write(volumes.join(claim).join("deep/rows"), "12345").unwrap();
    }
    let refused = |line: &str| {
        let (code, out, err) = directory.run(line);
        assert_eq!((code, &*out), (EXIT_FAILED, ""), "{line}: {err}");
        err.replace("agent is not running; showing the last known state\n", "")
    };
    let (_, table, _) = directory.run("get pvc");
    assert!(table.contains("data    Bound") && table.contains("old     Released"), "{table}");
    let (_, wide, _) = directory.run("get pvc old -o wide");
    assert!(wide.contains("ROOT/volumes/default/old"), "{wide}");

    assert_eq!(
        refused("delete pvc data --yes"),
        "error: claim \"data\" is still defined in /m/x.yaml: remove it there first\n"
    );
    assert_eq!(
        refused("delete pvc old"),
        "error: this permanently deletes 1 files, 5 bytes, in \"ROOT/volumes/default/old\": use --yes to \
         confirm\n"
    );
    assert!(refused("delete pvc none --yes").contains("no data found for claim \"none\""));
    assert!(refused("delete pvc old -n elsewhere --yes").contains("ROOT/volumes/elsewhere/old"));
    for name in ["..", "../other", ".deleted-x", "A"] {
        let said = refused(&format!("delete pvc {name} --yes"));
        assert!(said.contains("RFC 1123"), "{said}");
    }
    assert_eq!(fs::read_dir(&volumes).unwrap().count(), 3, "nothing was touched");

    let (code, out, _) = directory.run("delete pvc/old --yes");
    assert_eq!(code, EXIT_OK);
    assert_eq!(out, "persistentvolumeclaim \"old\" deleted, with its data in ROOT/volumes/default/old\n");
    assert!(!volumes.join("old").exists() && volumes.join("other/deep/rows").exists());
    assert_eq!(fs::read_dir(&volumes).unwrap().count(), 2, "nothing is left beside it");

    // An interrupted deletion is finished by the next one; a symlink is removed, its target stays.
    fs::create_dir_all(volumes.join(".deleted-cut/deep")).unwrap();
    let (_, table, _) = directory.run("get pvc");
    assert!(!table.contains("cut"), "{table}");
    assert_eq!(directory.run("delete pvc cut --yes").0, EXIT_OK);
    assert!(!volumes.join(".deleted-cut").exists());
    let disk = directory.0.join("disk");
    fs::create_dir_all(&disk).unwrap();
    fs::write(disk.join("rows"), "x").unwrap();
    std::os::unix::fs::symlink(&disk, volumes.join("linked")).unwrap();
    assert_eq!(directory.run("delete pvc linked --yes").0, EXIT_OK);
    assert!(volumes.join("linked").symlink_metadata().is_err() && disk.join("rows").exists());
}

#[test]
fn a_pod_keeps_the_data_of_its_claim_from_being_deleted() {
    let directory = CliDirectory::new();
    let mut pod = running_pod("default", "web");
    pod["spec"]["volumes"] = json!([{"name": "v", "persistentVolumeClaim": {"claimName": "data"}}]);
    let store = directory.0.join("agent.db").display().to_string();
    directory.serve(json!({"mode": "running", "pods": [pod], "store": {"path": store, "ok": true}}));
    let data = directory.0.join("volumes/default/data");
    fs::create_dir_all(&data).unwrap();
    let (code, _, err) = directory.run("delete pvc data --yes");
    assert_eq!(code, EXIT_FAILED);
    assert!(err.starts_with("error: claim \"data\" is still used by pod web: "), "{err}");
    assert!(data.exists());
    let (code, _, err) = directory.run("delete pod web --yes");
    assert_eq!(code, EXIT_USAGE);
    assert!(err.contains("--yes deletes the data of claims (pvc)"), "{err}");
    assert_eq!(directory.run("delete").0, EXIT_USAGE);
    assert_eq!(directory.run("delete pvc").0, EXIT_USAGE);
    assert_eq!(directory.run("delete pvc x -A").0, EXIT_USAGE);
    assert!(directory.run("delete --help").1.contains("--yes"));
}

#[test]
fn every_command_that_the_program_knows_has_a_help_of_its_own() {
    for (command, _) in crate::agent::config::CLIENT_COMMANDS {
        let (mut out, mut err) = (Vec::new(), Vec::new());
        let environment =
            Environment { out: &mut out, err: &mut err, terminal: false, colour: false, now: NOW };
        let arguments = ["--help".to_owned()];
        let code = match *command {
            "preflight" | "init" | "join" | "leave" | "reset" => {
                crate::cmd::init::run(command, &arguments, environment)
            }
            "token" => crate::cmd::control_plane::tokens::command::run(&arguments, environment),
            "certs" => crate::cmd::control_plane::certs_command::run(&arguments, environment),
            "upgrade" => crate::cmd::upgrade::run(&arguments, environment),
            _ => run(command, &arguments, environment),
        };
        assert_eq!(code, EXIT_OK, "{command}");
        let text = String::from_utf8(out).unwrap();
        assert!(text.contains(&format!("agent {command}")) && err.is_empty(), "{command}: {text}");
    }
}
