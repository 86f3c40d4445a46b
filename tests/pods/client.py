"""The stock Python client against one node: list, create, watch, patch, log, exec and delete, in this order.

    client.py KUBECONFIG POD      POD is a pod's manifest as JSON, which says "started" and then sleeps
"""

import json
import sys

from kubernetes import client, config, watch
from kubernetes.stream import stream

PATIENCE = 120


def until(api, namespace, name, version, reached):
    """Watches from a version until an event is what is waited for."""
    watcher = watch.Watch()
    events = watcher.stream(
        api.list_namespaced_pod,
        namespace,
        field_selector=f"metadata.name={name}",
        resource_version=version,
        timeout_seconds=PATIENCE,
    )
    for event in events:
        if reached(event["type"], event["object"]):
            watcher.stop()
            return event["object"]
    raise SystemExit(f"{name}: not reached within {PATIENCE} s")


def main():
    config.load_kube_config(sys.argv[1])
    api = client.CoreV1Api()
    with open(sys.argv[2], encoding="utf-8") as manifest:
        pod = json.load(manifest)
    name, namespace = pod["metadata"]["name"], "default"

    before = api.list_namespaced_pod(namespace)
    assert name not in [item.metadata.name for item in before.items], "it is there already"
    version = before.metadata.resource_version
    assert api.list_node().items[0].status.capacity["cpu"]
    print("list", len(before.items))

    made = api.create_namespaced_pod(namespace, pod)
    assert made.metadata.uid and made.spec.restart_policy == "Always", made
    print("create", made.metadata.name)

    def is_ready(kind, item):
        found = item.status.conditions or []
        return kind != "DELETED" and any(one.type == "Ready" and one.status == "True" for one in found)

    ready = until(api, namespace, name, version, is_ready)
    assert ready.status.pod_ip and ready.status.container_statuses[0].state.running.started_at
    print("watch", ready.status.phase)

    patch = {"metadata": {"labels": {"patched": "yes"}}}
    patched = api.patch_namespaced_pod(name, namespace, patch)
    assert patched.metadata.labels["patched"] == "yes"
    found = api.list_namespaced_pod(namespace, label_selector="patched=yes")
    assert [item.metadata.name for item in found.items] == [name]
    print("patch", patched.metadata.labels["patched"])

    print("log", api.read_namespaced_pod_log(name, namespace).strip())

    connect = api.connect_get_namespaced_pod_exec
    said = stream(
        connect, name, namespace, command=["sh", "-c", "echo out; echo err >&2"], stdout=True, stderr=True
    )
    assert sorted(said.split()) == ["err", "out"], said
    session = stream(
        connect,
        name,
        namespace,
        command=["sh", "-c", "read line; echo got $line; exit 3"],
        stdin=True,
        stdout=True,
        _preload_content=False,
    )
    session.write_stdin("word\n")
    session.run_forever(timeout=PATIENCE)
    print("exec", session.read_stdout().strip(), session.returncode)

    api.delete_namespaced_pod(name, namespace, grace_period_seconds=1)
    until(api, namespace, name, patched.metadata.resource_version, lambda kind, item: kind == "DELETED")
    try:
        api.read_namespaced_pod(name, namespace)
        raise SystemExit("it is still there")
    except client.ApiException as gone:
        print("delete", gone.status, gone.reason)


main()
