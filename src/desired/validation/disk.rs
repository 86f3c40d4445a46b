//! Rules of disks of the network, in pods and in PersistentVolumes (upstream: `validateISCSIVolumeSource`,
//! `validateISCSIPersistentVolumeSource`, `validateFCVolumeSource`).

use serde_json::Value;

use crate::model::field_error::{Errors, Path};
use crate::model::objects::volumes::texts;

/// The most characters of a name that becomes an iSCSI interface.
const LONGEST_IFACE: usize = 64;
const FORMAT: &str = "must be valid format";

/// `name` is that of the volume, which is a PersistentVolume or not.
pub(in crate::desired) fn validate(
    (kind, source): (&str, &Value),
    (name, is_persistent): (&str, bool),
    at: &Path<'_>,
    errors: &mut Errors,
) {
    if kind == "fc" {
        return fc(source, at, errors);
    }
    let text = |field: &str| source[field].as_str().unwrap_or_default();
    let portal = text("targetPortal");
    errors.present(&at.child("targetPortal"), portal);
    let start = if is_persistent { FORMAT } else { "must be valid format starting with iqn, eui, or naa" };
    if text("iqn").is_empty() {
        errors.required(&at.child("iqn"), "");
    } else {
        node_name(text("iqn"), start, &at.child("iqn"), errors);
    }
    lun(source, at, errors);
    let is_chap = source["chapAuthDiscovery"] == true || source["chapAuthSession"] == true;
    let secret = &source["secretRef"];
    if is_chap && secret.is_null() {
        errors.required(&at.child("secretRef"), "");
    }
    if !secret.is_null() && (is_persistent || is_chap) {
        errors.present(&at.child("secretRef").child("name"), secret["name"].as_str().unwrap_or_default());
    }
    if source["initiatorName"].is_string() {
        if name.len() + 1 + portal.len() > LONGEST_IFACE {
            let why = "Total length of <volume name>:<iscsi.targetPortal> must be under 64 characters if iscsi.initiatorName is specified.";
            errors.invalid(&at.child("targetportal"), portal, why);
        }
        node_name(text("initiatorName"), start, &at.child("initiatorname"), errors);
    }
}

fn fc(source: &Value, at: &Path<'_>, errors: &mut Errors) {
    let (wwns, wwns_at) = (&source["targetWWNs"], at.child("targetWWNs"));
    match (texts(wwns).next(), texts(&source["wwids"]).next()) {
        (None, None) => {
            errors.required(&wwns_at, "must specify either targetWWNs or wwids, but not both");
        }
        (Some(_), Some(_)) => {
            let why = "targetWWNs and wwids can not be specified simultaneously";
            errors.invalid_number(&wwns_at, wwns, why);
        }
        _ => {}
    }
    if texts(wwns).next().is_none() {
        return;
    }
    if source["lun"].is_null() {
        errors.required(&at.child("lun"), "lun is required if targetWWNs is specified");
    } else {
        lun(source, at, errors);
    }
}

fn lun(source: &Value, at: &Path<'_>, errors: &mut Errors) {
    let lun = source["lun"].as_i64().unwrap_or_default();
    if !(0..=255).contains(&lun) {
        errors.invalid_number(&at.child("lun"), lun, "must be between 0 and 255, inclusive");
    }
}

/// The name of a target or of an initiator.
fn node_name(name: &str, start: &str, at: &Path<'_>, errors: &mut Errors) {
    let is_valid = match name.get(..3) {
        Some("iqn") => is_iqn(name),
        Some("eui") => is_number(name, 16),
        Some("naa") => is_number(name, 32),
        _ => return errors.invalid(at, name, start),
    };
    if !is_valid {
        errors.invalid(at, name, FORMAT);
    }
}

/// `iqn.2001-04.com.example:storage.disk1`.
fn is_iqn(name: &str) -> bool {
    let parts = name.strip_prefix("iqn.").and_then(|rest| rest.split_once(':'));
    let Some((date, authority)) = parts.and_then(|(authority, _)| authority.split_once('.')) else {
        return false;
    };
    let is_date = date.len() == 7
        && date
            .bytes()
            .enumerate()
            .all(|(at, byte)| if at == 4 { byte == b'-' } else { byte.is_ascii_digit() });
    let unique = parts.map(|(_, unique)| unique).unwrap_or_default();
    let is_authority = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'.';
    is_date
        && !authority.is_empty()
        && authority.bytes().all(is_authority)
        && !unique.is_empty()
        && !unique.contains(|letter: char| ",;*&$|".contains(letter) || letter.is_ascii_whitespace())
}

fn is_number(name: &str, digits: usize) -> bool {
    name.len() == 4 + digits && name.bytes().skip(4).all(|byte| byte.is_ascii_alphanumeric())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn errors(kind: &str, source: &Value, is_persistent: bool) -> Vec<String> {
        let (root, mut errors) = (Path::Root("v"), Errors::default());
        validate((kind, source), ("data", is_persistent), &root, &mut errors);
        errors.0.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn an_iscsi_volume_names_portal_target_and_lun() {
        let iqn = "iqn.2001-04.com.example:disk";
        let with = |change: Value| {
            let mut source = json!({"targetPortal": "10.0.0.1", "iqn": iqn, "lun": 0});
            source.as_object_mut().unwrap().extend(change.as_object().unwrap().clone());
            source
        };
        for name in
            [iqn, "eui.0123456789abcdef", "naa.60014050123456789abcdef012345678", "iqn.2001-04.a-b:x:y"]
        {
            assert_eq!(errors("iscsi", &with(json!({"iqn": name})), false), [""; 0], "{name}");
        }
        let invalid = |name: &str| format!("v.iqn: Invalid value: {name:?}: must be valid format");
        for name in [
            "iqn.2001.com:x",
            "iqn.2001-04.com",
            "iqn.2001-04.com:",
            "iqn.2001-04.com:a b",
            "eui.01",
            "naa.1",
        ] {
            assert_eq!(errors("iscsi", &with(json!({"iqn": name})), false), [invalid(name)]);
        }
        let other = errors("iscsi", &with(json!({"iqn": "disk"})), false);
        assert_eq!(other, [format!("{} starting with iqn, eui, or naa", invalid("disk"))]);
        for (change, wanted) in [
            (json!({"targetPortal": ""}), "v.targetPortal: Required value"),
            (json!({"iqn": ""}), "v.iqn: Required value"),
            (json!({"lun": 256}), "v.lun: Invalid value: 256: must be between 0 and 255, inclusive"),
            (json!({"chapAuthSession": true}), "v.secretRef: Required value"),
            (json!({"secretRef": {}}), "v.secretRef.name: Required value"),
            (json!({"initiatorName": "x"}), "v.initiatorname: Invalid value: \"x\": must be valid format"),
        ] {
            assert_eq!(errors("iscsi", &with(change), true), [wanted]);
        }
        let long = json!({"initiatorName": iqn, "targetPortal": "p".repeat(60)});
        assert!(errors("iscsi", &with(long), true)[0].contains("must be under 64 characters"));
    }

    #[test]
    fn an_fc_volume_has_either_kind_of_name() {
        let both = "targetWWNs and wwids can not be specified simultaneously";
        for (source, wanted) in [
            (
                json!({}),
                "v.targetWWNs: Required value: must specify either targetWWNs or wwids, but not both"
                    .to_owned(),
            ),
            (
                json!({"targetWWNs": ["5"], "wwids": ["3"], "lun": 0}),
                format!("v.targetWWNs: Invalid value: [\"5\"]: {both}"),
            ),
            (
                json!({"targetWWNs": ["5"], "lun": -1}),
                "v.lun: Invalid value: -1: must be between 0 and 255, inclusive".to_owned(),
            ),
        ] {
            assert_eq!(errors("fc", &source, false), [wanted]);
        }
        assert_eq!(errors("fc", &json!({"wwids": ["3"]}), false), [""; 0]);
    }
}
