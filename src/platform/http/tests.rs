//! The client against servers that do everything wrong.

use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;

use super::testing::{Server, answer, pause};
use super::*;

fn get(request: Request) -> Result<Response, HttpError> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(HttpClient::start().unwrap().get(request))
}

fn failure(url: &str) -> String {
    get(Request { timeout_total: Duration::from_secs(2), ..Request::get(url) }).unwrap_err().to_string()
}

#[test]
fn request_sends_headers_and_response_has_validators() {
    let text =
        answer("404 Not Found", &["ETag: \"v1\"", "Last-Modified: today", "Content-Type: text/plain"], "no");
    let server = Server::answers(vec![text]);
    let request = Request {
        headers: vec![("X-Key".into(), "a".into()), ("X-Key".into(), "b".into())],
        if_none_match: Some("\"v0\"".into()),
        if_modified_since: Some("yesterday".into()),
        ..Request::get(server.url("/manifest"))
    };
    let response = get(request).unwrap();
    assert_eq!((response.status, response.status_line.as_str()), (404, "404 Not Found"));
    assert_eq!(response.etag.as_deref(), Some("\"v1\""));
    assert_eq!(response.last_modified.as_deref(), Some("today"));
    assert_eq!(response.content_type.as_deref(), Some("text/plain"));
    assert_eq!(response.body, b"no");
    let head = server.request();
    assert!(head.starts_with("get /manifest http/1.1\r\n"), "{head}");
    for line in
        ["x-key: a\r\n", "x-key: b\r\n", "if-none-match: \"v0\"\r\n", "if-modified-since: yesterday\r\n"]
    {
        assert!(head.contains(line), "{line} in {head}");
    }
    assert!(!head.contains("accept-encoding"), "{head}");
}

#[test]
fn a_server_that_drips_is_cut_off_at_the_total_deadline() {
    for head_first in [true, false] {
        let server = Server::start(move |_, stream: &mut TcpStream| {
            let head_end = if head_first { "Content-Length: 1000\r\n\r\n" } else { "X-Endless: " };
            stream.write_all(format!("HTTP/1.1 200 OK\r\n{head_end}").as_bytes()).unwrap();
            while stream.write_all(b"x").is_ok() {
                pause(Duration::from_millis(50));
            }
        });
        let started = Instant::now();
        let request = Request { timeout_total: Duration::from_millis(400), ..Request::get(server.url("/")) };
        let error = get(request).unwrap_err();
        assert!(matches!(error, HttpError::Timeout { .. }), "{head_first}: {error}");
        assert!(started.elapsed() < Duration::from_secs(20), "{head_first}: {:?}", started.elapsed());
    }
}

#[test]
fn an_endless_body_ends_at_the_limit() {
    let server = Server::start(|_, stream: &mut TcpStream| {
        stream.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n").unwrap();
        while stream.write_all(&[b'x'; 4096]).is_ok() {}
    });
    let error = get(Request { max_body: 100_000, ..Request::get(server.url("/")) }).unwrap_err();
    assert!(matches!(error, HttpError::TooLong { limit: 100_000, .. }), "{error}");
}

#[test]
fn a_body_of_exactly_the_limit_is_accepted() {
    let server = Server::answers(vec![answer("200 OK", &[], "12345")]);
    assert_eq!(get(Request { max_body: 5, ..Request::get(server.url("/")) }).unwrap().body, b"12345");
    let error = get(Request { max_body: 4, ..Request::get(server.url("/")) }).unwrap_err();
    assert!(matches!(error, HttpError::TooLong { limit: 4, .. }), "{error}");
}

#[test]
fn a_body_shorter_than_announced_is_an_error() {
    let cut = [
        "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\napiVersion: v1",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n20\r\napiVersion: v1",
        "HTTP/1.1 200 OK\r\nContent-Le",
        "",
    ];
    for text in cut {
        let server = Server::answers(vec![text.to_owned()]);
        let error = get(Request::get(server.url("/"))).unwrap_err();
        assert!(matches!(error, HttpError::Truncated { .. }), "{text:?}: {error}");
    }
}

#[test]
fn redirects_are_followed_and_a_loop_is_named() {
    let target = Server::answers(vec![answer("200 OK", &[], "here")]);
    let to = format!("Location: {}", target.url("/x"));
    let server = Server::answers(vec![answer("302 Found", &[&to], "")]);
    assert_eq!(get(Request::get(server.url("/"))).unwrap().body, b"here");
    let server = Server::answers(vec![answer("302 Found", &["Location: /again"], "")]);
    assert!(failure(&server.url("/")).contains("more than 10 redirects"));
}

#[test]
fn a_redirect_to_another_origin_goes_without_own_headers() {
    let target = Server::answers(vec![answer("403 Forbidden", &[], "")]);
    let to = format!("Location: {}", target.url("/x?sig=1"));
    let again = "Location: /again".to_owned();
    let server = Server::answers(vec![
        answer("302 Found", &[&again], ""),
        answer("307 Temporary Redirect", &[&to], ""),
    ]);
    let request = Request {
        headers: vec![("X-Key".into(), "hunter2".into()), ("Authorization".into(), "Bearer hunter2".into())],
        if_none_match: Some("\"v0\"".into()),
        ..Request::get(server.url("/").replace("127", "user:hunter2@127"))
    };
    let response = get(request).unwrap();
    assert_eq!((response.status, response.other_origin), (403, Some(target.url("/x"))));
    for path in ["/", "/again"] {
        let head = server.request();
        assert!(head.starts_with(&format!("get {path} ")) && head.contains("x-key: hunter2\r\n"), "{head}");
    }
    let head = target.request();
    assert!(!head.contains("hunter2") && !head.contains("authorization"), "{head}");
    assert!(head.contains("if-none-match: \"v0\"\r\n"), "{head}");
}

#[test]
fn https_is_not_followed_to_http() {
    let directory = tls_directory("downgrade");
    let plain = Server::answers(vec![answer("200 OK", &[], "in clear")]);
    let to = format!("Location: {}", plain.url("/"));
    let server = tls_server_saying(&directory, answer("302 Found", &[&to], ""));
    let request = Request {
        ca_file: Some(directory.join("ca.pem")),
        ..Request::get(format!("https://127.0.0.1:{}/", server.port()))
    };
    let error = get(request).unwrap_err();
    assert!(matches!(error, HttpError::Downgrade { .. }), "{error}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn connection_failures_have_helpful_messages() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("http://127.0.0.1:{}/", listener.local_addr().unwrap().port());
    drop(listener);
    assert!(failure(&closed).contains("connection refused"), "{}", failure(&closed));
    let unknown = failure("http://name.invalid/");
    assert!(unknown.contains("cannot resolve the host name"), "{unknown}");
    assert!(failure("ftp://host/").contains("the scheme must be http or https"));
    assert!(failure("http:///x").contains("not a valid"), "{}", failure("http:///x"));
    let server = Server::answers(vec!["SSH-2.0-OpenSSH_9.2\r\n".to_owned()]);
    assert!(failure(&server.url("/")).contains("not a valid HTTP response"), "{}", failure(&server.url("/")));
    let server = Server::answers(vec![answer("200 OK", &["Content-Encoding: gzip"], "x")]);
    assert!(failure(&server.url("/")).contains("content encoding \"gzip\""));
}

#[test]
fn a_password_in_the_url_is_never_shown() {
    assert_eq!(shown_url("https://user:p@ss@host:1/a@b?c"), "https://host:1/a@b?c");
    assert_eq!(shown_url("http://host/a@b"), "http://host/a@b");
    assert!(!failure("http://user:secret@127.0.0.1:1/").contains("secret"));
}

#[test]
fn credentials_in_the_url_are_sent_as_basic_authorization() {
    let server = Server::answers(vec![answer("200 OK", &[], "")]);
    get(Request::get(server.url("/").replace("127", "user:pass@127"))).unwrap();
    assert!(server.request().contains("authorization: basic dxnlcjpwyxnz\r\n"));
}

fn openssl(directory: &Path, arguments: &str) {
    let run = Command::new("openssl").current_dir(directory).args(arguments.split(' ')).output().unwrap();
    assert!(run.status.success(), "{arguments}: {}", String::from_utf8_lossy(&run.stderr));
}

const SIGNING: &str = "[ca]\ndefault_ca=d\n[d]\ndatabase=index\nserial=serial\nnew_certs_dir=.\ndefault_md=sha256\npolicy=p\n\
    [p]\ncommonName=supplied\n";
const VALID: &str = "-startdate 20200101000000Z -enddate 20990101000000Z";

/// A server whose certificate has this subject alternative name and validity, signed by `ca.pem` in the
/// directory.
fn tls_server(directory: &Path, name: &str, validity: &str) -> Server {
    tls_server_for(directory, name, validity, false)
}

/// A valid TLS server with this answer.
fn tls_server_saying(directory: &Path, answer: String) -> Server {
    Server::tls(tls_config(directory, "IP:127.0.0.1", VALID, false), answer)
}

/// As [`tls_server`]; with `asks_for_client` it requires a client certificate signed by `ca.pem`.
fn tls_server_for(directory: &Path, name: &str, validity: &str, asks_for_client: bool) -> Server {
    let config = tls_config(directory, name, validity, asks_for_client);
    Server::tls(config, answer("200 OK", &[], "over tls"))
}

fn tls_config(directory: &Path, name: &str, validity: &str, asks_for_client: bool) -> rustls::ServerConfig {
    std::fs::create_dir_all(directory).unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(directory, &format!("req -x509 {key} -subj /CN=ca -days 10 -keyout ca.key -out ca.pem"));
    openssl(directory, &format!("req -new {key} -subj /CN=server -keyout key.pem -out csr"));
    for (file, text) in [
        ("ext", format!("subjectAltName={name}\n")),
        ("index", String::new()),
        ("serial", "01\n".into()),
        ("cnf", SIGNING.into()),
    ] {
        std::fs::write(directory.join(file), text).unwrap();
    }
    let sign = "ca -batch -notext -config cnf -cert ca.pem -keyfile ca.key -extfile ext";
    openssl(directory, &format!("{sign} -in csr -out cert.pem {validity}"));
    let certificate = CertificateDer::from_pem_file(directory.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(directory.join("key.pem")).unwrap();
    let builder = rustls::ServerConfig::builder_with_provider(tls::tls_provider())
        .with_safe_default_protocol_versions()
        .unwrap();
    let builder = if asks_for_client {
        let mut roots = rustls::RootCertStore::empty();
        roots.add(CertificateDer::from_pem_file(directory.join("ca.pem")).unwrap()).unwrap();
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), tls::tls_provider()).build();
        builder.with_client_cert_verifier(verifier.unwrap())
    } else {
        builder.with_no_client_auth()
    };
    builder.with_single_cert(vec![certificate], key).unwrap()
}

fn tls_directory(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("edge-agent-tls-{name}-{}", std::process::id()))
}

#[test]
fn https_trusts_the_given_authority_and_no_other() {
    let directory = tls_directory("trust");
    let server = tls_server(&directory, "IP:127.0.0.1", VALID);
    let url = format!("https://127.0.0.1:{}/", server.port());
    let ca_file = Some(directory.join("ca.pem"));
    assert_eq!(get(Request { ca_file: ca_file.clone(), ..Request::get(&url) }).unwrap().body, b"over tls");
    // A plain URL that leads to an encrypted one finds the authorities too.
    let to = format!("Location: {url}");
    let plain = Server::answers(vec![answer("307 Temporary Redirect", &[&to], "")]);
    assert_eq!(get(Request { ca_file, ..Request::get(plain.url("/")) }).unwrap().body, b"over tls");
    if Trust::find(true, None, None).is_ok() {
        for start in [url, plain.url("/")] {
            let mut fetcher = Fetcher::default();
            let error = fetcher.fetch(&Request::get(start)).unwrap_err();
            assert!(matches!(error, HttpError::Tls { reason: TlsError::UnknownIssuer, .. }), "{error}");
            let (_, trust) = fetcher.agent.unwrap();
            assert_eq!(trust, Trust::find(true, None, None).unwrap(), "the system's authorities were asked");
        }
    }
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn expired_future_and_wrong_host_certificates_are_named() {
    let cases = [
        ("expired", "IP:127.0.0.1", "-startdate 20200101000000Z -enddate 20200102000000Z", TlsError::Expired),
        (
            "young",
            "IP:127.0.0.1",
            "-startdate 20990101000000Z -enddate 20990201000000Z",
            TlsError::NotYetValid,
        ),
        ("name", "DNS:other.example", VALID, TlsError::WrongName),
    ];
    for (case, name, validity, wanted) in cases {
        let directory = tls_directory(case);
        let server = tls_server(&directory, name, validity);
        let url = format!("https://127.0.0.1:{}/", server.port());
        let error =
            get(Request { ca_file: Some(directory.join("ca.pem")), ..Request::get(url) }).unwrap_err();
        assert!(matches!(&error, HttpError::Tls { reason, .. } if *reason == wanted), "{case}: {error}");
        std::fs::remove_dir_all(directory).unwrap();
    }
}

#[test]
fn client_certificate_is_reread_for_each_connection() {
    let directory = tls_directory("client");
    let file = |name: &str| directory.join(name);
    let server = tls_server_for(&directory, "IP:127.0.0.1", VALID, true);
    let request = Request {
        ca_file: Some(file("ca.pem")),
        ..Request::get(format!("https://127.0.0.1:{}/", server.port()))
    };
    let mut fetcher = Fetcher::default();
    let error = fetcher.fetch(&request).unwrap_err();
    assert!(matches!(error, HttpError::Tls { reason: TlsError::ClientRefused(_), .. }), "{error:?}");

    let client = ClientFiles { certificate: file("client.pem"), key: None };
    let request = Request { client: Some(client), ..request };
    let error = fetcher.fetch(&request).unwrap_err().to_string();
    assert_eq!(error, format!("read the client certificate or key {}", file("client.pem").display()));
    // A foreign authority first, then the trusted one: a renewed file counts at once.
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(
        &directory,
        &format!("req -x509 {key} -subj /CN=other -days 10 -keyout other.key -out other.pem"),
    );
    let both = |names: [&str; 2]| names.map(|name| std::fs::read_to_string(file(name)).unwrap()).concat();
    std::fs::write(file("client.pem"), std::fs::read(file("other.pem")).unwrap()).unwrap();
    let error = fetcher.fetch(&request).unwrap_err().to_string();
    assert_eq!(error, format!("{} contains no PEM private key", file("client.pem").display()));
    std::fs::write(file("client.pem"), both(["other.pem", "other.key"])).unwrap();
    let error = fetcher.fetch(&request).unwrap_err();
    assert!(matches!(error, HttpError::Tls { reason: TlsError::ClientRefused(_), .. }), "{error:?}");
    std::fs::write(file("client.pem"), both(["cert.pem", "key.pem"])).unwrap();
    assert_eq!(fetcher.fetch(&request).unwrap().body, b"over tls");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn https_to_a_plain_port_says_so() {
    let directory = tls_directory("plain");
    tls_server(&directory, "IP:127.0.0.1", VALID);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}/", listener.local_addr().unwrap());
    let work = move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").unwrap();
        pause(Duration::from_secs(1));
    };
    std::thread::Builder::new().spawn(work).unwrap();
    let error = get(Request { ca_file: Some(directory.join("ca.pem")), ..Request::get(url) }).unwrap_err();
    assert!(matches!(error, HttpError::Tls { reason: TlsError::NotTls, .. }), "{error:?}");
    std::fs::remove_dir_all(directory).unwrap();
}

#[test]
fn a_bad_file_of_authorities_is_named() {
    let missing = Request { ca_file: Some("/nowhere/ca.pem".into()), ..Request::get("https://127.0.0.1/") };
    assert_eq!(get(missing).unwrap_err().to_string(), "read trusted certificates from /nowhere/ca.pem");
    let empty = Request { ca_file: Some("/proc/self/comm".into()), ..Request::get("https://127.0.0.1/") };
    assert_eq!(get(empty).unwrap_err().to_string(), "/proc/self/comm contains no PEM certificate");
}

#[tokio::test]
async fn a_slow_server_does_not_hold_up_the_caller() {
    let server = Server::start(|_, _| pause(Duration::from_secs(1)));
    let client = HttpClient::start().unwrap();
    let request = Request { timeout_total: Duration::from_millis(600), ..Request::get(server.url("/")) };
    let mut ticks = 0;
    let mut timer = tokio::time::interval(Duration::from_millis(20));
    let fetch = client.get(request);
    tokio::pin!(fetch);
    let error = loop {
        tokio::select! {
            answer = &mut fetch => break answer.unwrap_err(),
            _ = timer.tick() => ticks += 1,
        }
    };
    assert!(matches!(error, HttpError::Timeout { .. }), "{error}");
    assert!(ticks > 5, "{ticks}");
}
