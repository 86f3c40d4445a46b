use proptest::prelude::*;

use super::*;

fn get(target: &str) -> Result<Route, Refused> {
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    route("GET", path, query)
}

fn container(uid: Option<&str>) -> ContainerTarget {
    let pod = PodName { namespace: "ns".into(), name: "web-box".into(), uid: uid.map(Into::into) };
    ContainerTarget { pod, container: "app".into() }
}

fn code(target: &str) -> (u16, String) {
    match get(target) {
        Err(Refused::Invalid(code, message)) => (code, message),
        other => panic!("{target}: {other:?}"),
    }
}

#[test]
fn the_kubelets_paths_are_known_and_others_are_not() {
    assert_eq!(get("/pods/"), Ok(Route::Pods));
    assert_eq!(get("/pods"), Ok(Route::Pods));
    assert_eq!(get("/healthz"), Ok(Route::Health(String::new())));
    assert_eq!(get("/healthz/syncloop?verbose"), Ok(Route::Health("syncloop".into())));
    for unknown in
        ["", "/", "/nothing", "/healthz/other", "/pods/more", "/containerLogs", "/exec/a", "//pods"]
    {
        assert!(
            matches!(get(unknown), Err(Refused::NotFound | Refused::Invalid(400, _))),
            "{unknown}: {:?}",
            get(unknown)
        );
    }
    assert_eq!(route("POST", "/pods", ""), Err(Refused::Method("GET, HEAD")));
    assert_eq!(route("DELETE", "/exec/ns/p/c", "command=x&output=1"), Err(Refused::Method("GET, POST")));
    assert_eq!(get("/run/ns/p/c?cmd=x"), Err(Refused::Method("POST")));
    assert_eq!(get("/checkpoint/ns/p/c"), Err(Refused::Method("POST")));
    assert!(matches!(route("POST", "/checkpoint/ns/p/c", "timeout=long"), Err(Refused::Invalid(404, _))));
    assert!(matches!(get("/debug/pprof/heap"), Err(Refused::NotServed(_))));
}

#[test]
fn a_container_is_named_with_or_without_the_pods_uid() {
    let streams = Streams { stdout: true, stderr: true, ..Streams::default() };
    let words = vec!["sh".to_owned(), "-c".to_owned(), "echo a b&c".to_owned()];
    let query = "command=sh&command=-c&command=echo+a%20b%26c&output=1&error=1";
    assert_eq!(
        get(&format!("/exec/ns/web-box/app?{query}")),
        Ok(Route::Exec(container(None), words.clone(), streams))
    );
    assert_eq!(
        get(&format!("/exec/ns/web-box/u1/app?{query}")),
        Ok(Route::Exec(container(Some("u1")), words, streams))
    );
    assert_eq!(get("/exec/ns/a/b/c/d?command=x&output=1"), Err(Refused::NotFound));
    assert_eq!(
        get("/portForward/ns/web-box?port=80&port=81,82"),
        Ok(Route::PortForward(container(None).pod, vec![80, 81, 82]))
    );
    assert_eq!(get("/portForward/ns/web-box/u1"), Ok(Route::PortForward(container(Some("u1")).pod, vec![])));
    assert_eq!(code("/portForward/ns/web-box?port=0").0, 400);
    let run = route("POST", "/run/ns/web-box/app", "cmd=ls+-l");
    assert_eq!(run, Ok(Route::Run(container(None), vec!["ls".into(), "-l".into()])));
}

#[test]
fn stream_options_accept_both_spellings_and_tty_drops_stderr() {
    let streams = |query: &str| match get(&format!("/attach/ns/p/c?{query}")) {
        Ok(Route::Attach(_, streams)) => streams,
        other => panic!("{other:?}"),
    };
    let all = Streams { stdin: true, stdout: true, stderr: false, tty: true };
    assert_eq!(streams("input=1&output=1&error=1&tty=1"), all);
    assert_eq!(streams("stdin=true&stdout=true&stderr=true&tty=true"), all);
    assert_eq!(
        code("/attach/ns/p/c?tty=1&error=1").1,
        "you must specify at least 1 of stdin, stdout, stderr"
    );
    assert_eq!(code("/exec/ns/p/c?output=1").0, 400);
}

#[test]
fn what_is_wanted_of_a_log_is_checked() {
    let options = |query: &str| match get(&format!("/containerLogs/ns/p/c?{query}")) {
        Ok(Route::ContainerLogs(_, options)) => options,
        other => panic!("{other:?}"),
    };
    assert_eq!(options(""), LogOptions::default());
    let all =
        "follow=true&previous=1&timestamps=true&tailLines=0&limitBytes=10&sinceTime=2026-01-31T12:00:00Z";
    assert_eq!(
        options(all),
        LogOptions {
            follow: true,
            previous: true,
            timestamps: true,
            tail: Some(0),
            since: None,
            since_time: Timestamp::parse_rfc3339("2026-01-31T12:00:00Z"),
            limit_bytes: Some(10),
        }
    );
    assert_eq!(options("tail=all&tailLines=5").tail, None);
    assert_eq!(options("tail=5").tail, Some(5));
    for (query, wanted) in [
        ("tailLines=-1", 422),
        ("tailLines=x", 400),
        ("sinceSeconds=0", 422),
        ("limitBytes=0", 422),
        ("follow=perhaps", 400),
        ("sinceTime=yesterday", 400),
        ("sinceTime=2026-01-31T12:00:00Z&sinceSeconds=5", 422),
    ] {
        let (code, message) = code(&format!("/containerLogs/ns/p/c?{query}"));
        assert_eq!(code, wanted, "{query}: {message}");
        assert!(message.contains(query.split('=').next().unwrap()), "{message}");
    }
    assert_eq!(get("/containerLogs/ns/p/uid/c"), Err(Refused::NotFound), "upstream has no uid here");
}

proptest! {
    #[test]
    fn no_request_makes_it_panic(path in "[/a-zA-Z%0-9+.]{0,40}", prefix in 0_usize..6, query in "[a-z%0-9=&+,:TZ-]{0,60}") {
        let prefix = ["", "/exec/", "/containerLogs/a/", "/portForward/", "/run/a/b/", "/attach/a/b/"][prefix];
        let _ = route("POST", &format!("{prefix}{path}"), &query);
        let _ = route("GET", &format!("{prefix}{path}"), &query);
    }
}
