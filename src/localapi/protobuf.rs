//! Kubernetes' binary form of the few kinds that kubectl sends in it whatever a server offers: `kubectl create configmap`, `secret` and
//! `namespace`, evictions, options of deletions, and reviews.
//!
//! Owns the fields of these messages (upstream: `generated.proto` of core/v1, policy/v1, meta/v1, authorization/v1). Pure, and
//! bounded by the body. Must not know what is asked.

use serde_json::{Map, Value, json};

use super::path::Wanted;
use super::resource::{Store, Verb};
use crate::api::base64;
use crate::types::Timestamp;

/// The content type.
pub(super) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What every object begins with.
const MAGIC: &[u8] = b"k8s\0";

/// Number and JSON's name of each field, and what it holds.
type Fields = &'static [(u64, &'static str, Kind)];

#[derive(Clone, Copy)]
enum Kind {
    Text,
    Number,
    Flag,
    Time,
    /// Each occurrence is an item.
    Texts,
    /// Each occurrence is an entry.
    TextMap,
    BytesMap,
    Message(Fields),
    Messages(Fields),
}

use Kind::{BytesMap, Flag, Message, Messages, Number, Text, TextMap, Texts, Time};

const OWNER: Fields = &[
    (1, "kind", Text),
    (3, "name", Text),
    (4, "uid", Text),
    (5, "apiVersion", Text),
    (6, "controller", Flag),
    (7, "blockOwnerDeletion", Flag),
];
const METADATA: Fields = &[
    (1, "name", Text),
    (2, "generateName", Text),
    (3, "namespace", Text),
    (5, "uid", Text),
    (6, "resourceVersion", Text),
    (8, "creationTimestamp", Time),
    (11, "labels", TextMap),
    (12, "annotations", TextMap),
    (13, "ownerReferences", Messages(OWNER)),
    (14, "finalizers", Texts),
];
const CONFIG_MAP: Fields = &[
    (1, "metadata", Message(METADATA)),
    (2, "data", TextMap),
    (3, "binaryData", BytesMap),
    (4, "immutable", Flag),
];
const SECRET: Fields = &[
    (1, "metadata", Message(METADATA)),
    (2, "data", BytesMap),
    (3, "type", Text),
    (4, "stringData", TextMap),
    (5, "immutable", Flag),
];
const NAMESPACE: Fields =
    &[(1, "metadata", Message(METADATA)), (2, "spec", Message(&[(1, "finalizers", Texts)]))];
const DELETE_OPTIONS: Fields = &[
    (1, "gracePeriodSeconds", Number),
    (2, "preconditions", Message(&[(1, "uid", Text), (2, "resourceVersion", Text)])),
    (3, "orphanDependents", Flag),
    (4, "propagationPolicy", Text),
    (5, "dryRun", Texts),
];
const EVICTION: Fields = &[(1, "metadata", Message(METADATA)), (2, "deleteOptions", Message(DELETE_OPTIONS))];

const RESOURCE_ATTRIBUTES: Fields = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];
const ACCESS_REVIEW: Fields = &[(
    2,
    "spec",
    Message(&[
        (1, "resourceAttributes", Message(RESOURCE_ATTRIBUTES)),
        (2, "nonResourceAttributes", Message(&[(1, "path", Text), (2, "verb", Text)])),
    ]),
)];
const RULES_REVIEW: Fields = &[(2, "spec", Message(&[(1, "namespace", Text)]))];

/// Whether a request may come in this form.
pub(super) fn reads(wanted: &Wanted) -> bool {
    let is_plain = matches!(wanted.resource.store, Store::ConfigMaps | Store::Secrets | Store::Namespaces);
    match wanted.verb {
        Verb::Delete | Verb::DeleteCollection => true,
        Verb::Create => is_plain || wanted.subresource.is_some_and(|part| part.name == "eviction"),
        Verb::Update => is_plain,
        _ => false,
    }
}

/// Reads an object. `None` when it is none of these kinds.
pub(super) fn read(bytes: &[u8]) -> Option<Value> {
    let (what, content) = unwrapped(bytes)?;
    let mut object = message(what?, &[(1, "apiVersion", Text), (2, "kind", Text)])?;
    let kind = object.get("kind").and_then(Value::as_str).unwrap_or_default();
    let known = match kind {
        "ConfigMap" => CONFIG_MAP,
        "Secret" => SECRET,
        "Namespace" => NAMESPACE,
        "DeleteOptions" => DELETE_OPTIONS,
        "Eviction" => EVICTION,
        _ => return None,
    };
    object.extend(message(content, known)?);
    Some(Value::Object(object))
}

/// Reads a review of this kind. `None` when it is none.
pub(super) fn review(kind: &str, bytes: &[u8]) -> Option<Value> {
    let known = match kind {
        "SelfSubjectAccessReview" => ACCESS_REVIEW,
        "SelfSubjectRulesReview" => RULES_REVIEW,
        _ => &[],
    };
    message(unwrapped(bytes)?.1, known).map(Value::Object)
}

/// `runtime.Unknown`: 1 says what it is, 2 is the object.
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

fn message(bytes: &[u8], known: Fields) -> Option<Map<String, Value>> {
    let mut object = Map::new();
    for (number, content) in fields(bytes)? {
        let Some((_, name, kind)) = known.iter().find(|(field, ..)| *field == number) else { continue };
        let name = (*name).to_owned();
        match (kind, content) {
            // An empty text is what is not there.
            (Text, Content::Bytes([])) => {}
            (Text, Content::Bytes(bytes)) => drop(object.insert(name, text(bytes)?)),
            (Number, Content::Number(number)) => {
                object.insert(name, json!(i64::from_le_bytes(number.to_le_bytes())));
            }
            (Flag, Content::Number(number)) => drop(object.insert(name, json!(number != 0))),
            (Time, Content::Bytes(bytes)) => {
                let seconds = message(bytes, &[(1, "seconds", Number)])?;
                if let Some(seconds) = seconds.get("seconds").and_then(Value::as_i64) {
                    object.insert(name, json!(Timestamp::from_secs(seconds).to_rfc3339()));
                }
            }
            (Message(inner), Content::Bytes(bytes)) => {
                object.insert(name, Value::Object(message(bytes, inner)?));
            }
            (Texts, Content::Bytes(bytes)) => push(&mut object, name, text(bytes)?)?,
            (Messages(inner), Content::Bytes(bytes)) => {
                push(&mut object, name, Value::Object(message(bytes, inner)?))?;
            }
            (TextMap | BytesMap, Content::Bytes(bytes)) => {
                let (key, value) = entry(bytes, matches!(kind, BytesMap))?;
                let map = object.entry(name).or_insert_with(|| json!({}));
                map.as_object_mut()?.insert(key, value);
            }
            _ => return None,
        }
    }
    Some(object)
}

fn push(object: &mut Map<String, Value>, name: String, item: Value) -> Option<()> {
    object.entry(name).or_insert_with(|| json!([])).as_array_mut()?.push(item);
    Some(())
}

fn text(bytes: &[u8]) -> Option<Value> {
    std::str::from_utf8(bytes).ok().map(Value::from)
}

/// A map's entry: 1 is the key, 2 the value.
fn entry(bytes: &[u8], is_binary: bool) -> Option<(String, Value)> {
    let (mut key, mut value) = (String::new(), &[][..]);
    for (number, content) in fields(bytes)? {
        match (number, content) {
            (1, Content::Bytes(bytes)) => std::str::from_utf8(bytes).ok()?.clone_into(&mut key),
            (2, Content::Bytes(bytes)) => value = bytes,
            _ => {}
        }
    }
    Some((key, if is_binary { json!(base64::encode(value)) } else { text(value)? }))
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
        assert_eq!(read(&object("Pod", b"")), None);
        assert_eq!(read(&object("ConfigMap", &[2 << 3, 1])), None, "a number where an entry should be");
        assert_eq!(read(&object("ConfigMap", &field(2, &pair("k", &[0xff])))), None);
        assert_eq!(read(&[MAGIC, &[0xff; 12]].concat()), None);
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
            // A cut between two fields leaves a shorter message; nothing panics.
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
