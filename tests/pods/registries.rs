//! Pods whose images come from a registry: who is asked for a password, and what a refusal looks like.

#![expect(clippy::unwrap_used, reason = "a test says where it stands by its line")]

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};

use super::{Node, PATIENCE};
use crate::registry::docker::{HTPASSWD, Registry};
use crate::registry::image::TestImage;
use crate::support::image;
use crate::support::runtime::{Kind, on};
use crate::support::wait::wait_for;

/// A registry that lets `me` in, with busybox in it as `private/app:v1`.
fn closed_registry(node: &Node) -> Registry {
    let scratch = node.runtime.scratch();
    let archive = image::archives().into_iter().find(|path| path.ends_with("busybox.tar")).unwrap();
    let busybox = TestImage::of_archive(&archive, &scratch.dir("unpacked"));
    Registry::start(scratch, "open", "").push("private/app", "v1", &busybox);
    let passwords = scratch.path().join("htpasswd");
    fs::write(&passwords, HTPASSWD).unwrap();
    let closed = format!("auth:\n  htpasswd: {{realm: edge, path: {}}}\n", passwords.display());
    Registry::start(scratch, "closed", &closed)
}

/// A job that is pulled each time.
fn job(node: &Node, registry: &Registry) -> Value {
    let mut job = node.pod("job", "echo ran > /out/job");
    job["spec"]["restartPolicy"] = json!("Never");
    job["spec"]["containers"][0]["image"] = json!(registry.reference("private/app:v1"));
    job["spec"]["containers"][0]["imagePullPolicy"] = json!("Always");
    job
}

/// A credential provider that notes what it is asked and knows `me`.
fn make_provider(directory: &Path, port: u16) {
    let answer = json!({"kind": "CredentialProviderResponse", "apiVersion": "credentialprovider.kubelet.k8s.io/v1",
        "cacheKeyType": "Registry", "cacheDuration": "1h",
        "auth": {format!("127.0.0.1:{port}"): {"username": "me", "password": "hush"}}});
    let script = format!("#!/bin/sh\ncat >>{}\necho '{answer}'\n", directory.join("asked").display());
    let program = directory.join("provider");
    fs::write(&program, script).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let config = json!({"apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig", "providers": [
        {"name": "provider", "matchImages": ["127.0.0.1:*", format!("127.0.0.1:{port}")],
         "defaultCacheDuration": "1h", "apiVersion": "credentialprovider.kubelet.k8s.io/v1"}]});
    fs::write(directory.join("providers.yaml"), config.to_string()).unwrap();
}

fn a_credential_provider_opens_a_registry_for_a_pod() {
    let mut node = Node::new();
    let registry = closed_registry(&node);
    node.apply(&job(&node, &registry));
    let refused = node.agent.run_once(&["--runonce-timeout=10s"]);
    let said = String::from_utf8_lossy(&refused.stdout).into_owned();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(said.contains("ErrImagePull") || said.contains("ImagePullBackOff"), "{said}");

    let directory = node.runtime.scratch().dir("provider");
    make_provider(&directory, registry.port);
    node.agent.argument(format!(
        "--image-credential-provider-config={}",
        directory.join("providers.yaml").display()
    ));
    node.agent.argument(format!("--image-credential-provider-bin-dir={}", directory.display()));
    let done = node.agent.run_once(&["--runonce-wait=completed", "--runonce-timeout=60s"]);
    let said = String::from_utf8_lossy(&done.stdout).into_owned();
    assert_eq!(done.status.code(), Some(0), "{said}{}", node.agent.log_tail());
    assert_eq!(node.written("job"), "ran\n");
    let asked: Value = serde_json::from_str(&fs::read_to_string(directory.join("asked")).unwrap()).unwrap();
    assert_eq!(asked["image"], json!(registry.reference("private/app:v1")));
    assert!(!node.agent.log().contains("hush"), "passwords are in no log");
}

super::on_every_runtime! {
    a_credential_provider_opens_a_registry_for_a_pod,
}

/// containerd has no policy of its own.
#[test]
fn rejected_image_waits_with_signature_reason_embedded() {
    on(Kind::Embedded, || {
        let mut node = Node::new();
        let registry = closed_registry(&node);
        let policy = node.runtime.scratch().path().join("policy.json");
        let host = format!("127.0.0.1:{}", registry.port);
        fs::write(&policy, json!({"images": {"*": "accept", host: "reject"}}).to_string()).unwrap();
        node.agent.argument(format!("--image-policy={}", policy.display()));
        node.apply(&job(&node, &registry));
        node.agent.start();
        let waiting = |pod: &Value| {
            let waiting = &pod["status"]["containerStatuses"][0]["state"]["waiting"];
            let message = waiting["message"].as_str()?;
            message.contains("because the signature validation failed: ").then(|| waiting.clone())
        };
        let waiting = node.agent.wait_for_pod("job", "refused", waiting);
        let message = waiting["message"].as_str().unwrap();
        match waiting["reason"].as_str().unwrap() {
            "SignatureValidationFailed" => {
                assert!(message.starts_with("image pull failed for "), "{message}");
            }
            "ImagePullBackOff" => {
                assert!(message.contains(": SignatureValidationFailed: image pull"), "{message}");
            }
            other => panic!("{other}: {message}"),
        }
        wait_for("the event", PATIENCE.min(Duration::from_secs(20)), || {
            let said = node.agent.cli(&["describe", "pod", "job"])?;
            let told = said.contains("Error: SignatureValidationFailed");
            if told { Ok(()) } else { Err(said) }
        });
    });
}

#[test]
fn broken_archive_is_a_problem_until_it_is_gone_embedded() {
    on(Kind::Embedded, || {
        let mut node = Node::new();
        let archive = node.runtime.scratch().path().join("images/bad.tar");
        fs::write(&archive, "no archive").unwrap();
        node.agent.start();
        let expected =
            format!("{}: the image archive cannot be imported: read the archive: ", archive.display());
        wait_for("the problem", PATIENCE, || {
            let said = node.agent.cli(&["status", "--exit-zero"])?;
            let is_listed = said.contains(&expected) && said.contains("replace it with a complete one");
            if is_listed { Ok(()) } else { Err(said) }
        });
        fs::remove_file(&archive).unwrap();
        wait_for("all to be well", PATIENCE, || node.agent.cli(&["status"]).map(drop));
    });
}
