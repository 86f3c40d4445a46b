#![expect(clippy::needless_pass_by_value, reason = "JSON literals read better unborrowed")]

use super::*;
use crate::model::objects::{ObjectKind, wire};

fn claim(name: &str, spec: Value) -> LocalObject {
    let mut value = json!({"metadata": {"name": name, "namespace": "ns"},
        "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    for (field, part) in spec.as_object().into_iter().flatten() {
        value["spec"][field] = part.clone();
    }
    wire::from_value(ObjectKind::PersistentVolumeClaim, value).unwrap()
}

fn volume(name: &str, spec: Value) -> NamedVolume {
    let mut value =
        json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "local": {"path": "/x"}});
    for (field, part) in spec.as_object().into_iter().flatten() {
        value[field] = part.clone();
    }
    (name.to_owned(), value)
}

fn bound(claim: &LocalObject, volumes: &[NamedVolume], provisioner: Option<&str>, is_used: bool) -> Binding {
    binding(claim, (volumes, &[claim]), provisioner, || is_used)
}

fn pending(binding: Binding) -> String {
    match binding {
        Binding::Pending(_) | Binding::Awaited(_) => binding.problem().unwrap(),
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_claim_has_a_directory_unless_its_class_is_here() {
    let (none, fast) = (claim("a", json!({})), claim("a", json!({"storageClassName": "fast"})));
    let of = |class: &str| [volume("v", json!({"storageClassName": class}))];
    assert_eq!(bound(&none, &of(""), None, false), Binding::Directory, "it names no class");
    assert_eq!(bound(&fast, &of("slow"), None, false), Binding::Directory);
    assert_eq!(bound(&fast, &[], Some(DIRECTORY_PROVISIONER), false), Binding::Directory);
    assert_eq!(bound(&fast, &of("fast"), Some("d"), true), Binding::Directory, "it has data");
    let waits = pending(bound(&fast, &[], Some("csi.example.com"), false));
    assert!(waits.starts_with(
        "Waiting for a volume to be created either by the external provisioner 'csi.example.com'"
    ));
    let none = "no persistent volumes available for this claim and no storage class is set";
    assert_eq!(pending(bound(&fast, &of("fast"), None, false)), none);
    assert_eq!(pending(bound(&fast, &[], Some(NO_PROVISIONER), false)), none);
    let empty = claim("a", json!({"storageClassName": ""}));
    assert_eq!(pending(bound(&empty, &of(""), None, false)), none);
}

#[test]
fn a_claim_and_a_volume_name_each_other() {
    let names = claim("a", json!({"volumeName": "v"}));
    let v = |spec: Value| [volume("v", spec)];
    assert_eq!(bound(&names, &v(json!({})), None, true), Binding::Volume("v".to_owned()));
    assert_eq!(pending(bound(&names, &[], None, false)), "PersistentVolume \"v\" not found");
    let why = |spec: Value| pending(bound(&names, &v(spec), None, false));
    let cannot = "Cannot bind to requested volume \"v\": ";
    for (spec, reason) in [
        (json!({"capacity": {"storage": "1Mi"}}), "requested PV is too small"),
        (json!({"storageClassName": "fast"}), "storageClassName does not match"),
        (json!({"volumeMode": "Block"}), "incompatible volumeMode"),
        (json!({"accessModes": ["ReadOnlyMany"]}), "incompatible accessMode"),
    ] {
        assert_eq!(why(spec), format!("{cannot}{reason}"));
    }
    let taken = json!({"claimRef": {"name": "b", "namespace": "ns"}});
    assert_eq!(why(taken), "volume \"v\" already bound to a different claim.");
    let other = claim("a", json!({}));
    let of_it = json!({"claimRef": {"name": "a", "namespace": "ns"}});
    assert_eq!(bound(&other, &v(of_it), None, false), Binding::Volume("v".to_owned()));
    let of_it = json!({"claimRef": {"name": "a", "namespace": "ns"}});
    assert_eq!(bound(&other, &v(of_it), None, true), Binding::Directory, "it has data");
    let of_it = json!({"claimRef": {"name": "a", "namespace": "ns", "uid": other.uid}});
    assert_eq!(bound(&other, &v(of_it), None, true), Binding::Volume("v".to_owned()), "it is bound");
    let earlier = json!({"claimRef": {"name": "a", "namespace": "ns", "uid": "earlier"}});
    assert_eq!(bound(&other, &v(earlier), None, false), Binding::Directory);
    let small =
        json!({"claimRef": {"name": "a", "namespace": "ns", "uid": other.uid}, "capacity": {"storage": "1"}});
    assert_eq!(bound(&other, &v(small), None, false), Binding::Volume("v".to_owned()), "it has it");
}

#[test]
fn of_two_claims_that_name_a_volume_the_older_one_has_it() {
    let (old, new) = (claim("z", json!({"volumeName": "v"})), claim("a", json!({"volumeName": "v"})));
    let volumes = [volume("v", json!({}))];
    let of = |claim: &LocalObject| binding(claim, (&volumes, &[&old, &new]), None, || false);
    assert_eq!(of(&old), Binding::Volume("v".to_owned()));
    assert_eq!(pending(of(&new)), "volume \"v\" already bound to a different claim.");
}

#[test]
fn a_claim_is_shown_with_what_it_has() {
    let shown = |binding: &Binding, spec: Value| {
        let mut value = wire::to_value(&claim("a", spec), wire::Values::Shown);
        show_binding(&mut value, binding);
        (value["spec"]["volumeName"].clone(), value["status"]["phase"].clone())
    };
    let own = json!(wire::volume_name(&claim("a", json!({})).key));
    assert_eq!(shown(&Binding::Directory, json!({})), (own, json!("Bound")));
    assert_eq!(shown(&Binding::Volume("v".to_owned()), json!({})), (json!("v"), json!("Bound")));
    let pending = Binding::Pending(String::new());
    assert_eq!(shown(&pending, json!({})), (Value::Null, json!("Pending")));
    assert_eq!(shown(&pending, json!({"volumeName": "v"})), (json!("v"), json!("Pending")));

    let awaited = Binding::Awaited("d".to_owned());
    assert_eq!(shown(&awaited, json!({})), (Value::Null, json!("Pending")));
    let mut value = wire::to_value(&claim("a", json!({})), wire::Values::Shown);
    ask_provisioner(&mut value, &awaited, "edge");
    assert_eq!(
        value["metadata"]["annotations"],
        json!({"volume.beta.kubernetes.io/storage-provisioner": "d",
            "volume.kubernetes.io/storage-provisioner": "d", "volume.kubernetes.io/selected-node": "edge"})
    );
}
