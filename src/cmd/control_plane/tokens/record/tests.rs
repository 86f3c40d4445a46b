use proptest::prelude::*;

use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_795_305_600);

fn record() -> Record {
    Record {
        id: "abcdef".to_owned(),
        secret: "0123456789abcdef".to_owned(),
        description: "hello world".to_owned(),
        expires: Timestamp::parse_rfc3339("2026-11-28T04:21:57Z"),
        usages: vec!["authentication".to_owned(), "signing".to_owned()],
        groups: vec![GROUP.to_owned()],
    }
}

#[test]
fn a_token_is_the_secret_that_kubeadm_makes() {
    let secret = record().to_secret();
    assert_eq!(
        secret,
        json!({
            "apiVersion": "v1", "kind": "Secret", "type": "bootstrap.kubernetes.io/token",
            "metadata": {"name": "bootstrap-token-abcdef", "namespace": "kube-system"},
            "data": {
                "auth-extra-groups": "c3lzdGVtOmJvb3RzdHJhcHBlcnM6a3ViZWFkbTpkZWZhdWx0LW5vZGUtdG9rZW4=",
                "description": "aGVsbG8gd29ybGQ=",
                "expiration": "MjAyNi0xMS0yOFQwNDoyMTo1N1o=",
                "token-id": "YWJjZGVm",
                "token-secret": "MDEyMzQ1Njc4OWFiY2RlZg==",
                "usage-bootstrap-authentication": "dHJ1ZQ==",
                "usage-bootstrap-signing": "dHJ1ZQ==",
            },
        })
    );
    assert!(Record::from_secret(&secret) == Ok(record()));
    // One that only ends an upload: no usage, no group, no right.
    let plain = Record { usages: Vec::new(), groups: Vec::new(), expires: None, ..record() };
    let keys = plain.to_secret()["data"].as_object().unwrap().keys().cloned().collect::<Vec<_>>();
    assert_eq!(keys, ["description", "token-id", "token-secret"]);
}

#[test]
fn secrets_that_are_no_tokens_are_named() {
    for (key, value) in [("token-id", "AAAA"), ("token-secret", ""), ("expiration", "c29vbg==")] {
        let mut secret = record().to_secret();
        secret["data"][key] = value.into();
        let why = Record::from_secret(&secret).err().unwrap();
        assert!(why.contains("bootstrap-token-abcdef"), "{why}");
    }
    let mut secret = record().to_secret();
    secret["metadata"]["name"] = "bootstrap-token-ghijkl".into();
    assert!(Record::from_secret(&secret).is_err(), "its name is another token's");
}

#[test]
fn usages_and_groups_are_checked_in_kubeadms_words() {
    let check = |usages: &[&str], groups: &[&str]| {
        let list = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        Record { usages: list(usages), groups: list(groups), ..record() }.check()
    };
    assert_eq!(check(&["signing", "authentication"], &[GROUP, "system:bootstrappers:a"]), Ok(()));
    assert_eq!(check(&["signing"], &[]), Ok(()));
    let why = check(&["foo"], &[]).unwrap_err();
    assert!(
        why.contains(
            "invalid bootstrap token usage string: foo, valid usage options: signing,authentication"
        )
    );
    let why = check(&["signing"], &[GROUP]).unwrap_err();
    assert!(
        why.contains("token groups cannot be specified unless --usages includes \"authentication\""),
        "{why}"
    );
    for group in ["foo", "system:bootstrappers:", "system:bootstrappers:a-", "system:bootstrappers:A"] {
        let why = check(&["authentication"], &[group]).unwrap_err();
        assert!(why.contains(&format!("bootstrap group {group:?} is invalid")), "{why}");
    }
}

#[test]
fn tokens_are_named_by_their_ids_or_whole() {
    assert_eq!(id_of("abcdef").unwrap(), "abcdef");
    assert_eq!(id_of("abcdef.0123456789abcdef").unwrap(), "abcdef");
    for wrong in ["", "abcde", "abcdeF", "abcdef.0123", "abcdef 0123456789abcdef"] {
        assert!(id_of(wrong).unwrap_err().contains("didn't match pattern"), "{wrong}");
    }
}

#[test]
fn the_table_is_kubeadms() {
    let forever = Record {
        id: "aaaaaa".to_owned(),
        expires: None,
        description: String::new(),
        usages: Vec::new(),
        groups: Vec::new(),
        ..record()
    };
    let past = Record { expires: Some(NOW), ..forever.clone() };
    let text = table(&[record(), forever, past], NOW);
    let rows: Vec<Vec<&str>> = text
        .lines()
        .map(|line| line.split("   ").map(str::trim).filter(|word| !word.is_empty()).collect())
        .collect();
    assert_eq!(rows[0], COLUMNS);
    assert_eq!(
        rows[1],
        [
            "abcdef.0123456789abcdef",
            "6d",
            "2026-11-28T04:21:57Z",
            "authentication,signing",
            "hello world",
            GROUP
        ]
    );
    assert_eq!(rows[2][1..], ["<forever>", "<never>", "<none>", "<none>", "<none>"]);
    assert_eq!(rows[3][1], "<invalid>");
    let shown = record().shown();
    assert_eq!(shown["kind"], "BootstrapToken");
    assert_eq!(shown["usages"], json!(["authentication", "signing"]));
}

#[test]
fn durations_have_one_unit() {
    for (seconds, expected) in
        [(0, "0s"), (59, "59s"), (60, "1m"), (3599, "59m"), (3600, "1h"), (86_399, "23h"), (86_400, "1d")]
    {
        assert_eq!(human(seconds), expected);
    }
    assert_eq!(human(364 * 86_400), "364d");
    assert_eq!(human(3649 * 86_400), "9y");
}

proptest! {
    #[test]
    fn random_bytes_make_tokens(bytes in prop::collection::vec(any::<u8>(), 0..64)) {
        let usable = bytes.iter().filter(|byte| **byte < 252).count();
        let made = from_random(&bytes);
        prop_assert_eq!(made.is_some(), usable >= 22);
        if let Some(text) = made {
            prop_assert!(jws::BootstrapToken::parse(&text).is_ok());
        }
    }
}
