//! The phases of `kubeadm init` and `kubeadm join` by their names, and which of them a command runs.
//!
//! Pure: names in, names out.

/// A phase, its parent before it with a slash, and its line of help; empty: a legal name for `--skip-phases` that skips
/// nothing, or one that cannot be run alone.
type Phase = (&'static str, &'static str);

/// The phases of a command.
pub(crate) struct PhaseList {
    /// In the order of their execution.
    phases: &'static [Phase],
    aliases: &'static [Phase],
    /// A phase, and those that it shows the results of.
    needs: (&'static str, &'static [&'static str]),
}

pub(crate) const INIT: PhaseList =
    PhaseList { phases: &PHASES, aliases: &ALIASES, needs: (LAST, &["bootstrap-token", "upload-certs"]) };
pub(crate) const JOIN: PhaseList = PhaseList { phases: &JOIN_PHASES, aliases: &[], needs: ("", &[]) };

const PHASES: [Phase; 44] = [
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
const ALIASES: [Phase; 2] = [("uploadconfig", "upload-config"), ("bootstraptoken", "bootstrap-token")];
const LAST: &str = "show-join-command";

const JOIN_PHASES: [Phase; 15] = [
    ("preflight", "Run join pre-flight checks"),
    ("control-plane-prepare", "Prepare the machine for serving a control plane"),
    (
        "control-plane-prepare/download-certs",
        "Download certificates shared among control-plane nodes from the kubeadm-certs Secret",
    ),
    ("control-plane-prepare/certs", "Generate the certificates for the new control plane components"),
    ("control-plane-prepare/kubeconfig", "Generate the kubeconfig for the new control plane components"),
    ("control-plane-prepare/control-plane", "Generate the manifests for the new control plane components"),
    ("check-etcd", "Check that the etcd cluster is healthy"),
    ("kubelet-start", "Write kubelet settings, certificates and (re)start the kubelet"),
    ("etcd-join", "Join etcd for control plane nodes"),
    ("kubelet-wait-bootstrap", "Wait for the kubelet to bootstrap itself"),
    ("control-plane-join", "Join a machine as a control plane instance"),
    ("control-plane-join/mark-control-plane", "Mark a node as a control-plane"),
    ("wait-control-plane", "Wait for the control plane to start"),
    ("control-plane-prepare/all", ""),
    ("control-plane-join/all", ""),
];

impl PhaseList {
    fn known(&self, name: &str) -> Option<&'static str> {
        self.phases.iter().map(|(known, _)| *known).find(|known| *known == name)
    }

    /// Phases that do something, in their order.
    pub(crate) fn all(&self) -> impl Iterator<Item = Phase> {
        self.phases.iter().copied().filter(|(_, help)| !help.is_empty())
    }

    fn has_children(&self, name: &str) -> bool {
        self.all().any(|(child, _)| child.split_once('/').is_some_and(|(parent, _)| parent == name))
    }

    /// The phase that the words after `phase` name: `certs ca` is `certs/ca`, `certs all` is `certs`.
    pub(crate) fn named(&self, words: &[String]) -> Result<&'static str, String> {
        let unknown = |name: &str| format!("invalid phase name: {name}");
        let Some(first) = words.first() else { return Err("subcommand is required".to_owned()) };
        let alias = self.aliases.iter().find(|(alias, _)| alias == first);
        let first = alias.map_or(first.as_str(), |(_, name)| *name);
        match words.get(1) {
            Some(_) if words.len() > 2 => Err(unknown(&words.join("/"))),
            Some(all) if all == "all" && self.has_children(first) => {
                self.known(first).ok_or_else(|| unknown(first))
            }
            Some(child) => {
                let name = format!("{first}/{child}");
                self.all().map(|(known, _)| known).find(|known| *known == name).ok_or_else(|| unknown(&name))
            }
            None if self.has_children(first) => Err("subcommand is required".to_owned()),
            None => self.known(first).ok_or_else(|| unknown(first)),
        }
    }

    /// The phases to run: `only` one with its children, or all but those that are skipped, with theirs.
    pub(crate) fn select(&self, only: Option<&str>, skipped: &[String]) -> Result<Vec<&'static str>, String> {
        if let Some(name) = skipped.iter().find(|name| self.known(name).is_none()) {
            return Err(format!("invalid phase name: {name}"));
        }
        let is_or_below = |phase: &str, name: &str| {
            phase == name || phase.split_once('/').is_some_and(|(parent, _)| parent == name)
        };
        let is_wanted = |phase: &str| match only {
            Some(only) => is_or_below(phase, only),
            None => !skipped.iter().any(|name| is_or_below(phase, name)),
        };
        let chosen: Vec<&'static str> =
            self.all().map(|(name, _)| name).filter(|name| is_wanted(name)).collect();
        let (last, needed) = self.needs;
        let missing: Vec<&str> = needed.iter().copied().filter(|needed| !chosen.contains(needed)).collect();
        if chosen.contains(&last) && !missing.is_empty() {
            return Err(format!(
                "unresolved dependencies:\n\tmissing [{}] phase(s) needed by {last:?} phase",
                missing.join(" ")
            ));
        }
        Ok(chosen)
    }

    /// Names and lines of help, for the end of a command's help.
    pub(crate) fn listed(&self) -> String {
        let line = |(name, help): Phase| {
            let (indent, shown) = name.split_once('/').map_or(("  ", name), |(_, child)| ("    ", child));
            [indent, &format!("{shown:<30} {help}"), "\n"].concat()
        };
        self.all().map(line).collect()
    }
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
                INIT.named(&words(given)).map_err(|error| error.clone()),
                expected.map_err(str::to_owned),
                "{given}"
            );
        }
    }

    #[test]
    fn skipping_a_parent_skips_its_children_and_checks_dependencies() {
        let whole = INIT.select(None, &[]).unwrap();
        assert_eq!(whole.len(), 39);
        assert_eq!((whole[0], whole[38]), ("preflight", LAST));
        let place = |name| whole.iter().position(|phase| *phase == name);
        assert!(place("control-plane/scheduler") < place("kubelet-start"));
        assert!(place("kubelet-start") < place("wait-control-plane"));
        let some = INIT.select(None, &words("certs addon/kube-proxy certs/all")).unwrap();
        assert!(!some.iter().any(|phase| phase.starts_with("certs")), "{some:?}");
        assert!(some.contains(&"addon/coredns") && !some.contains(&"addon/kube-proxy"));
        assert_eq!(INIT.select(Some("etcd"), &[]).unwrap(), ["etcd", "etcd/local"]);
        assert_eq!(INIT.select(Some("certs/ca"), &[]).unwrap(), ["certs/ca"]);
        assert_eq!(INIT.select(None, &words("cert")).unwrap_err(), "invalid phase name: cert");
        let error = INIT.select(None, &words("upload-certs")).unwrap_err();
        assert!(error.contains("missing [upload-certs] phase(s) needed by \"show-join-command\""), "{error}");
        assert!(INIT.select(None, &words("upload-certs show-join-command")).is_ok());
        assert!(INIT.select(Some(LAST), &[]).is_err());
    }

    #[test]
    fn joining_has_phases_of_its_own() {
        let whole = JOIN.select(None, &[]).unwrap();
        assert_eq!((whole.len(), whole[12]), (13, "wait-control-plane"));
        let place = |name| whole.iter().position(|phase| *phase == name);
        assert!(
            place("kubelet-start") < place("etcd-join")
                && place("etcd-join") < place("kubelet-wait-bootstrap")
        );
        assert_eq!(JOIN.named(&words("control-plane-prepare certs")), Ok("control-plane-prepare/certs"));
        assert_eq!(JOIN.named(&words("control-plane-join all")), Ok("control-plane-join"));
        assert!(JOIN.named(&words("upload-certs")).is_err());
        let some = JOIN.select(None, &words("check-etcd control-plane-prepare")).unwrap();
        assert_eq!((some.len(), some[1]), (7, "kubelet-start"));
    }
}
