use super::*;

fn configured(mode: &str, reviews_tokens: bool) -> KubeletConfiguration {
    KubeletConfiguration {
        authorization_mode: mode.to_owned(),
        authentication_webhook_enabled: reviews_tokens,
        ..KubeletConfiguration::default()
    }
}

#[tokio::test]
async fn only_a_node_with_a_kubeconfig_asks_a_cluster() {
    let alone = access(&configured("Local", false), None);
    assert!(alone.tokens().is_none() && matches!(alone.authorizer(), Authorizer::Policy(Policy::Local)));

    let times = ReviewTimes::of(Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let reviews = Reviews::new("n1", times, Clock::System, Dice::System);
    for (mode, asks_tokens) in
        [("Webhook", true), ("Webhook", false), ("Local", true), ("Local", false), ("AlwaysAllow", true)]
    {
        let rules = access(&configured(mode, asks_tokens), Some(&reviews));
        assert_eq!(rules.tokens().is_some(), asks_tokens, "{mode}");
        let asks = match rules.authorizer() {
            Authorizer::Reviews(_) => "Webhook",
            Authorizer::Policy(Policy::Local) => "Local",
            Authorizer::Policy(Policy::AlwaysAllow) => "AlwaysAllow",
        };
        assert_eq!(asks, mode);
    }
}

#[test]
fn an_unspecified_node_ip_is_not_in_the_certificate() {
    for address in ["0.0.0.0", "::"] {
        let (given, for_pods) = (vec![address.parse().unwrap()], vec!["pods".to_owned()]);
        let names = serving_names("n1".to_owned(), given, address, for_pods)();
        assert!(names.iter().all(|name| name != address), "{names:?}");
        assert_eq!(names.last().map(String::as_str), Some("pods"));
    }
}
