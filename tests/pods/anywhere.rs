//! A box that boots where nothing is as it was: no route, no server, another name. On the agent's own runtime, in a network
//! namespace in which not even the loopback is up.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::json;

use super::Node;
use crate::support::agent::{PATIENCE, binary};
use crate::support::http_server::{Answer, HttpServer};
use crate::support::runtime::{Kind, on};
use crate::support::wait::wait_for;

#[test]
fn url_pods_start_without_routes_and_survive_a_rename() {
    on(Kind::Embedded, || {
        let mut node = Node::new();
        // It cannot start before the second boot: what it needs comes with that.
        let mut pod = node.pod("far", "cat /conf/word > /out/word; sleep 1000");
        pod["spec"].as_object_mut().expect("an object").remove("hostNetwork");
        pod["spec"]["volumes"]
            .as_array_mut()
            .expect("a list")
            .push(json!({ "name": "conf", "configMap": { "name": "conf" } }));
        pod["spec"]["containers"][0]["volumeMounts"]
            .as_array_mut()
            .expect("a list")
            .push(json!({ "name": "conf", "mountPath": "/conf" }));
        let server = HttpServer::start(Answer::manifest(&pod.to_string()));
        node.agent.argument(format!("--manifest-url={}", server.url("/pods.yaml")));
        node.agent.start();
        node.agent.wait_for_pod("far", "waiting for its ConfigMap", |pod| {
            pod["status"].to_string().contains("configmap \\\"conf\\\" not found").then_some(())
        });
        node.agent.kill9();
        drop(server);

        let wrapper = node.runtime.scratch().path().join("nowhere");
        fs::write(&wrapper, format!("#!/bin/sh\nexec unshare --net {} \"$@\"\n", binary().display()))
            .expect("write the wrapper");
        fs::set_permissions(&wrapper, fs::Permissions::from_mode(0o755)).expect("make it a program");
        node.agent = std::mem::replace(&mut node.agent, node.runtime.agent()).with_program(&wrapper);
        let conf = json!({ "apiVersion": "v1", "kind": "ConfigMap", "metadata": { "name": "conf" },
            "data": { "word": "anywhere\n" } });
        node.agent.write_manifest("conf.yaml", &conf.to_string());
        node.agent.start();
        assert_eq!(node.written("word"), "anywhere\n");
        node.agent.wait_for_pod("far", "addressed", |pod| {
            pod["status"]["podIP"].as_str().filter(|ip| !ip.is_empty()).map(str::to_owned)
        });
        let far = node.running("far");
        let status = wait_for("the server to be missed", PATIENCE, || {
            let status = node.agent.cli(&["status", "--exit-zero"])?;
            if status.contains("SourceUnavailable") { Ok(status) } else { Err(status) }
        });
        assert!(status.contains("/pods.yaml"), "{status}");

        // Another name: what ran under the old one runs on while nobody says otherwise.
        node.agent.terminate();
        node.agent.argument("--hostname-override=renamed");
        node.agent.start();
        wait_for("the agent to be called otherwise", PATIENCE, || {
            let status = node.agent.cli(&["status", "--exit-zero"])?;
            let ready =
                status.contains("renamed") && status.contains("far-edge") && status.contains("(ready)");
            if ready { Ok(()) } else { Err(status) }
        });
        assert_eq!(node.running("far"), far, "nobody restarted it");
    });
}
