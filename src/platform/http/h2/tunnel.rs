//! Connections through a proxy: HTTP's CONNECT, and SOCKS 5 (RFC 1928, RFC 1929).
//!
//! Owns proxies' URLs and what is said to a proxy. Its password must not reach a message.

use std::fmt::Write as _;

use percent_encoding::percent_decode_str;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::super::proxy::choose;
use super::super::url::Url;
use super::Io;
use crate::codec::base64;

/// The head of a proxy's answer.
const MAX_ANSWER_BYTES: usize = 8 * 1024;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scheme {
    Http,
    /// HTTP over TLS.
    Https,
    Socks5,
}

/// A proxy and how to log in to it.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct ProxyUrl {
    scheme: Scheme,
    pub host: String,
    pub port: u16,
    /// User and password.
    user: Option<(String, String)>,
}

/// Splits `host:port`, `host` or `[address]:port`.
#[must_use]
pub(crate) fn host_and_port(authority: &str, default_port: u16) -> Option<(String, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, after) = rest.split_once(']')?;
            (host, if after.is_empty() { "" } else { after.strip_prefix(':')? })
        }
        None => authority.split_once(':').unwrap_or((authority, "")),
    };
    let port = if port.is_empty() { default_port } else { port.parse().ok()? };
    (!host.is_empty()).then(|| (host.to_owned(), port))
}

impl ProxyUrl {
    /// Reads `http://`, `https://` or `socks5://[user:password@]host[:port]`.
    ///
    /// # Errors
    /// What is wrong, without the URL: it may contain a password.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let (scheme, rest) = text.split_once("://").unwrap_or(("", text));
        let (scheme, port) = match scheme {
            "http" => (Scheme::Http, 80),
            "https" => (Scheme::Https, 443),
            "socks5" => (Scheme::Socks5, 1080),
            other => return Err(format!("unsupported scheme {other:?}, must be http, https, or socks5")),
        };
        let rest = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let (user, authority) = match rest.rsplit_once('@') {
            Some((user, authority)) => (Some(user), authority),
            None => (None, rest),
        };
        let unescaped = |text: &str| percent_decode_str(text).decode_utf8_lossy().into_owned();
        let user = user.map(|user| {
            let (name, password) = user.split_once(':').unwrap_or((user, ""));
            (unescaped(name), unescaped(password))
        });
        let (host, port) = host_and_port(authority, port).ok_or("not a proxy URL")?;
        Ok(Self { scheme, host, port, user })
    }

    /// The proxy that is configured for this server, else the one that the environment names; `None` for a direct
    /// connection.
    ///
    /// # Errors
    /// When the proxy cannot be used.
    pub(crate) fn choose(configured: &str, server: &str) -> Result<Option<Self>, String> {
        if !configured.is_empty() {
            return Self::parse(configured).map(Some);
        }
        let Some(url) = Url::parse(server) else { return Ok(None) };
        match choose(&url, &|name| std::env::var(name).ok()) {
            Ok(None) => Ok(None),
            Ok(Some(text)) => Self::parse(&text).map(Some),
            Err(bad) => Err(format!("{}: {}", bad.variable, bad.problem)),
        }
    }

    /// True when the proxy itself is reached over TLS.
    pub(super) fn is_encrypted(&self) -> bool {
        self.scheme == Scheme::Https
    }

    pub(super) fn shown(&self) -> String {
        format!("proxy {}:{}", self.host, self.port)
    }

    /// Asks the proxy for a connection; what follows on `io` is the server's.
    pub(super) async fn open(&self, io: &mut Io, host: &str, port: u16) -> Result<(), String> {
        match self.scheme {
            Scheme::Http | Scheme::Https => self.connect(io, host, port).await,
            Scheme::Socks5 => self.socks(io, host, port).await,
        }
    }

    async fn connect(&self, io: &mut Io, host: &str, port: u16) -> Result<(), String> {
        let target = place(host, port);
        let mut request = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n");
        if let Some((name, password)) = &self.user {
            let login = base64::encode(format!("{name}:{password}").as_bytes());
            // Writing to a String cannot fail.
            let _ = write!(request, "Proxy-Authorization: Basic {login}\r\n");
        }
        request.push_str("\r\n");
        io.write_all(request.as_bytes()).await.map_err(|error| error.to_string())?;
        io.flush().await.map_err(|error| error.to_string())?;
        let mut head = Vec::new();
        // Byte by byte: what follows the head belongs to the server.
        while !head.ends_with(b"\r\n\r\n") {
            if head.len() >= MAX_ANSWER_BYTES {
                return Err("its answer is too long".to_owned());
            }
            head.push(io.read_u8().await.map_err(|error| error.to_string())?);
        }
        let head = String::from_utf8_lossy(&head);
        let line = head.lines().next().unwrap_or_default();
        match line.split_once(' ') {
            Some((version, status)) if version.starts_with("HTTP/1.") && status.starts_with("200") => Ok(()),
            _ => Err(format!("it answered {line:?}")),
        }
    }

    async fn socks(&self, io: &mut Io, host: &str, port: u16) -> Result<(), String> {
        let failed = |error: std::io::Error| error.to_string();
        let methods: &[u8] = if self.user.is_some() { &[5, 2, 0, 2] } else { &[5, 1, 0] };
        io.write_all(methods).await.map_err(failed)?;
        io.flush().await.map_err(failed)?;
        let mut answer = [0; 2];
        io.read_exact(&mut answer).await.map_err(failed)?;
        match (answer, &self.user) {
            ([5, 0], _) => {}
            ([5, 2], Some((name, password))) => {
                let mut login = vec![1];
                for text in [name, password] {
                    login.push(u8::try_from(text.len()).map_err(|_| "its user or password is too long")?);
                    login.extend(text.as_bytes());
                }
                io.write_all(&login).await.map_err(failed)?;
                io.flush().await.map_err(failed)?;
                io.read_exact(&mut answer).await.map_err(failed)?;
                if answer[1] != 0 {
                    return Err("it rejected the user or password".to_owned());
                }
            }
            ([5, _], _) => return Err("it requires another login".to_owned()),
            _ => return Err("it does not speak SOCKS 5".to_owned()),
        }
        let mut request = vec![5, 1, 0];
        match host.parse() {
            Ok(std::net::IpAddr::V4(address)) => {
                request.push(1);
                request.extend(address.octets());
            }
            Ok(std::net::IpAddr::V6(address)) => {
                request.push(4);
                request.extend(address.octets());
            }
            Err(_) => {
                request.extend([3, u8::try_from(host.len()).map_err(|_| "the host name is too long")?]);
                request.extend(host.as_bytes());
            }
        }
        request.extend(port.to_be_bytes());
        io.write_all(&request).await.map_err(failed)?;
        io.flush().await.map_err(failed)?;
        let mut head = [0; 4];
        io.read_exact(&mut head).await.map_err(failed)?;
        if head[1] != 0 {
            return Err(socks_refusal(head[1]).to_owned());
        }
        let address = match head[3] {
            1 => 4,
            4 => 16,
            _ => usize::from(io.read_u8().await.map_err(failed)?),
        };
        let mut rest = vec![0; address + 2];
        io.read_exact(&mut rest).await.map(drop).map_err(failed)
    }
}

fn socks_refusal(code: u8) -> &'static str {
    match code {
        2 => "connection not allowed by ruleset",
        3 => "network unreachable",
        4 => "host unreachable",
        5 => "connection refused",
        6 => "TTL expired",
        7 => "command not supported",
        8 => "address type not supported",
        _ => "general SOCKS server failure",
    }
}

/// Host and port, as a `SocketAddr` is shown.
pub(super) fn place(host: &str, port: u16) -> String {
    if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proxy_urls_are_read_with_user_and_default_port() {
        let read = |text: &str| {
            let proxy = ProxyUrl::parse(text)?;
            Ok::<_, String>((proxy.scheme, proxy.host, proxy.port, proxy.user))
        };
        let user = Some(("me".to_owned(), "a:b@c".to_owned()));
        for (text, wanted) in [
            ("http://p.example", (Scheme::Http, "p.example", 80, None)),
            ("https://me:a%3Ab%40c@p.example:3128/", (Scheme::Https, "p.example", 3128, user.clone())),
            ("socks5://[fd00::1]", (Scheme::Socks5, "fd00::1", 1080, None)),
            ("socks5://me:a:b%40c@10.0.0.1:9", (Scheme::Socks5, "10.0.0.1", 9, user)),
        ] {
            let (scheme, host, port, user) = wanted;
            assert_eq!(read(text), Ok((scheme, host.to_owned(), port, user)), "{text}");
        }
        for (text, words) in [
            ("socks4://p", "unsupported scheme \"socks4\""),
            ("p.example:80", "unsupported scheme \"\""),
            ("http://me:hush@", "not a proxy URL"),
            ("http://p:port", "not a proxy URL"),
        ] {
            let error = read(text).unwrap_err();
            assert!(error.contains(words) && !error.contains("hush"), "{text}: {error}");
        }
    }

    /// What a proxy is sent when it gives these answers, and what becomes of it.
    async fn said(url: &str, host: &str, answers: &[u8]) -> (Vec<u8>, Result<(), String>) {
        let (ours, mut proxy) = tokio::io::duplex(4096);
        let mut io: Io = Box::new(ours);
        proxy.write_all(answers).await.unwrap();
        let outcome = ProxyUrl::parse(url).unwrap().open(&mut io, host, 6443).await;
        let mut rest = vec![0; 64];
        let count = match &outcome {
            Ok(()) => io.read(&mut rest).await.unwrap(),
            Err(_) => 0,
        };
        assert_eq!(&rest[..count], if outcome.is_ok() { &b"TLS"[..] } else { b"" }, "{url}");
        drop(io);
        let mut sent = Vec::new();
        proxy.read_to_end(&mut sent).await.unwrap();
        (sent, outcome)
    }

    #[tokio::test]
    async fn a_proxy_is_asked_and_leaves_the_servers_bytes() {
        let (sent, outcome) = said("http://me:x@p", "fd00::1", b"HTTP/1.1 200 OK\r\nA: b\r\n\r\nTLS").await;
        assert_eq!(outcome, Ok(()));
        let wanted = "CONNECT [fd00::1]:6443 HTTP/1.1\r\nHost: [fd00::1]:6443\r\n\
                      Proxy-Authorization: Basic bWU6eA==\r\n\r\n";
        assert_eq!(String::from_utf8(sent).unwrap(), wanted);
        let (_, outcome) = said("http://p", "s", b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n").await;
        assert!(outcome.unwrap_err().contains("407"));

        let answers = b"\x05\x02\x01\x00\x05\x00\x00\x03\x01x\x00\x50TLS";
        let (sent, outcome) = said("socks5://me:x@p", "s.example", answers).await;
        assert_eq!(outcome, Ok(()));
        assert_eq!(sent, b"\x05\x02\x00\x02\x01\x02me\x01x\x05\x01\x00\x03\x09s.example\x19\x2b");
        let (sent, outcome) = said("socks5://p", "10.0.0.1", b"\x05\x00\x05\x05\x00\x01").await;
        assert_eq!(outcome, Err("connection refused".to_owned()));
        assert_eq!(sent, b"\x05\x01\x00\x05\x01\x00\x01\x0a\x00\x00\x01\x19\x2b");
        let (_, outcome) = said("socks5://p", "s", b"HTTP/1.1 400 Bad Request").await;
        assert_eq!(outcome, Err("it does not speak SOCKS 5".to_owned()));
    }
}
