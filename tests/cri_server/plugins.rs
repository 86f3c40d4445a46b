//! Network plugins that hang or are slow to say how they are.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use edge_agent::platform::proto::runtime as cri;
use tokio::time::timeout;

use super::served::{PATIENCE, Served};

/// Notes every call; holds the network of pod `slow` until a file is there.
const PLUGIN: &str = r#"#!/bin/sh
cat > /dev/null
echo "$CNI_COMMAND $CNI_ARGS" >> DIR/calls
case $CNI_COMMAND,$CNI_ARGS in
ADD,*K8S_POD_NAME=slow*) while [ ! -e DIR/go ]; do sleep 0.05; done ;;
esac
[ "$CNI_COMMAND" = ADD ] || exit 0
echo '{"cniVersion":"1.1.0","interfaces":[{"name":"eth0","sandbox":"/x"}],"ips":[{"interface":0,"address":"10.9.0.7/24"}]}'
"#;

fn configure(served: &Served) {
    let directory = served.scratch.path();
    let (plugins, configuration) = (served.scratch.dir("cni-bin"), served.scratch.dir("no-cni"));
    let program = plugins.join("noting");
    fs::write(&program, PLUGIN.replace("DIR", &directory.display().to_string())).expect("write the plugin");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it a program");
    let list = r#"{"cniVersion":"1.1.0","name":"noted","plugins":[{"type":"noting"}]}"#;
    // In one step: half a file would be an error.
    fs::write(directory.join("unfinished"), list).expect("write the configuration");
    fs::rename(directory.join("unfinished"), configuration.join("10-noted.conflist"))
        .expect("put it into place");
}

fn calls(served: &Served, command: &str) -> usize {
    let text = fs::read_to_string(served.scratch.path().join("calls")).unwrap_or_default();
    text.lines().filter(|line| line.starts_with(command)).count()
}

#[tokio::test]
async fn a_plugin_that_hangs_holds_up_its_own_pod_alone() {
    let mut served = Served::start().await;
    configure(&served);
    let mut other = served.another_client().await;
    let request = cri::RunPodSandboxRequest {
        config: Some(served.sandbox_config("slow")),
        runtime_handler: String::new(),
    };
    let slow = tokio::spawn(async move { other.run_pod_sandbox(request).await });
    wait_until_async(|| calls(&served, "ADD") == 1).await;
    for name in ["one", "two"] {
        let sandbox = timeout(PATIENCE, served.sandbox(name)).await.expect("nobody holds it up");
        let request = cri::PodSandboxStatusRequest { pod_sandbox_id: sandbox.clone(), verbose: false };
        let status = served.runtime.pod_sandbox_status(request).await.expect("it is there").into_inner();
        assert_eq!(status.status.and_then(|status| status.network).expect("a network").ip, "10.9.0.7");
        let request = cri::StopPodSandboxRequest { pod_sandbox_id: sandbox };
        timeout(PATIENCE, served.runtime.stop_pod_sandbox(request))
            .await
            .expect("in time")
            .expect("it stops");
    }
    assert!(!slow.is_finished());
    fs::write(served.scratch.path().join("go"), "").expect("let it go on");
    timeout(PATIENCE, slow).await.expect("in time").expect("no panic").expect("it runs after all");
    assert_eq!((calls(&served, "ADD"), calls(&served, "DEL")), (3, 2));
}

#[tokio::test]
async fn plugins_are_not_run_for_every_question_about_the_runtime() {
    let mut served = Served::start().await;
    configure(&served);
    for _ in 0..20 {
        let status = served.runtime.status(cri::StatusRequest { verbose: false }).await.expect("it answers");
        let conditions = status.into_inner().status.expect("a status").conditions;
        assert!(conditions.iter().all(|condition| condition.status), "{conditions:?}");
    }
    let asked = calls(&served, "STATUS");
    assert!((1..=10).contains(&asked), "{asked}");

    // Another configuration is looked at at once.
    let configuration = served.scratch.path().join("no-cni/10-noted.conflist");
    fs::write(&configuration, r#"{"cniVersion":"1.1.0","name":"other","plugins":[{"type":"missing"}]}"#)
        .expect("change the configuration");
    let status = served.runtime.status(cri::StatusRequest { verbose: false }).await.expect("it answers");
    let conditions = status.into_inner().status.expect("a status").conditions;
    let network =
        conditions.iter().find(|condition| condition.r#type == "NetworkReady").expect("a condition");
    assert!(!network.status && network.message.contains("missing"), "{network:?}");
}

async fn wait_until_async(holds: impl Fn() -> bool) {
    let wait = async {
        while !holds() {
            tokio::time::sleep(std::time::Duration::from_millis(20)).await;
        }
    };
    timeout(PATIENCE, wait).await.expect("it happens in time");
}
