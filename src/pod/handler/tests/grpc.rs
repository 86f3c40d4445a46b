//! A health service of gRPC, and servers that are none.

use std::convert::Infallible;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::TcpListener;
use tonic::body::Body;
use tonic::{Request, Response, Status, async_trait};
use tower_service::Service;

use super::{SOON, closed_port};
use crate::platform::http::testing::{Server, answer};
use crate::platform::proto::health::health_check_response::ServingStatus;
use crate::platform::proto::health::health_server::{Health, HealthServer};
use crate::platform::proto::health::{HealthCheckRequest, HealthCheckResponse};
use crate::pod::handler::{HandlerError, SERVING, grpc_check};

/// Knows three services.
struct Doctor;

#[async_trait]
impl Health for Doctor {
    async fn check(
        &self,
        request: Request<HealthCheckRequest>,
    ) -> Result<Response<HealthCheckResponse>, Status> {
        let agent = request.metadata().get("user-agent").and_then(|agent| agent.to_str().ok());
        assert!(agent.is_some_and(|agent| agent.starts_with("kube-probe/1.36")), "{agent:?}");
        let status = match request.into_inner().service.as_str() {
            "" | "fine" => ServingStatus::Serving,
            "ill" => ServingStatus::NotServing,
            "slow" => {
                tokio::time::sleep(Duration::from_secs(60)).await;
                ServingStatus::Serving
            }
            _ => return Err(Status::not_found("unknown service")),
        };
        Ok(Response::new(HealthCheckResponse { status: status.into() }))
    }
}

/// The port of a server that ends with the test's runtime; without a doctor it knows no service at all.
async fn serve(has_doctor: bool) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            let service = service_fn(move |request: hyper::Request<Incoming>| async move {
                if has_doctor {
                    HealthServer::new(Doctor).call(request).await
                } else {
                    Ok::<_, Infallible>(Status::unimplemented("unknown service").into_http::<Body>())
                }
            });
            let http = hyper::server::conn::http2::Builder::new(TokioExecutor::new());
            tokio::spawn(http.serve_connection(TokioIo::new(stream), service));
        }
    });
    port
}

#[tokio::test]
async fn a_check_gives_the_services_status() {
    let port = serve(true).await;
    for (service, status) in [("", SERVING), ("fine", SERVING), ("ill", 2)] {
        assert_eq!(grpc_check("127.0.0.1", port, service, SOON).await, Ok(status), "{service:?}");
    }
}

#[tokio::test]
async fn failures_read_as_in_the_kubelets_events() {
    let check = async |port, service, timeout| match grpc_check("127.0.0.1", port, service, timeout).await {
        Err(HandlerError::Failed(words)) => words,
        other => panic!("{other:?}"),
    };
    let port = serve(true).await;
    assert_eq!(
        check(port, "nobody", SOON).await,
        "error: health rpc probe failed: rpc error: code = NotFound desc = unknown service"
    );
    assert_eq!(
        check(port, "slow", Duration::from_millis(200)).await,
        "timeout: health rpc did not complete within 200ms"
    );
    assert_eq!(
        check(serve(false).await, "", SOON).await,
        "error: this server does not implement the grpc health protocol (grpc.health.v1.Health): unknown service"
    );
    let port = closed_port();
    assert_eq!(
        check(port, "", SOON).await,
        format!(
            "error: failed to connect service at \"127.0.0.1:{port}\": connection error: desc = \"transport: Error while \
             dialing: dial tcp 127.0.0.1:{port}: connect: connection refused\""
        )
    );
    let web = Server::answers(vec![answer("400 Bad Request", &[], "")]);
    let words = check(web.port(), "", SOON).await;
    assert!(words.starts_with("error: health rpc probe failed: rpc error: code = "), "{words}");
}
