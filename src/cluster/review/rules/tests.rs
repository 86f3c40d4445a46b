use super::*;

const MINUTE: Duration = Duration::from_secs(60);

fn cache() -> ReviewCache {
    ReviewCache::new(ReviewTimes::of(Duration::ZERO, Duration::ZERO, Duration::ZERO))
}

fn user(name: &str) -> ReviewedUser {
    ReviewedUser { name: name.into(), groups: vec!["system:masters".into()], ..ReviewedUser::default() }
}

#[test]
fn a_node_ca_user_needs_no_review() {
    for webhook in [true, false] {
        for is_kubelet_path in [true, false] {
            assert_eq!(judge(UserRealm::Node, webhook, is_kubelet_path), Judge::Groups);
        }
    }
}

#[test]
fn a_cluster_admin_is_no_node_admin() {
    assert_eq!(judge(UserRealm::Cluster, true, true), Judge::Cluster);
    assert_eq!(judge(UserRealm::Cluster, true, false), Judge::Refused);
    // Without the webhook, `clientCAFile` is the node's own list of users, as it was.
    assert_eq!(judge(UserRealm::Cluster, false, true), Judge::Groups);
}

#[test]
fn questions_have_upstreams_attributes() {
    let mut jane = user("jane");
    assert_eq!(
        access_review(&jane, "get", "proxy", "edge-7")["spec"],
        json!({
            "resourceAttributes": {
                "verb": "get", "version": "v1", "resource": "nodes", "subresource": "proxy", "name": "edge-7",
            },
            "user": "jane",
            "groups": ["system:masters"],
        })
    );
    (jane.uid, jane.extra) = ("u1".into(), json!({ "scopes": ["a"] }));
    let spec = &access_review(&jane, "get", "proxy", "edge-7")["spec"];
    assert_eq!((&spec["uid"], &spec["extra"]), (&json!("u1"), &json!({ "scopes": ["a"] })));
    assert_eq!(token_review("t")["spec"], json!({ "token": "t" }));
    assert_ne!(key(&token_review("t")), key(&token_review("u")));
}

#[test]
fn answers_are_read_or_are_none() {
    let access = |status: Value| read_access_review(&json!({ "status": status }));
    assert_eq!(access(json!({ "allowed": true })), Ok(ReviewAnswer::Allowed));
    let denied = ReviewAnswer::Denied("no".into());
    assert_eq!(access(json!({ "allowed": false, "reason": "no" })), Ok(denied));
    assert!(access(json!({ "allowed": true, "denied": true })).is_err());
    assert!(access(json!({})).is_err());
    assert!(read_access_review(&json!("<html>")).is_err());

    let token = |status: Value| read_token_review(&json!({ "status": status }));
    let named = json!({ "username": "jane", "uid": "u1", "groups": ["a", "b"], "extra": { "k": ["v"] } });
    let jane = ReviewedUser {
        name: "jane".into(),
        uid: "u1".into(),
        groups: vec!["a".into(), "b".into()],
        extra: json!({ "k": ["v"] }),
    };
    let found = token(json!({ "authenticated": true, "user": named }));
    assert_eq!(found, Ok(ReviewAnswer::User(Rc::new(jane))));
    for status in [json!({}), json!({ "authenticated": false }), json!({ "authenticated": true, "user": {} })]
    {
        assert_eq!(token(status), Ok(ReviewAnswer::Unknown));
    }
    assert_eq!(token(json!({ "error": "etcd is slow" })), Err("etcd is slow".to_owned()));
}

#[test]
fn equal_questions_share_a_review() {
    let mut cache = cache();
    let asked = key(&access_review(&user("jane"), "get", "proxy", "edge-7"));
    assert_eq!(cache.ask(asked, MINUTE), Asked::Ask);
    assert_eq!(cache.ask(asked, MINUTE), Asked::Join);
    assert_eq!(cache.ask(key(&token_review("t")), MINUTE), Asked::Ask, "another question");
    cache.answered(asked, Some(&ReviewAnswer::Allowed), MINUTE);
    assert_eq!(cache.ask(asked, MINUTE * 5), Asked::Known(ReviewAnswer::Allowed));
    assert_eq!(cache.ask(asked, MINUTE * 6), Asked::Ask, "five minutes are over");
}

#[test]
fn answers_hold_for_their_time() {
    let jane = ReviewAnswer::User(Rc::new(user("jane")));
    for (answer, seconds) in [
        (ReviewAnswer::Allowed, 300),
        (ReviewAnswer::Denied(String::new()), 30),
        (jane, 120),
        (ReviewAnswer::Unknown, 120),
    ] {
        let mut cache = cache();
        let asked = [1; 32];
        assert_eq!(cache.ask(asked, MINUTE), Asked::Ask);
        cache.answered(asked, Some(&answer), MINUTE);
        let until = MINUTE + Duration::from_secs(seconds);
        assert_eq!(
            cache.ask(asked, until.saturating_sub(Duration::from_millis(1))),
            Asked::Known(answer.clone())
        );
        assert_eq!(cache.ask(asked, until), Asked::Ask, "{answer:?}");
    }
    let set = ReviewTimes::of(MINUTE, MINUTE * 2, MINUTE * 3);
    assert_eq!(set, ReviewTimes { token: MINUTE, allowed: MINUTE * 2, denied: MINUTE * 3 });
}

#[test]
fn no_answer_means_no_access() {
    let mut cache = cache();
    let asked = [1; 32];
    assert_eq!(cache.ask(asked, MINUTE), Asked::Ask);
    cache.answered(asked, Some(&ReviewAnswer::Allowed), MINUTE);
    let later = MINUTE * 7;
    assert_eq!(cache.ask(asked, later), Asked::Ask);
    cache.answered(asked, None, later);
    assert_eq!(cache.ask(asked, later), Asked::Ask, "neither the old answer nor none is kept");
    // The kernel did not say how long the machine has been up.
    cache.answered(asked, Some(&ReviewAnswer::Allowed), Duration::MAX);
    assert_eq!(cache.ask(asked, Duration::MAX), Asked::Ask);
}

#[test]
fn the_answer_used_longest_ago_makes_room() {
    let mut cache = cache();
    let number = |index: usize| key(&json!(index));
    for index in 0..MOST_ANSWERS {
        assert_eq!(cache.ask(number(index), MINUTE), Asked::Ask);
        // The first is still being asked.
        if index > 0 {
            cache.answered(number(index), Some(&ReviewAnswer::Allowed), MINUTE);
        }
    }
    assert_eq!(cache.ask(number(1), MINUTE), Asked::Known(ReviewAnswer::Allowed));
    assert_eq!(cache.ask(number(MOST_ANSWERS), MINUTE), Asked::Ask);
    assert_eq!(cache.entries.len(), MOST_ANSWERS);
    assert_eq!(cache.ask(number(0), MINUTE), Asked::Join);
    assert_eq!(cache.ask(number(1), MINUTE), Asked::Known(ReviewAnswer::Allowed));
    assert_eq!(cache.ask(number(2), MINUTE), Asked::Ask, "it left");
    assert_eq!(cache.ask(number(MOST_ANSWERS + 1), MINUTE * 9), Asked::Ask);
    assert_eq!(cache.entries.len(), 4, "what no longer holds left with it");
}

#[test]
fn a_question_is_asked_five_times_at_most() {
    let waits: Vec<u128> = (1..=4).map(|tries| next_try(tries, 0.0).unwrap().as_millis()).collect();
    assert_eq!(waits, [500, 750, 1125, 1687]);
    assert_eq!(next_try(1, 1.0), Some(Duration::from_millis(600)));
    assert_eq!(next_try(5, 0.0), None);
    for (status, is_again) in [(None, true), (Some(429), true), (Some(500), true), (Some(504), true)] {
        assert_eq!(is_asked_again(status, false), is_again);
    }
    for status in [400, 401, 403, 404, 503] {
        assert!(!is_asked_again(Some(status), false));
        assert!(is_asked_again(Some(status), true));
    }
}
