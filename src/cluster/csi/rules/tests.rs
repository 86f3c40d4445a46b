use super::*;

fn info(rack: &str) -> DriverInfo {
    let topology = [("example.com/rack".to_owned(), rack.to_owned())].into();
    DriverInfo { node_id: "id".to_owned(), max_volumes: 0, topology }
}

fn drivers(names: &[&str]) -> BTreeMap<String, DriverInfo> {
    names.iter().map(|name| ((*name).to_owned(), info("r1"))).collect()
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
fn attachments_say_why_they_are_not_attached() {
    let context = |value: &Value| publish_context(value, "v");
    let attached = json!({"status": {"attached": true, "attachmentMetadata": {"disk": "vdb"}}});
    assert_eq!(context(&attached).unwrap()["disk"], "vdb");
    let failed = json!({"status": {"attached": false, "attachError": {"message": "no disk"}}});
    assert_eq!(context(&failed), Err("no disk".to_owned()));
    assert_eq!(context(&json!({})), Err(not_attached("v")));
    let leaving = json!({"metadata": {"deletionTimestamp": "t"}, "status": {"attached": true}});
    assert_eq!(context(&leaving), Err("volume attachment is being deleted".to_owned()));
}
