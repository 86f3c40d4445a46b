use std::cell::{Cell, RefCell};

use super::*;
use crate::cluster::client::error::LinkError;
use crate::cluster::client::transport::{ApiResponse, Bytes, Chunks};

/// Healthy from this question on.
struct Later(Cell<u32>);

struct Nothing;

impl Chunks for Nothing {
    async fn next(&mut self) -> Option<Result<Bytes, LinkError>> {
        None
    }
}

impl Transport for Later {
    type Body = Nothing;

    async fn send(&self, _: Lane, request: ApiRequest) -> Result<ApiResponse<Nothing>, LinkError> {
        assert_eq!(request.path, "/livez");
        let left = self.0.get();
        self.0.set(left.saturating_sub(1));
        let status = if left == 0 { 200 } else { 500 };
        let content_type = "text/plain".to_owned();
        Ok(ApiResponse { status, retry_after: None, content_type, body: Nothing })
    }
}

fn component(name: &'static str) -> Component {
    Component { name, server: "https://127.0.0.1:1".to_owned(), path: "/livez" }
}

#[tokio::test(start_paused = true)]
async fn components_are_waited_for_until_the_one_deadline() {
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let (one, two) = (component("kube-apiserver"), component("kube-scheduler"));
    let deadline = || Instant::now() + Duration::from_secs(600);
    // Slower than kubeadm's four minutes.
    let asked = [(&one, Later(Cell::new(0))), (&two, Later(Cell::new(1000)))];
    assert_eq!(until_healthy(&say, &asked, deadline()).await, [""; 0]);
    let text = said.take();
    assert!(text.contains("[control-plane-check] kube-apiserver is healthy after 0s\n"), "{text}");
    assert!(text.contains("[control-plane-check] kube-scheduler is healthy after 8m20s\n"), "{text}");
    let begun = Instant::now();
    let asked = [(&one, Later(Cell::new(0))), (&two, Later(Cell::new(u32::MAX)))];
    let unhealthy = until_healthy(&say, &asked, deadline()).await;
    assert_eq!(unhealthy, ["kube-scheduler check failed at https://127.0.0.1:1/livez: HTTP status 500"]);
    assert!(begun.elapsed() <= Duration::from_secs(600));
    assert!(said.take().contains("kube-scheduler is not healthy after"), "it is said");
}

#[tokio::test(start_paused = true)]
async fn a_kubelet_without_a_health_port_is_not_asked() {
    let say = |text: &str| panic!("{text}");
    kubelet(&say, None, Instant::now()).await.unwrap();
}

#[tokio::test]
async fn a_kubelet_that_does_not_answer_is_an_error_with_a_hint() {
    let said = RefCell::new(String::new());
    let say = |text: &str| said.borrow_mut().push_str(text);
    let at = SocketAddr::from(([127, 0, 0, 1], 1));
    let why = kubelet(&say, Some(at), Instant::now()).await.unwrap_err().to_string();
    assert!(why.contains("journalctl -u agent") && why.contains("http://127.0.0.1:1/healthz"), "{why}");
    assert!(said.take().contains("The kubelet is not healthy after"));
}
