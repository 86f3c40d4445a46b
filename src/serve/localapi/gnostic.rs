//! OpenAPI 2 in the binary form that kubectl reads: gnostic's `openapi.v2.Document`.
//!
//! Owns the numbers of its fields (upstream: gnostic-models' `OpenAPIv2.proto`), as far as [the
//! documents](super::openapi) use them. Pure.

use serde_json::Value;

/// A message: JSON's name, number and content of each field, and the number of the list for `x-` extensions.
struct Message {
    fields: &'static [(&'static str, u8, FieldPart)],
    extensions: u8,
}

#[derive(Clone, Copy)]
enum FieldPart {
    /// A string or a boolean.
    Plain,
    /// `Any`: the value as YAML, which JSON is.
    Any,
    Of(&'static Message),
    /// A message with this field alone.
    In(u8, &'static FieldPart),
    /// Repeated, one for each item.
    Each(&'static FieldPart),
    /// A message with this field once for each member: 1 its name, 2 its value.
    Map(u8, &'static FieldPart),
    /// Nested according to the parameter's `in`.
    Parameter,
}

use FieldPart::{Any, Each, In, Map, Of, Plain};

static SCHEMA: Message = Message {
    fields: &[
        ("$ref", 1, Plain),
        ("format", 2, Plain),
        ("description", 4, Plain),
        ("default", 5, Any),
        ("required", 19, Each(&Plain)),
        ("enum", 20, Each(&Any)),
        ("additionalProperties", 21, In(1, &Of(&SCHEMA))),
        ("type", 22, In(1, &Plain)),
        ("items", 23, In(1, &Of(&SCHEMA))),
        ("properties", 25, Map(1, &Of(&SCHEMA))),
    ],
    extensions: 31,
};
static QUERY: Message =
    Message { fields: &[("in", 2, Plain), ("name", 4, Plain), ("type", 6, Plain)], extensions: 23 };
static PATH: Message = Message {
    fields: &[("required", 1, Plain), ("in", 2, Plain), ("name", 4, Plain), ("type", 5, Plain)],
    extensions: 22,
};
static BODY: Message =
    Message { fields: &[("name", 2, Plain), ("in", 3, Plain), ("schema", 5, Of(&SCHEMA))], extensions: 6 };
/// `ParametersItem`, `Parameter` and, for all but bodies, `NonBodyParameter`.
static BODY_PARAMETER: FieldPart = In(1, &In(1, &Of(&BODY)));
static QUERY_PARAMETER: FieldPart = In(1, &In(2, &In(3, &Of(&QUERY))));
static PATH_PARAMETER: FieldPart = In(1, &In(2, &In(4, &Of(&PATH))));
static RESPONSE: Message =
    Message { fields: &[("description", 1, Plain), ("schema", 2, In(1, &Of(&SCHEMA)))], extensions: 5 };
static OPERATION: Message = Message {
    fields: &[
        ("consumes", 7, Each(&Plain)),
        ("parameters", 8, Each(&FieldPart::Parameter)),
        ("responses", 9, Map(1, &In(1, &Of(&RESPONSE)))),
    ],
    extensions: 13,
};
static PATH_ITEM: Message = Message {
    fields: &[
        ("get", 2, Of(&OPERATION)),
        ("put", 3, Of(&OPERATION)),
        ("post", 4, Of(&OPERATION)),
        ("delete", 5, Of(&OPERATION)),
        ("patch", 8, Of(&OPERATION)),
        ("parameters", 9, Each(&FieldPart::Parameter)),
    ],
    extensions: 10,
};
static INFO: Message = Message { fields: &[("title", 1, Plain), ("version", 2, Plain)], extensions: 7 };
static DOCUMENT: Message = Message {
    fields: &[
        ("swagger", 1, Plain),
        ("info", 2, Of(&INFO)),
        ("paths", 8, Map(2, &Of(&PATH_ITEM))),
        ("definitions", 9, Map(1, &Of(&SCHEMA))),
    ],
    extensions: 16,
};

/// Encodes a part of a document. Concatenated parts form one document, as protobuf decoders merge messages.
pub(in crate::serve) fn document(out: &mut Vec<u8>, part: &Value) {
    message(out, &DOCUMENT, part);
}

fn message(out: &mut Vec<u8>, message: &Message, value: &Value) {
    for (name, value) in value.as_object().into_iter().flatten() {
        if let Some((_, number, part)) = message.fields.iter().find(|(known, ..)| known == name) {
            field(out, *number, *part, value);
        } else if name.starts_with("x-") {
            named(out, message.extensions, name, Any, value);
        }
    }
}

fn field(out: &mut Vec<u8>, number: u8, part: FieldPart, value: &Value) {
    match part {
        Plain => match value {
            Value::Bool(flag) => {
                key(out, number, 0);
                out.push(u8::from(*flag));
            }
            value => bytes(out, number, value.as_str().unwrap_or_default().as_bytes()),
        },
        Any => within(out, number, |inner| bytes(inner, 2, value.to_string().as_bytes())),
        Of(of) => within(out, number, |inner| message(inner, of, value)),
        In(below, part) => within(out, number, |inner| field(inner, below, *part, value)),
        Each(part) => value.as_array().into_iter().flatten().for_each(|item| field(out, number, *part, item)),
        Map(below, part) => within(out, number, |inner| {
            for (name, value) in value.as_object().into_iter().flatten() {
                named(inner, below, name, *part, value);
            }
        }),
        FieldPart::Parameter => {
            let part = match value["in"].as_str() {
                Some("body") => &BODY_PARAMETER,
                Some("path") => &PATH_PARAMETER,
                _ => &QUERY_PARAMETER,
            };
            field(out, number, *part, value);
        }
    }
}

fn named(out: &mut Vec<u8>, number: u8, name: &str, part: FieldPart, value: &Value) {
    within(out, number, |inner| {
        bytes(inner, 1, name.as_bytes());
        field(inner, 2, part, value);
    });
}

fn within(out: &mut Vec<u8>, number: u8, write: impl FnOnce(&mut Vec<u8>)) {
    let mut inner = Vec::new();
    write(&mut inner);
    bytes(out, number, &inner);
}

fn bytes(out: &mut Vec<u8>, number: u8, content: &[u8]) {
    key(out, number, 2);
    varint(out, content.len());
    out.extend(content);
}

fn key(out: &mut Vec<u8>, number: u8, wire: usize) {
    varint(out, usize::from(number) << 3 | wire);
}

fn varint(out: &mut Vec<u8>, mut value: usize) {
    while value > 0x7f {
        out.push(u8::try_from(value & 0x7f).unwrap_or_default() | 0x80);
        value >>= 7;
    }
    out.push(u8::try_from(value).unwrap_or_default());
}
