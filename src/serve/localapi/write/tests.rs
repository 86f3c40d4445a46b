//! Invalid options, and field errors as clients read them.

use super::*;
use crate::serve::localapi::path::{self, ApiCall};

fn refused(method: &str, query: &str) -> Option<String> {
    let path = match method {
        "POST" => "/api/v1/namespaces/default/pods",
        _ => "/api/v1/namespaces/default/pods/p",
    };
    let Ok(ApiCall::Object(wanted)) = path::read(method, path, query) else { panic!("{method} {query}") };
    check_options(&wanted).err().map(|failure| format!("{} {}", failure.code, failure.message))
}

#[test]
fn options_are_checked_with_upstreams_words() {
    assert_eq!(refused("POST", "dryRun=All&fieldValidation=Strict&fieldManager=me"), None);
    for (method, query, said) in [
        (
            "POST",
            "dryRun=Some",
            "422 CreateOptions.meta.k8s.io \"\" is invalid: dryRun: Unsupported value: \"Some\": supported values: \"All\"",
        ),
        (
            "PATCH",
            "fieldValidation=Loud",
            "422 PatchOptions.meta.k8s.io \"\" is invalid: fieldValidation: Unsupported value: \"Loud\": supported values: \"Ignore\", \"Strict\", \"Warn\"",
        ),
        (
            "DELETE",
            "propagationPolicy=Up",
            "422 DeleteOptions.meta.k8s.io \"\" is invalid: propagationPolicy: Unsupported value: \"Up\": supported values: \"Background\", \"Foreground\", \"Orphan\"",
        ),
    ] {
        assert_eq!(refused(method, query).as_deref(), Some(said));
    }
    let long = format!("fieldManager={}", "x".repeat(129));
    assert!(refused("PUT", &long).is_some_and(|said| said.contains("fieldManager: Too long")));
}

#[test]
fn a_field_error_is_a_cause_without_its_path() {
    let error = FieldError {
        path: "spec.nodeName".to_owned(),
        kind: FieldErrorKind::Invalid,
        value: "\"x\"".to_owned(),
        detail: "why".to_owned(),
    };
    let expected = Cause {
        reason: "FieldValueInvalid".to_owned(),
        message: "Invalid value: \"x\": why".to_owned(),
        field: "spec.nodeName".to_owned(),
    };
    assert_eq!(causes(&[error]), [expected]);
}
