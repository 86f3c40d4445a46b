//! Hooks against a simulated runtime and real sockets of the loopback.

use super::*;
use crate::model::api::pod::{ExecAction, HttpGetAction, IntOrString, LifecycleHandler, TcpSocketAction};
use crate::platform::http::testing::{Server, answer};
use crate::pod::executor::testing::Bench;
use crate::pod::lifecycle::PodWorkerEvent;
use crate::runtime::fake::Program;

fn hook(handler: LifecycleHandler) -> Hook {
    Hook { handler, ports: Vec::new() }
}

fn exec(command: &str) -> Hook {
    let command = vec![command.to_owned()];
    hook(LifecycleHandler { exec: Some(ExecAction { command }), ..LifecycleHandler::default() })
}

fn http(scheme: &str, port: u16) -> Hook {
    let get = HttpGetAction {
        path: "/hello?now".to_owned(),
        port: IntOrString::Int(i32::from(port)),
        scheme: scheme.to_owned(),
        ..HttpGetAction::default()
    };
    hook(LifecycleHandler { http_get: Some(get), ..LifecycleHandler::default() })
}

#[tokio::test(start_paused = true)]
async fn commands_are_run_as_written_and_judged_by_their_exit_code() {
    let bench = Bench::new().await;
    let site = bench.start(Program::forever()).await;
    bench.script_command(&site, "bad", Duration::from_secs(3), 2);
    let begun = tokio::time::Instant::now();
    assert_eq!(bench.hooks.run(&site, &exec("good")).await, Ok(()));
    assert_eq!(
        bench.hooks.run(&site, &exec("bad")).await.unwrap_err(),
        "Exec lifecycle hook ([bad]) for Container \"c1\" in Pod \"web_shop(u1)\" failed - error: \
         command 'bad' exited with 2, message: \"words\""
    );
    assert_eq!(begun.elapsed().as_secs(), 3);
    bench.fake.change(|world, now| world.kill_container(&site.id, 1, now));
    let error = bench.hooks.run(&site, &exec("good")).await.unwrap_err();
    assert!(error.contains("is not running"), "{error}");
    let tcp =
        LifecycleHandler { tcp_socket: Some(TcpSocketAction::default()), ..LifecycleHandler::default() };
    let error = bench.hooks.run(&site, &hook(tcp)).await.unwrap_err();
    assert_eq!(error, "Cannot run handler: invalid handler: tcpSocket");
}

#[tokio::test]
async fn any_answer_to_a_request_is_a_success() {
    let bench = Bench::new().await;
    let site = bench.start(Program::forever()).await;
    for status in ["200 OK", "404 Not Found", "500 Internal Server Error"] {
        let server = Server::answers(vec![answer(status, &[], "words")]);
        assert_eq!(bench.hooks.run(&site, &http("HTTP", server.port())).await, Ok(()), "{status}");
        let head = server.request();
        assert!(head.starts_with("get /hello?now http/1.1\r\n"), "{head}");
        assert!(head.contains("\r\nuser-agent: kube-lifecycle/1.36\r\n"), "{head}");
    }
    let closed = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let error = bench.hooks.run(&site, &http("HTTP", closed)).await.unwrap_err();
    assert!(error.starts_with("HTTP lifecycle hook (/hello?now) for Container \"c1\""), "{error}");
    assert!(error.contains("connection refused"), "{error}");
    assert_eq!(bench.event_messages(), []);
}

#[tokio::test]
async fn a_server_that_speaks_no_tls_is_asked_again_in_the_open() {
    let bench = Bench::new().await;
    let site = bench.start(Program::forever()).await;
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let serve = async {
        let mut firsts = Vec::new();
        for _ in 0..2 {
            let (stream, _) = listener.accept().await.unwrap();
            let mut first = [0; 4096];
            stream.readable().await.unwrap();
            stream.try_read(&mut first).unwrap();
            stream.try_write(answer("400 Bad Request", &[], "").as_bytes()).unwrap();
            firsts.push(first[0]);
        }
        firsts
    };
    let hook = http("HTTPS", port);
    let (firsts, outcome) = tokio::join!(serve, bench.hooks.run(&site, &hook));
    assert_eq!((firsts.as_slice(), outcome), ([22, b'G'].as_slice(), Ok(())), "a TLS hello, then a GET");
    let message = format!(
        "request to HTTPS lifecycle hook 127.0.0.1:{port} got HTTP response, retry with HTTP succeeded"
    );
    assert_eq!(bench.event_messages(), [("LifecycleHTTPFallback".to_owned(), message)]);
}

#[tokio::test(start_paused = true)]
async fn container_end_is_noticed_on_each_look_request() {
    let bench = Bench::new().await;
    let site = bench.start(Program::forever()).await;
    let inbox = Inbox::default();
    let ended = bench.hooks.ended(&site.id, &inbox);
    let happening = async {
        let pause = || tokio::time::sleep(Duration::from_secs(1));
        pause().await;
        inbox.push_event(PodWorkerEvent::Desired);
        pause().await;
        inbox.request_observation();
        pause().await;
        assert_eq!(bench.calls("ContainerStatus", &site.id), 2, "one at first, one when told to look");
        bench.fake.change(|world, now| world.kill_container(&site.id, 1, now));
        inbox.request_observation();
    };
    tokio::join!(ended, happening);
    assert_eq!(bench.calls("ContainerStatus", &site.id), 3);
    bench.fake.change(|world, now| world.remove_container(&site.id, now));
    bench.hooks.ended(&site.id, &inbox).await;
}
