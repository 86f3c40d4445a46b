//! Plans as kubeadm prints them.

use super::*;
use crate::cmd::control_plane::upgrade::view::tests::{pod, settings, view};

#[test]
fn a_plan_names_every_component_and_where_it_runs() {
    let view = view();
    let plan = plan(&view, &settings(&view, "v1.36.2"), "v1.36.0", true);
    assert_eq!(
        (&plan["kind"], &plan["apiVersion"]),
        (&json!("UpgradePlan"), &json!("output.kubeadm.k8s.io/v1alpha3"))
    );
    let upgrade = &plan["availableUpgrades"][0];
    assert_eq!(upgrade["description"], "version in the v1.36 series");
    let rows: Vec<String> = upgrade["components"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| {
            ["name", "nodeName", "currentVersion", "newVersion"]
                .map(|name| one[name].as_str().unwrap_or_default())
                .join(" ")
        })
        .collect();
    assert_eq!(
        rows,
        [
            "kubelet b v1.35.0 v1.36.2",
            "kubelet a v1.36.1 v1.36.2",
            "kube-apiserver b v1.35.0 v1.36.2",
            "kube-apiserver a v1.36.1 v1.36.2",
            "etcd a 3.6.8-0 3.6.8-0",
            "kube-proxy  v1.36.1 v1.36.2",
            "CoreDNS  v1.13.1 v1.14.2",
            "kubeadm  v1.36.0 v1.36.0",
        ]
    );
    assert_eq!(
        plan["configVersions"][1],
        json!({
            "group": "kubelet.config.k8s.io", "currentVersion": "v1beta1", "preferredVersion": "v1beta1",
            "manualUpgradeRequired": false,
        })
    );
    let without = super::plan(&view, &settings(&view, "v1.36.2"), "v1.36.0", false);
    assert!(!without.to_string().contains("etcd"));
}

#[test]
fn the_text_of_a_plan_says_how_to_apply_it() {
    let view = view();
    let shown = |target: &str| text(&plan(&view, &settings(&view, target), "v1.36.0", true));
    let said = shown("v1.36.2");
    for part in [
        "Components that must be upgraded manually after you have upgraded the control plane with 'agent upgrade apply':\n",
        "kubelet     b      v1.35.0   v1.36.2\n",
        "Upgrade to the latest version in the v1.36 series:\n\nCOMPONENT",
        "kube-apiserver   b      v1.35.0   v1.36.2\n",
        "\n\tagent upgrade apply v1.36.2\n",
        "kubelet.config.k8s.io     v1beta1           v1beta1             no\n",
    ] {
        assert!(said.contains(part), "{part:?} in {said}");
    }
    assert!(!said.contains("Note:"), "{said}");
    let said = shown("v1.37.0-rc.1");
    assert!(said.contains("Upgrade to the latest stable version:"), "{said}");
    assert!(
        said.contains("\tagent upgrade apply v1.37.0-rc.1 --allow-release-candidate-upgrades\n"),
        "{said}"
    );
    assert!(said.contains("install an agent that is made for v1.37.0-rc.1"), "{said}");
    for target in ["v1.36.1", "v1.36.0"] {
        assert!(shown(target).contains("nothing to upgrade to"), "{target}");
    }
}

#[test]
fn configurations_that_are_missing_or_old_are_shown() {
    let mut view = view();
    view.documents.kube_proxy = Value::Null;
    view.documents.kubelet["apiVersion"] = "kubelet.config.k8s.io/v1".into();
    view.pods = vec![pod("kube-apiserver", "a", "r/kube-apiserver:v1.36.1")];
    let settings = {
        let mut settings = settings(&super::super::view::tests::view(), "v1.36.2");
        settings.cluster.dns_disabled = true;
        settings.cluster.proxy_disabled = true;
        settings
    };
    let plan = plan(&view, &settings, "v1.36.0", true);
    let said = text(&plan);
    assert!(said.contains("kubeproxy.config.k8s.io   -                 v1alpha1            no\n"), "{said}");
    assert!(said.contains("kubelet.config.k8s.io     v1                v1beta1             yes\n"), "{said}");
    assert!(!said.contains("CoreDNS") && !said.contains("kube-proxy  "), "{said}");
}
