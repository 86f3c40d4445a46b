//! The kubelet's messages for answers of real sockets.

use super::*;
use crate::platform::http::testing::{Server, answer};
use crate::pod::prober::place::{ProbeAddress, Speed};
use crate::pod::prober::run::{Job, ProbeOutcome, run};

/// One run of a liveness probe, on real time.
async fn ask(probe: Value) -> ProbeOutcome {
    let pod = json!({"metadata": {"uid": "u1"}, "spec": {"containers": [{"name": "main", "livenessProbe": probe}]}});
    let clock = Clock::System;
    let job = Job {
        place: Rc::new(ProbeAddress {
            uid: "u1".into(),
            container: "main".into(),
            kind: ProbeKind::Liveness,
        }),
        id: "c1".into(),
        pod: Rc::new(decode::<Pod>(pod).unwrap().object),
        pod_ip: "127.0.0.1".into(),
        speed: Speed::Quick,
    };
    run(Rc::new(FakeRuntime::new(clock, 1)), job).await.answer
}

fn closed_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

#[tokio::test]
async fn http() {
    let elsewhere = "Location: http://other.example/";
    for (status, header, wanted) in [
        ("200 OK", "X: y", ProbeOutcome::Success),
        (
            "399 Odd",
            "X: y",
            ProbeOutcome::Warning("Probe terminated redirects, Response body: text".to_owned()),
        ),
        (
            "302 Found",
            elsewhere,
            ProbeOutcome::Warning("Probe terminated redirects, Response body: text".to_owned()),
        ),
        ("404 Not Found", "X: y", ProbeOutcome::Failure("HTTP probe failed with statuscode: 404".to_owned())),
        ("500 Oops", "X: y", ProbeOutcome::Failure("HTTP probe failed with statuscode: 500".to_owned())),
    ] {
        let server = Server::answers(vec![answer(status, &[header], "text")]);
        let got = ask(json!({"httpGet": {"port": server.port(), "path": "/"}, "timeoutSeconds": 5})).await;
        assert_eq!(got, wanted, "{status}");
    }
    let port = closed_port();
    let words =
        format!("Get \"http://127.0.0.1:{port}/x\": dial tcp 127.0.0.1:{port}: connect: connection refused");
    assert_eq!(ask(json!({"httpGet": {"port": port, "path": "/x"}})).await, ProbeOutcome::Failure(words));
}

#[tokio::test]
async fn a_body_that_breaks_off_is_an_error_after_three_tries() {
    let server = Server::answers(vec!["HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nhalf".to_owned()]);
    let got = ask(json!({"httpGet": {"port": server.port(), "path": "/"}})).await;
    assert!(matches!(&got, ProbeOutcome::Error { state: "failure", .. }), "{got:?}");
    for _ in 0..3 {
        server.request();
    }
}

#[tokio::test]
async fn tcp_grpc_and_ports_that_are_not_there() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let open = listener.local_addr().unwrap().port();
    let closed = closed_port();
    let refused = format!("dial tcp 127.0.0.1:{closed}: connect: connection refused");
    assert_eq!(ask(json!({"tcpSocket": {"port": open}})).await, ProbeOutcome::Success);
    assert_eq!(ask(json!({"tcpSocket": {"port": closed}})).await, ProbeOutcome::Failure(refused));
    let got = ask(json!({"grpc": {"port": closed}})).await;
    assert!(
        matches!(&got, ProbeOutcome::Failure(words) if words.starts_with("error: failed to connect service")),
        "{got:?}"
    );
    let got = ask(json!({"httpGet": {"port": "web", "path": "/"}})).await;
    let complaint = "errored and resulted in unknown state: strconv.Atoi: parsing \"web\": invalid syntax";
    assert_eq!(got.complaint(), Some(("Unhealthy", complaint.to_owned())));
}
