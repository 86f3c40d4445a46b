use super::*;
use crate::model::types::PodRef;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn request(seconds: i64, audience: &str) -> TokenRequest {
    let pod = PodRef { namespace: "shop".into(), name: "web".into(), uid: "u1".into() };
    TokenRequest { namespace: "shop".into(), account: "web".into(), pod, audience: audience.into(), seconds }
}

fn token(seconds: i64) -> Token {
    let end = NOW.saturating_add(Duration::from_secs(seconds.unsigned_abs()));
    Token { value: "secret".into(), received: NOW, expires: end, seconds }
}

fn after(seconds: u64) -> Timestamp {
    NOW.saturating_add(Duration::from_secs(seconds))
}

#[test]
fn a_request_is_bound_to_its_pod() {
    let bound = json!({ "apiVersion": "v1", "kind": "Pod", "name": "web", "uid": "u1" });
    let spec = |audiences: Value| json!({ "audiences": audiences, "expirationSeconds": 3607, "boundObjectRef": bound });
    assert_eq!(body(&request(3607, ""))["spec"], spec(json!([])));
    assert_eq!(body(&request(3607, "vault"))["spec"], spec(json!(["vault"])));
}

#[test]
fn tokens_are_renewed_at_80_percent() {
    for (seconds, unit, at) in [
        (3600, 0.0, 2880),
        (3600, 1.0, 2870),
        (3607, 0.0, 2885),
        (600, 0.5, 475),
        // Whatever their time is, after a day.
        (365 * 86_400, 0.0, 86_400),
        (0, 1.0, 0),
    ] {
        let token = token(seconds);
        let whole = renew_at(&token, unit).saturating_since(NOW).as_secs();
        assert_eq!(whole, at, "{seconds} {unit}");
        assert!(due(&token, after(at + 1), unit));
        assert!(at == 0 || !due(&token, after(at - 1), unit));
    }
    assert!(due(&token(3600), Timestamp::from_secs(30), 0.0), "the clock was set back");
}

#[test]
fn what_the_server_grants_counts() {
    let answer = |status: Value| json!({ "spec": { "expirationSeconds": 600 }, "status": status });
    let end = "2027-01-15T08:10:00Z";
    let found =
        from_answer(&answer(json!({ "token": "t", "expirationTimestamp": end })), &request(3600, ""), NOW);
    let found = found.ok().unwrap();
    assert_eq!((&*found.value, found.seconds, found.received), ("t", 600, NOW));
    assert_eq!(found.expires.to_rfc3339(), end);
    for bad in [json!({}), json!({ "token": "t" }), json!({ "token": "", "expirationTimestamp": end })] {
        assert!(from_answer(&answer(bad), &request(3600, ""), NOW).is_err());
    }
}

#[test]
fn an_old_token_serves_while_offline() {
    let (token, request) = (token(3600), request(3600, ""));
    let given = |token: Option<&Token>, why: NoToken, now: Timestamp| {
        after_failure(token, &request, why, "no route", now).map(|value| value.to_string())
    };
    let month = after(30 * 86_400);
    assert_eq!(given(Some(&token), NoToken::Offline, month).as_deref(), Ok("secret"));
    assert_eq!(given(Some(&token), NoToken::Refused, after(3600)).as_deref(), Ok("secret"));
    let expired = "token \"web\"/\"shop\" expired and refresh failed: no route";
    assert_eq!(given(Some(&token), NoToken::Refused, month), Err(expired.to_owned()));
    let none = Err("failed to fetch token: no route".to_owned());
    assert_eq!(given(Some(&token), NoToken::Gone, NOW), none);
    for why in [NoToken::Offline, NoToken::Gone, NoToken::Refused] {
        assert_eq!(given(None, why, NOW), none);
    }
}

#[test]
fn a_token_is_written_once_a_day() {
    assert!(is_written(None, NOW));
    assert!(!is_written(Some(NOW), after(86_399)));
    assert!(is_written(Some(NOW), after(86_400)));
    assert!(is_written(Some(NOW), Timestamp::from_secs(30)), "the clock was set back");
    let token = token(3607);
    assert!(from_row(&to_row(&token)) == Some(token));
    assert!(from_row(&json!({ "token": "t" })).is_none());
    let names: Vec<String> =
        [request(3600, ""), request(3607, ""), request(3600, "vault")].iter().map(row_name).collect();
    assert_eq!(names, ["web/web/3600/", "web/web/3607/", "web/web/3600/vault"]);
}
