//! Kubernetes' protobuf encoding, which kubectl and clients of client-go's typed clients write built-in kinds in,
//! whatever the server offers.
//!
//! Owns its decoding: the numbers of fields are in [the table of types](crate::model::api::schema). Pure, and bounded
//! by the body.

use serde_json::{Map, Value, json};

use super::path::RequestInfo;
use super::resource::{Store, Verb};
use crate::codec::base64;
use crate::model::api::schema::{Field, Schema, Type};
use crate::model::objects::ObjectKind;
use crate::model::types::Timestamp;

pub(super) const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// The prefix of every encoded object.
const MAGIC: &[u8] = b"k8s\0";
/// Objects within objects; schemas of definitions are the deepest. Upstream decodes 10,000.
const MAX_DEPTH: usize = 200;

/// Whether a request may be encoded this way.
pub(super) fn reads(wanted: &RequestInfo) -> bool {
    match wanted.verb {
        Verb::Delete | Verb::DeleteCollection => true,
        Verb::Create | Verb::Update => {
            !matches!(wanted.resource.store, Store::Objects(ObjectKind::Custom(_)))
        }
        _ => false,
    }
}

/// Decodes an object of a kind in the table. `None` when it is something else.
pub(super) fn read(bytes: &[u8]) -> Option<Value> {
    let (what, content) = unwrapped(bytes)?;
    let what = fields(what?)?;
    let text = |wanted: u64| {
        what.iter().find_map(|(number, content)| match content {
            Content::Bytes(bytes) if *number == wanted => std::str::from_utf8(bytes).ok(),
            _ => None,
        })
    };
    let (version, kind) = (text(1).unwrap_or_default(), text(2).unwrap_or_default());
    let schema = Schema::load();
    // Deletion options are of every group.
    let of = schema.of_kind(if kind == "DeleteOptions" { "v1" } else { version }, kind)?;
    let mut object = json!({"apiVersion": version, "kind": kind});
    ProtobufReader { schema: &schema, depth: 0 }.members(of, "", content, object.as_object_mut()?)?;
    Some(object)
}

/// Decodes a review of this kind. `None` when it is something else.
pub(super) fn review(version: &str, kind: &str, bytes: &[u8]) -> Option<Value> {
    let schema = Schema::load();
    let mut object = Map::new();
    let of = schema.of_kind(version, kind)?;
    ProtobufReader { schema: &schema, depth: 0 }.members(of, "", unwrapped(bytes)?.1, &mut object)?;
    Some(Value::Object(object))
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

struct ProtobufReader<'s> {
    schema: &'s Schema,
    depth: usize,
}

impl<'s> ProtobufReader<'s> {
    /// Adds the members of an encoded message. `within` is the path of the number of a message that is inlined.
    fn members(
        &mut self,
        of: Type<'s>,
        within: &str,
        bytes: &[u8],
        object: &mut Map<String, Value>,
    ) -> Option<()> {
        if self.depth >= MAX_DEPTH {
            return None;
        }
        self.depth += 1;
        for (number, content) in fields(bytes)? {
            let path = if within.is_empty() { number.to_string() } else { format!("{within}.{number}") };
            let mut inlined = false;
            let field = of.fields().find(|field| {
                let known = field.number().unwrap_or_default();
                inlined |= known.strip_prefix(path.as_str()).is_some_and(|rest| rest.starts_with('.'));
                known == path
            });
            match (field, &content) {
                (Some(field), content) => self.member(of, &field, content, object)?,
                (None, Content::Bytes(bytes)) if inlined => self.members(of, &path, bytes, object)?,
                _ => {}
            }
        }
        self.depth -= 1;
        Some(())
    }

    fn member(
        &mut self,
        of: Type<'s>,
        field: &Field<'s>,
        content: &Content<'_>,
        object: &mut Map<String, Value>,
    ) -> Option<()> {
        let name = field.name.to_owned();
        if let Some(item) = field.shape.strip_prefix("[]") {
            let value = self.value(of, item, content)?;
            return push(object, name, value);
        }
        if let Some(shape) = field.shape.strip_prefix("{}") {
            let Content::Bytes(bytes) = content else { return None };
            let (key, value) = self.entry(of, bytes, shape)?;
            let map = object.entry(name).or_insert_with(|| json!({}));
            map.as_object_mut()?.insert(key, value);
            return Some(());
        }
        match self.value(of, field.shape, content)? {
            // An empty value is the same as an absent one.
            Value::Null => {}
            Value::String(text) if text.is_empty() => {}
            value if field.is_zero_absent() && (value == 0 || value == false) => {}
            value => drop(object.insert(name, value)),
        }
        Some(())
    }

    fn value(&mut self, of: Type<'s>, shape: &'s str, content: &Content<'_>) -> Option<Value> {
        match (shape, content) {
            ("bool", Content::Number(number)) => Some(json!(*number != 0)),
            ("int32" | "int64", Content::Number(number)) => {
                Some(json!(i64::from_le_bytes(number.to_le_bytes())))
            }
            ("double", Content::Double(number)) => Some(whole(*number)),
            ("string", Content::Bytes(bytes)) => text(bytes),
            ("bytes", Content::Bytes(bytes)) => Some(json!(base64::encode(bytes))),
            ("bool" | "int32" | "int64" | "double" | "string" | "bytes", _) => None,
            // The values of a map of lists are messages with a list.
            (_, Content::Bytes(bytes)) if shape.starts_with("[]") => {
                let mut list = Vec::new();
                for (_, content) in fields(bytes)? {
                    list.push(self.value(of, &shape[2..], &content)?);
                }
                Some(Value::Array(list))
            }
            (name, Content::Bytes(bytes)) => {
                let named = self.schema.named(of, name)?;
                if named.scalar().is_some() {
                    return self.scalar(of, name, bytes);
                }
                let mut object = Map::new();
                self.members(named, "", bytes, &mut object)?;
                Some(Value::Object(object))
            }
            _ => None,
        }
    }

    /// A message that JSON writes as something else.
    fn scalar(&mut self, of: Type<'s>, name: &str, bytes: &[u8]) -> Option<Value> {
        let parts = fields(bytes)?;
        let number = |wanted: u64| {
            parts.iter().find_map(|(number, content)| match content {
                Content::Number(value) if *number == wanted => Some(i64::from_le_bytes(value.to_le_bytes())),
                _ => None,
            })
        };
        let inner = |wanted: u64| {
            parts.iter().find_map(|(number, content)| match content {
                Content::Bytes(bytes) if *number == wanted => Some(*bytes),
                _ => None,
            })
        };
        match name {
            "Time" => Some(
                number(1).map_or(Value::Null, |seconds| json!(Timestamp::from_secs(seconds).to_rfc3339())),
            ),
            "MicroTime" => Some(number(1).map_or(Value::Null, |seconds| {
                let time = Timestamp::from_secs(seconds).to_rfc3339();
                json!(format!("{}.{:06}Z", time.trim_end_matches('Z'), number(2).unwrap_or_default() / 1000))
            })),
            "Quantity" => text(inner(1).unwrap_or_default()),
            "IntOrString" if number(1) == Some(1) => text(inner(3).unwrap_or_default()),
            // An absent field has its type's zero value.
            "IntOrString" => Some(json!(number(2).unwrap_or_default())),
            "Duration" => Some(json!(format!("{}ns", number(1).unwrap_or_default()))),
            "JSONSchemaPropsOrBool" => match inner(2) {
                Some(schema) => self.value(of, "JSONSchemaProps", &Content::Bytes(schema)),
                None => Some(json!(number(1) == Some(1))),
            },
            "JSONSchemaPropsOrArray" => match inner(1) {
                Some(schema) => self.value(of, "JSONSchemaProps", &Content::Bytes(schema)),
                None => self.value(of, "[]JSONSchemaProps", &Content::Bytes(bytes)),
            },
            "JSONSchemaPropsOrStringArray" => match inner(1) {
                Some(schema) => self.value(of, "JSONSchemaProps", &Content::Bytes(schema)),
                None => self.value(of, "[]string", &Content::Bytes(bytes)),
            },
            // FieldsV1, RawExtension, JSON: as text.
            _ => serde_json::from_slice(inner(1).unwrap_or_default()).ok().or(Some(Value::Null)),
        }
    }

    /// A map's entry: 1 is the key, 2 the value.
    fn entry(&mut self, of: Type<'s>, bytes: &[u8], shape: &'s str) -> Option<(String, Value)> {
        let (mut key, mut value) = (String::new(), None);
        for (number, content) in fields(bytes)? {
            match (number, content) {
                (1, Content::Bytes(bytes)) => std::str::from_utf8(bytes).ok()?.clone_into(&mut key),
                (2, content) => value = Some(content),
                _ => {}
            }
        }
        let value = match shape {
            "bool" | "int32" | "int64" => value.unwrap_or(Content::Number(0)),
            _ => value.unwrap_or(Content::Bytes(&[])),
        };
        Some((key, self.value(of, shape, &value)?))
    }
}

/// A number without a fraction is written as an integer, as in the JSON that clients write.
fn whole(number: f64) -> Value {
    // Large ones keep their exponent.
    if number.fract() == 0.0 && number.abs() < 1e15 {
        #[expect(clippy::cast_possible_truncation, reason = "it is a small integer")]
        return json!(number as i64);
    }
    json!(number)
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
    Double(f64),
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
            1 => {
                let (eight, rest) = rest.split_first_chunk::<8>()?;
                fields.push((key >> 3, Content::Double(f64::from_le_bytes(*eight))));
                rest
            }
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
        object_of("v1", kind, content)
    }

    fn object_of(version: &str, kind: &str, content: &[u8]) -> Vec<u8> {
        let what = [field(1, version.as_bytes()), field(2, kind.as_bytes())].concat();
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
            read(&object_of("policy/v1", "Eviction", &eviction)),
            Some(json!({"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "p"},
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
        assert_eq!(read(&object("Gauge", b"")), None);
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
                    "volumeMounts": [{"name": "host-root", "mountPath": "/host"}],
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
            let container = field(2, &field(10, &field(1, &field(2, &field(2, &port)))));
            let pod = read(&object("Pod", &field(2, &container))).unwrap();
            let found = pod.pointer("/spec/containers/0/livenessProbe/httpGet/port").cloned();
            assert_eq!(found, expected, "{port:?}");
        }
    }

    #[test]
    fn fields_of_every_shape_are_read() {
        let micros = [vec![1 << 3, 100], vec![2 << 3, 0xd0, 0x0f]].concat();
        let lease = [field(1, &field(1, b"l")), field(2, &[field(1, b"me"), field(4, &micros)].concat())];
        assert_eq!(
            read(&object_of("coordination.k8s.io/v1", "Lease", &lease.concat())),
            Some(json!({"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": "l"},
                "spec": {"holderIdentity": "me", "renewTime": "1970-01-01T00:01:40.000002Z"}}))
        );
        let deployment = field(2, &[vec![1 << 3, 0], vec![5 << 3, 0], field(4, &field(1, b""))].concat());
        assert_eq!(
            read(&object_of("apps/v1", "Deployment", &deployment)),
            Some(
                json!({"apiVersion": "apps/v1", "kind": "Deployment", "spec": {"replicas": 0, "strategy": {}}})
            ),
            "a pointer to zero is a value"
        );
        let property = [field(5, b"number"), vec![9 << 3 | 1], 2.5_f64.to_le_bytes().to_vec()].concat();
        let schema = [
            pair_of(29, &[pair("size", &property)].concat()),
            pair_of(30, &[vec![1 << 3, 1]].concat()),
            pair_of(20, &field(1, b"\"a\"")),
        ];
        let bytes: Vec<u8> = schema.concat();
        let definition = field(2, &field(7, &field(4, &field(1, &bytes))));
        let read =
            read(&object_of("apiextensions.k8s.io/v1", "CustomResourceDefinition", &definition)).unwrap();
        assert_eq!(
            read.pointer("/spec/versions/0/schema/openAPIV3Schema"),
            Some(&json!({"properties": {"size": {"type": "number", "maximum": 2.5}},
                "additionalProperties": true, "enum": ["a"]}))
        );
    }

    /// A field with a number of two bytes.
    fn pair_of(number: u8, content: &[u8]) -> Vec<u8> {
        let key = u32::from(number) << 3 | 2;
        let key = [u8::try_from(key & 0x7f | 0x80).unwrap(), u8::try_from(key >> 7).unwrap()];
        [&key[..], &[u8::try_from(content.len()).unwrap()], content].concat()
    }

    /// Every field of a kind that clients write has a number.
    #[test]
    fn every_field_has_a_number() {
        let schema = Schema::load();
        let roots: Vec<Type<'_>> = ObjectKind::BUILT_IN
            .iter()
            .filter_map(|kind| schema.of_kind(&kind.api_version(), kind.as_str()))
            .chain(schema.of_kind("v1", "Pod"))
            .chain(schema.of_kind("v1", "DeleteOptions"))
            .collect();
        assert!(roots.len() > ObjectKind::BUILT_IN.len());
        for index in schema.closure(&roots) {
            let of = schema.nth(index).unwrap();
            for field in of.fields().skip(if of.is_kind() { 2 } else { 0 }) {
                assert!(field.number().is_some(), "{}.{}", of.full_name(), field.name);
            }
        }
    }

    fn wrapped(object: &[u8]) -> Vec<u8> {
        [MAGIC, &field(1, &field(1, b"authorization.k8s.io/v1")), &field(2, object)].concat()
    }

    fn review(kind: &str, bytes: &[u8]) -> Option<Value> {
        let version =
            if kind == "SelfSubjectReview" { "authentication.k8s.io/v1" } else { "authorization.k8s.io/v1" };
        super::review(version, kind, bytes)
    }

    #[test]
    fn a_review_is_read() {
        let attributes =
            [field(1, b"default"), field(2, b"get"), field(5, b"pods"), vec![15 << 3, 1]].concat();
        let review_bytes = wrapped(&[field(1, b""), field(2, &field(1, &attributes))].concat());
        assert_eq!(
            review("SelfSubjectAccessReview", &review_bytes),
            Some(
                json!({"metadata": {}, "spec": {"resourceAttributes": {"namespace": "default", "verb": "get", "resource": "pods"}}})
            )
        );
        assert_eq!(review("SelfSubjectReview", &wrapped(&field(1, b""))), Some(json!({"metadata": {}})));
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
