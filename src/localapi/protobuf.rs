//! Reviews as kubectl sends them: Kubernetes' binary form, for the few messages that a client sends in it whatever a server says.
//!
//! Owns the fields of these messages. Pure, and bounded by the body it reads. Must not know what is asked.

use serde_json::{Map, Value, json};

/// The content type.
pub const CONTENT_TYPE: &str = "application/vnd.kubernetes.protobuf";

/// What every object begins with.
const MAGIC: &[u8] = b"k8s\0";

/// A message's fields: number, JSON's name, and the fields of what is in it, or none for text.
type Shape = &'static [(u64, &'static str, Shaped)];

#[derive(Clone, Copy)]
enum Shaped {
    Text,
    Message(Shape),
}

use Shaped::{Message, Text};

const RESOURCE: Shape = &[
    (1, "namespace", Text),
    (2, "verb", Text),
    (3, "group", Text),
    (4, "version", Text),
    (5, "resource", Text),
    (6, "subresource", Text),
    (7, "name", Text),
];
const PATH: Shape = &[(1, "path", Text), (2, "verb", Text)];
const ACCESS_SPEC: Shape =
    &[(1, "resourceAttributes", Message(RESOURCE)), (2, "nonResourceAttributes", Message(PATH))];
const RULES_SPEC: Shape = &[(1, "namespace", Text)];

/// The fields of a kind of review.
fn shape(kind: &str) -> Shape {
    match kind {
        "SelfSubjectAccessReview" => &[(2, "spec", Message(ACCESS_SPEC))],
        "SelfSubjectRulesReview" => &[(2, "spec", Message(RULES_SPEC))],
        _ => &[],
    }
}

/// Reads a review of this kind. `None` when it is none.
#[must_use]
pub fn review(kind: &str, bytes: &[u8]) -> Option<Value> {
    // `runtime.Unknown`: 1 says what it is, 2 is the object.
    let fields = fields(bytes.strip_prefix(MAGIC)?)?;
    let object = fields.iter().find(|(number, _)| *number == 2).map_or(&[][..], |(_, content)| content);
    message(object, shape(kind))
}

fn message(bytes: &[u8], shape: Shape) -> Option<Value> {
    let mut object = Map::new();
    for (number, content) in fields(bytes)? {
        let Some((_, name, shaped)) = shape.iter().find(|(known, ..)| *known == number) else { continue };
        let value = match shaped {
            Text => json!(std::str::from_utf8(content).ok()?),
            Message(shape) => message(content, shape)?,
        };
        object.insert((*name).to_owned(), value);
    }
    Some(Value::Object(object))
}

/// The fields that have a length; numbers are passed over.
fn fields(mut bytes: &[u8]) -> Option<Vec<(u64, &[u8])>> {
    let mut fields = Vec::new();
    while !bytes.is_empty() {
        let (key, rest) = number(bytes)?;
        bytes = match key & 7 {
            0 => number(rest)?.1,
            1 => rest.get(8..)?,
            2 => {
                let (length, rest) = number(rest)?;
                let (content, rest) = rest.split_at_checked(usize::try_from(length).ok()?)?;
                fields.push((key >> 3, content));
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
    fn what_is_cut_short_or_no_review_is_refused() {
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
