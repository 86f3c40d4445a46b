//! Annotations and volumes to devices, and the node's list.

use super::*;
use crate::model::api::decode::decode;
use serde_json::{Value, json};

fn device(host: &str, container: &str, letters: &str) -> DeviceRequest {
    DeviceRequest::Path(Device {
        host_path: host.to_owned(),
        container_path: container.to_owned(),
        permissions: letters.to_owned(),
        ..Device::default()
    })
}

fn pod(annotations: &Value, privileged: bool) -> Pod {
    decode(json!({
        "metadata": {"name": "p", "namespace": "ns", "annotations": annotations},
        "spec": {
            "containers": [{"name": "c", "securityContext": {"privileged": privileged}, "volumeMounts": [
                {"name": "tty", "mountPath": "/dev/modem"},
                {"name": "disk", "mountPath": "/dev/disk", "readOnly": true},
                {"name": "dir", "mountPath": "/data"},
            ]}],
            "volumes": [
                {"name": "tty", "hostPath": {"path": "/dev/ttyS0", "type": "CharDevice"}},
                {"name": "disk", "hostPath": {"path": "/dev/sda", "type": "BlockDevice"}},
                {"name": "dir", "hostPath": {"path": "/dev/sdb"}},
            ],
        },
    }))
    .unwrap()
    .object
}

#[test]
fn device_entry_has_path_target_and_permissions() {
    let by_path = "/dev/serial/by-path/platform-3f98-usb-0:1.4:1.0-port0";
    let cases = [
        ("/dev/ttyUSB0", vec![device("/dev/ttyUSB0", "/dev/ttyUSB0", "rw")]),
        ("/dev/ttyUSB0:/dev/x", vec![device("/dev/ttyUSB0", "/dev/x", "rw")]),
        ("/dev/ttyUSB0:r", vec![device("/dev/ttyUSB0", "/dev/ttyUSB0", "r")]),
        ("/dev/a:/dev/b:rwm,", vec![device("/dev/a", "/dev/b", "rwm")]),
        (by_path, vec![device(by_path, by_path, "rw")]),
        (
            "/dev/dri/by-path/pci-0000:00:02.0-card:/dev/gpu:wr",
            vec![device("/dev/dri/by-path/pci-0000:00:02.0-card", "/dev/gpu", "wr")],
        ),
        (" /dev/a\n/dev/b ", vec![device("/dev/a", "/dev/a", "rw"), device("/dev/b", "/dev/b", "rw")]),
        ("vendor.com/class=name:1", vec![DeviceRequest::Cdi("vendor.com/class=name:1".to_owned())]),
        ("", vec![]),
    ];
    for (text, expected) in cases {
        assert_eq!(parse(text), Ok(expected), "{text:?}");
    }
    for wrong in [
        "ttyUSB0",
        "dev/a",
        "/dev/a:",
        "/dev/../etc/x",
        "/dev/a:/x",
        "/dev/a:/dev/../b",
        "a=b",
        "v/c=",
        "v/-c=n",
    ] {
        let why = parse(wrong).unwrap_err();
        assert!(why.contains(wrong.rsplit(":/").next().unwrap().trim_start_matches('/')), "{wrong:?}: {why}");
    }
}

#[test]
fn device_volume_may_be_opened_and_others_are_only_mounted() {
    let pod = pod(&json!({}), false);
    let found = by_volume(&pod, &pod.spec.containers[0]);
    let found: Vec<DeviceRequest> =
        found.into_iter().map(|(_, device)| DeviceRequest::Path(device)).collect();
    assert_eq!(found, [device("/dev/ttyS0", "/dev/modem", "rw"), device("/dev/sda", "/dev/disk", "r")]);
    assert_eq!(volume_paths(&pod), ["/dev/ttyS0", "/dev/sda"]);
}

#[test]
fn invalid_or_unmatched_device_annotation_is_reported() {
    let annotations =
        json!({"devices.agent.edge/c": "ttyUSB0", "devices.agent.edge/d": "/dev/a", "other/c": "x"});
    let pod = pod(&annotations, false);
    let problems = annotation_problems(&pod);
    assert_eq!(problems.len(), 2);
    assert!(problems[0].1.starts_with("\"ttyUSB0\" must be an absolute path"), "{problems:?}");
    assert_eq!(problems[1], ("devices.agent.edge/d", "container \"d\" not found in pod".to_owned()));
}

#[test]
fn only_allowed_devices_are_given_except_to_privileged() {
    let verdict = |allowed: &[&str], annotation: &str, privileged: bool| {
        let allowed: Vec<String> = allowed.iter().map(|&text| text.to_owned()).collect();
        let pod = pod(&json!({"devices.agent.edge/c": annotation}), privileged);
        check_allowed(&pod, &allowed)
    };
    assert_eq!(verdict(&["*"], "/dev/mem, v.com/c=n", false), Ok(()));
    assert_eq!(verdict(&["/dev/tty*", "/dev/sd?", "/dev/sda"], "/dev/ttyUSB0", false), Ok(()));
    assert_eq!(verdict(&[], "/dev/mem", true), Ok(()));
    let refused = |name: &str| {
        let said = "which --allowed-devices of this node does not include";
        Err(format!("container \"c\" requests device {name:?}, {said}"))
    };
    assert_eq!(verdict(&["/dev/tty*", "/dev/sd*"], "/dev/mem", false), refused("/dev/mem"));
    assert_eq!(verdict(&["/dev/tty*"], "", false), refused("/dev/sda"), "a volume is no way around it");
    assert_eq!(verdict(&["/dev/*"], "v.com/c=n", false), refused("v.com/c=n"));
    assert_eq!(verdict(&["/dev/sda", "/dev/ttyS0", "v.com/c=*"], "v.com/c=n", false), Ok(()));
}

#[test]
fn a_star_stands_for_any_text_and_everything_else_for_itself() {
    for (pattern, text, fits) in [
        ("*", "", true),
        ("/dev/a", "/dev/a", true),
        ("/dev/a", "/dev/ab", false),
        ("/dev/*/x*", "/dev/a/b/x1", true),
        ("/dev/*x", "/dev/axbx", true),
        ("/dev/*x", "/dev/axb", false),
        ("a*b*c", "abc", true),
        ("a*b*c", "acb", false),
        ("ab*ba", "aba", false),
    ] {
        assert_eq!(matches_pattern(pattern, text), fits, "{pattern} {text}");
    }
}
