use super::*;

const NOW: Timestamp = Timestamp::from_secs(1_800_000_000);

fn addresses(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs.iter().map(|(kind, value)| ((*kind).to_owned(), (*value).to_owned())).collect()
}

fn serving(pairs: &[(&str, &str)]) -> Option<RequestTemplate> {
    serving_template("edge-7", &addresses(pairs))
}

#[test]
fn the_name_is_upstreams_digest() {
    let head = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2a, 0x86, 0x48, 0xce, 0x3d, 0x02, 0x01, 0x06, 0x08, 0x2a, 0x86,
        0x48, 0xce, 0x3d, 0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
    ];
    let key: Vec<u8> = head.into_iter().chain(0..64).collect();
    // Computed from upstream's description by another program.
    let wanted = "node-csr-TbBu2oc6ej1NQ_bWw2Wcg8tkOfLBCBVPWZAYmcANXxs";
    assert_eq!(request_name(&client_template("edge-7"), &key), wanted);
    let one = serving(&[("InternalIP", "10.0.0.7")]).unwrap();
    let two = serving(&[("InternalIP", "10.0.0.8")]).unwrap();
    let names = [&client_template("edge-8"), &one, &two].map(|template| request_name(template, &key));
    assert!(names[0] != wanted && names[0] != names[1] && names[1] != names[2], "{names:?}");
}

#[test]
fn a_serving_request_has_the_nodes_addresses_sorted() {
    let template = serving(&[
        ("Hostname", "edge-7"),
        ("InternalIP", "fd00::7"),
        ("InternalIP", "10.0.0.7"),
        ("InternalIP", "10.0.0.7"),
        ("ExternalIP", "not an address"),
        ("InternalDNS", "a.example"),
        ("Other", "b.example"),
        ("ExternalDNS", ""),
    ])
    .unwrap();
    assert_eq!(template.names, ["a.example", "edge-7"]);
    assert_eq!(template.addresses, ["10.0.0.7", "fd00::7"].map(|ip| ip.parse::<IpAddr>().unwrap()));
    assert_eq!(serving(&[("Hostname", "edge-7"), ("InternalDNS", "a.example")]), None);
    let named_by_address = serving(&[("Hostname", "10.0.0.7")]).unwrap();
    assert_eq!((named_by_address.names.len(), named_by_address.addresses.len()), (0, 1));
}

#[test]
fn a_request_says_what_the_approver_wants() {
    let key = KeyPair::generate().unwrap();
    let public = key.subject_public_key_info();
    for template in [client_template("edge-7"), serving(&[("InternalIP", "10.0.0.7")]).unwrap()] {
        let request = request_pem(&template, &key).unwrap();
        let name = request_name(&template, &public);
        let body = body(&name, template.signer, &request);
        assert_eq!(body["spec"]["usages"], json!(template.signer.usages()));
        assert!(body["spec"].get("expirationSeconds").is_none());
        assert_eq!(check_found(&body, &template, &public, NOW), Ok(()));
        let der = &pem_blocks(&request, "CERTIFICATE REQUEST")[0];
        // The OID of alternative names.
        let has_names = der.windows(3).any(|window| window == [0x55, 0x1d, 0x11]);
        assert_eq!(has_names, template.signer == CertificateSigner::Serving);
    }
}

#[test]
fn an_object_of_our_name_must_be_our_request() {
    let (key, other) = (KeyPair::generate().unwrap(), KeyPair::generate().unwrap());
    let (template, public) = (client_template("edge-7"), key.subject_public_key_info());
    let object = |template: &RequestTemplate, key: &KeyPair| {
        body("name", template.signer, &request_pem(template, key).unwrap())
    };
    let said = |found: &Value| check_found(found, &template, &public, NOW).err().unwrap_or_default();
    assert_eq!(said(&object(&template, &key)), "");
    assert!(said(&object(&template, &other)).ends_with("of another key"));
    assert!(said(&object(&client_template("edge-8"), &key)).ends_with("subjects differ"));
    let mut foreign = object(&template, &key);
    foreign["spec"]["signerName"] = "example.com/mine".into();
    assert!(said(&foreign).ends_with("signerNames differ"));
    assert!(said(&json!({})).ends_with("unable to parse it"));
    let mut late = object(&template, &key);
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.not_after = rcgen::date_time_ymd(2026, 5, 1);
    let old = params.self_signed(&key).unwrap().pem();
    late["status"]["certificate"] = base64::encode(old.as_bytes()).into();
    assert_eq!(said(&late), "one of the certificates for the CSR has expired: 2026-05-01T00:00:00Z");
    assert!(is_of_key(&old, &key) && !is_of_key(&old, &other) && !is_of_key("", &key));
}

#[test]
fn a_request_waits_until_it_is_issued_or_ended() {
    let object = |status: Value| json!({ "metadata": { "name": "n", "uid": "u1" }, "status": status });
    let condition = |kind: &str| json!({ "type": kind, "reason": "R", "message": "m" });
    let found = |status: Value| outcome(&object(status), "u1");
    let certificate = base64::encode(b"pem");
    assert_eq!(found(json!({})), RequestOutcome::Waiting);
    assert_eq!(found(json!({ "conditions": [condition("Approved")] })), RequestOutcome::Waiting);
    assert_eq!(found(json!({ "certificate": certificate })), RequestOutcome::Waiting, "not approved");
    let issued = json!({ "conditions": [condition("Approved")], "certificate": certificate });
    assert_eq!(found(issued), RequestOutcome::Issued("pem".into()));
    for (kind, said) in [("Denied", "is denied"), ("Failed", "failed")] {
        let wanted = format!("certificate signing request {said}, reason: R, message: m");
        let ended =
            json!({ "conditions": [condition("Approved"), condition(kind)], "certificate": certificate });
        assert_eq!(found(ended), RequestOutcome::Ended(wanted));
    }
    assert_eq!(outcome(&object(json!({})), "u2"), RequestOutcome::Ended("csr \"n\" changed UIDs".into()));
}

#[test]
fn superfluous_names_of_a_certificate_do_not_matter() {
    let key = KeyPair::generate().unwrap();
    let wide =
        serving(&[("Hostname", "edge-7"), ("InternalIP", "10.0.0.7"), ("InternalIP", "fd00::7")]).unwrap();
    let mut params = CertificateParams::new(["edge-7", "10.0.0.7", "fd00::7"].map(str::to_owned)).unwrap();
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::OrganizationName, "system:nodes");
    params.distinguished_name.push(DnType::CommonName, "system:node:edge-7");
    let certificate = params.self_signed(&key).unwrap().pem();
    assert!(satisfies(&certificate, &wide));
    assert!(satisfies(&certificate, &serving(&[("InternalIP", "10.0.0.7")]).unwrap()));
    assert!(satisfies(&certificate, &client_template("edge-7")));
    assert!(!satisfies(&certificate, &serving(&[("InternalIP", "10.0.0.8")]).unwrap()));
    assert!(!satisfies(&certificate, &client_template("edge-8")));
    assert!(!satisfies("", &client_template("edge-7")));
}
