//! The messages between the two processes; pulls themselves are tested in `tests/registry`.

use super::*;
use crate::model::api::decode::decode;

#[test]
fn progress_and_requests_arrive_as_they_were_sent() {
    let digest = || "sha256:abc".to_owned();
    for progress in [
        Progress::Resolved { reference: "r".into(), digest: digest() },
        Progress::Layer { digest: digest(), done: 1, total: u64::MAX, state: LayerState::Extracting },
        Progress::Done { image_id: digest(), reference: "r".into(), repo_digest: "d".into() },
        Progress::Failed { kind: PullErrorKind::Denied, message: "no \n \"way\"".into() },
    ] {
        let line = serde_json::to_value(&progress).unwrap().to_string();
        assert!(!line.contains('\n'), "{line}");
        assert_eq!(serde_json::from_str::<Progress>(&line).unwrap(), progress);
    }
    let auth = ImageAuth::of_user("me".into(), "secret".into());
    let request =
        PullRequest { image: "a".into(), auth: Some(auth), stall_timeout_ms: 5, ..PullRequest::default() };
    let text = serde_json::to_value(&request).unwrap();
    assert_eq!(decode::<PullRequest>(text).unwrap().object, request);
    assert!(!format!("{request:?}").contains("secret"));
}
