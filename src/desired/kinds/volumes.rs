//! The rules of PersistentVolumes and CSIDrivers.
//!
//! Owns them. Pure.

use serde_json::{Value, json};

use super::KindRules;
use super::service::{default, text};
use crate::desired::validation::disk;
use crate::desired::validation::volume::HOST_PATH_TYPES;
use crate::model::api::quantity::Quantity;
use crate::model::field_error::{Errors, Path};
use crate::model::names;
use crate::model::objects::LocalObject;
use crate::model::objects::volumes::{ACCESS_MODES, DISKS, other_kind, texts};

const SOURCES: [&str; 6] = ["csi", "fc", "hostPath", "iscsi", "local", "nfs"];
/// Fields of a source that must be there.
const NEEDED: [(&str, &str); 6] = [
    ("csi", "driver"),
    ("csi", "volumeHandle"),
    ("hostPath", "path"),
    ("local", "path"),
    ("nfs", "server"),
    ("nfs", "path"),
];

/// Upstream: `SetDefaults_PersistentVolume`, `ValidatePersistentVolume`, `ValidatePersistentVolumeUpdate`.
pub(super) const VOLUME: KindRules = KindRules {
    defaults: |body| {
        if body["spec"].is_object() {
            default(&mut body["spec"], "persistentVolumeReclaimPolicy", json!("Retain"));
            default(&mut body["spec"], "volumeMode", json!("Filesystem"));
            if body["spec"]["iscsi"].is_object() {
                default(&mut body["spec"]["iscsi"], "iscsiInterface", json!("default"));
            }
        }
    },
    validate: volume,
    validate_update: |old, new, errors| {
        let spec = Path::Root("spec");
        for field in SOURCES {
            if old["spec"][field] != new["spec"][field] {
                let why = "spec.persistentvolumesource is immutable after creation";
                errors.forbidden(&spec.child(field), why);
            }
        }
        if old["spec"]["volumeMode"] != new["spec"]["volumeMode"] {
            let mode = text(&new["spec"]["volumeMode"]);
            errors.invalid(&spec.child("volumeMode"), mode, "field is immutable");
        }
    },
};

/// Upstream: `SetDefaults_CSIDriver`, `ValidateCSIDriver`.
pub(super) const DRIVER: KindRules = KindRules {
    defaults: |body| {
        if !body["spec"].is_object() {
            return;
        }
        let spec = &mut body["spec"];
        default(spec, "attachRequired", json!(true));
        default(spec, "fsGroupPolicy", json!("ReadWriteOnceWithFSType"));
        for field in ["podInfoOnMount", "storageCapacity", "requiresRepublish", "seLinuxMount"] {
            default(spec, field, json!(false));
        }
        if texts(&spec["volumeLifecycleModes"]).next().is_none() {
            spec["volumeLifecycleModes"] = json!(["Persistent"]);
        }
    },
    validate: |_, body, errors| {
        let spec = Path::Root("spec");
        for mode in texts(&body["spec"]["volumeLifecycleModes"]) {
            errors.one_of(&spec.child("volumeLifecycleModes"), mode, &["Persistent", "Ephemeral"]);
        }
        let policies = ["ReadWriteOnceWithFSType", "File", "None"];
        let policy = body["spec"]["fsGroupPolicy"].as_str();
        errors.optional_of(&spec.child("fsGroupPolicy"), policy, &policies);
    },
    validate_update: |_, _, _| {},
};

fn volume(object: &LocalObject, body: &Value, errors: &mut Errors) {
    let (at, spec) = (Path::Root("spec"), &body["spec"]);
    let modes = at.child("accessModes");
    if texts(&spec["accessModes"]).next().is_none() {
        errors.required(&modes, "");
    }
    for mode in texts(&spec["accessModes"]) {
        errors.one_of(&modes, mode, &ACCESS_MODES);
    }
    let capacity = at.child("capacity");
    match spec["capacity"]["storage"].as_str().map(Quantity::parse) {
        Some(Ok(size)) if size.value() > 0 => {}
        Some(_) => errors.invalid(
            &capacity.key("storage"),
            text(&spec["capacity"]["storage"]),
            "must be greater than zero",
        ),
        None => errors.required(&capacity, ""),
    }
    errors.optional_of(&at.child("volumeMode"), spec["volumeMode"].as_str(), &["Filesystem"]);
    let policies = ["Delete", "Recycle", "Retain"];
    let policy = spec["persistentVolumeReclaimPolicy"].as_str();
    errors.optional_of(&at.child("persistentVolumeReclaimPolicy"), policy, &policies);
    let class = text(&spec["storageClassName"]);
    if !class.is_empty() {
        errors.name(&at.child("storageClassName"), class, names::dns_subdomain);
    }
    let mut sources = SOURCES.into_iter().filter(|source| spec.get(source).is_some());
    match (sources.next(), other_kind(spec)) {
        (_, Some(other)) => {
            errors.forbidden(&at.child(other), "this node mounts csi, fc, hostPath, iscsi, local and nfs");
        }
        (None, None) => errors.required(&at, "must specify a volume type"),
        (Some(_), None) => {}
    }
    for source in sources {
        errors.forbidden(&at.child(source), "may not specify more than 1 volume type");
    }
    for kind in DISKS {
        if let Some(source) = spec.get(kind) {
            disk::validate((kind, source), (&object.key.name, true), &at.child(kind), errors);
        }
    }
    let type_ = spec["hostPath"]["type"].as_str();
    errors.optional_of(&at.child("hostPath").child("type"), type_, &HOST_PATH_TYPES);
    for (source, field) in NEEDED.into_iter().filter(|(source, _)| spec.get(source).is_some()) {
        let (field_at, value) = (at.child(source), text(&spec[source][field]));
        errors.present(&field_at.child(field), value);
        if field == "path" && value.split('/').any(|part| part == "..") {
            errors.invalid(&field_at.child(field), value, "must not contain '..'");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::objects::{ObjectKey, ObjectKind, PlainBody, wire};

    fn errors(spec: &Value) -> Vec<String> {
        let mut body = json!({"spec": spec});
        (VOLUME.defaults)(&mut body);
        let key =
            ObjectKey { kind: ObjectKind::PersistentVolume, namespace: String::new(), name: "v".to_owned() };
        let object = wire::plain_object(key, PlainBody::new(&body));
        let mut errors = Errors::default();
        (VOLUME.validate)(&object, &body, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_persistent_volume_names_one_source_of_this_node() {
        let spec = |source: Value| {
            let mut spec = json!({"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}});
            spec.as_object_mut().unwrap().extend(source.as_object().unwrap().clone());
            spec
        };
        for source in [
            json!({"csi": {"driver": "d", "volumeHandle": "h"}}),
            json!({"fc": {"wwids": ["3"], "lun": 1}}),
            json!({"iscsi": {"targetPortal": "p", "iqn": "iqn.2001-04.com.example:x", "lun": 1}}),
        ] {
            assert_eq!(errors(&spec(source)), [""; 0]);
        }
        for (source, wanted) in [
            (json!({}), "spec: Required value: must specify a volume type"),
            (
                json!({"rbd": {}}),
                "spec.rbd: Forbidden: this node mounts csi, fc, hostPath, iscsi, local and nfs",
            ),
            (
                json!({"fc": {"targetWWNs": ["5"]}}),
                "spec.fc.lun: Required value: lun is required if targetWWNs is specified",
            ),
            (json!({"csi": {"driver": "d"}}), "spec.csi.volumeHandle: Required value"),
            (
                json!({"nfs": {"server": "s", "path": "/"}, "local": {"path": "/x"}}),
                "spec.nfs: Forbidden: may not specify more than 1 volume type",
            ),
            (
                json!({"local": {"path": "/a/../b"}}),
                "spec.local.path: Invalid value: \"/a/../b\": must not contain '..'",
            ),
            (json!({"local": {"path": "/x"}, "capacity": {}}), "spec.capacity: Required value"),
            (
                json!({"local": {"path": "/x"}, "capacity": {"storage": "0"}}),
                "spec.capacity[storage]: Invalid value: \"0\": must be greater than zero",
            ),
            (json!({"local": {"path": "/x"}, "accessModes": []}), "spec.accessModes: Required value"),
        ] {
            assert_eq!(errors(&spec(source.clone())), [wanted], "{source}");
        }
        let odd = errors(&spec(json!({"hostPath": {"path": "/x", "type": "directory"}})));
        assert!(odd[0].starts_with("spec.hostPath.type: Unsupported value: \"directory\""), "{odd:?}");
        let block = errors(&spec(json!({"local": {"path": "/x"}, "volumeMode": "Block"})));
        assert!(block[0].starts_with("spec.volumeMode: Unsupported value: \"Block\""), "{block:?}");
    }

    #[test]
    fn the_source_of_a_volume_stays_as_it_is() {
        let (old, mut new) =
            (json!({"spec": {"local": {"path": "/x"}}}), json!({"spec": {"local": {"path": "/y"}}}));
        let mut errors = Errors::default();
        (VOLUME.validate_update)(&old, &new, &mut errors);
        assert_eq!(errors.0.len(), 1);
        new["spec"] = json!({"local": {"path": "/x"}, "claimRef": {"name": "c"}});
        let mut errors = Errors::default();
        (VOLUME.validate_update)(&old, &new, &mut errors);
        assert!(errors.0.is_empty());
    }

    #[test]
    fn a_csi_driver_gets_the_defaults_of_an_api_server() {
        let mut body = json!({"spec": {"podInfoOnMount": true}});
        (DRIVER.defaults)(&mut body);
        assert_eq!(
            body["spec"],
            json!({"attachRequired": true, "fsGroupPolicy": "ReadWriteOnceWithFSType", "podInfoOnMount": true,
                "storageCapacity": false, "requiresRepublish": false, "seLinuxMount": false,
                "volumeLifecycleModes": ["Persistent"]})
        );
    }
}
