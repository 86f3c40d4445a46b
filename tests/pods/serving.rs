//! Into pods over the API: logs, programs and ports, whichever runtime runs them.

use edge_agent::serve::streaming::spdy::dictionary::dictionary;
use serde_json::{Value, json};

use super::Node;
use crate::cri_server::client::{Spdy, WebSocket};
use crate::support::agent::PATIENCE;
use crate::support::api::Api;
use crate::support::runtime::on_every_runtime;
use crate::support::wait::{wait_for, wait_until};

fn on_tokio(test: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(test);
}

fn logs_are_read_followed_and_cut() {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    let script = "echo one; echo two; echo three >&2; until [ -e /out/go ]; do sleep 0.1; done; echo four; \
                  [ -e /out/again ] || { touch /out/again; exit 3; }; sleep 1000";
    let pod = node.pod("talker", script);
    node.apply(&pod);
    node.agent.start();
    api.wait(&mut node.agent);
    node.running("talker");
    let admin = api.person(&node.agent, "admin", &[]);
    let container = pod["spec"]["containers"][0]["name"].as_str().expect("a name").to_owned();
    let path = format!("/containerLogs/default/talker-edge/{container}");
    let log = |query: &str| api.curl(Some(&admin), &format!("{path}{query}"), &[]);
    wait_for("the lines", PATIENCE, || match log("") {
        (200, text) if text.lines().count() == 3 => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let sorted = |text: &str| {
        let mut lines: Vec<&str> = text.lines().collect();
        lines.sort_unstable();
        lines.join(" ")
    };
    assert_eq!(sorted(&log("").1), "one three two");
    assert_eq!(log("?tailLines=1").1.lines().count(), 1);
    // The runtime decides which of the two streams comes first.
    assert_eq!(log("?limitBytes=4").1, log("").1[..4]);
    assert_eq!(log("?previous=true").0, 400);
    let stamped = log("?timestamps=true").1;
    assert!(stamped.lines().all(|line| line.starts_with("20") && line.contains("Z ")), "{stamped}");
    // A follower hears the rest and ends with the container.
    let follower = std::thread::scope(|scope| {
        let follower = scope.spawn(|| log("?follow=true&tailLines=0"));
        // Whether it has begun cannot be seen from here; what is missed is not followed.
        crate::support::wait::pause(std::time::Duration::from_secs(2));
        std::fs::write(node.out("go"), "").expect("write");
        follower.join().expect("it ends")
    });
    assert_eq!(follower.0, 200);
    assert!(follower.1.ends_with("four\n"), "{follower:?}");
    wait_for("the log of the instance before", PATIENCE, || match log("?previous=true") {
        (200, text) if sorted(&text) == "four one three two" => Ok(()),
        other => Err(format!("{other:?}")),
    });
    let logs = |options: &[&str]| {
        let socket = node.agent.socket();
        let mut command = node.agent.command_of("logs");
        let output =
            command.arg("talker").args(options).arg("--socket").arg(socket).output().expect("run it");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    assert_eq!(logs(&["-p", "--tail", "1"]), (Some(0), "four\n".to_owned(), String::new()));
    let missing = "error: container \"none\" not found in pod \"talker-edge\"\n".to_owned();
    assert_eq!(logs(&["-c", "none"]), (Some(1), String::new(), missing));
}

fn programs_and_ports_are_reached_over_spdy_and_websocket() {
    let mut node = Node::new();
    let api = Api::of(&mut node.agent, node.runtime.scratch().path());
    let mut pod = node.pod(
        "inside",
        "mkdir /www; echo welcome > /www/index.html; echo it serves; exec httpd -f -p 80 -h /www",
    );
    pod["spec"]["hostNetwork"] = json!(false);
    node.apply(&pod);
    node.agent.start();
    api.wait(&mut node.agent);
    node.running("inside");
    let admin = api.person(&node.agent, "admin", &[]);
    let container = pod["spec"]["containers"][0]["name"].as_str().expect("a name").to_owned();
    let path = format!("default/inside-edge/{container}");

    let run = |command: &str| api.curl(Some(&admin), &format!("/run/{path}?cmd={command}"), &["-X", "POST"]);
    wait_until("the page to be there", PATIENCE, || {
        run("cat+/www/index.html") == (200, "welcome\n".to_owned())
    });
    let (code, said) = run("ls+/nothing");
    assert!(code == 500 && said.contains("exited with 1"), "{code} {said}");
    // HTTP/2 has no upgrades.
    let (code, text) =
        api.curl(Some(&admin), &format!("/exec/{path}?command=id&output=1"), &["--http2", "-X", "POST"]);
    assert_eq!(code, 400, "{text}");
    let (_, running) = api.curl(Some(&admin), "/runningpods", &[]);
    let running: Value = serde_json::from_str(&running).expect("JSON");
    assert_eq!(running["items"][0]["metadata"]["name"], json!("inside-edge"), "{running}");

    on_tokio(async {
        let plain = api.plain_port(&admin).await;
        let query =
            "input=1&output=1&error=1&command=sh&command=-c&command=cat%3B+echo+bye+%3E%262%3B+exit+3";
        let url = format!("http://127.0.0.1:{plain}/exec/{path}?{query}");
        let mut client =
            Spdy::connect(&url, &["v4.channel.k8s.io"], &dictionary()).await.expect("it is accepted");
        let mut ids = Vec::new();
        for kind in ["error", "stdin", "stdout", "stderr"] {
            ids.push(client.open(&[("streamtype", kind)]).await);
        }
        client.send(ids[1], b"hello there\n", true).await;
        client.until(|client| client.finished.contains(&ids[0])).await;
        assert_eq!((client.text(ids[2]).as_str(), client.text(ids[3]).as_str()), ("hello there\n", "bye\n"));
        let status: Value = serde_json::from_slice(&client.data[&ids[0]]).expect("a status");
        assert_eq!(status["details"]["causes"][0]["message"], json!("3"), "{status}");

        let url = format!("http://127.0.0.1:{plain}/exec/{path}?output=1&command=echo&command=hi");
        let mut client = WebSocket::connect(&url, "v4.channel.k8s.io").await.expect("it is accepted");
        client.until(|client| client.channel(1) == b"hi\n").await;

        let log =
            format!("http://127.0.0.1:{plain}/api/v1/namespaces/default/pods/inside-edge/log?follow=true");
        let mut client = WebSocket::connect(&log, "binary.k8s.io").await.expect("it is accepted");
        client.until(|client| client.messages.concat().ends_with(b"it serves\n")).await;

        let url = format!("http://127.0.0.1:{plain}/portForward/default/inside-edge");
        let mut client =
            Spdy::connect(&url, &["portforward.k8s.io"], &dictionary()).await.expect("it is accepted");
        let error = client.open(&[("streamtype", "error"), ("port", "80"), ("requestid", "0")]).await;
        let data = client.open(&[("streamtype", "data"), ("port", "80"), ("requestid", "0")]).await;
        client.send(error, b"", true).await;
        client.send(data, b"GET / HTTP/1.0\r\n\r\n", false).await;
        client.until(|client| client.text(data).ends_with("welcome\n")).await;
    });
}

on_every_runtime! {
    logs_are_read_followed_and_cut,
    programs_and_ports_are_reached_over_spdy_and_websocket,
}
