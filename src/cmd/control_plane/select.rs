//! The phases of `kubeadm init` by their names, and which of them a command runs.
//!
//! Pure: names in, names out.

/// A phase, its parent before it with a slash, and its line of help. In the order of their execution.
pub(crate) const PHASES: [(&str, &str); 44] = [
    ("preflight", "Run pre-flight checks"),
    ("certs", "Certificate generation"),
    (
        "certs/ca",
        "Generate the self-signed Kubernetes CA to provision identities for other Kubernetes components",
    ),
    ("certs/apiserver", "Generate the certificate for serving the Kubernetes API"),
    ("certs/apiserver-kubelet-client", "Generate the certificate for the API server to connect to kubelet"),
    ("certs/front-proxy-ca", "Generate the self-signed CA to provision identities for front proxy"),
    ("certs/front-proxy-client", "Generate the certificate for the front proxy client"),
    ("certs/etcd-ca", "Generate the self-signed CA to provision identities for etcd"),
    ("certs/etcd-server", "Generate the certificate for serving etcd"),
    ("certs/etcd-peer", "Generate the certificate for etcd nodes to communicate with each other"),
    ("certs/etcd-healthcheck-client", "Generate the certificate for liveness probes to healthcheck etcd"),
    ("certs/apiserver-etcd-client", "Generate the certificate the apiserver uses to access etcd"),
    ("certs/sa", "Generate a private key for signing service account tokens along with its public key"),
    (
        "kubeconfig",
        "Generate all kubeconfig files necessary to establish the control plane and the admin kubeconfig file",
    ),
    ("kubeconfig/admin", "Generate a kubeconfig file for the admin to use and for kubeadm itself"),
    ("kubeconfig/super-admin", "Generate a kubeconfig file for the super-admin"),
    (
        "kubeconfig/kubelet",
        "Generate a kubeconfig file for the kubelet to use *only* for cluster bootstrapping purposes",
    ),
    ("kubeconfig/controller-manager", "Generate a kubeconfig file for the controller manager to use"),
    ("kubeconfig/scheduler", "Generate a kubeconfig file for the scheduler to use"),
    ("etcd", "Generate static Pod manifest file for local etcd"),
    ("etcd/local", "Generate the static Pod manifest file for a local, single-node local etcd instance"),
    ("control-plane", "Generate all static Pod manifest files necessary to establish the control plane"),
    ("control-plane/apiserver", "Generates the kube-apiserver static Pod manifest"),
    ("control-plane/controller-manager", "Generates the kube-controller-manager static Pod manifest"),
    ("control-plane/scheduler", "Generates the kube-scheduler static Pod manifest"),
    ("kubelet-start", "Write kubelet settings and (re)start the kubelet"),
    ("wait-control-plane", "Wait for the control plane to start"),
    ("upload-config", "Upload the kubeadm and kubelet configuration to a ConfigMap"),
    ("upload-config/kubeadm", "Upload the kubeadm ClusterConfiguration to a ConfigMap"),
    ("upload-config/kubelet", "Upload the kubelet component config to a ConfigMap"),
    ("upload-certs", "Upload certificates to kubeadm-certs"),
    ("mark-control-plane", "Mark a node as a control-plane"),
    ("bootstrap-token", "Generates bootstrap tokens used to join a node to a cluster"),
    ("kubelet-finalize", "Updates settings relevant to the kubelet after TLS bootstrap"),
    ("kubelet-finalize/enable-client-cert-rotation", "Enable kubelet client certificate rotation"),
    ("addon", "Install required addons for passing conformance tests"),
    ("addon/coredns", "Install the CoreDNS addon to a Kubernetes cluster"),
    ("addon/kube-proxy", "Install the kube-proxy addon to a Kubernetes cluster"),
    ("show-join-command", "Show the join command for control-plane and worker node"),
    // Legal names for --skip-phases that skip nothing, and short names.
    ("certs/all", ""),
    ("kubeconfig/all", ""),
    ("control-plane/all", ""),
    ("upload-config/all", ""),
    ("addon/all", ""),
];
const ALIASES: [(&str, &str); 2] = [("uploadconfig", "upload-config"), ("bootstraptoken", "bootstrap-token")];
const LAST: &str = "show-join-command";
/// What the last phase shows.
const NEEDED: [&str; 2] = ["bootstrap-token", "upload-certs"];

fn known(name: &str) -> Option<&'static str> {
    PHASES.iter().map(|(known, _)| *known).find(|known| *known == name)
}

/// Phases that do something, in their order.
pub(crate) fn all() -> impl Iterator<Item = (&'static str, &'static str)> {
    PHASES.into_iter().filter(|(_, help)| !help.is_empty())
}

fn has_children(name: &str) -> bool {
    all().any(|(child, _)| child.split_once('/').is_some_and(|(parent, _)| parent == name))
}

/// The phase that the words after `phase` name: `certs ca` is `certs/ca`, `certs all` is `certs`.
pub(crate) fn named(words: &[String]) -> Result<&'static str, String> {
    let unknown = |name: &str| format!("invalid phase name: {name}");
    let Some(first) = words.first() else { return Err("subcommand is required".to_owned()) };
    let first = ALIASES.iter().find(|(alias, _)| alias == first).map_or(first.as_str(), |(_, name)| *name);
    match words.get(1) {
        Some(_) if words.len() > 2 => Err(unknown(&words.join("/"))),
        Some(all) if all == "all" && has_children(first) => known(first).ok_or_else(|| unknown(first)),
        Some(child) => {
            let name = format!("{first}/{child}");
            all().map(|(known, _)| known).find(|known| *known == name).ok_or_else(|| unknown(&name))
        }
        None if has_children(first) => Err("subcommand is required".to_owned()),
        None => known(first).ok_or_else(|| unknown(first)),
    }
}

/// The phases to run: `only` one with its children, or all but those that are skipped, with theirs.
pub(crate) fn select(only: Option<&str>, skipped: &[String]) -> Result<Vec<&'static str>, String> {
    if let Some(name) = skipped.iter().find(|name| known(name).is_none()) {
        return Err(format!("invalid phase name: {name}"));
    }
    let is_or_below = |phase: &str, name: &str| {
        phase == name || phase.split_once('/').is_some_and(|(parent, _)| parent == name)
    };
    let is_wanted = |phase: &str| match only {
        Some(only) => is_or_below(phase, only),
        None => !skipped.iter().any(|name| is_or_below(phase, name)),
    };
    let chosen: Vec<&'static str> = all().map(|(name, _)| name).filter(|name| is_wanted(name)).collect();
    let missing: Vec<&str> = NEEDED.into_iter().filter(|needed| !chosen.contains(needed)).collect();
    if chosen.contains(&LAST) && !missing.is_empty() {
        return Err(format!(
            "unresolved dependencies:\n\tmissing [{}] phase(s) needed by {LAST:?} phase",
            missing.join(" ")
        ));
    }
    Ok(chosen)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn words_name_a_phase_as_kubeadm_reads_them() {
        for (given, expected) in [
            ("preflight", Ok("preflight")),
            ("certs ca", Ok("certs/ca")),
            ("certs all", Ok("certs")),
            ("uploadconfig kubeadm", Ok("upload-config/kubeadm")),
            ("bootstraptoken", Ok("bootstrap-token")),
            ("etcd local", Ok("etcd/local")),
            ("certs", Err("subcommand is required")),
            ("", Err("subcommand is required")),
            ("certs other", Err("invalid phase name: certs/other")),
            ("preflight all", Err("invalid phase name: preflight/all")),
            ("other", Err("invalid phase name: other")),
            ("certs ca now", Err("invalid phase name: certs/ca/now")),
        ] {
            assert_eq!(
                named(&words(given)).map_err(|error| error.clone()),
                expected.map_err(str::to_owned),
                "{given}"
            );
        }
    }

    #[test]
    fn skipping_a_parent_skips_its_children_and_checks_dependencies() {
        let whole = select(None, &[]).unwrap();
        assert_eq!(whole.len(), 39);
        assert_eq!((whole[0], whole[38]), ("preflight", LAST));
        let place = |name| whole.iter().position(|phase| *phase == name);
        assert!(place("control-plane/scheduler") < place("kubelet-start"));
        assert!(place("kubelet-start") < place("wait-control-plane"));
        let some = select(None, &words("certs addon/kube-proxy certs/all")).unwrap();
        assert!(!some.iter().any(|phase| phase.starts_with("certs")), "{some:?}");
        assert!(some.contains(&"addon/coredns") && !some.contains(&"addon/kube-proxy"));
        assert_eq!(select(Some("etcd"), &[]).unwrap(), ["etcd", "etcd/local"]);
        assert_eq!(select(Some("certs/ca"), &[]).unwrap(), ["certs/ca"]);
        assert_eq!(select(None, &words("cert")).unwrap_err(), "invalid phase name: cert");
        let error = select(None, &words("upload-certs")).unwrap_err();
        assert!(error.contains("missing [upload-certs] phase(s) needed by \"show-join-command\""), "{error}");
        assert!(select(None, &words("upload-certs show-join-command")).is_ok());
        assert!(select(Some(LAST), &[]).is_err());
    }
}
