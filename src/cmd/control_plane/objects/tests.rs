use proptest::prelude::*;

use super::*;
use crate::codec::hex;

/// Steps, how many objects each has, and what is to be put in.
const STEPS: [(&str, usize, &[&str]); 12] = [
    ("admins", 1, &[]),
    ("upload-config", 3, &["config"]),
    ("kubelet-config", 3, &["config"]),
    ("upload-certs", 2, &[]),
    ("get-nodes", 2, &[]),
    ("kubelet-bootstrap", 1, &[]),
    ("autoapprove-bootstrap", 1, &[]),
    ("autoapprove-rotation", 1, &[]),
    ("kubelet-client", 1, &[]),
    ("cluster-info", 3, &["config"]),
    ("coredns", 6, &["domain", "image", "address"]),
    ("kube-proxy", 6, &["config", "server", "image"]),
];

#[test]
fn every_step_parses_and_has_a_place_in_the_api() {
    let texts = packed::unpack(PACKED);
    let all: Vec<_> = texts.split("== ").skip(1).filter_map(|text| text.lines().next()).collect();
    assert_eq!(all.len(), STEPS.len(), "{all:?}");
    for (name, count, wants) in STEPS {
        let values: Vec<_> = wants.iter().map(|name| (*name, "value-that-is-put-in")).collect();
        let objects = step(name, &values);
        assert_eq!(objects.len(), count, "{name}");
        let whole = json!(objects).to_string();
        assert!(!whole.contains("${"), "{name}: {whole}");
        assert!(whole.matches("value-that-is-put-in").count() >= wants.len(), "{name}: {whole}");
        for object in &objects {
            let path = path_of(object).unwrap_or_else(|| panic!("{object}"));
            assert_eq!(object["metadata"]["name"], path.name());
            assert!(object["apiVersion"].as_str().is_some_and(|version| version.ends_with("v1")));
        }
    }
    assert!(step("no-such-step", &[]).is_empty());
}

/// Who may do what after `init`, in words of RBAC: the bindings that kubeadm makes, and no more.
#[test]
fn rights_are_kubeadms() {
    let objects = STEPS.iter().flat_map(|(name, ..)| step(name, &[]));
    let bindings = objects.filter(|object| !object["roleRef"].is_null());
    let nodes = "Group system:nodes";
    let tokens = "Group system:bootstrappers:kubeadm:default-node-token";
    let words = |object: Value| {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let subjects = object["subjects"].as_array().cloned().unwrap_or_default();
        let subjects: Vec<_> =
            subjects.iter().map(|it| format!("{} {}", text(&it["kind"]), text(&it["name"]))).collect();
        (text(&object["metadata"]["name"]), text(&object["roleRef"]["name"]), subjects.join(", "))
    };
    let found: Vec<_> = bindings.map(words).collect();
    let both = |first: &str, second: &str| format!("{first}, {second}");
    let csr = "system:certificates.k8s.io:certificatesigningrequests";
    let expected = [
        ("kubeadm:cluster-admins", "cluster-admin", "Group kubeadm:cluster-admins".to_owned()),
        ("kubeadm:nodes-kubeadm-config", "kubeadm:nodes-kubeadm-config", both(tokens, nodes)),
        ("kubeadm:kubelet-config", "kubeadm:kubelet-config", both(nodes, tokens)),
        ("kubeadm:kubeadm-certs", "kubeadm:kubeadm-certs", tokens.to_owned()),
        ("kubeadm:get-nodes", "kubeadm:get-nodes", tokens.to_owned()),
        ("kubeadm:kubelet-bootstrap", "system:node-bootstrapper", tokens.to_owned()),
        ("kubeadm:node-autoapprove-bootstrap", &format!("{csr}:nodeclient"), tokens.to_owned()),
        ("kubeadm:node-autoapprove-certificate-rotation", &format!("{csr}:selfnodeclient"), nodes.to_owned()),
        (
            "kubeadm:apiserver-kubelet-client",
            "system:kubelet-api-admin",
            "User kube-apiserver-kubelet-client".to_owned(),
        ),
        (
            "kubeadm:bootstrap-signer-clusterinfo",
            "kubeadm:bootstrap-signer-clusterinfo",
            "User system:anonymous".to_owned(),
        ),
        ("system:coredns", "system:coredns", "ServiceAccount coredns".to_owned()),
        ("kubeadm:node-proxier", "system:node-proxier", "ServiceAccount kube-proxy".to_owned()),
        ("kube-proxy", "kube-proxy", tokens.to_owned()),
    ]
    .map(|(name, role, subjects)| (name.to_owned(), role.to_owned(), subjects));
    assert_eq!(found, expected);
}

#[test]
fn values_are_put_into_strings_and_are_not_searched_again() {
    let value = "a: {b: \"${image}\"}\n# ${domain}";
    let objects = step("upload-config", &[("config", value)]);
    assert_eq!(objects[0]["data"]["ClusterConfiguration"], value);
    let objects =
        step("coredns", &[("domain", "edge.example"), ("image", "i: [${address}"), ("address", "10.0.0.10")]);
    let corefile = objects[0]["data"]["Corefile"].as_str().unwrap();
    assert!(
        corefile.starts_with(".:53 {\n    errors\n    health {\n       lameduck 5s\n    }\n"),
        "{corefile}"
    );
    assert!(corefile.contains("kubernetes edge.example in-addr.arpa ip6.arpa {\n       pods insecure\n"));
    assert!(corefile.ends_with("    loadbalance\n}\n"), "{corefile}");
    let of = |kind: &str| objects.iter().find(|object| object["kind"] == kind).unwrap();
    assert_eq!(of("Deployment")["spec"]["template"]["spec"]["containers"][0]["image"], "i: [${address}");
    assert_eq!(of("Service")["spec"]["clusterIP"], "10.0.0.10");
}

/// The hash of kubeadm for the same data.
#[test]
fn a_config_map_is_marked_as_kubeadm_marks_it() {
    let mut object = json!({"kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"b": "2", "a": "1"}});
    mark(&mut object);
    // sha256sum of "12": values in the order of their keys.
    let expected = "sha256:6b51d431df5d7f141cbececcf79edf3dd861c3b4069f0b11661a3eefacbba918";
    assert_eq!(object["metadata"]["annotations"][HASH], expected);
}

#[test]
fn certificate_keys_are_read_as_kubeadm_writes_them() {
    let text = "0123456789abcdefFEDCBA98765432100123456789abcdef0123456789abcdef";
    let key = parse_certificate_key(text).unwrap();
    assert_eq!(hex::encode(&key), text.to_lowercase());
    for wrong in ["", "abc", &text[2..], &format!("{}zz", &text[2..]), &format!("{text}00")] {
        assert!(parse_certificate_key(wrong).unwrap_err().contains("certificate-key"), "{wrong}");
    }
}

/// A vector of the cipher's authors: what is sealed here, others open.
#[test]
fn certificates_are_sealed_with_aes_256_gcm() {
    let sealed = seal(&[0; 32], [0; 12], &[0; 16]);
    let expected = "000000000000000000000000cea7403d4d606b6e074ec5d3baf39d18d0d1c8a799996bf0265b98b5d48ab919";
    assert_eq!(hex::encode(&sealed), expected);
    assert_eq!(open(&[0; 32], &sealed).unwrap(), [0; 16]);
    assert!(open(&[0; 32], &sealed[..20]).is_none() && open(&[0; 32], b"").is_none());
}

proptest! {
    #[test]
    fn only_the_key_opens_what_it_sealed(
        key in prop::array::uniform32(any::<u8>()),
        nonce in prop::array::uniform12(any::<u8>()),
        text in prop::collection::vec(any::<u8>(), 0..200),
        at in any::<prop::sample::Index>(),
    ) {
        let sealed = seal(&key, nonce, &text);
        prop_assert_eq!(&sealed[..12], &nonce[..]);
        prop_assert_eq!(open(&key, &sealed), Some(text));
        let mut other = key;
        other[at.index(32)] ^= 1;
        prop_assert_eq!(open(&other, &sealed), None);
        let mut changed = sealed.clone();
        changed[at.index(sealed.len())] ^= 1;
        prop_assert_eq!(open(&key, &changed), None);
    }
}

#[test]
fn cluster_info_is_a_kubeconfig_without_users() {
    let text = cluster_info("https://10.0.0.1:6443", "Q0E=");
    assert_eq!(
        text,
        "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: Q0E=\n    server: \
         https://10.0.0.1:6443\n  name: \"\"\ncontexts: null\ncurrent-context: \"\"\nkind: Config\nusers: null\n"
    );
}
