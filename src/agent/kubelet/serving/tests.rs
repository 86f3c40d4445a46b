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
    let alone =
        |mode, tokens| access(&configured(mode, tokens), None).map(drop).map_err(|error| error.to_string());
    for mode in ["AlwaysAllow", "Local", "Webhook"] {
        let refused = alone(mode, true).unwrap_err();
        assert!(refused.contains("authentication.webhook.enabled: true requires a cluster"), "{refused}");
    }
    let refused = alone("Webhook", false).unwrap_err();
    assert!(refused.contains("authorization.mode: Webhook requires a cluster"), "{refused}");
    assert_eq!((alone("Local", false), alone("AlwaysAllow", false)), (Ok(()), Ok(())));

    let times = ReviewTimes::of(Duration::ZERO, Duration::ZERO, Duration::ZERO);
    let reviews = Reviews::new("n1", times, Clock::System, Dice::System);
    for (mode, asks_tokens) in
        [("Webhook", true), ("Webhook", false), ("Local", true), ("Local", false), ("AlwaysAllow", true)]
    {
        let rules = access(&configured(mode, asks_tokens), Some(&reviews)).unwrap();
        assert_eq!(rules.tokens().is_some(), asks_tokens, "{mode}");
        let asks = match rules.authorizer() {
            Authorizer::Reviews(_) => "Webhook",
            Authorizer::Policy(Policy::Local) => "Local",
            Authorizer::Policy(Policy::AlwaysAllow) => "AlwaysAllow",
        };
        assert_eq!(asks, mode);
    }
}
