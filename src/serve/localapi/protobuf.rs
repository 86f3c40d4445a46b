//! Kubernetes' protobuf encoding of the few kinds that kubectl always sends in it, whatever the server
//! offers: `kubectl create configmap`, `secret` and `namespace`, the pods of `kubectl debug`, evictions,
//! deletion options, and reviews; also RuntimeClass, for other clients.
//!
//! Owns the fields of these messages (upstream: `generated.proto` of core/v1, policy/v1, meta/v1,
//! authorization/v1).
//! Pure, and bounded by the body.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::path::RequestInfo;
use super::resource::{Store, Verb};
use crate::codec::base64;
use crate::model::objects::ObjectKind;
use crate::model::ordered::Ordered as _;
use crate::model::types::Timestamp;

pub(super) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The prefix of every encoded object.
const MAGIC: &[u8] = b"k8s\0";

/// One type per line: its name, and the number, JSON name and shape of each field. A shape is `text`,
/// `bytes`, `number`, `flag`, `time`, `quantity`, `port` (a number or a name) or a type; with `[]` each
/// occurrence is an item, with `{}` an entry of a map. A field whose name begins with `&` is inlined: its
/// fields are the message's own. A type without a line has no fields that are used.
const TYPES: &str = include_str!("protobuf/types.txt");

struct Field {
    number: u64,
    name: &'static str,
    shape: &'static str,
}

struct Types(BTreeMap<&'static str, Vec<Field>>);

/// Whether a request may be encoded this way.
pub(super) fn reads(wanted: &RequestInfo) -> bool {
    let part = wanted.subresource.map_or("", |part| part.name);
    let is_known = match wanted.resource.store {
        // The fields of a claim are not decoded.
        Store::Objects(kind) => part.is_empty() && kind != ObjectKind::PersistentVolumeClaim,
        Store::Namespaces => part.is_empty(),
        // The fields of its status are not decoded.
        Store::Pods => part != "status",
        _ => false,
    };
    match wanted.verb {
        Verb::Delete | Verb::DeleteCollection => true,
        Verb::Create | Verb::Update => is_known,
        _ => false,
    }
}

/// Decodes an object. `None` when it is of another kind.
pub(super) fn read(bytes: &[u8]) -> Option<Value> {
    const KINDS: [&str; 7] =
        ["ConfigMap", "Secret", "Namespace", "RuntimeClass", "Pod", "DeleteOptions", "Eviction"];
    let (what, content) = unwrapped(bytes)?;
    let types = Types::load();
    let mut object = types.message(what?, "TypeMeta")?;
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default().to_owned();
    if !KINDS.contains(&kind.as_str()) {
        return None;
    }
    object.extend(types.message(content, &kind)?);
    Some(Value::Object(object))
}

/// Decodes a review of this kind. `None` when it is something else.
pub(super) fn review(kind: &str, bytes: &[u8]) -> Option<Value> {
    Types::load().message(unwrapped(bytes)?.1, kind).map(Value::Object)
}

/// `runtime.Unknown`: field 1 is the type, field 2 the object.
fn unwrapped(bytes: &[u8]) -> Option<(Option<&[u8]>, &[u8])> {
    let parts = fields(bytes.strip_prefix(MAGIC)?)?;
    let part = |wanted: u64| {
        parts.iter().find_map(|(number, content)| match content {
            Content::Bytes(bytes) if *number == wanted => Some(*bytes),
            _ => None,
        })
    };
    Some((part(1), part(2).unwrap_or_default()))
}

impl Types {
    fn load() -> Self {
        let field = |line: &'static str| {
            let mut words = line.trim().split(' ');
            let number = words.next()?.parse().ok()?;
            Some(Field { number, name: words.next()?, shape: words.next()? })
        };
        let line = |line: &'static str| {
            let (name, fields) = line.split_once(':')?;
            Some((name, fields.split(',').filter_map(field).collect()))
        };
        Self(TYPES.lines().filter_map(line).into_map())
    }

    fn message(&self, bytes: &[u8], of: &str) -> Option<Map<String, Value>> {
        let known = self.0.get(of).map(Vec::as_slice).unwrap_or_default();
        let mut object = Map::new();
        for (number, content) in fields(bytes)? {
            let Some(field) = known.iter().find(|field| field.number == number) else { continue };
            let name = field.name.to_owned();
            if let Some(item) = field.shape.strip_prefix("[]") {
                push(&mut object, name, self.value(&content, item)?)?;
            } else if let Some(shape) = field.shape.strip_prefix("{}") {
                let Content::Bytes(bytes) = content else { return None };
                let (key, value) = self.entry(bytes, shape)?;
                let map = object.entry(name).or_insert_with(|| json!({}));
                map.as_object_mut()?.insert(key, value);
            } else {
                match (self.value(&content, field.shape)?, field.name.starts_with('&')) {
                    (Value::Object(inner), true) => object.extend(inner),
                    // An empty value is the same as an absent one.
                    (Value::Null, _) => {}
                    (Value::String(text), _) if text.is_empty() => {}
                    (value, _) => drop(object.insert(name, value)),
                }
            }
        }
        Some(object)
    }

    fn value(&self, content: &Content<'_>, shape: &str) -> Option<Value> {
        let part = |bytes: &[u8], of: &str, name: &str| {
            Some(self.message(bytes, of)?.remove(name).unwrap_or_default())
        };
        match (shape, content) {
            ("text", Content::Bytes(bytes)) => text(bytes),
            ("bytes", Content::Bytes(bytes)) => Some(json!(base64::encode(bytes))),
            ("number", Content::Number(number)) => Some(json!(i64::from_le_bytes(number.to_le_bytes()))),
            ("flag", Content::Number(number)) => Some(json!(*number != 0)),
            ("time", Content::Bytes(bytes)) => {
                let seconds = part(bytes, "Time", "seconds")?.as_i64();
                Some(seconds.map_or(Value::Null, |seconds| json!(Timestamp::from_secs(seconds).to_rfc3339())))
            }
            ("quantity", Content::Bytes(bytes)) => part(bytes, "Quantity", "string"),
            ("port", Content::Bytes(bytes)) => {
                let mut number_or_name = self.message(bytes, "IntOrString")?;
                let is_name = number_or_name.get("type") == Some(&json!(1));
                // An absent field has its type's zero value.
                let (name, zero) = if is_name { ("strVal", json!("")) } else { ("intVal", json!(0)) };
                Some(number_or_name.remove(name).unwrap_or(zero))
            }
            ("text" | "bytes" | "number" | "flag" | "time" | "quantity" | "port", _)
            | (_, Content::Number(_)) => None,
            (of, Content::Bytes(bytes)) => self.message(bytes, of).map(Value::Object),
        }
    }

    /// A map's entry: 1 is the key, 2 the value.
    fn entry(&self, bytes: &[u8], shape: &str) -> Option<(String, Value)> {
        let (mut key, mut value) = (String::new(), Content::Bytes(&[]));
        for (number, content) in fields(bytes)? {
            match (number, content) {
                (1, Content::Bytes(bytes)) => std::str::from_utf8(bytes).ok()?.clone_into(&mut key),
                (2, content) => value = content,
                _ => {}
            }
        }
        Some((key, self.value(&value, shape)?))
    }
}

fn push(object: &mut Map<String, Value>, name: String, item: Value) -> Option<()> {
    object.entry(name).or_insert_with(|| json!([])).as_array_mut()?.push(item);
    Some(())
}

fn text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

enum Content<'a> {
    Number(u64),
    Bytes(&'a [u8]),
}

fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, Content<'_>)>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (key, rest) = number(bytes)?;
        bytes = match key & 7 {
            0 => {
                let (value, rest) = number(rest)?;
                fields.push((key >> 3, Content::Number(value)));
                rest
            }
            1 => rest.get(8..)?,
            2 => {
                let (length, rest) = number(rest)?;
                let (content, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                fields.push((key >> 3, Content::Bytes(content)));
                rest
            }
            5 => rest.get(4..)?,
            _ => return None,
        };
    }
    Some(fields)
}

fn number(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let mut value = 0;
    for (position, byte) in bytes.iter().take(10).enumerate() {
        value |= u64::from(byte & 0x7f).checked_shl(7 * u32::try_from(position).ok()?)?;
        if byte & 0x80 == 0 {
            return Some((value, &bytes[position + 1..]));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    fn field(number: u8, content: &[u8]) -> Vec<u8> {
        [&[number << 3 | 2, u8::try_from(content.len()).unwrap()], content].concat()
    }

    fn object(kind: &str, content: &[u8]) -> Vec<u8> {
        let what = [field(1, b"v1"), field(2, kind.as_bytes())].concat();
        [MAGIC, &field(1, &what), &field(2, content)].concat()
    }

    fn pair(key: &str, value: &[u8]) -> Vec<u8> {
        [field(1, key.as_bytes()), field(2, value)].concat()
    }

    #[test]
    fn objects_are_read_as_their_json_would_be() {
        let metadata = [field(1, b"m"), field(2, b""), field(8, b""), field(11, &pair("a", b"b"))].concat();
        let map = [
            field(1, &metadata),
            field(2, &pair("k", b"v")),
            field(2, &pair("l", b"w")),
            field(3, &pair("b", &[0, 255])),
            vec![4 << 3, 1],
        ];
        assert_eq!(
            read(&object("ConfigMap", &map.concat())),
            Some(
                json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m", "labels": {"a": "b"}},
                "data": {"k": "v", "l": "w"}, "binaryData": {"b": "AP8="}, "immutable": true})
            )
        );
        let secret = [field(1, &field(1, b"s")), field(2, &pair("k", b"v")), field(3, b"Opaque")].concat();
        assert_eq!(
            read(&object("Secret", &secret)),
            Some(
                json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "s"}, "data": {"k": "dg=="},
                "type": "Opaque"})
            )
        );
        let options = [vec![1 << 3, 5], field(4, b"Background"), field(5, b"All")].concat();
        let eviction = [field(1, &field(1, b"p")), field(2, &options)].concat();
        assert_eq!(
            read(&object("Eviction", &eviction)),
            Some(json!({"apiVersion": "v1", "kind": "Eviction", "metadata": {"name": "p"},
                "deleteOptions": {"gracePeriodSeconds": 5, "propagationPolicy": "Background", "dryRun": ["All"]}}))
        );
    }

    #[test]
    fn what_is_cut_short_or_something_else_is_refused() {
        let whole = object("ConfigMap", &field(2, &pair("k", b"v")));
        for length in 0..whole.len() {
            let _ = read(&whole[..length]);
        }
        assert_eq!(read(b"{}"), None);
        assert_eq!(read(&object("Node", b"")), None);
        assert_eq!(read(&object("ConfigMap", &[2 << 3, 1])), None, "a number where an entry should be");
        assert_eq!(read(&object("ConfigMap", &field(2, &pair("k", &[0xff])))), None);
        assert_eq!(read(&[MAGIC, &[0xff; 12]].concat()), None);
    }

    #[test]
    fn the_pod_of_a_debugger_is_read() {
        let flag = |number: u8, value: u8| vec![number << 3, value];
        let port = [vec![1 << 3, 1], field(3, b"web")].concat();
        let probe = field(1, &field(2, &field(2, &port)));
        let container = [
            field(1, b"debugger"),
            field(2, b"busybox"),
            field(3, b"sh"),
            field(3, b""),
            field(8, &field(1, &pair("cpu", &field(1, b"100m")))),
            field(9, &[field(1, b"host-root"), flag(2, 0), field(3, b"/host")].concat()),
            field(10, &probe),
        ];
        let volume = [field(1, b"host-root"), field(2, &field(1, &field(1, b"/")))].concat();
        let spec = [field(1, &volume), field(2, &container.concat()), flag(4, 0), flag(11, 1)];
        let pod = [field(1, &field(1, b"p")), field(2, &spec.concat())].concat();
        assert_eq!(
            read(&object("Pod", &pod)),
            Some(json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {
                "volumes": [{"name": "host-root", "hostPath": {"path": "/"}}],
                "containers": [{
                    "name": "debugger", "image": "busybox", "command": ["sh", ""],
                    "resources": {"limits": {"cpu": "100m"}},
                    "volumeMounts": [{"name": "host-root", "readOnly": false, "mountPath": "/host"}],
                    "livenessProbe": {"httpGet": {"port": "web"}},
                }],
                "terminationGracePeriodSeconds": 0,
                "hostNetwork": true,
            }}))
        );
    }

    #[test]
    fn a_port_is_a_number_or_a_name_and_zero_is_a_number() {
        let number = |value: u8| vec![2 << 3, value];
        let kind = |value: u8| vec![1 << 3, value];
        // As Go encodes it, and with zero values omitted.
        for (port, expected) in [
            ([kind(0), number(0), field(3, b"")].concat(), Some(json!(0))),
            (number(0), Some(json!(0))),
            (Vec::new(), Some(json!(0))),
            ([kind(0), number(80)].concat(), Some(json!(80))),
            (number(80), Some(json!(80))),
            ([kind(1), field(3, b"web")].concat(), Some(json!("web"))),
            ([kind(1), number(7), field(3, b"web")].concat(), Some(json!("web"))),
            // An empty name is absent.
            (kind(1), None),
        ] {
            let action = field(2, &port);
            let probe = Types::load().message(&action, "HTTPGetAction").unwrap();
            assert_eq!(probe.get("port").cloned(), expected, "{port:?}");
        }
    }

    #[test]
    fn every_shape_is_known() {
        let types = Types::load();
        let plain = ["text", "bytes", "number", "flag", "time", "quantity", "port"];
        // Types that are rejected whatever their content, or exist on Windows only.
        let empty =
            ["AzureFileVolumeSource", "CSIVolumeSource", "EphemeralVolumeSource", "GlusterfsVolumeSource"];
        assert_eq!(TYPES.lines().count(), types.0.len());
        for (name, fields) in &types.0 {
            assert_eq!(
                fields.len(),
                TYPES.lines().find(|line| line.starts_with(&format!("{name}:"))).unwrap().split(',').count()
            );
            for field in fields {
                let shape = field.shape.trim_start_matches("[]").trim_start_matches("{}");
                let known = plain.contains(&shape) || empty.contains(&shape) || types.0.contains_key(shape);
                assert!(known, "{name}.{}: {shape}", field.name);
            }
        }
    }

    fn wrapped(object: &[u8]) -> Vec<u8> {
        [MAGIC, &field(1, &field(1, b"authorization.k8s.io/v1")), &field(2, object)].concat()
    }

    #[test]
    fn a_review_is_read() {
        let attributes =
            [field(1, b"default"), field(2, b"get"), field(5, b"pods"), vec![8 << 3, 1]].concat();
        let review_bytes = wrapped(&[field(1, b""), field(2, &field(1, &attributes))].concat());
        assert_eq!(
            review("SelfSubjectAccessReview", &review_bytes),
            Some(
                json!({"spec": {"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "pods"}}})
            )
        );
        assert_eq!(review("SelfSubjectReview", &wrapped(&field(1, b""))), Some(json!({})));
    }

    #[test]
    fn what_is_cut_short_or_no_review_is_refused_either() {
        let whole = wrapped(&field(2, &field(1, &field(2, b"get"))));
        for length in 0..whole.len() {
            // Truncation between two fields gives a shorter valid message; nothing panics.
            let _ = review("SelfSubjectAccessReview", &whole[..length]);
        }
        assert_eq!(review("SelfSubjectAccessReview", b"{}"), None);
        assert_eq!(
            review("SelfSubjectAccessReview", &wrapped(&field(2, &field(1, &field(2, &[0xff]))))),
            None
        );
        assert_eq!(review("SelfSubjectAccessReview", &[MAGIC, &[0xff; 12]].concat()), None);
        assert_eq!(review("SelfSubjectAccessReview", &[MAGIC, &[0x12, 0x7f, 0]].concat()), None);
    }
}
