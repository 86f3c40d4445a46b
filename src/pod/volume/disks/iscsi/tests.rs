use super::super::testing::FakeNode;
use super::*;

const IQN: &str = "iqn.2001-04.com.example:disk";

fn source(change: &Value) -> Value {
    let mut source = json!({"targetPortal": "10.0.0.1", "iqn": IQN, "lun": 1, "iscsiInterface": "default"});
    source.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
    source
}

fn disk(change: &Value) -> IscsiDisk {
    IscsiDisk::of("data", &source(change)).unwrap()
}

#[test]
fn a_place_says_where_the_disk_is_from() {
    let plain = disk(&json!({"portals": ["10.0.0.2:1", "10.0.0.1:3260"]}));
    let place = format!("iscsi/iface-default/10.0.0.1:3260-{IQN}-lun-1");
    assert_eq!(plain.place(), PathBuf::from(&place));
    assert_eq!(plain.portals, ["10.0.0.1:3260", "10.0.0.2:1"], "each once");
    let own = disk(&json!({"initiatorName": "iqn.2001-04.com.example:node"}));
    assert_eq!(own.place(), PathBuf::from(place.replace("default", "10.0.0.1:3260:data")));
    for each in [&plain, &own] {
        let again = IscsiDisk::of_record(&each.record(), &each.place()).unwrap();
        assert_eq!((again.record(), again.place()), (each.record(), each.place()));
        let without = IscsiDisk::of_record(&Value::Null, &each.place()).unwrap();
        assert_eq!((without.place(), without.iqn.as_str()), (each.place(), IQN));
    }
    let host = format!("my-nas:3260-{IQN}-lun-12");
    assert_eq!(names_of(&host), Some(("my-nas:3260", IQN, "12")));
    for change in [json!({"targetPortal": "../x"}), json!({"iqn": "a/b"}), json!({"iscsiInterface": "/"})] {
        let error = IscsiDisk::of("data", &source(&change)).err().unwrap();
        assert!(error.ends_with("must not contain '/'"), "{error}");
    }
}

#[test]
fn logging_in_asks_the_kernel_first_and_follows_upstream() {
    let (node, secret) = (FakeNode::new(), StringMap::new());
    let (host, disk) = (node.host(), disk(&json!({})));
    let device = disk.attach(&host, &secret).unwrap();
    assert_eq!(BlockHost::disk(&device).as_deref(), Some("sd31"));
    let discovery = "iscsiadm -m discoverydb -t sendtargets -p 10.0.0.1:3260 -I default";
    let target = format!("iscsiadm -m node -p 10.0.0.1:3260 -T {IQN}");
    let expected = [
        "iscsiadm -m iface -I default -o show".to_owned(),
        format!("{discovery} -o new"),
        format!("{discovery} --discover"),
        format!("{target} -I default -o update -n node.session.scan -v manual"),
        format!("{target} -I default --login"),
        format!("{target} -o update -n node.startup -v manual"),
    ];
    assert_eq!(node.calls("iscsiadm"), expected);
    assert_eq!(std::fs::read_to_string(node.path("sys/class/scsi_host/host3/scan")).unwrap(), "0 0 1");
    node.forget_calls();
    disk.attach(&host, &secret).unwrap();
    assert_eq!(node.calls("iscsiadm"), expected[..1], "there is a session");
    node.forget_calls();
    disk.detach(&host, &[]).unwrap();
    let gone = [format!("{target} -I default --logout"), format!("{target} -I default -o delete")];
    assert_eq!(node.calls("iscsiadm"), gone);
    let deleted = |name: &str| std::fs::read_to_string(node.path(&format!("sys/block/{name}/device/delete")));
    assert_eq!((deleted("sd30").unwrap(), deleted("sd31").unwrap()), (String::new(), "1".to_owned()));
    disk.detach(&host, &[]).unwrap();
}

#[test]
fn a_session_stays_while_another_lun_needs_it() {
    let (node, secret) = (FakeNode::new(), StringMap::new());
    let (host, first, second) = (node.host(), disk(&json!({})), disk(&json!({"lun": 0})));
    first.attach(&host, &secret).unwrap();
    second.attach(&host, &secret).unwrap();
    assert_eq!(node.calls("--login").len(), 1);
    first.detach(&host, &[PathBuf::from("/plugins").join(second.place())]).unwrap();
    assert_eq!(node.calls("--logout"), [""; 0]);
    let longer = disk(&json!({"iqn": format!("{IQN}2")}));
    second.detach(&host, &[PathBuf::from("/plugins").join(longer.place())]).unwrap();
    assert_eq!(node.calls("--logout").len(), 1, "another target whose name begins like this one's");
}

#[test]
fn chap_comes_from_the_secret_and_is_never_shown() {
    let node = FakeNode::new();
    let host = node.host();
    let secret: StringMap = ["discovery.sendtargets.auth", "node.session.auth"]
        .into_iter()
        .flat_map(|of| [(format!("{of}.username"), "joe"), (format!("{of}.password"), "hunter2")])
        .map(|(key, value)| (key, value.to_owned()))
        .collect();
    disk(&json!({"chapAuthSession": true})).attach(&host, &secret).unwrap();
    let of_node =
        format!("iscsiadm -m node -p 10.0.0.1:3260 -T {IQN} -I default -o update -n node.session.auth");
    let updates = [("authmethod", "CHAP"), ("username", "joe"), ("password", "hunter2")]
        .map(|(name, value)| format!("{of_node}.{name} -v {value}"));
    assert_eq!(node.calls("auth"), updates);
    let other = FakeNode::new();
    let both = disk(&json!({"chapAuthSession": true, "chapAuthDiscovery": true}));
    both.attach(&other.host(), &secret).unwrap();
    assert_eq!(other.calls("discovery.sendtargets.auth.").len(), 3);
    let broken = FakeNode::new();
    broken.write("fail", "hunter2");
    let error = both.attach(&broken.host(), &secret).unwrap_err();
    assert!(error.contains("failed to update discovery.sendtargets.auth.password"), "{error}");
    assert!(!error.contains("hunter2"));
}

#[test]
fn an_initiator_of_its_own_has_its_own_interface() {
    let node = FakeNode::new();
    let host = node.host();
    let own = disk(&json!({"initiatorName": "iqn.2001-04.com.example:node"}));
    own.attach(&host, &StringMap::new()).unwrap();
    let iface = "iscsiadm -m iface -I 10.0.0.1:3260:data -o";
    let update = |name: &str, value: &str| format!("{iface} update -n iface.{name} -v {value}");
    let expected = [
        format!("{iface} new"),
        update("initiatorname", "iqn.2001-04.com.example:node"),
        update("mtu", "0"),
        update("transport_name", "tcp"),
    ];
    assert_eq!(node.calls("-m iface")[1..], expected);
    assert!(node.calls("--login")[0].contains("-I 10.0.0.1:3260:data"));
    own.detach(&host, &[]).unwrap();
    assert_eq!(node.calls("iscsiadm").last().unwrap(), &format!("{iface} delete"));
}

#[test]
fn several_portals_are_paths_of_one_disk() {
    let node = FakeNode::new();
    let host = node.host();
    let two = disk(&json!({"portals": ["10.0.0.2"]}));
    let device = two.attach(&host, &StringMap::new()).unwrap();
    assert_eq!(BlockHost::disk(&device).as_deref(), Some("sd31"), "no multipath device has come");
    node.map("dm-0", &["sd31", "sd41"]);
    assert_eq!(two.attach(&host, &StringMap::new()).unwrap(), node.path("dev/dm-0"));
    assert_eq!(node.calls("--login").len(), 2);
    two.detach(&host, &[]).unwrap();
    assert_eq!(node.calls("multipath"), ["multipath -f /dev/dm-0"]);
    assert_eq!(node.calls("--logout").len(), 2);
    // One portal is dead: the other is enough after all attempts.
    let half = FakeNode::new();
    half.write("fail", "-p 10.0.0.2");
    let device = two.attach(&half.host(), &StringMap::new()).unwrap();
    assert_eq!(BlockHost::disk(&device).as_deref(), Some("sd31"));
    assert_eq!(half.calls("-p 10.0.0.2:3260 -I default --discover").len(), MOST_ATTEMPTS);
}

#[test]
fn why_there_is_no_path_is_said() {
    let node = FakeNode::new();
    node.write("fail", "--login");
    let error = disk(&json!({})).attach(&node.host(), &StringMap::new()).unwrap_err();
    let why = "failed to get any path for iscsi disk, last err seen: iscsi: failed to log in to portal \
               10.0.0.1:3260: exit status 8: broken";
    assert_eq!(error, why);
    assert!(node.calls("-o delete").len() == 1, "its node record goes");
    node.remove("fail");
    let error = disk(&json!({"lun": 9})).attach(&node.host(), &StringMap::new()).unwrap_err();
    assert!(
        error.ends_with(&format!("/dev/disk/by-path/ip-10.0.0.1:3260-iscsi-{IQN}-lun-9 after 30s")),
        "{error}"
    );
    node.remove("bin/iscsiadm");
    let error = disk(&json!({})).attach(&node.host(), &StringMap::new()).unwrap_err();
    let why = "program iscsiadm is not installed on this node; it is in the Debian package open-iscsi";
    assert_eq!(error, why);
}

#[test]
fn addresses_of_the_sixth_version_and_cards_have_other_links() {
    let node = FakeNode::new();
    let six = disk(&json!({"targetPortal": "[fd00::1]:3260"}));
    let session = "sys/class/iscsi_host/host1/device/session1";
    node.write(&format!("{session}/iscsi_session/session1/targetname"), IQN);
    let at = format!("{session}/connection1:0/iscsi_connection/connection1:0");
    node.write(&format!("{at}/address"), "fd00::1\n");
    node.write(&format!("{at}/port"), "3260\n");
    node.write("sys/class/scsi_host/host1/scan", "");
    std::fs::create_dir_all(node.path("dev")).unwrap();
    node.disk("sda", &format!("by-path/pci-0000:00:05.0-ip-fd00::1:3260-iscsi-{IQN}-lun-1"));
    node.write("iface", "iface.transport_name = be2iscsi\n");
    let device = six.attach(&node.host(), &StringMap::new()).unwrap();
    assert_eq!(BlockHost::disk(&device).as_deref(), Some("sda"));
    assert_eq!(node.calls("--login"), [""; 0]);
}
