use serde_json::json;

use super::*;
use crate::model::objects::{ClaimedVolume, Realm};
use crate::model::types::{PodRef, PodUid};

fn volume(claimed: bool, fs_type: &str, modes: &[&str]) -> CsiVolume {
    let access_modes = modes.iter().map(|mode| (*mode).to_owned()).collect();
    CsiVolume {
        pod: PodRef { namespace: "ns".to_owned(), name: "web".to_owned(), uid: PodUid::from("u") },
        realm: Realm::Cluster,
        account: "app".to_owned(),
        name: "data".to_owned(),
        claim: "data".to_owned(),
        source: json!({"fsType": fs_type}),
        claimed: claimed.then(|| ClaimedVolume {
            name: "pv".to_owned(),
            source: ClaimedSource::Csi { source: Value::Null, access_modes },
            mount_options: Vec::new(),
            supplemental_group: None,
            read_only: false,
            single_pod: false,
            owner: String::new(),
        }),
        read_only: false,
        fs_group: Some(5),
        target: "/pods/u".into(),
        is_again: false,
    }
}

#[test]
fn versions_one_are_supported_and_the_highest_counts() {
    let highest = |versions: &[&str]| {
        highest_version(&versions.iter().map(|version| (*version).to_owned()).collect::<Vec<_>>())
    };
    assert_eq!(highest(&["1.0.0", "v1.10.0", "1.9", "2.0.0", "x"]), Some(vec![1, 10, 0]));
    assert_eq!(highest(&["0.3.0", "2.0"]), None);
    assert_eq!(highest(&[]), None);
}

#[test]
fn only_codes_after_which_nothing_is_in_progress_are_final() {
    let uncertain: Vec<i32> = (1..17).filter(|code| !is_final(*code)).collect();
    assert_eq!(uncertain, [1, 4, 8, 10, 14]);
}

#[test]
fn names_are_upstreams() {
    // sha256 of "h1csi.example.comn1", of "uv" and of "h1".
    assert_eq!(attachment_name("h1", "csi.example.com", "n1").len(), 4 + 64);
    assert_ne!(inline_handle("u", "v"), inline_handle("u", "w"));
    assert_eq!(
        staging_place("d", "abc"),
        "d/ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad/globalmount"
    );
    assert_eq!(unique_name("d", "h"), "kubernetes.io/csi/d^h");
    assert_eq!(unique_name("kubernetes.io/fc", "[a b]:0"), "kubernetes.io/fc/[a b]:0");
    for name in ["d", "kubernetes.io/fc"] {
        assert_eq!((driver_of(name), driver_of(&unique_name(name, "h/1"))), (name, name));
    }
    let modes = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod", "x"];
    assert_eq!(modes.map(|mode| access_mode(mode, false)), [1, 3, 5, 1, 0]);
    assert_eq!(modes.map(|mode| access_mode(mode, true)), [7, 3, 5, 6, 0]);
}

#[test]
fn the_group_is_set_as_the_policy_of_the_driver_says() {
    let driver = |policy: &str| json!({"spec": {"fsGroupPolicy": policy}});
    let once = volume(true, "ext4", &["ReadWriteOnce"]);
    let cases = [
        ("File", volume(true, "", &["ReadWriteMany"]), true),
        ("None", once.clone(), false),
        ("ReadWriteOnceWithFSType", once.clone(), true),
        ("ReadWriteOnceWithFSType", volume(true, "", &["ReadWriteOnce"]), false),
        ("ReadWriteOnceWithFSType", volume(true, "ext4", &["ReadWriteMany"]), false),
        ("", volume(false, "ext4", &[]), true),
        ("File", CsiVolume { read_only: true, ..once.clone() }, false),
        ("File", CsiVolume { fs_group: None, ..once }, false),
    ];
    for (policy, volume, expected) in cases {
        assert_eq!(applies_group(&driver(policy), &volume), expected, "{policy} {volume:?}");
    }
}

#[test]
fn a_driver_is_asked_only_for_what_it_can() {
    assert!(needs_attach(&Value::Null) && !needs_attach(&json!({"spec": {"attachRequired": false}})));
    assert_eq!(check_lifecycle("d", &Value::Null, false), Ok(()));
    let why = check_lifecycle("d", &Value::Null, true).unwrap_err();
    assert_eq!(why, "volume mode \"Ephemeral\" not supported by driver d (no CSIDriver object)");
    let object = json!({"spec": {"volumeLifecycleModes": ["Persistent"]}});
    let why = check_lifecycle("d", &object, true).unwrap_err();
    assert_eq!(why, "volume mode \"Ephemeral\" not supported by driver d (only supports [\"Persistent\"])");
}
