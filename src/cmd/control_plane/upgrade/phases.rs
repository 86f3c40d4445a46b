//! The phases of `upgrade apply` and `upgrade node`, with kubeadm's names.
//!
//! Pure: names in, names out.

/// In the order of their execution: the name, its line of help, whether `node` has it.
const PHASES: [(&str, &str, bool); 12] = [
    ("preflight", "Run preflight checks before upgrade", true),
    ("control-plane", "Upgrade the control plane", true),
    ("upload-config", "Upload the kubeadm and kubelet configurations to ConfigMaps", false),
    ("upload-config/kubeadm", "Upload the kubeadm ClusterConfiguration to a ConfigMap", false),
    ("upload-config/kubelet", "Upload the kubelet configuration to a ConfigMap", false),
    ("kubeconfig", "Upgrade kubeconfig files for this node", true),
    ("kubelet-config", "Upgrade the kubelet configuration for this node", true),
    ("bootstrap-token", "Configures bootstrap token and cluster-info RBAC rules", false),
    ("addon", "Upgrade the default kubeadm addons", true),
    ("addon/coredns", "Upgrade the CoreDNS addon", true),
    ("addon/kube-proxy", "Upgrade the kube-proxy addon", true),
    ("post-upgrade", "Run post upgrade tasks", true),
];

fn of(is_node: bool) -> impl Iterator<Item = (&'static str, &'static str)> {
    let theirs = PHASES.into_iter().filter(move |(.., has_node)| *has_node || !is_node);
    theirs.map(|(name, help, _)| (name, help))
}

/// The list of `--help`.
pub(super) fn help() -> String {
    let line = |(name, help, has_node): (&str, &str, bool)| {
        let (indent, shown) = name.split_once('/').map_or(("  ", name), |(_, child)| ("    ", child));
        let whose = if has_node { "" } else { " (apply only)" };
        [indent, &format!("{shown:<24} {help}{whose}"), "\n"].concat()
    };
    PHASES.into_iter().map(line).collect()
}

/// The phase that the words after `phase` name: `addon coredns` is `addon/coredns`, `addon all` is `addon`.
pub(super) fn named(words: &[String], is_node: bool) -> Result<&'static str, String> {
    let name = match words {
        [] => return Err("subcommand is required".to_owned()),
        [first] if first == "uploadconfig" => "upload-config".to_owned(),
        [first, child] if first == "uploadconfig" => format!("upload-config/{child}"),
        words => words.join("/"),
    };
    let has_children = |name: &str| of(is_node).any(|(phase, _)| parent(phase) == Some(name));
    let (name, is_all) = match name.strip_suffix("/all") {
        Some(parent) if has_children(parent) => (parent, true),
        _ => (name.as_str(), false),
    };
    let known = of(is_node).map(|(known, _)| known).find(|known| *known == name);
    let known = known.ok_or_else(|| format!("invalid phase name: {name}"))?;
    if has_children(known) && !is_all {
        return Err("subcommand is required".to_owned());
    }
    Ok(known)
}

fn parent(phase: &str) -> Option<&str> {
    phase.split_once('/').map(|(parent, _)| parent)
}

/// The phases to run: `only` one with its children, or all but those that are skipped, with theirs. Parents alone do nothing.
pub(super) fn select(
    only: Option<&str>,
    skipped: &[String],
    is_node: bool,
) -> Result<Vec<&'static str>, String> {
    let without_all = |name: &str| name.strip_suffix("/all").unwrap_or(name).to_owned();
    if let Some(name) = skipped.iter().find(|name| of(is_node).all(|(known, _)| known != without_all(name))) {
        return Err(format!("invalid phase name: {name}"));
    }
    let is_or_below = |phase: &str, name: &str| phase == name || parent(phase) == Some(name);
    let is_wanted = |phase: &str| match only {
        Some(only) => is_or_below(phase, only),
        None => !skipped.iter().any(|name| is_or_below(phase, name)),
    };
    let is_parent = |name: &str| of(is_node).any(|(phase, _)| parent(phase) == Some(name));
    Ok(of(is_node).map(|(name, _)| name).filter(|name| is_wanted(name) && !is_parent(name)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split_whitespace().map(str::to_owned).collect()
    }

    #[test]
    fn phases_are_kubeadms_in_its_order() {
        assert_eq!(
            select(None, &[], false).unwrap(),
            [
                "preflight",
                "control-plane",
                "upload-config/kubeadm",
                "upload-config/kubelet",
                "kubeconfig",
                "kubelet-config",
                "bootstrap-token",
                "addon/coredns",
                "addon/kube-proxy",
                "post-upgrade",
            ]
        );
        assert_eq!(
            select(None, &words("addon/coredns preflight"), true).unwrap(),
            ["control-plane", "kubeconfig", "kubelet-config", "addon/kube-proxy", "post-upgrade"]
        );
        assert_eq!(select(Some("addon"), &[], true).unwrap(), ["addon/coredns", "addon/kube-proxy"]);
        assert_eq!(
            select(None, &words("upload-config"), true).unwrap_err(),
            "invalid phase name: upload-config"
        );
        // It skips nothing, as in kubeadm.
        assert_eq!(select(None, &words("addon/all"), false).unwrap().len(), 10);
    }

    #[test]
    fn words_name_a_phase() {
        for (given, is_node, expected) in [
            ("control-plane", false, Ok("control-plane")),
            ("addon coredns", true, Ok("addon/coredns")),
            ("addon all", true, Ok("addon")),
            ("uploadconfig kubelet", false, Ok("upload-config/kubelet")),
            ("uploadconfig kubelet", true, Err("invalid phase name: upload-config/kubelet")),
            ("addon", false, Err("subcommand is required")),
            ("", false, Err("subcommand is required")),
            ("preflight all", false, Err("invalid phase name: preflight/all")),
            ("addon coredns now", false, Err("invalid phase name: addon/coredns/now")),
        ] {
            assert_eq!(named(&words(given), is_node), expected.map_err(str::to_owned), "{given}");
        }
    }
}
