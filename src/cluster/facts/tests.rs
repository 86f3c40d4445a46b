use super::*;

fn bundle(name: &str, signer: &str, labels: &Value, byte: &str) -> Value {
    let pem = format!("-----BEGIN CERTIFICATE-----\n{byte}\n-----END CERTIFICATE-----\n");
    reduced(&json!({"metadata": {"name": name, "labels": labels, "uid": "u"},
        "spec": {"signerName": signer, "trustBundle": pem}}))
}

#[test]
fn a_projection_selects_trust_bundles_as_upstream() {
    let facts = Facts::restored(&[]);
    assert_eq!(facts.trust_bundle(&json!({"name": "a"})), Err(Absence::NotSynced));
    let bundles = vec![
        bundle("a", "s", &json!({"x": "1"}), "AAAA"),
        bundle("b", "s", &json!({"x": "2"}), "BBBB"),
        bundle("c", "other", &json!({}), "CCCC"),
    ];
    assert!(facts.set_bundles(Some(Ok(bundles.clone()))).is_some());
    assert!(facts.set_bundles(Some(Ok(bundles))).is_none());
    let expression = |rule: Value| json!({"signerName": "s", "labelSelector": {"matchExpressions": [rule]}});
    for (source, expected) in [
        (json!({"name": "c"}), Ok("C")),
        (json!({"signerName": "s", "labelSelector": {}}), Ok("AB")),
        (json!({"signerName": "s", "labelSelector": {"matchLabels": {"x": "2"}}}), Ok("B")),
        (expression(json!({"key": "x", "operator": "In", "values": ["1"]})), Ok("A")),
        (expression(json!({"key": "x", "operator": "NotIn", "values": ["1"]})), Ok("B")),
        (expression(json!({"key": "x", "operator": "Exists"})), Ok("AB")),
        (expression(json!({"key": "y", "operator": "DoesNotExist"})), Ok("AB")),
        (
            json!({"signerName": "s"}),
            Err("combination of signerName and labelSelector matched zero ClusterTrustBundles"),
        ),
        (json!({"signerName": "s", "optional": true}), Ok("")),
        (
            json!({"name": "z"}),
            Err("while getting ClusterTrustBundle: clustertrustbundle.certificates.k8s.io \"z\" not found"),
        ),
        (json!({}), Err("ClusterTrustBundle projection requires either name or signerName to be set")),
    ] {
        let found = facts.trust_bundle(&source).map(|pem| {
            let text = String::from_utf8(pem).unwrap();
            text.lines().filter(|line| line.len() == 4).map(|line| line[..1].to_owned()).collect::<String>()
        });
        let expected = expected.map(str::to_owned).map_err(|why: &str| Absence::Refused(why.to_owned()));
        assert_eq!(found, expected, "{source}");
    }
}

#[test]
fn a_row_says_which_token_it_is() {
    let pod = PodRef { namespace: "shop".into(), name: "p".into(), uid: "u1".into() };
    for audience in ["", "https://vault.example/v1"] {
        let request = TokenRequest {
            namespace: "shop".into(),
            account: "web".into(),
            pod: pod.clone(),
            audience: audience.into(),
            seconds: 3607,
        };
        let time = crate::model::types::Timestamp::from_secs(1_800_000_000);
        let token = Token { value: "secret".into(), received: time, expires: time, seconds: 3607 };
        let FactChange::Put(row) = token_row(&request, &token) else { panic!("a token is a row") };
        let odd = FactRow { name: "p/web".to_owned(), ..row.clone() };
        let facts = Facts::restored(&[odd, row]);
        assert_eq!(facts.token(&request), Ok("secret".into()));
        assert_eq!(facts.token_requests(), [request]);
    }
}

#[test]
fn services_that_were_never_read_are_no_variables() {
    let facts = Facts::restored(&[]);
    let kubernetes = json!({"metadata": {"namespace": "default", "name": "kubernetes"}, "spec": {"clusterIP": "10.0.0.1"}});
    let absent = Err(Absence::NotSynced);
    assert_eq!(facts.service_variables("shop", false), absent);
    assert!(
        facts.change_services(&ServiceScope::master(), |all| all.extend(from_server(&kubernetes))).is_some()
    );
    assert_eq!(facts.service_variables("shop", false).map(|all| all.len()), Ok(1));
    assert_eq!(facts.service_variables("shop", true), absent);
    // None is an answer, too, and stored as one.
    let Some(FactChange::Put(row)) = facts.change_services(&ServiceScope::all("shop"), |_| {}) else {
        panic!("an empty namespace is a row")
    };
    assert_eq!(facts.service_variables("shop", true).map(|all| all.len()), Ok(1));
    assert!(Facts::restored(&[row]).service_scopes() == [ServiceScope::all("shop")]);
}
