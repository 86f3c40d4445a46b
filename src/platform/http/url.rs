//! The parts of a URL that following redirects needs.
//!
//! Owns splitting and joining.

use std::net::IpAddr;

/// `scheme://host[:port]/path?query`, split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url {
    /// `http` or `https`, in lower case.
    pub scheme: String,
    /// Host with its port, in lower case, without user and password.
    pub authority: String,
    /// Path with query, from its first slash; may be empty.
    pub path: String,
}

impl Url {
    /// Splits an absolute URL of a supported scheme. The fragment, the user and the password are dropped:
    /// credentials belong in a header.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (scheme, rest) = text.split_once("://")?;
        let scheme = scheme.to_ascii_lowercase();
        if scheme != "http" && scheme != "https" {
            return None;
        }
        let rest = rest.split('#').next().unwrap_or_default();
        let end = rest.find(['/', '?']).unwrap_or(rest.len());
        let (authority, path) = rest.split_at(end);
        let authority = authority.rsplit('@').next().unwrap_or_default().to_ascii_lowercase();
        let odd = |letter: char| letter.is_whitespace() || letter.is_control();
        if authority.is_empty() || text.contains(odd) {
            return None;
        }
        let path = if path.starts_with('?') { format!("/{path}") } else { path.to_owned() };
        Some(Self { scheme, authority, path })
    }

    /// The target of a `Location` from here.
    #[must_use]
    pub(crate) fn join(&self, location: &str) -> Option<Self> {
        if location.contains("://") {
            return Self::parse(location);
        }
        if let Some(rest) = location.strip_prefix("//") {
            return Self::parse(&format!("{}://{rest}", self.scheme));
        }
        let base = format!("{}://{}", self.scheme, self.authority);
        if location.starts_with('/') {
            return Self::parse(&format!("{base}{location}"));
        }
        let path = self.path.split('?').next().unwrap_or_default();
        let directory = path.rfind('/').map_or("/", |at| &path[..=at]);
        Self::parse(&format!("{base}{directory}{location}"))
    }

    #[must_use]
    pub(crate) fn is_encrypted(&self) -> bool {
        self.scheme == "https"
    }

    /// True when it leads to this machine itself.
    #[must_use]
    pub(crate) fn is_loopback(&self) -> bool {
        is_loopback_host(&self.authority)
    }

    /// As it is requested.
    #[must_use]
    pub(crate) fn text(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.path)
    }

    /// For messages, without the query: storage hosts put signatures into it.
    #[must_use]
    pub(crate) fn shown(&self) -> String {
        format!("{}://{}{}", self.scheme, self.authority, self.path.split('?').next().unwrap_or_default())
    }
}

/// `localhost`, `127.0.0.0/8` or `[::1]`, with or without a port.
#[must_use]
pub(crate) fn is_loopback_host(authority: &str) -> bool {
    let host = match authority.strip_prefix('[') {
        Some(rest) => rest.split(']').next().unwrap_or_default(),
        None => authority.split(':').next().unwrap_or_default(),
    };
    host.eq_ignore_ascii_case("localhost")
        || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
}

/// A value for a query: everything but letters, digits and `-._~` is escaped.
#[must_use]
pub(crate) fn query_escape(value: &str) -> String {
    const HEX: &[u8; 16] = b"0123456789ABCDEF";
    let mut escaped = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            escaped.push(char::from(byte));
        } else {
            escaped.push('%');
            escaped.push(char::from(HEX[usize::from(byte >> 4)]));
            escaped.push(char::from(HEX[usize::from(byte & 15)]));
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_location_is_joined_as_browsers_do() {
        let base = Url::parse("https://me:secret@R.example:5000/v2/a/blobs/x?y=1").unwrap();
        assert_eq!(base.text(), "https://r.example:5000/v2/a/blobs/x?y=1");
        assert_eq!(base.shown(), "https://r.example:5000/v2/a/blobs/x");
        let join = |location: &str| base.join(location).map(|url| url.text());
        assert_eq!(join("http://s.example/b?c").as_deref(), Some("http://s.example/b?c"));
        assert_eq!(join("//s.example/b").as_deref(), Some("https://s.example/b"));
        assert_eq!(join("/b#top").as_deref(), Some("https://r.example:5000/b"));
        assert_eq!(join("z").as_deref(), Some("https://r.example:5000/v2/a/blobs/z"));
        assert_eq!(join("ftp://s.example/"), None);
        assert_eq!(join("/a b"), None);
    }

    #[test]
    fn only_this_machine_is_loopback() {
        for host in ["localhost", "LOCALHOST:5000", "127.0.0.1:5000", "127.9.9.9", "[::1]:5000"] {
            assert!(is_loopback_host(host), "{host}");
        }
        for host in ["localhost.example", "128.0.0.1", "[::2]:5000", "10.0.0.1:5000", "127.0.0.1.nip.example"]
        {
            assert!(!is_loopback_host(host), "{host}");
        }
    }

    #[test]
    fn a_query_value_is_escaped() {
        assert_eq!(query_escape("repository:a/b:pull é"), "repository%3Aa%2Fb%3Apull%20%C3%A9");
    }
}
