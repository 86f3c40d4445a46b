//! The URL source against a server that misbehaves, poll by poll.

use std::fs;
use std::io::Write;

use super::*;
use crate::codec::signature::testing::{BODY, DATED, DATED_KEY, KEY, OTHER_KEY, SIGNATURE, UNDATED};
use crate::desired::source::testing::{NODE, broken, manifest, shown, stored};
use crate::model::source::SourcePod;
use crate::platform::http::testing::{Server, answer};
use crate::platform::testing::TempDir;

fn config(url: &str) -> UrlConfig {
    UrlConfig {
        url: url.to_owned(),
        headers: vec![("X-Node".into(), "a".into()), ("X-Node".into(), "b".into())],
        check_frequency: Duration::from_millis(20),
        ca_file: None,
        client: None,
        token_file: None,
        verify_key_file: None,
        node_name: NODE.to_owned(),
    }
}

fn source(url: &str, stored: Vec<SourcePod>, validator: Option<&str>) -> UrlSource {
    source_with(config(url), stored, validator)
}

fn source_with(config: UrlConfig, stored: Vec<SourcePod>, validator: Option<&str>) -> UrlSource {
    let good = SourceSet { pods: stored, ..SourceSet::default() };
    let remembered = Remembered { good, validator: validator.map(str::to_owned), signed: None };
    UrlSource::new(config, remembered, HttpClient::start().unwrap(), Clock::System)
}

fn ok(body: &str) -> String {
    answer("200 OK", &[], &manifest(body))
}

/// The result of each poll: the set and the problems, or `-`.
async fn polls(source: &mut UrlSource, count: usize) -> Vec<String> {
    let mut told = Vec::new();
    for _ in 0..count {
        told.push(match source.poll().await {
            None => "-".to_owned(),
            Some(update) if update.problems.is_empty() => shown(&update),
            Some(update) => {
                let problems: Vec<_> =
                    update.problems.iter().map(|problem| problem.message.clone()).collect();
                format!("{} | {}", shown(&update), problems.join("; ").replace(&source.location, "URL"))
            }
        });
    }
    told
}

#[tokio::test]
async fn identical_body_is_reported_once_and_empty_list_removes() {
    let server =
        Server::answers([ok("a=1\nb=1"), ok("a=1\nb=1"), ok("a=2"), ok("none"), ok("none")].to_vec());
    let mut source = source(&server.url("/"), Vec::new(), None);
    assert_eq!(polls(&mut source, 1).await, ["a=1 b=1"]);
    source.good = SourceSet::default();
    assert_eq!(polls(&mut source, 1).await, ["-"]);
    assert!(source.good.pods.is_empty(), "not parsed again");
    assert_eq!(polls(&mut source, 3).await, ["a=2", "", "-"]);
    assert!(server.request().contains("x-node: a\r\nx-node: b\r\n"));
}

#[tokio::test]
async fn errors_and_empty_bodies_are_unknown_and_remove_nothing() {
    let unavailable = answer("503 Service Unavailable", &[], &manifest("a=2"));
    let not_found = answer("404 Not Found", &[], "");
    let truncated = "HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nb=1".to_owned();
    let answers =
        vec![ok("a=1"), unavailable.clone(), unavailable, not_found, ok(" \n"), truncated, ok("a=1")];
    let server = Server::answers(answers);
    let mut source = source(&server.url("/"), Vec::new(), None);
    assert_eq!(
        polls(&mut source, 7).await,
        [
            "a=1",
            "unknown | 503 Service Unavailable",
            "-",
            "unknown | 404 Not Found",
            "unknown | zero-length data received from URL; serve a v1 Pod, or a PodList with no items to say none",
            "unknown | the connection was closed before the answer was complete",
            "a=1",
        ]
    );
}

#[tokio::test]
async fn broken_body_problem_stands_until_the_body_is_fixed() {
    let server = Server::answers([ok("a=1"), ok("!"), ok("!"), ok("a=1"), ok("a=1")].to_vec());
    let mut source = source(&server.url("/"), Vec::new(), None);
    let told = polls(&mut source, 5).await;
    assert_eq!(told, ["a=1", &format!("unknown | {}", broken("")), "-", "a=1", "-"]);
}

#[tokio::test]
async fn broken_item_keeps_its_last_good_version() {
    let server = Server::answers([ok("a=1\nb=1"), ok("a=2\n!b"), ok("a=2")].to_vec());
    let mut source = source(&server.url("/"), Vec::new(), None);
    let problem = format!("a=2 b=1 | {}", broken("document 2"));
    assert_eq!(polls(&mut source, 3).await, ["a=1 b=1", problem.as_str(), "a=2"]);
}

#[tokio::test]
async fn a_web_page_instead_of_a_manifest_is_named_as_such() {
    let server = Server::answers(vec![answer("200 OK", &["Content-Type: text/html"], "<html>login</html>")]);
    let mut source = source(&server.url("/"), Vec::new(), None);
    let told = polls(&mut source, 1).await;
    assert!(told[0].starts_with("unknown | ") && told[0].contains("is this a web page"), "{told:?}");
}

/// Serves `v1` under an ETag, and 304 to clients that have it.
fn versioned() -> Server {
    Server::start(|head, stream| {
        let known = head.to_lowercase().contains("if-none-match: \"v1\"\r\n");
        let text = if known {
            "HTTP/1.1 304 Not Modified\r\nConnection: close\r\n\r\n".to_owned()
        } else {
            answer(
                "200 OK",
                &["ETag: \"v1\"", "Last-Modified: Fri, 20 Nov 2026 16:00:00 GMT"],
                &manifest("a=1"),
            )
        };
        stream.write_all(text.as_bytes()).unwrap();
    })
}

#[tokio::test]
async fn not_modified_keeps_pods_even_after_a_restart() {
    let server = versioned();
    let url = server.url("/");
    let mut first = source(&url, Vec::new(), None);
    let update = first.poll().await.unwrap();
    let SourceAnswer::Pods(pods) = update.answer else { panic!("unknown") };
    assert_eq!(first.poll().await, None);
    server.request();
    assert!(server.request().contains("if-modified-since: fri, 20 nov 2026 16:00:00 gmt"));

    let mut second = source(&url, pods, update.validator.as_deref());
    let again = second.poll().await.unwrap();
    assert_eq!(shown(&again), "a=1");
    assert_eq!(again.validator, update.validator);
    assert!(server.request().contains("if-none-match: \"v1\""));
}

#[tokio::test]
async fn a_validator_or_pods_of_another_url_are_not_used() {
    let server = versioned();
    let validator = r#"{"url":"http://other/","etag":"\"v1\""}"#;
    let mut source = source(&server.url("/"), vec![stored("old", "1", "http://other/")], Some(validator));
    assert_eq!(polls(&mut source, 1).await, ["a=1"]);
}

#[tokio::test]
async fn unrequested_304_is_no_valid_answer() {
    let server = Server::answers(vec!["HTTP/1.1 304 Not Modified\r\n\r\n".to_owned()]);
    let mut source = source(&server.url("/"), vec![stored("a", "1", server.url("/"))], None);
    let told = polls(&mut source, 1).await;
    assert!(told[0].starts_with("unknown | 304 Not Modified"), "{told:?}");
}

#[tokio::test]
async fn unreachable_server_after_a_restart_removes_nothing() {
    let mut source = source("http://127.0.0.1:1/x", vec![stored("a", "1", "http://127.0.0.1:1/x")], None);
    let told = polls(&mut source, 1).await;
    assert!(told[0].starts_with("unknown | ") && told[0].contains("connection refused"), "{told:?}");
    assert_eq!(source.good.pods.len(), 1);
}

#[tokio::test]
async fn broken_item_after_a_restart_keeps_its_stored_version() {
    let server = Server::answers(vec![ok("a=2\n!b")]);
    let before = vec![stored("a", "1", server.url("/")), stored("b", "1", server.url("/"))];
    assert_eq!(
        polls(&mut source(&server.url("/"), before, None), 1).await,
        [format!("a=2 b=1 | {}", broken("document 2"))]
    );
}

#[tokio::test]
async fn a_file_url_is_read_within_the_same_bounds() {
    let root = TempDir::new();
    root.put_lines("pods.yaml", "a=1");
    let url = format!("file://{}", root.join("pods.yaml").display());
    let mut source = source(&url, Vec::new(), None);
    assert_eq!(polls(&mut source, 2).await, ["a=1", "-"]);
    fs::File::create(root.join("pods.yaml")).unwrap().set_len(100 * 1024 * 1024).unwrap();
    let told = polls(&mut source, 1).await;
    assert!(told[0].starts_with("unknown | ") && told[0].contains("larger than"), "{told:?}");
    root.remove("pods.yaml");
    nix::unistd::mkfifo(&root.join("pods.yaml"), nix::sys::stat::Mode::S_IRWXU).unwrap();
    let told = polls(&mut source, 1).await;
    assert!(told[0].contains("named pipe"), "{told:?}");
}

#[tokio::test]
async fn source_polls_at_once_and_again_until_its_listener_ends() {
    let server = Server::answers([ok("a=1"), ok("a=2")].to_vec());
    let (sender, mut updates) = mpsc::channel(1);
    let running = source(&server.url("/"), Vec::new(), None).run(sender);
    let listen = async {
        assert_eq!(shown(&updates.recv().await.unwrap()), "a=1");
        assert_eq!(shown(&updates.recv().await.unwrap()), "a=2");
        drop(updates);
    };
    tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(running, listen) }).await.unwrap();
}

/// A server with a body and its signature; both may change.
fn signed_server(directory: &TempDir) -> Server {
    let directory = directory.path().to_owned();
    Server::start(move |head, stream| {
        let path = head.split(' ').nth(1).unwrap().split('?').next().unwrap().to_owned();
        let text = fs::read_to_string(directory.join(path.trim_start_matches('/'))).ok();
        let etag = format!("ETag: \"{}\"", text.as_deref().unwrap_or_default().len());
        let text = match text {
            Some(_) if path == "/pods" && head.to_lowercase().contains("if-none-match") => {
                answer("304 Not Modified", &[etag.as_str()], "")
            }
            Some(text) => answer("200 OK", &[etag.as_str()], &text),
            None => answer("404 Not Found", &[], ""),
        };
        stream.write_all(text.as_bytes()).unwrap();
    })
}

#[tokio::test]
async fn only_what_has_a_good_signature_beside_it_is_an_answer() {
    let directory = TempDir::new();
    let file = |name: &str| directory.path().join(name);
    let server = signed_server(&directory);
    let url = server.url("/pods?node=a");
    let verify_key_file = Some(file("key"));
    let mut source = source_with(UrlConfig { verify_key_file, ..config(&url) }, Vec::new(), None);
    fs::write(file("pods"), BODY).unwrap();

    let told = polls(&mut source, 1).await.remove(0);
    assert!(told.starts_with("unknown | read the signature key in "), "{told}");
    fs::write(file("key"), OTHER_KEY).unwrap();
    let told = polls(&mut source, 2).await;
    let signature = server.url("/pods.minisig?node=a");
    assert!(told[0].starts_with(&format!("unknown | no signature found at {signature}")), "{told:?}");
    assert_eq!(told[1], "-", "told once");
    fs::write(file("pods.minisig"), SIGNATURE).unwrap();
    let told = polls(&mut source, 1).await;
    assert_eq!(told, ["unknown | signed with a key other than the configured one"]);
    fs::write(file("key"), KEY).unwrap();
    assert_eq!(polls(&mut source, 2).await, ["a=1", "-"]);

    // The served content changes: the good version stays.
    fs::write(file("pods"), manifest("a=2")).unwrap();
    let validator = source.validator.take();
    let update = source.poll().await.unwrap();
    assert_eq!(update.problems[0].reason, REASON_UNTRUSTED);
    assert!(update.problems[0].message.contains("does not match the content"), "{:?}", update.problems);
    assert_eq!(shown(&update), "unknown");

    // An unchanged answer is accepted only under the key that verified it.
    source.validator = validator;
    assert_eq!(polls(&mut source, 1).await, ["a=1"]);
    fs::write(file("key"), OTHER_KEY).unwrap();
    let told = polls(&mut source, 1).await;
    assert_eq!(told, ["unknown | signed with a key other than the configured one"]);
}

#[tokio::test]
async fn token_is_read_per_request_and_an_invalid_one_never_sent() {
    let directory = TempDir::new();
    let token_file = directory.path().join("token");
    let server = Server::answers(vec![ok("a=1")]);
    let configured = UrlConfig { token_file: Some(token_file.clone()), ..config(&server.url("/")) };
    let mut source = source_with(configured, Vec::new(), None);
    let told = polls(&mut source, 1).await.remove(0);
    assert!(told.starts_with("unknown | read the bearer token in "), "{told}");
    for broken in ["two words", "a\r\nX-Evil: 1", "\u{e4}"] {
        fs::write(&token_file, broken).unwrap();
        let told = source.poll().await.map(|update| update.problems[0].message.clone());
        // The same problem is reported once.
        assert!(told.is_none_or(|told| told.contains("one line of visible ASCII")), "{broken:?}");
    }
    for token in ["first", "second\n"] {
        fs::write(&token_file, token).unwrap();
        source.poll().await;
        let head = server.request();
        assert!(head.contains(&format!("authorization: bearer {}\r\n", token.trim())), "{head}");
    }
}

#[tokio::test]
async fn an_empty_list_counts_when_the_server_has_said_more_before() {
    let before = |server: &Server| vec![stored("a", "1", server.url("/"))];
    let server = Server::answers([ok("none"), ok("none"), ok("a=1"), ok("none")].to_vec());
    let mut first = source(&server.url("/"), before(&server), None);
    let told = polls(&mut first, 4).await;
    assert!(
        told[0].starts_with("unknown | the list is empty, and has been since the agent started"),
        "{told:?}"
    );
    assert_eq!(told[1..], ["-", "a=1", ""]);
    let server = Server::answers([ok("none"), ok("none")].to_vec());
    let mut accepted = source(&server.url("/"), before(&server), None);
    assert_eq!(accepted.poll().await.unwrap().problems[0].reason, REASON_EMPTY);
    accepted.is_accepted = true;
    assert_eq!(polls(&mut accepted, 1).await, [""]);
    let server = Server::answers(vec![ok("@note=1")]);
    let mut deliberate = source(&server.url("/"), before(&server), None);
    assert_eq!(polls(&mut deliberate, 1).await, [""], "a list that holds anything is taken at its word");
    let server = Server::answers(vec![ok("none")]);
    let mut other = source(&server.url("/"), vec![stored("a", "1", "http://other/")], None);
    assert!(polls(&mut other, 1).await[0].starts_with("unknown"), "another URL in the configuration");
}

#[tokio::test]
async fn an_old_body_with_its_old_signature_is_refused() {
    let directory = TempDir::new();
    let file = |name: &str| directory.path().join(name);
    let server = signed_server(&directory);
    let configured = || UrlConfig { verify_key_file: Some(file("key")), ..config(&server.url("/pods")) };
    fs::write(file("key"), KEY).unwrap();
    let serve = |(body, signature): (&str, &str)| {
        fs::write(file("pods"), body).unwrap();
        fs::write(file("pods.minisig"), signature).unwrap();
    };
    let mut first = source_with(configured(), Vec::new(), None);
    serve((BODY, SIGNATURE));
    assert_eq!(polls(&mut first, 1).await, ["a=1"], "a key that never gave a time is taken as it is");
    fs::write(file("key"), DATED_KEY).unwrap();
    serve(DATED[1]);
    let update = first.poll().await.unwrap();
    let remembered = update.signed.clone();
    assert_eq!((shown(&update).as_str(), remembered.is_some()), ("a=1 b=2", true));

    let mut second = source_with(configured(), Vec::new(), None);
    second.newest = remembered.as_deref().and_then(Newest::parse);
    serve(DATED[0]);
    let update = second.poll().await.unwrap();
    assert_eq!((update.problems[0].reason.as_str(), shown(&update).as_str()), (REASON_UNTRUSTED, "unknown"));
    assert!(update.problems[0].message.contains("an old version is served"), "{:?}", update.problems);
    assert_eq!(update.signed, remembered);
    serve(UNDATED);
    assert!(polls(&mut second, 1).await[0].contains("signed without a timestamp"));
    serve(DATED[1]);
    assert_eq!(polls(&mut second, 1).await, ["a=1 b=2"], "the newest again");
    serve(DATED[2]);
    // The test's server takes any version for the newest.
    second.validator = None;
    assert_eq!(polls(&mut second, 1).await, [""], "an empty list with a time is deliberate");
}
