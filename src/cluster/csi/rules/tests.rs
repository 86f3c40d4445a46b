use super::*;
use crate::model::objects::{ClaimedSource, ClaimedVolume, Realm};
use crate::model::types::{PodRef, PodUid};

fn info(rack: &str) -> DriverInfo {
    let topology = [("example.com/rack".to_owned(), rack.to_owned())].into();
    DriverInfo { node_id: "id".to_owned(), max_volumes: 0, topology }
}

fn drivers(names: &[&str]) -> BTreeMap<String, DriverInfo> {
    names.iter().map(|name| ((*name).to_owned(), info("r1"))).collect()
}

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
    let modes = ["ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod", "x"];
    assert_eq!(modes.map(|mode| access_mode(mode, false)), [1, 3, 5, 1, 0]);
    assert_eq!(modes.map(|mode| access_mode(mode, true)), [7, 3, 5, 6, 0]);
}

#[test]
fn csi_node_keeps_the_drivers_of_others() {
    let none = BTreeSet::new();
    let made = csi_node(None, ("n1", "u"), &drivers(&["a"]), &none).unwrap();
    assert_eq!(
        made["spec"]["drivers"],
        json!([{"name": "a", "nodeID": "id", "topologyKeys": ["example.com/rack"]}])
    );
    assert!(!is_of_other_node(&made, ("n1", "u")) && is_of_other_node(&made, ("n1", "later")));
    assert_eq!(csi_node(Some(&made), ("n1", "u"), &drivers(&["a"]), &none), None);
    let both = csi_node(Some(&made), ("n1", "u"), &drivers(&["b"]), &none).unwrap();
    assert_eq!(both["spec"]["drivers"].as_array().unwrap().len(), 2, "the first may register later");
    let gone = ["a".to_owned()].into();
    let left = csi_node(Some(&both), ("n1", "u"), &drivers(&["b"]), &gone).unwrap();
    assert_eq!(left["spec"]["drivers"][0]["name"], "b");
    assert_eq!(csi_node(Some(&left), ("n1", "u"), &drivers(&["b"]), &gone), None);
    assert_eq!(csi_node(None, ("n1", "u"), &drivers(&[]), &gone), None, "no driver, no object");
    let limited = [("b".to_owned(), DriverInfo { max_volumes: 3, ..info("r1") })].into();
    let changed = csi_node(Some(&left), ("n1", "u"), &limited, &none).unwrap();
    assert_eq!(changed["spec"]["drivers"][0]["allocatable"], json!({"count": 3}));
}

#[test]
fn a_driver_that_contradicts_the_labels_is_left_out() {
    let node = json!({"metadata": {"labels": {"example.com/rack": "r2"}}});
    let (patch, refused) = node_patch(&node, &drivers(&["a"]), &BTreeSet::new());
    assert_eq!((patch, refused.len()), (None, 1));
    assert_eq!(
        refused["a"],
        "detected topology value collision: driver reported \"example.com/rack\":\"r1\" but existing label is \
         \"example.com/rack\":\"r2\""
    );
    let annotated = json!({"metadata": {"annotations": {NODE_ID: "{\"old\":\"o\",\"z\":\"1\"}"}}});
    let (patch, _) = node_patch(&annotated, &drivers(&["a"]), &["old".to_owned()].into());
    let metadata = &patch.unwrap()["metadata"];
    assert_eq!(metadata["annotations"][NODE_ID], r#"{"a":"id","z":"1"}"#);
    assert_eq!(metadata["labels"], json!({"example.com/rack": "r1"}));
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
fn attachments_say_why_they_are_not_attached() {
    let context = |value: &Value| publish_context(value, "v");
    let attached = json!({"status": {"attached": true, "attachmentMetadata": {"disk": "vdb"}}});
    assert_eq!(context(&attached).unwrap()["disk"], "vdb");
    let failed = json!({"status": {"attached": false, "attachError": {"message": "no disk"}}});
    assert_eq!(context(&failed), Err("no disk".to_owned()));
    assert_eq!(context(&json!({})), Err(not_attached("v")));
    let leaving = json!({"metadata": {"deletionTimestamp": "t"}, "status": {"attached": true}});
    assert_eq!(context(&leaving), Err("volume attachment is being deleted".to_owned()));
    assert!(needs_attach(&Value::Null) && !needs_attach(&json!({"spec": {"attachRequired": false}})));
}
