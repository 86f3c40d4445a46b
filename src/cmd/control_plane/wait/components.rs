//! Where the components of the control plane answer for their health, as their manifests say.
//!
//! Pure: the text of a manifest in, an address out.

use std::net::IpAddr;

use crate::codec::yaml::yaml_to_values;

pub(super) const NAMES: [&str; 3] = ["kube-apiserver", "kube-controller-manager", "kube-scheduler"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Component {
    pub name: &'static str,
    /// `https://127.0.0.1:10257`.
    pub server: String,
    pub path: &'static str,
}

/// # Errors
/// The manifest is broken, or has no such container.
pub(super) fn of(name: &'static str, manifest: &str) -> Result<Component, String> {
    let (flag, host, port, path) = match name {
        "kube-apiserver" => ("advertise-address", "", "6443", "/livez"),
        "kube-controller-manager" => ("bind-address", "127.0.0.1", "10257", "/healthz"),
        _ => ("bind-address", "127.0.0.1", "10259", "/livez"),
    };
    let mut values = yaml_to_values(manifest, false).map_err(|error| error.to_string())?.into_iter();
    let pod = values.next().unwrap_or_default();
    let containers = pod["spec"]["containers"].as_array().into_iter().flatten();
    let Some(container) = containers.clone().find(|container| container["name"] == name) else {
        return Err(format!("no container {name:?}"));
    };
    // The last one counts, as components read them.
    let value_of = |flag: &str| {
        let words =
            ["command", "args"].into_iter().flat_map(|list| container[list].as_array().into_iter().flatten());
        let mut values = words.filter_map(|word| {
            word.as_str()?.strip_prefix("--")?.strip_prefix(flag)?.strip_prefix('=').map(str::to_owned)
        });
        values.next_back()
    };
    let host = value_of(flag).unwrap_or_else(|| host.to_owned());
    let port = value_of("secure-port").unwrap_or_else(|| port.to_owned());
    let Ok(address) = host.parse::<IpAddr>() else {
        return Err(format!("--{flag}={host:?} of {name} is no IP address"));
    };
    let address = match address {
        IpAddr::V4(v4) if v4.is_unspecified() => "127.0.0.1".to_owned(),
        IpAddr::V6(v6) if v6.is_unspecified() => "[::1]".to_owned(),
        IpAddr::V4(v4) => v4.to_string(),
        IpAddr::V6(v6) => format!("[{v6}]"),
    };
    Ok(Component { name, server: format!("https://{address}:{port}"), path })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn manifest(name: &str, flags: &[&str]) -> String {
        let flags: String = flags.iter().map(|flag| ["    - \"", flag, "\"\n"].concat()).collect();
        format!("kind: Pod\nspec:\n  containers:\n  - name: {name}\n    command:\n    - {name}\n{flags}")
    }

    #[test]
    fn components_are_asked_where_their_manifests_say() {
        for (name, flags, expected) in [
            (
                "kube-apiserver",
                &["--advertise-address=10.0.0.1", "--secure-port=6444"][..],
                "https://10.0.0.1:6444",
            ),
            ("kube-apiserver", &["--advertise-address=fd00::1"], "https://[fd00::1]:6443"),
            ("kube-controller-manager", &[], "https://127.0.0.1:10257"),
            ("kube-controller-manager", &["--bind-address=0.0.0.0"], "https://127.0.0.1:10257"),
            ("kube-scheduler", &["--bind-address=::", "--secure-port=1"], "https://[::1]:1"),
            (
                "kube-scheduler",
                &["--bind-address=127.0.0.1", "--bind-address=10.0.0.9"],
                "https://10.0.0.9:10259",
            ),
        ] {
            assert_eq!(of(name, &manifest(name, flags)).unwrap().server, expected, "{name} {flags:?}");
        }
        assert_eq!(of(NAMES[1], &manifest(NAMES[1], &[])).unwrap().path, "/healthz");
    }

    #[test]
    fn a_manifest_that_says_nothing_of_it_is_an_error() {
        assert!(of(NAMES[0], &manifest(NAMES[0], &[])).unwrap_err().contains("--advertise-address"));
        assert!(of(NAMES[1], &manifest("other", &[])).unwrap_err().contains("no container"));
        assert!(of(NAMES[1], "a: [").is_err());
        assert!(of(NAMES[1], &manifest(NAMES[1], &["--bind-address=lo"])).unwrap_err().contains("\"lo\""));
    }
}
