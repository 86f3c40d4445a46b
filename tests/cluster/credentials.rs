//! Programs that provide credentials for pulls, with a service account of a real cluster.

use std::fs;
use std::os::unix::fs::PermissionsExt;

use serde_json::{Value, json};

use super::control_plane::Options;
use super::{Cluster, pod, spec};

/// Nothing answers at this registry: the test ends with the program's request.
const IMAGE: &str = "127.0.0.1:1/app:v1";
const API: &str = "credentialprovider.kubelet.k8s.io/v1";

/// A program that keeps its request and knows nothing.
fn install(cluster: &mut Cluster) {
    let directory = cluster.path("provider");
    fs::create_dir_all(&directory).expect("make the directory");
    let program = directory.join("provider");
    let answer = json!({ "kind": "CredentialProviderResponse", "apiVersion": API, "cacheKeyType": "Image",
        "cacheDuration": "1h", "auth": {} });
    let script = format!("#!/bin/sh\ncat >{}\necho '{answer}'\n", directory.join("asked").display());
    fs::write(&program, script).expect("write the program");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("make it a program");
    let attributes = json!({ "serviceAccountTokenAudience": "registry", "cacheType": "Token",
        "requireServiceAccount": true, "requiredServiceAccountAnnotationKeys": ["registry.example/role"] });
    let provider = json!({ "name": "provider", "matchImages": ["127.0.0.1:1"], "defaultCacheDuration": "1h",
        "apiVersion": API, "tokenAttributes": attributes });
    let config = json!({ "apiVersion": "kubelet.config.k8s.io/v1", "kind": "CredentialProviderConfig",
        "providers": [provider] });
    let file = directory.join("config.yaml");
    fs::write(&file, config.to_string()).expect("write the configuration");
    cluster.agent.argument(format!("--image-credential-provider-config={}", file.display()));
    cluster.agent.argument(format!("--image-credential-provider-bin-dir={}", directory.display()));
}

#[test]
fn a_token_for_a_registry_is_the_pods_for_the_server() {
    let mut cluster = Cluster::prepared(&Options::default());
    install(&mut cluster);
    cluster.agent.start();
    cluster.wait_until_ready();
    let plane = &cluster.control_plane;
    let role = json!({ "apiGroups": [""], "resources": ["registry"], "verbs": ["request-serviceaccounts-token-audience"] });
    let mut puller = spec("true");
    puller["serviceAccountName"] = json!("puller");
    puller["containers"][0]["image"] = json!(IMAGE);
    puller["containers"][0]["imagePullPolicy"] = json!("Always");
    plane.apply(&[
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", "metadata": { "name": "audience" },
            "rules": [role] }),
        json!({ "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
            "metadata": { "name": "audience" },
            "roleRef": { "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "audience" },
            "subjects": [{ "apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": "system:nodes" }] }),
        json!({ "apiVersion": "v1", "kind": "ServiceAccount",
            "metadata": { "name": "puller", "annotations": { "registry.example/role": "reader" } } }),
        pod("pulls", &puller),
    ]);
    let asked = cluster.path("provider").join("asked");
    let request: Value = plane.wait("the program to be asked", || {
        let text =
            fs::read_to_string(&asked).map_err(|error| format!("{error}; {}", cluster.agent.log_tail()))?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    });
    assert_eq!(request["image"], IMAGE);
    assert_eq!(request["serviceAccountAnnotations"], json!({ "registry.example/role": "reader" }));

    let review = json!({ "apiVersion": "authentication.k8s.io/v1", "kind": "TokenReview",
        "spec": { "token": request["serviceAccountToken"], "audiences": ["registry"] } });
    let file = cluster.path("review.json");
    fs::write(&file, review.to_string()).expect("write the review");
    let text = plane.kubectl(&["create", "-o", "json", "-f", &file.display().to_string()]);
    let review: Value = serde_json::from_str(&text).expect("JSON");
    let status = &review["status"];
    assert_eq!(
        (&status["authenticated"], &status["audiences"]),
        (&json!(true), &json!(["registry"])),
        "{status}"
    );
    assert_eq!(status["user"]["username"], "system:serviceaccount:default:puller");
    assert_eq!(
        status["user"]["extra"]["authentication.kubernetes.io/pod-name"],
        json!(["pulls"]),
        "{status}"
    );
    cluster.finish();
}
