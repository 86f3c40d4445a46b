use super::*;

const DAY: Duration = Duration::from_secs(86_400);
fn day_of(day: u32) -> Timestamp {
    NOW.saturating_add(DAY * day)
}

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn year() -> Validity {
    Validity { not_before: NOW, not_after: NOW.saturating_add(DAY * 365) }
}

fn days(at: Timestamp) -> u64 {
    at.saturating_since(NOW).as_secs() / 86_400
}

fn pem(from: i32, to: i32) -> String {
    let mut parameters = rcgen::CertificateParams::new(Vec::new()).unwrap();
    parameters.not_before = rcgen::date_time_ymd(from, 1, 1);
    parameters.not_after = rcgen::date_time_ymd(to, 1, 1);
    parameters.self_signed(&rcgen::KeyPair::generate().unwrap()).unwrap().pem()
}

#[test]
fn certificates_are_renewed_at_70_to_90_percent() {
    for (unit, day) in [(0.0, 255), (0.5, 291), (1.0, 328), (7.0, 328)] {
        assert_eq!(days(next(year(), unit, Duration::ZERO, day_of(200))), day, "{unit}");
    }
}

#[test]
fn offline_boxes_renew_at_half_life() {
    let offline = |days: u64| Duration::from_secs(days * 86_400);
    assert_eq!(days(next(year(), 0.5, offline(100), day_of(200))), 291);
    for unit in [0.0, 1.0] {
        assert_eq!(days(next(year(), unit, offline(101), day_of(200))), 182);
    }
}

#[test]
fn only_the_end_makes_a_certificate_useless() {
    for (at, wanted) in [
        (Timestamp::from_secs(30), Usability::NotYet),
        (NOW, Usability::Usable),
        (year().not_after, Usability::Usable),
        (year().not_after.saturating_add(Duration::from_secs(1)), Usability::Expired),
    ] {
        assert_eq!(usable(year(), at), wanted);
    }
    let chain = format!("{}{}", pem(2026, 2030), pem(2027, 2029));
    let found = validity(&chain).unwrap();
    assert_eq!(found.not_before.to_rfc3339(), "2027-01-01T00:00:00Z");
    assert_eq!(found.not_after.to_rfc3339(), "2029-01-01T00:00:00Z");
    assert_eq!(validity("no certificate"), None);
}

#[test]
fn a_node_begins_with_the_best_it_has() {
    let now = Timestamp::parse_rfc3339("2027-06-01T00:00:00Z").unwrap();
    let (good, old) = (pem(2026, 2028), pem(2025, 2026));
    let named = |certificate: &str, is_embedded: bool| NamedPair {
        certificate: certificate.to_owned(),
        key: String::new(),
        is_embedded,
    };
    let (good_file, old_file) = (named(&good, false), named(&old, false));
    let (good_data, old_data) = (named(&good, true), named(&old, true));
    let begins = |pair: Option<&NamedPair>, stored: Option<&str>, bootstrap: bool, rotate: bool| {
        beginning(pair, stored, bootstrap, rotate, now)
    };
    assert_eq!(begins(None, None, true, true), Beginning::Bootstrap);
    assert_eq!(begins(None, None, false, true), Beginning::AsItIs, "a token");
    assert_eq!(begins(Some(&good_data), None, false, true), Beginning::Primed);
    assert_eq!(begins(Some(&good_data), Some(&good), false, true), Beginning::Stored);
    assert_eq!(begins(Some(&good_data), Some(&old), false, true), Beginning::Primed);
    assert_eq!(begins(Some(&good_data), Some(&good), false, false), Beginning::AsItIs);
    assert_eq!(begins(Some(&good_file), Some(&good), true, true), Beginning::Stored);
    assert_eq!(begins(Some(&good_file), None, true, true), Beginning::AsItIs);
    assert_eq!(begins(Some(&old_data), Some(&good), false, true), Beginning::Stored);
    for old in [&old_file, &old_data] {
        assert_eq!(begins(Some(old), None, true, false), Beginning::Bootstrap);
        assert_eq!(begins(Some(old), None, false, true), Beginning::Expired);
    }
    let back = Timestamp::from_secs(30);
    assert_eq!(beginning(Some(&good_file), Some(&good), true, true, back), Beginning::Stored, "1970");
}
