use super::super::testing::FakeNode;
use super::*;

#[test]
fn an_fc_disk_is_found_by_port_or_name() {
    let node = FakeNode::new();
    std::fs::create_dir_all(node.path("dev")).unwrap();
    node.write("sys/class/scsi_host/host0/scan", "");
    let host = node.host();
    let by_port = FcDisk::of(&json!({"targetWWNs": ["50", "51"], "lun": 2})).unwrap();
    assert_eq!(by_port.place(), PathBuf::from("fc/50-51-lun-2"));
    assert_eq!(by_port.attach(&host).unwrap_err(), "no fc disk found");
    let scanned = std::fs::read_to_string(node.path("sys/class/scsi_host/host0/scan")).unwrap();
    assert_eq!(scanned, "- - -");
    node.disk("sda", "by-path/pci-0000:00:01.0-fc-0x50-lun-2");
    node.disk("sdb", "by-path/fc-0x51-lun-2");
    node.disk("sdc", "by-path/pci-0000:00:01.0-fc-0x150-lun-2");
    assert_eq!(by_port.disks(&host), ["sdb", "sda"]);
    node.disk("sdd", "by-id/scsi-36_A");
    let by_name = FcDisk::of(&json!({"wwids": ["36 A"]})).unwrap();
    assert_eq!(by_name.place(), PathBuf::from("fc/36_A"));
    assert_eq!(by_name.attach(&host).unwrap(), node.path("dev/sdd"));
    assert_eq!(FcDisk::of(&by_port.record()).unwrap().place(), by_port.place());
    assert_eq!(FcDisk::of(&by_name.record()).unwrap().place(), by_name.place());
    for source in [json!({}), json!({"targetWWNs": ["5"]}), json!({"wwids": ["../x"]})] {
        assert!(FcDisk::of(&source).is_err(), "{source}");
    }
}

#[test]
fn all_paths_of_an_fc_disk_are_removed() {
    let node = FakeNode::new();
    std::fs::create_dir_all(node.path("dev")).unwrap();
    node.disk("sda", "by-path/fc-0x50-lun-2");
    node.disk("sdb", "by-path/fc-0x51-lun-2");
    node.map("dm-7", &["sda", "sdb"]);
    let (host, disk) = (node.host(), FcDisk::of(&json!({"targetWWNs": ["50"], "lun": 2})).unwrap());
    assert_eq!(disk.attach(&host).unwrap(), node.path("dev/dm-7"));
    node.write("fail", "multipath");
    assert!(disk.detach(&host).unwrap_err().starts_with("multipath -f"));
    let deleted = |name: &str| std::fs::read_to_string(node.path(&format!("sys/block/{name}/device/delete")));
    assert_eq!(deleted("sda").unwrap(), "", "the map still writes to it");
    node.remove("fail");
    disk.detach(&host).unwrap();
    assert_eq!((deleted("sda").unwrap(), deleted("sdb").unwrap()), ("1".to_owned(), "1".to_owned()));
    assert_eq!(node.calls("blockdev").last().unwrap(), "blockdev --flushbufs /dev/sdb");
}
