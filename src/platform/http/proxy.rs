//! Which proxy the environment names for a URL, by the rules of Go's clients (containerd among them).
//!
//! Owns the variables' meaning.

use std::net::IpAddr;

use super::url::Url;

/// A variable that names a proxy that cannot be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct BadProxy {
    /// `HTTPS_PROXY`.
    pub variable: &'static str,
    /// For people; it contains no part of the value, which may hold a password.
    pub problem: &'static str,
}

/// The proxy for a URL, in the form `http://[user:password@]host[:port]`. `None` for a direct connection.
///
/// # Errors
/// When the named proxy cannot be used: a direct connection would bypass the configuration.
pub(super) fn choose(
    url: &Url,
    variable: &dyn Fn(&str) -> Option<String>,
) -> Result<Option<String>, BadProxy> {
    // As Go: no proxy can reach this machine's own loopback.
    if url.is_loopback() {
        return Ok(None);
    }
    let names: [&'static str; 2] =
        if url.is_encrypted() { ["HTTPS_PROXY", "https_proxy"] } else { ["HTTP_PROXY", "http_proxy"] };
    let given =
        |name: &str| variable(name).map(|text| text.trim().to_owned()).filter(|text| !text.is_empty());
    let Some((name, text)) = names.into_iter().find_map(|name| Some((name, given(name)?))) else {
        return Ok(None);
    };
    let exceptions = given("NO_PROXY").or_else(|| given("no_proxy")).unwrap_or_default();
    if is_exception(url, &exceptions) {
        return Ok(None);
    }
    let bad = |problem| Err(BadProxy { variable: name, problem });
    let whole = if text.contains("://") { text } else { format!("http://{text}") };
    match whole.split_once("://") {
        Some(("http" | "https", rest)) if !rest.is_empty() && !rest.starts_with('/') => Ok(Some(whole)),
        Some(("http" | "https", _)) => bad("has no host; use a URL such as http://proxy.example:3128"),
        _ => bad("unsupported scheme; use http:// or https://"),
    }
}

/// What the environment names for a URL: the proxy, or the variable whose value cannot be used.
pub(crate) fn named(url: &str, variable: &dyn Fn(&str) -> Option<String>) -> Option<String> {
    choose(&Url::parse(url)?, variable).unwrap_or_else(|bad| Some(bad.variable.to_owned()))
}

/// `NO_PROXY`: hosts and their subdomains (`.example.com`: subdomains only), addresses, networks, each with a
/// port or without; `*` is everything.
fn is_exception(url: &Url, list: &str) -> bool {
    let default_port = if url.is_encrypted() { "443" } else { "80" };
    let (host, port) = split_port(&url.authority);
    let port = port.unwrap_or(default_port);
    let address = host.parse::<IpAddr>().ok();
    let fits = |entry: &str| {
        let entry = entry.trim().to_ascii_lowercase();
        if entry == "*" {
            return true;
        }
        if let Some((network, bits)) = entry.split_once('/') {
            let bits = bits.parse::<u32>().ok();
            return network.parse().is_ok_and(|network| in_network(address, network, bits));
        }
        let (name, wanted_port) = split_port(&entry);
        if wanted_port.is_some_and(|wanted| wanted != port) || name.is_empty() {
            return false;
        }
        if let Ok(wanted) = name.parse::<IpAddr>() {
            return address == Some(wanted);
        }
        let name = name.strip_prefix('*').filter(|name| name.starts_with('.')).unwrap_or(name);
        match name.strip_prefix('.') {
            Some(_) => host.ends_with(name),
            None => host == name || host.strip_suffix(name).is_some_and(|front| front.ends_with('.')),
        }
    };
    list.split(',').any(fits)
}

fn in_network(address: Option<IpAddr>, network: IpAddr, bits: Option<u32>) -> bool {
    let (Some(address), Some(bits)) = (address, bits) else { return false };
    match (address, network) {
        (IpAddr::V4(address), IpAddr::V4(network)) if bits <= 32 => {
            let mask = u32::MAX.checked_shl(32 - bits).unwrap_or(0);
            u32::from(address) & mask == u32::from(network) & mask
        }
        (IpAddr::V6(address), IpAddr::V6(network)) if bits <= 128 => {
            let mask = u128::MAX.checked_shl(128 - bits).unwrap_or(0);
            u128::from(address) & mask == u128::from(network) & mask
        }
        _ => false,
    }
}

/// Host without brackets, and port; a bare IPv6 address has none.
fn split_port(authority: &str) -> (&str, Option<&str>) {
    if let Some(rest) = authority.strip_prefix('[') {
        let (host, after) = rest.split_once(']').unwrap_or((rest, ""));
        return (host, after.strip_prefix(':'));
    }
    match authority.split_once(':') {
        Some((host, port)) if !port.contains(':') => (host, Some(port)),
        _ => (authority, None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(url: &str, variables: &[(&str, &str)]) -> Result<Option<String>, BadProxy> {
        let value = |name: &str| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        };
        choose(&Url::parse(url).unwrap(), &value)
    }

    #[test]
    fn the_scheme_names_the_variable_and_capitals_win() {
        let variables = [
            ("https_proxy", "small:1"),
            ("HTTPS_PROXY", "http://me:hush@big:2"),
            ("http_proxy", "plain:3"),
            ("ALL_PROXY", "http://not-read:4"),
        ];
        assert_eq!(
            chosen("https://r.example/", &variables).unwrap().as_deref(),
            Some("http://me:hush@big:2")
        );
        assert_eq!(chosen("http://r.example/", &variables).unwrap().as_deref(), Some("http://plain:3"));
        assert_eq!(chosen("https://r.example/", &variables[3..]), Ok(None));
        for url in ["https://localhost:5000/", "https://127.0.0.1/", "http://[::1]:80/"] {
            assert_eq!(chosen(url, &variables), Ok(None), "{url}");
        }
    }

    #[test]
    fn a_proxy_that_cannot_be_used_is_not_gone_around() {
        for (value, words) in [("socks5://p:1080", "unsupported scheme"), ("http://", "has no host")] {
            let error = chosen("https://r.example/", &[("HTTPS_PROXY", value)]).unwrap_err();
            assert_eq!(error.variable, "HTTPS_PROXY");
            assert!(error.problem.contains(words), "{value}: {}", error.problem);
        }
    }

    /// The exceptions of Go's own test table.
    #[test]
    fn exceptions_are_hosts_networks_and_ports() {
        for (list, host, direct) in [
            ("*", "r.example", true),
            ("example", "r.example", true),
            ("r.example", "r.example:5000", true),
            ("r.example:443", "r.example", true),
            ("r.example:443", "r.example:5000", false),
            (".example", "r.example", true),
            (".r.example", "r.example", false),
            ("*.example", "R.Example", true),
            ("xample", "r.example", false),
            (" a.example , r.example ", "r.example", true),
            ("10.0.0.0/8", "10.1.2.3:5000", true),
            ("10.0.0.0/8", "11.1.2.3", false),
            ("0.0.0.0/0", "11.1.2.3", true),
            ("10.0.0.0/8", "r.example", false),
            ("10.1.2.3", "10.1.2.3", true),
            ("10.1.2.3:80", "10.1.2.3", false),
            ("fd00::/8", "[fd00::1]:5000", true),
            ("fd00::1", "[fd00::1]", true),
            ("", "r.example", false),
            (",:80,/8", "r.example", false),
        ] {
            let variables = [("HTTPS_PROXY", "p:1"), ("NO_PROXY", list)];
            let proxy = chosen(&format!("https://{host}/v2/"), &variables).unwrap();
            assert_eq!(proxy.is_none(), direct, "{list:?} and {host}");
        }
    }
}
