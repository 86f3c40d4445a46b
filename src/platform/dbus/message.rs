//! D-Bus messages as bytes: encoding, and the parts of decoding that the agent needs.
//!
//! Owns alignment and signatures (D-Bus specification, "Marshaling").

use super::Peer;

/// Byte order, type, flags, version, body length, serial, length of the header fields.
pub(super) const FIXED: usize = 16;
const METHOD_CALL: u8 = 1;
const SIGNAL: u8 = 4;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Value {
    Text(String),
    Texts(Vec<String>),
    /// `b`
    Flag(bool),
    /// `t`
    Number(u64),
    /// `au`
    Numbers32(Vec<u32>),
}

/// Arguments of a call, in order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    signature: String,
}

impl Body {
    /// Adds an `s`.
    #[must_use]
    pub(crate) fn text(mut self, text: &str) -> Self {
        put_text(&mut self.bytes, text);
        self.signature.push('s');
        self
    }

    /// Adds a `b`.
    #[must_use]
    pub(crate) fn flag(mut self, flag: bool) -> Self {
        put_number(&mut self.bytes, u32::from(flag));
        self.signature.push('b');
        self
    }

    /// Adds an `i`.
    #[must_use]
    pub(crate) fn number(mut self, number: i32) -> Self {
        put_number(&mut self.bytes, number.cast_unsigned());
        self.signature.push('i');
        self
    }

    /// Adds an `a(sv)`.
    #[must_use]
    pub(crate) fn properties(mut self, properties: &[(&str, Value)]) -> Self {
        put_array(&mut self.bytes, 8, |bytes| {
            for (name, value) in properties {
                align(bytes, 8);
                put_text(bytes, name);
                put_variant(bytes, value);
            }
        });
        self.signature.push_str("a(sv)");
        self
    }

    /// Adds an `a(sa(sv))` without elements.
    #[must_use]
    pub(in crate::platform) fn no_units(mut self) -> Self {
        put_array(&mut self.bytes, 8, |_| {});
        self.signature.push_str("a(sa(sv))");
        self
    }
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Message {
    /// A signal, as opposed to an answer.
    pub is_signal: bool,
    /// Of a signal.
    pub member: String,
    /// Which call this answers.
    pub reply_serial: Option<u32>,
    pub error: Option<String>,
    pub(super) signature: String,
    pub(super) body: Vec<u8>,
    pub(super) big: bool,
}

impl Message {
    /// The strings and object paths of the body, up to the first argument that is neither one of those nor a
    /// number.
    #[must_use]
    pub(crate) fn texts(&self) -> Vec<String> {
        let mut reader = Reader { bytes: &self.body, at: 0, big: self.big };
        let mut texts = Vec::new();
        for kind in self.signature.bytes() {
            match kind {
                b's' | b'o' => match reader.text() {
                    Some(text) => texts.push(text),
                    None => break,
                },
                b'u' | b'i' | b'b' if reader.number().is_some() => {}
                _ => break,
            }
        }
        texts
    }

    /// The first argument, when it is a flag, a text or a large number, or a variant of one.
    #[must_use]
    pub(crate) fn value(&self) -> Option<Value> {
        let mut reader = Reader { bytes: &self.body, at: 0, big: self.big };
        let mut kind = *self.signature.as_bytes().first()?;
        if kind == b'v' {
            kind = *reader.signature()?.as_bytes().first()?;
        }
        match kind {
            b's' => reader.text().map(Value::Text),
            b'b' => reader.number().map(|number| Value::Flag(number != 0)),
            b't' => reader.large().map(Value::Number),
            _ => None,
        }
    }
}

/// A method call, ready to be sent. An empty destination is left out.
pub(super) fn call(serial: u32, peer: Peer<'_>, method: &str, body: &Body) -> Vec<u8> {
    let mut bytes = vec![b'l', METHOD_CALL, 0, 1];
    put_number(&mut bytes, length(body.bytes.len()));
    put_number(&mut bytes, serial);
    let fields = [
        (1, 'o', peer.path),
        (3, 's', method),
        (2, 's', peer.interface),
        (6, 's', peer.destination),
        (8, 'g', &body.signature),
    ];
    put_array(&mut bytes, 8, |bytes| {
        for (code, kind, text) in fields.iter().filter(|(_, _, text)| !text.is_empty()) {
            align(bytes, 8);
            bytes.push(*code);
            put_signature(bytes, &kind.to_string());
            if *kind == 'g' { put_signature(bytes, text) } else { put_text(bytes, text) }
        }
    });
    align(&mut bytes, 8);
    bytes.extend(&body.bytes);
    bytes
}

/// The length of a message after its fixed part.
pub(super) fn remaining_length(fixed: &[u8; FIXED]) -> Option<usize> {
    let mut reader = Reader { bytes: fixed, at: 4, big: is_big(fixed[0])? };
    let body = usize::try_from(reader.number()?).ok()?;
    reader.number()?;
    let fields = usize::try_from(reader.number()?).ok()?;
    fields.checked_next_multiple_of(8)?.checked_add(body)
}

pub(super) fn parse(bytes: &[u8]) -> Option<Message> {
    let big = is_big(*bytes.first()?)?;
    let mut message = Message { is_signal: *bytes.get(1)? == SIGNAL, big, ..Message::default() };
    let mut reader = Reader { bytes, at: 12, big };
    let end = FIXED.checked_add(usize::try_from(reader.number()?).ok()?)?;
    while reader.at < end {
        reader.align(8);
        let code = reader.byte()?;
        match reader.signature()?.as_str() {
            "s" | "o" => {
                let text = reader.text()?;
                match code {
                    3 => message.member = text,
                    4 => message.error = Some(text),
                    _ => {}
                }
            }
            "u" => {
                let number = reader.number()?;
                message.reply_serial = (code == 5).then_some(number).or(message.reply_serial);
            }
            "g" => {
                let signature = reader.signature()?;
                if code == 8 {
                    message.signature = signature;
                }
            }
            _ => return None,
        }
    }
    reader.align(8);
    message.body = bytes.get(reader.at..)?.to_vec();
    Some(message)
}

fn is_big(order: u8) -> Option<bool> {
    match order {
        b'l' => Some(false),
        b'B' => Some(true),
        _ => None,
    }
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
    big: bool,
}

impl Reader<'_> {
    fn align(&mut self, to: usize) {
        self.at = self.at.next_multiple_of(to);
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    fn number(&mut self) -> Option<u32> {
        self.align(4);
        let bytes: [u8; 4] = self.bytes.get(self.at..self.at.checked_add(4)?)?.try_into().ok()?;
        self.at += 4;
        Some(if self.big { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    fn large(&mut self) -> Option<u64> {
        self.align(8);
        let (first, second) = (u64::from(self.number()?), u64::from(self.number()?));
        Some(if self.big { first << 32 | second } else { second << 32 | first })
    }

    fn text(&mut self) -> Option<String> {
        let length = usize::try_from(self.number()?).ok()?;
        self.characters(length)
    }

    fn signature(&mut self) -> Option<String> {
        let length = usize::from(self.byte()?);
        self.characters(length)
    }

    /// Characters and the zero byte behind them.
    fn characters(&mut self, length: usize) -> Option<String> {
        let end = self.at.checked_add(length)?;
        let text = std::str::from_utf8(self.bytes.get(self.at..end)?).ok()?.to_owned();
        self.at = end + 1;
        Some(text)
    }
}

fn align(bytes: &mut Vec<u8>, to: usize) {
    bytes.resize(bytes.len().next_multiple_of(to), 0);
}

/// Lengths here are those of unit names and properties.
fn length(bytes: usize) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

fn put_number(bytes: &mut Vec<u8>, number: u32) {
    align(bytes, 4);
    bytes.extend(number.to_le_bytes());
}

fn put_text(bytes: &mut Vec<u8>, text: &str) {
    put_number(bytes, length(text.len()));
    bytes.extend(text.bytes().chain([0]));
}

/// Signatures are at most 255 characters; the longest here has nine.
fn put_signature(bytes: &mut Vec<u8>, signature: &str) {
    bytes.push(u8::try_from(signature.len()).unwrap_or(u8::MAX));
    bytes.extend(signature.bytes().chain([0]));
}

/// The length of an array counts neither itself nor the padding before its first element.
fn put_array(bytes: &mut Vec<u8>, alignment: usize, elements: impl FnOnce(&mut Vec<u8>)) {
    put_number(bytes, 0);
    let at = bytes.len() - 4;
    align(bytes, alignment);
    let start = bytes.len();
    elements(bytes);
    let written = length(bytes.len() - start).to_le_bytes();
    bytes[at..at + 4].copy_from_slice(&written);
}

fn put_variant(bytes: &mut Vec<u8>, value: &Value) {
    match value {
        Value::Text(text) => {
            put_signature(bytes, "s");
            put_text(bytes, text);
        }
        Value::Texts(texts) => {
            put_signature(bytes, "as");
            put_array(bytes, 4, |bytes| texts.iter().for_each(|text| put_text(bytes, text)));
        }
        Value::Flag(flag) => {
            put_signature(bytes, "b");
            put_number(bytes, u32::from(*flag));
        }
        Value::Number(number) => {
            put_signature(bytes, "t");
            align(bytes, 8);
            bytes.extend(number.to_le_bytes());
        }
        Value::Numbers32(numbers) => {
            put_signature(bytes, "au");
            put_array(bytes, 4, |bytes| numbers.iter().for_each(|number| put_number(bytes, *number)));
        }
    }
}
