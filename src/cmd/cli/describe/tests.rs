//! Whole pages, verbatim.

use serde_json::{Value, json};

use super::*;
use crate::model::api::decode::decode;

const NOW: Timestamp = Timestamp::from_secs(1_700_000_000);

fn shown(pod: Value, events: Value) -> String {
    let pod: Pod = decode(pod).unwrap().object;
    let events: Vec<EventReport> = decode(events).unwrap().object;
    page(&pod, &AgentReport { events, ..AgentReport::default() }, NOW)
}

#[test]
fn what_a_manifest_says_without_effect_stands_on_its_pods_page() {
    let source = json!({"name": "file", "problems": [
        {"origin": "/m/web.yaml", "reason": "FieldIgnored", "message": "unknown field \"spec.x\" is ignored",
            "since": "2023-11-14T22:13:20Z", "pod": "default/web-n1"},
        {"origin": "/m/db.yaml", "reason": "FieldIgnored", "message": "other", "since": "2023-11-14T22:13:20Z",
            "pod": "default/db-n1"}]});
    let report: AgentReport = decode(json!({"sources": [source]})).unwrap().object;
    let pod: Pod = decode(web()).unwrap().object;
    let text = page(&pod, &report, NOW);
    let line = text.lines().find(|line| line.starts_with("Problems:")).unwrap();
    assert!(line.ends_with(" FieldIgnored: /m/web.yaml: unknown field \"spec.x\" is ignored"), "{line}");
    assert!(!text.contains("db.yaml"), "{text}");
}

/// A pod with every feature.
fn web() -> Value {
    json!({
        "metadata": {"name": "web-n1", "namespace": "default", "labels": {"app": "web", "tier": "front"},
            "annotations": {"kubernetes.io/config.source": "file", "note": "two\nlines"}},
        "spec": {
            "nodeName": "n1", "priority": 2_000_001_000, "priorityClassName": "system-node-critical",
            "nodeSelector": {"disk": "ssd"},
            "tolerations": [{"operator": "Exists", "effect": "NoExecute"},
                {"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule", "tolerationSeconds": 5}],
            "initContainers": [{"name": "prepare", "image": "busybox:1", "args": ["-c", "true\nfalse"]}],
            "containers": [{
                "name": "main", "image": "nginx:1", "command": ["nginx"],
                "ports": [{"containerPort": 80, "hostPort": 8080, "protocol": "TCP", "name": "http"},
                    {"containerPort": 53, "protocol": "UDP"}],
                "resources": {"limits": {"cpu": "1", "memory": "64Mi"}, "requests": {"cpu": "100m"}},
                "livenessProbe": {"httpGet": {"path": "/healthz", "port": 80, "scheme": "HTTP"}, "timeoutSeconds": 1,
                    "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                "readinessProbe": {"exec": {"command": ["cat", "/ready"]}, "initialDelaySeconds": 5, "timeoutSeconds": 1,
                    "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
                "envFrom": [{"prefix": "P_", "secretRef": {"name": "keys"}}],
                "env": [{"name": "MODE", "value": "fast"},
                    {"name": "NAME", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.name"}}},
                    {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "keys", "key": "token"}}}],
                "volumeMounts": [{"name": "data", "mountPath": "/srv", "readOnly": true},
                    {"name": "scratch", "mountPath": "/cache", "subPath": "web"}],
            }],
            "volumes": [{"name": "data", "hostPath": {"path": "/data", "type": "Directory"}},
                {"name": "scratch", "emptyDir": {"sizeLimit": "1Gi"}},
                {"name": "keys", "secret": {"secretName": "keys"}}],
        },
        "status": {
            "phase": "Running", "hostIP": "10.0.0.1", "podIP": "10.88.0.7", "podIPs": [{"ip": "10.88.0.7"}],
            "startTime": "2023-11-14T22:08:20Z", "qosClass": "Burstable",
            "conditions": [{"type": "Initialized", "status": "True"}, {"type": "PodScheduled", "status": "True"}],
            "initContainerStatuses": [{"name": "prepare", "ready": true, "imageID": "sha256:b", "containerID": "fake://1",
                "state": {"terminated": {"exitCode": 0, "reason": "Completed", "startedAt": "2023-11-14T22:08:21Z",
                    "finishedAt": "2023-11-14T22:08:22Z"}}}],
            "containerStatuses": [{"name": "main", "ready": false, "restartCount": 2, "imageID": "sha256:n",
                "containerID": "fake://3",
                "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 20s"}},
                "lastState": {"terminated": {"exitCode": 137, "signal": 9, "reason": "Error", "message": "boom\n",
                    "startedAt": "2023-11-14T22:12:00Z", "finishedAt": "2023-11-14T22:13:00Z"}}}],
        },
    })
}

fn its_events() -> Value {
    let about =
        |path: &str| json!({"kind": "Pod", "namespace": "default", "name": "web-n1", "fieldPath": path});
    json!([
        {"involvedObject": about("spec.containers{main}"), "type": "Warning", "reason": "BackOff", "count": 4,
            "message": "Back-off restarting failed container main in pod web-n1",
            "firstTimestamp": "2023-11-14T22:11:20Z", "lastTimestamp": "2023-11-14T22:13:10Z"},
        {"involvedObject": about(""), "type": "Normal", "reason": "SandboxChanged", "count": 1,
            "message": "Pod sandbox changed, it will be killed and re-created.",
            "firstTimestamp": "2023-11-14T22:09:20Z", "lastTimestamp": "2023-11-14T22:09:20Z"},
        {"involvedObject": {"kind": "Pod", "namespace": "default", "name": "other"}, "reason": "Killing", "count": 1},
    ])
}

#[test]
fn events_of_a_deleted_pod_of_the_api_are_not_its_successors() {
    let event = |uid: &str| {
        json!({"involvedObject": {"kind": "Pod", "namespace": "default", "name": "p", "uid": uid},
            "type": "Normal", "reason": format!("Of{uid}"), "count": 1})
    };
    let events = || json!([event("Old"), event("New")]);
    let pod = |source: &str| {
        json!({"metadata": {"name": "p", "namespace": "default", "uid": "New",
            "annotations": {"kubernetes.io/config.source": source}}})
    };
    let told = |page: &str| [page.contains("OfOld"), page.contains("OfNew")];
    assert_eq!(told(&shown(pod("api"), events())), [false, true]);
    assert_eq!(told(&shown(pod("file"), events())), [true, true], "an earlier version of its manifest");
}

const WEB_PAGE: &str = "\
Name:                 web-n1
Namespace:            default
Priority:             2000001000
Priority Class Name:  system-node-critical
Node:                 n1/10.0.0.1
Start Time:           Tue, 14 Nov 2023 22:08:20 +0000
Labels:               app=web
                      tier=front
Annotations:          kubernetes.io/config.source: file
                      note:
                        two
                        lines
Status:               Running
IP:                   10.88.0.7
IPs:
  IP:  10.88.0.7
Init Containers:
  prepare:
    Container ID:  fake://1
    Image:         busybox:1
    Image ID:      sha256:b
    Port:          <none>
    Host Port:     <none>
    Args:
      -c
      true
      false
    State:          Terminated
      Reason:       Completed
      Exit Code:    0
      Started:      Tue, 14 Nov 2023 22:08:21 +0000
      Finished:     Tue, 14 Nov 2023 22:08:22 +0000
    Ready:          True
    Restart Count:  0
    Environment:    <none>
    Mounts:         <none>
Containers:
  main:
    Container ID:  fake://3
    Image:         nginx:1
    Image ID:      sha256:n
    Ports:         80/TCP (http), 53/UDP
    Host Ports:    8080/TCP (http), 0/UDP
    Command:
      nginx
    State:          Waiting
      Reason:       CrashLoopBackOff
      Message:      back-off 20s
    Last State:     Terminated
      Reason:       Error
      Message:      boom
      Exit Code:    137
      Signal:       9
      Started:      Tue, 14 Nov 2023 22:12:00 +0000
      Finished:     Tue, 14 Nov 2023 22:13:00 +0000
    Ready:          False
    Restart Count:  2
    Limits:
      cpu:     1
      memory:  64Mi
    Requests:
      cpu:      100m
    Liveness:   http-get http://:80/healthz delay=0s timeout=1s period=10s #success=1 #failure=3
    Readiness:  exec [cat /ready] delay=5s timeout=1s period=10s #success=1 #failure=3
    Environment Variables from:
      keys  Secret with prefix 'P_'  Optional: false
    Environment:
      MODE:   fast
      NAME:   web-n1 (v1:metadata.name)
      TOKEN:  <set to the key 'token' in secret 'keys'>  Optional: false
    Mounts:
      /cache from scratch (rw,path=\"web\")
      /srv from data (ro)
Conditions:
  Type          Status
  Initialized   True
  PodScheduled  True
Volumes:
  data:
    Type:          HostPath (bare host directory volume)
    Path:          /data
    HostPathType:  Directory
  scratch:
    Type:       EmptyDir (a temporary directory that shares a pod's lifetime)
    Medium:     
    SizeLimit:  1Gi
  keys:
    Type:        Secret (a volume populated by a Secret)
    SecretName:  keys
    Optional:    false
QoS Class:       Burstable
Node-Selectors:  disk=ssd
Tolerations:     :NoExecute op=Exists
                 a=b:NoSchedule for 5s
Events:
  Type     Reason          Age               From     Message
  ----     ------          ----              ----     -------
  Normal   SandboxChanged  4m                kubelet  Pod sandbox changed, it will be killed and re-created.
  Warning  BackOff         10s (x4 over 2m)  kubelet  spec.containers{main}: Back-off restarting failed container main in pod web-n1
";

#[test]
fn a_page_reads_as_kubectls() {
    assert_eq!(shown(web(), its_events()), WEB_PAGE);
}

#[test]
fn describe_shows_waiting_and_terminating_and_strips_escapes() {
    let pod = json!({
        "metadata": {"name": "big", "namespace": "default", "deletionTimestamp": "2023-11-14T22:13:00Z",
            "annotations": {"evil": "\u{1b}[31m\tred"}},
        "spec": {"containers": [{"name": "c", "image": "i"}], "volumes": [{"name": "odd", "csi": {}}],
            "terminationGracePeriodSeconds": 9},
        "status": {"phase": "Pending", "reason": "OutOfcpu", "message": "Pod was rejected: no cpu"},
    });
    let expected = "\
Name:                      big
Namespace:                 default
Node:                      <none>
Labels:                    <none>
Annotations:               evil: ?[31m?red
Status:                    Terminating (lasts 20s)
Termination Grace Period:  9s
Reason:                    OutOfcpu
Message:                   Pod was rejected: no cpu
IP:                        
IPs:                       <none>
Containers:
  c:
    Image:        i
    Port:         <none>
    Host Port:    <none>
    Environment:  <none>
    Mounts:       <none>
Volumes:
  odd:
    <unknown>
QoS Class:       BestEffort
Node-Selectors:  <none>
Tolerations:     <none>
Events:          <none>
";
    assert_eq!(shown(pod, json!([])), expected);
}

#[test]
fn a_node_with_its_pods_and_what_they_ask_for() {
    let node = json!({
        "metadata": {"name": "n1", "creationTimestamp": "2023-11-14T22:00:00Z",
            "labels": {"kubernetes.io/arch": "amd64", "node-role.kubernetes.io/edge": ""}},
        "spec": {"podCIDR": "10.88.0.0/24", "podCIDRs": ["10.88.0.0/24", "fd00::/64"], "unschedulable": true,
            "taints": [{"key": "a", "value": "b", "effect": "NoSchedule"}, {"key": "c", "effect": "NoExecute"}]},
        "status": {
            "conditions": [{"type": "Ready", "status": "True", "lastHeartbeatTime": "2023-11-14T22:10:00Z",
                "lastTransitionTime": "2023-11-14T22:00:00Z", "reason": "KubeletReady", "message": "all \u{1b}is well"}],
            "addresses": [{"type": "InternalIP", "address": "10.0.0.1"}, {"type": "Hostname", "address": "n1"}],
            "capacity": {"cpu": "4", "memory": "1Gi", "pods": "110"},
            "allocatable": {"cpu": "2", "memory": "512Mi", "pods": "110", "hugepages-2Mi": "0"},
            "nodeInfo": {"kernelVersion": "6.1", "kubeletVersion": "v1.36.0", "osImage": ""},
        },
    });
    let mut ended = web();
    ended["metadata"]["name"] = json!("over-n1");
    ended["status"]["phase"] = json!("Succeeded");
    let decoded = |pod: Value| decode::<Pod>(pod).unwrap().object;
    let events = json!([
        {"involvedObject": {"kind": "Node", "name": "n1"}, "type": "Normal", "reason": "Starting",
            "message": "Starting kubelet.", "count": 1, "firstTimestamp": "2023-11-14T22:13:00Z",
            "lastTimestamp": "2023-11-14T22:13:00Z"},
        {"involvedObject": {"kind": "Pod", "name": "web-n1"}, "type": "Normal", "reason": "Other", "count": 1}]);
    let events: Vec<EventReport> = decode(events).unwrap().object;
    let report = AgentReport {
        pods: vec![decoded(ended), decoded(web())],
        events,
        cpus: vec!["0\t0\t0\t0\tshared, reserved".to_owned(), "1\t1\t0\t0\tdefault/web (c)".to_owned()],
        ..AgentReport::default()
    };
    let text = node::page(&node, &report, NOW);
    let expected = "\
Name:               n1
Roles:              edge
Labels:             kubernetes.io/arch=amd64
                    node-role.kubernetes.io/edge=
Annotations:        <none>
CreationTimestamp:  Tue, 14 Nov 2023 22:00:00 +0000
Taints:             a=b:NoSchedule
                    c:NoExecute
Unschedulable:      true
Conditions:
  Type   Status  LastHeartbeatTime                LastTransitionTime               Reason        Message
  ----   ------  -----------------                ------------------               ------        -------
  Ready  True    Tue, 14 Nov 2023 22:10:00 +0000  Tue, 14 Nov 2023 22:00:00 +0000  KubeletReady  all ?is well
Addresses:
  InternalIP:  10.0.0.1
  Hostname:    n1
Capacity:
  cpu:     4
  memory:  1Gi
  pods:    110
Allocatable:
  cpu:            2
  hugepages-2Mi:  0
  memory:         512Mi
  pods:           110
System Info:
  Kernel Version:     6.1
  Kubelet Version:    v1.36.0
PodCIDR:              10.88.0.0/24
PodCIDRs:             10.88.0.0/24,fd00::/64
CPUs:
  CPU                 Core    Socket  NUMA Node  Used By
  ---                 ----    ------  ---------  -------
  0                   0       0       0          shared, reserved
  1                   1       0       0          default/web (c)
Non-terminated Pods:  (1 in total)
  Namespace           Name    CPU Requests  CPU Limits  Memory Requests  Memory Limits  Age
  ---------           ----    ------------  ----------  ---------------  -------------  ---
  default             web-n1  100m (5%)     1 (50%)     64Mi (12%)       64Mi (12%)     5m
Allocated resources:
  (Total limits may be over 100 percent, i.e., overcommitted.)
  Resource           Requests    Limits
  --------           --------    ------
  cpu                100m (5%)   1 (50%)
  memory             64Mi (12%)  64Mi (12%)
  ephemeral-storage  0 (0%)      0 (0%)
  hugepages-2Mi      0 (0%)      0 (0%)
Events:
  Type    Reason    Age   From     Message
  ----    ------    ----  ----     -------
  Normal  Starting  20s   kubelet  Starting kubelet.
";
    assert_eq!(text, expected);
}
