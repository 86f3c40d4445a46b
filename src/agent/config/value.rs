//! The syntax of flag values on the command line, and their form in the configuration's JSON.
//!
//! Owns the value syntaxes of the kubelet's flags.

use std::collections::BTreeMap;
use std::net::IpAddr;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::model::api::quantity::Quantity;
use crate::model::duration::GoDuration;
use crate::model::ordered::Ordered as _;

/// The syntax of one flag or field.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ValueKind {
    /// `true`, `false`, `1`, `0`, `t`, `f`; bare means true.
    Bool,
    Int32,
    Int64,
    /// A verbosity: a 32-bit integer that is not negative.
    Level,
    /// A floating point number; only in files.
    Float,
    Duration,
    Text,
    /// A quantity such as `10Mi`.
    Quantity,
    Ip,
    /// `a,b`; repeated flags append.
    List,
    /// `1,2`; only in files.
    IntList,
    /// `a=1,b=2`; repeated flags add.
    Map,
    /// One `a=1` for each use of the flag; the value may contain commas.
    MapNoSplit,
    /// `memory.available<1Gi,nodefs.available<10%`.
    LessMap,
    /// `Key:Value,Key:Other`.
    MultiMap,
    /// `Gate=true,Other=false`.
    Gates,
    /// `key=value:Effect,key2:Effect`.
    Taints,
    /// `0:memory=1Gi,hugepages-1M=2Gi;1:memory=2Gi`.
    ReservedMemory,
    /// `pattern=N,other=M`.
    Vmodule,
    /// A list of objects; only in files.
    Objects,
    /// Bare, `raw` or `vX.Y.Z`.
    Version,
}

/// A flag's value does not fit its syntax.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("expected {expected}{detail}")]
pub struct ValueError {
    expected: &'static str,
    detail: String,
}

fn expected(expected: &'static str) -> ValueError {
    ValueError { expected, detail: String::new() }
}

fn expected_at(what: &'static str, part: &str) -> ValueError {
    let part: String = part.chars().take(64).collect();
    ValueError { expected: what, detail: format!(", found {part:?}") }
}

impl ValueKind {
    /// Whether the flag may be used without a value. Such a flag takes no detached value.
    pub(super) fn value_is_optional(self) -> bool {
        matches!(self, Self::Bool | Self::Version)
    }

    /// The word `--help` shows for a value.
    pub(super) fn type_name(self) -> &'static str {
        match self {
            Self::Bool => "",
            Self::Version => "version[=true]",
            Self::Int32 => "int32",
            Self::Int64 => "int",
            Self::Level => "level",
            Self::Float => "float",
            Self::Duration => "duration",
            Self::Text | Self::Quantity => "string",
            Self::Ip => "ip",
            Self::List | Self::IntList => "strings",
            Self::Map | Self::MapNoSplit => "key=value",
            Self::LessMap => "signal<threshold",
            Self::MultiMap => "Header:Value",
            Self::Gates => "Gate=true|false",
            Self::Taints => "key=value:Effect",
            Self::ReservedMemory => "node:resource=quantity",
            Self::Vmodule => "pattern=N",
            Self::Objects => "objects",
        }
    }

    /// An explicit zero of a plain Go field counts as absent.
    pub(super) fn is_zero(self, value: &Value) -> bool {
        match self {
            Self::Bool => value == &Value::Bool(false),
            Self::Int32 | Self::Int64 | Self::Level | Self::Float => value.as_f64() == Some(0.0),
            Self::Duration => {
                value.as_str().is_some_and(|text| GoDuration::parse(text).is_ok_and(GoDuration::is_zero))
            }
            Self::Text | Self::Quantity | Self::Ip | Self::Version => value == &Value::String(String::new()),
            _ => false,
        }
    }

    /// Parses a value; `earlier` is the value of earlier uses of the same flag.
    pub(super) fn parse(self, text: &str, earlier: Option<&Value>) -> Result<Value, ValueError> {
        let value = match self {
            Self::Bool => Value::Bool(parse_bool(text)?),
            Self::Int32 => {
                let number = parse_int(text).and_then(|number| i32::try_from(number).ok());
                json!(number.ok_or_else(|| expected("a 32-bit integer"))?)
            }
            Self::Int64 => json!(parse_int(text).ok_or_else(|| expected("an integer"))?),
            Self::Level => {
                let number = parse_int(text).and_then(|number| u32::try_from(number).ok());
                json!(number.ok_or_else(|| expected("a non-negative number"))?)
            }
            Self::Float => {
                let number = text.parse::<f64>().ok().filter(|number| number.is_finite());
                json!(number.ok_or_else(|| expected("a number"))?)
            }
            Self::Duration => {
                let duration = GoDuration::parse(text).map_err(|_| {
                    expected("a duration like 1m30s, 300ms or 2h (units: ns, us, ms, s, m, h)")
                })?;
                Value::String(duration.to_string())
            }
            Self::Quantity => {
                Quantity::parse(text).map_err(|_| expected("a quantity like 10Mi or 500m"))?;
                Value::String(text.to_owned())
            }
            Self::Text | Self::Version => Value::String(text.to_owned()),
            Self::Ip => {
                let address: IpAddr = text
                    .trim()
                    .parse()
                    .map_err(|_| expected("an IP address like 192.0.2.1 or 2001:db8::1"))?;
                Value::String(address.to_string())
            }
            Self::List => split_list(text)?,
            Self::IntList | Self::Objects => return Err(expected("no value: this setting has no flag")),
            Self::Map => pairs(text, '=', "pairs like key=value,key2=value2", true)?,
            Self::MapNoSplit => pairs(text, '=', "a pair like key=value", false)?,
            Self::LessMap => pairs(text, '<', "pairs like memory.available<100Mi", true)?,
            Self::MultiMap => multimap(text)?,
            Self::Gates => gates(text)?,
            Self::Taints => taints(text)?,
            Self::ReservedMemory => reserved_memory(text)?,
            Self::Vmodule => vmodule(text)?,
        };
        Ok(match earlier {
            Some(earlier) => combine(earlier, value),
            None => value,
        })
    }

    /// The value in flag syntax, for `FLAG:` lines and `--help`.
    pub(super) fn render(self, value: &Value) -> String {
        let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        let member = |object: &Value, name: &str| object.get(name).map(text).unwrap_or_default();
        let each = |separator: &str, write: &dyn Fn(&Value) -> String| {
            value
                .as_array()
                .map_or(String::new(), |items| items.iter().map(write).collect::<Vec<_>>().join(separator))
        };
        let members = |sign: char| {
            value.as_object().map_or(String::new(), |members| {
                let pairs = members.iter().map(|(key, value)| format!("{key}{sign}{}", text(value)));
                pairs.collect::<Vec<_>>().join(",")
            })
        };
        match self {
            Self::List | Self::IntList => format!("[{}]", each(",", &text)),
            Self::Map | Self::MapNoSplit | Self::Gates => members('='),
            Self::LessMap => members('<'),
            Self::MultiMap => render_multimap(value),
            Self::Taints => each(",", &|taint| {
                let (key, content) = (member(taint, "key"), member(taint, "value"));
                let sign = if content.is_empty() { "" } else { "=" };
                format!("{key}{sign}{content}:{}", member(taint, "effect"))
            }),
            Self::ReservedMemory => each(";", &|node| {
                let limits = node.get("limits").map(|limits| Self::Map.render(limits)).unwrap_or_default();
                format!("{}:{limits}", member(node, "numaNode"))
            }),
            Self::Vmodule => {
                each(",", &|item| format!("{}={}", member(item, "filePattern"), member(item, "verbosity")))
            }
            _ => text(value),
        }
    }
}

/// The typed form of a flag's value. What does not fit is the default: values are checked before.
pub(super) trait FromFlag {
    fn from_flag(value: &Value) -> Self;
}

impl FromFlag for String {
    fn from_flag(value: &Value) -> Self {
        value.as_str().unwrap_or_default().to_owned()
    }
}

impl FromFlag for bool {
    fn from_flag(value: &Value) -> Self {
        value.as_bool().unwrap_or_default()
    }
}

impl FromFlag for i32 {
    fn from_flag(value: &Value) -> Self {
        value.as_i64().and_then(|number| Self::try_from(number).ok()).unwrap_or_default()
    }
}

impl FromFlag for GoDuration {
    fn from_flag(value: &Value) -> Self {
        value.as_str().and_then(|text| Self::parse(text).ok()).unwrap_or_default()
    }
}

/// A number of bytes.
impl FromFlag for Option<u64> {
    fn from_flag(value: &Value) -> Self {
        Quantity::parse(value.as_str()?).ok().and_then(|size| u64::try_from(size.value()).ok())
    }
}

/// Made absolute: the kernel, the runtime and pods' monitors accept absolute paths only. An empty path stays
/// empty, and so does a relative one without a working directory.
impl FromFlag for PathBuf {
    fn from_flag(value: &Value) -> Self {
        let path = Self::from(value.as_str().unwrap_or_default());
        std::path::absolute(&path).unwrap_or(path)
    }
}

impl FromFlag for Option<PathBuf> {
    fn from_flag(value: &Value) -> Self {
        Some(PathBuf::from_flag(value)).filter(|path| !path.as_os_str().is_empty())
    }
}

/// Several directories in one string, as in `PATH`.
impl FromFlag for Vec<PathBuf> {
    fn from_flag(value: &Value) -> Self {
        let paths = std::env::split_paths(value.as_str().unwrap_or_default());
        paths
            .filter(|path| !path.as_os_str().is_empty())
            .map(|path| std::path::absolute(&path).unwrap_or(path))
            .collect()
    }
}

impl FromFlag for Vec<String> {
    fn from_flag(value: &Value) -> Self {
        value.as_array().into_iter().flatten().map(String::from_flag).collect()
    }
}

impl FromFlag for BTreeMap<String, String> {
    fn from_flag(value: &Value) -> Self {
        let members = value.as_object().into_iter().flatten();
        members.map(|(key, value)| (key.clone(), String::from_flag(value))).into_map()
    }
}

/// A later use of a repeatable flag adds to the earlier one; plain values are replaced.
fn combine(earlier: &Value, mut value: Value) -> Value {
    match (earlier, &mut value) {
        (Value::Array(earlier), Value::Array(items)) => {
            let mut all = earlier.clone();
            all.append(items);
            Value::Array(all)
        }
        (Value::Object(earlier), Value::Object(members)) => {
            let mut all = earlier.clone();
            for (key, value) in std::mem::take(members) {
                match (all.get_mut(&key), value) {
                    (Some(Value::Array(known)), Value::Array(mut more)) => known.append(&mut more),
                    (_, value) => drop(all.insert(key, value)),
                }
            }
            Value::Object(all)
        }
        _ => value,
    }
}

pub(crate) fn parse_bool(text: &str) -> Result<bool, ValueError> {
    match text {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Ok(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Ok(false),
        _ => Err(expected("true or false")),
    }
}

/// Go's base-zero integers: `0x1f`, `0o17`, `017`, `0b1`, `1_000`.
fn parse_int(text: &str) -> Option<i64> {
    let (negative, digits) = match text.strip_prefix('-') {
        Some(digits) => (true, digits),
        None => (false, text.strip_prefix('+').unwrap_or(text)),
    };
    let lower = digits.to_ascii_lowercase();
    let (radix, digits) = match lower.as_bytes() {
        [b'0', b'x', ..] => (16, &lower[2..]),
        [b'0', b'o', ..] => (8, &lower[2..]),
        [b'0', b'b', ..] => (2, &lower[2..]),
        [b'0', _, ..] => (8, &lower[1..]),
        _ => (10, lower.as_str()),
    };
    if digits.starts_with(['+', '-']) || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let magnitude = i128::from_str_radix(&digits.replace('_', ""), radix).ok()?;
    i64::try_from(if negative { -magnitude } else { magnitude }).ok()
}

/// One line of CSV, as pflag reads string slices; an empty text is an empty list.
fn split_list(text: &str) -> Result<Value, ValueError> {
    let mut items = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let Some(quoted) = rest.strip_prefix('"') else {
            let (item, after) = rest.split_once(',').unwrap_or((rest, ""));
            items.push(Value::String(item.to_owned()));
            if after.is_empty() && rest.ends_with(',') {
                items.push(Value::String(String::new()));
            }
            rest = after;
            continue;
        };
        let (item, after) = unquote(quoted).ok_or_else(|| expected("a list like a,b with closed quotes"))?;
        items.push(Value::String(item));
        rest = match after.strip_prefix(',') {
            Some(after) => after,
            None if after.is_empty() => after,
            None => return Err(expected_at("a comma after a quoted item", after)),
        };
    }
    Ok(Value::Array(items))
}

/// Up to the closing quote; a doubled quote stands for one.
fn unquote(text: &str) -> Option<(String, &str)> {
    let mut item = String::new();
    let mut rest = text;
    loop {
        let end = rest.find('"')?;
        item.push_str(&rest[..end]);
        rest = &rest[end + 1..];
        match rest.strip_prefix('"') {
            Some(after) => {
                item.push('"');
                rest = after;
            }
            None => return Some((item, rest)),
        }
    }
}

fn pairs(text: &str, sign: char, form: &'static str, split: bool) -> Result<Value, ValueError> {
    let mut members = Map::new();
    let mut add = |pair: &str| {
        if pair.trim().is_empty() {
            return Ok(());
        }
        let (key, value) = pair.split_once(sign).ok_or_else(|| expected_at(form, pair))?;
        if key.trim().is_empty() {
            return Err(expected_at(form, pair));
        }
        members.insert(key.trim().to_owned(), Value::String(value.trim().to_owned()));
        Ok(())
    };
    if split {
        text.split(',').try_for_each(&mut add)?;
    } else {
        add(text)?;
    }
    Ok(Value::Object(members))
}

fn multimap(text: &str) -> Result<Value, ValueError> {
    let mut members = Map::new();
    for pair in text.split(',').filter(|pair| !pair.trim().is_empty()) {
        // The value is omitted from the message: it is often a token.
        let (key, value) =
            pair.split_once(':').ok_or_else(|| expected("pairs like Header:Value,Header2:Value2"))?;
        let values = members.entry(key.trim().to_owned()).or_insert_with(|| json!([]));
        if let Value::Array(values) = values {
            values.push(Value::String(value.trim().to_owned()));
        }
    }
    Ok(Value::Object(members))
}

fn render_multimap(value: &Value) -> String {
    let mut pairs = Vec::new();
    for (key, values) in value.as_object().into_iter().flatten() {
        for value in values.as_array().into_iter().flatten() {
            pairs.push(format!("{key}:{}", value.as_str().unwrap_or_default()));
        }
    }
    pairs.join(",")
}

fn gates(text: &str) -> Result<Value, ValueError> {
    let mut members = Map::new();
    for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
        let form = "pairs like Gate=true,Other=false";
        let (name, state) = pair.split_once('=').ok_or_else(|| expected_at(form, pair))?;
        let state = parse_bool(state.trim()).map_err(|_| expected_at(form, pair))?;
        members.insert(name.trim().to_owned(), Value::Bool(state));
    }
    Ok(Value::Object(members))
}

fn taints(text: &str) -> Result<Value, ValueError> {
    let form = "taints like key=value:NoSchedule or key:NoExecute";
    let mut items = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (head, effect) = item.split_once(':').ok_or_else(|| expected_at(form, item))?;
        if !matches!(effect, "NoSchedule" | "PreferNoSchedule" | "NoExecute") {
            return Err(expected_at(
                "a taint's effect to be NoSchedule, PreferNoSchedule or NoExecute",
                effect,
            ));
        }
        let (key, value) = head.split_once('=').unwrap_or((head, ""));
        if key.is_empty() {
            return Err(expected_at(form, item));
        }
        let mut taint = json!({ "key": key, "effect": effect });
        if !value.is_empty() {
            taint["value"] = Value::String(value.to_owned());
        }
        items.push(taint);
    }
    Ok(Value::Array(items))
}

fn reserved_memory(text: &str) -> Result<Value, ValueError> {
    let form = "reservations like 0:memory=1Gi,hugepages-1M=2Gi";
    let mut items = Vec::new();
    for item in text.split(';').map(str::trim).filter(|item| !item.is_empty()) {
        let (node, limits) = item.split_once(':').ok_or_else(|| expected_at(form, item))?;
        let node: i32 = node.trim().parse().map_err(|_| expected_at(form, item))?;
        let limits = pairs(limits, '=', form, true)?;
        for quantity in limits.as_object().into_iter().flatten().filter_map(|(_, quantity)| quantity.as_str())
        {
            Quantity::parse(quantity).map_err(|_| expected_at(form, quantity))?;
        }
        items.push(json!({ "numaNode": node, "limits": limits }));
    }
    Ok(Value::Array(items))
}

fn vmodule(text: &str) -> Result<Value, ValueError> {
    let form = "pairs like gopher*=3,file=2";
    let mut items = Vec::new();
    for item in text.split(',').map(str::trim).filter(|item| !item.is_empty()) {
        let (pattern, verbosity) = item.split_once('=').ok_or_else(|| expected_at(form, item))?;
        let verbosity: u32 = verbosity.trim().parse().map_err(|_| expected_at(form, item))?;
        items.push(json!({ "filePattern": pattern.trim(), "verbosity": verbosity }));
    }
    Ok(Value::Array(items))
}
