//! JSON Patch (RFC 6902) with JSON pointers (RFC 6901).
//!
//! Owns the operations and their bounds. A patch is applied completely or not at all.

use serde_json::Value;

use super::{MAX_DEPTH, MAX_OBJECT_BYTES, PatchError, depth, malformed, unprocessable};

/// The most operations of one patch: upstream's limit.
const MAX_OPERATIONS: usize = 10_000;

pub(crate) fn apply(mut document: Value, patch: Value) -> Result<Value, PatchError> {
    let Value::Array(operations) = patch else {
        return malformed("a JSON patch must be a list of operations");
    };
    if operations.len() > MAX_OPERATIONS {
        return Err(PatchError::TooLarge(format!(
            "The allowed maximum operations in a JSON patch is {MAX_OPERATIONS}, got {}",
            operations.len()
        )));
    }
    // The bytes that `copy` may still add: a patch of a few hundred bytes could double an object repeatedly.
    let mut copied = 0;
    for operation in operations {
        one(&mut document, operation, &mut copied)?;
    }
    Ok(document)
}

fn one(document: &mut Value, operation: Value, copied: &mut usize) -> Result<(), PatchError> {
    let Value::Object(mut members) = operation else { return malformed("an operation must be an object") };
    let op = text(&members, "op")?.to_owned();
    let path = pointer(text(&members, "path")?)?;
    let mut value = || match members.remove("value") {
        Some(value) => Ok(value),
        None => malformed(format!("{op} operation without \"value\"")),
    };
    match op.as_str() {
        "add" => add(document, &path, value()?),
        "replace" => {
            let value = value()?;
            fits(&path, &value)?;
            *find_mut(document, &path, "replace")? = value;
            Ok(())
        }
        "test" => {
            let wanted = value()?;
            match find(document, &path) {
                Some(found) if same(found, &wanted) => Ok(()),
                _ => unprocessable(format!("testing value {} failed", shown(&path))),
            }
        }
        "remove" => remove_at(document, &path, "remove").map(drop),
        "copy" | "move" => {
            let from = pointer(text(&members, "from")?)?;
            let value = if op == "copy" {
                let Some(found) = find(document, &from) else { return missing("copy", &from) };
                *copied += found.to_string().len();
                if *copied > MAX_OBJECT_BYTES {
                    return Err(PatchError::TooLarge(format!(
                        "the JSON patch copies more than {MAX_OBJECT_BYTES} bytes"
                    )));
                }
                found.clone()
            } else {
                if path.len() > from.len() && path.starts_with(&from) {
                    return unprocessable(format!("move operation into its own child: {}", shown(&path)));
                }
                remove_at(document, &from, "move")?
            };
            add(document, &path, value)
        }
        other => malformed(format!("Unexpected kind: {other}")),
    }
}

fn text<'a>(members: &'a serde_json::Map<String, Value>, name: &str) -> Result<&'a str, PatchError> {
    match members.get(name).and_then(Value::as_str) {
        Some(text) => Ok(text),
        None => malformed(format!("operation without a string {name:?}")),
    }
}

/// The reference tokens of a pointer, unescaped.
fn pointer(text: &str) -> Result<Vec<String>, PatchError> {
    if text.is_empty() {
        return Ok(Vec::new());
    }
    let Some(steps) = text.strip_prefix('/') else {
        return malformed(format!("{text:?} is not a JSON pointer: it must begin with a slash"));
    };
    steps.split('/').map(|step| unescape(step, text)).collect()
}

fn unescape(step: &str, whole: &str) -> Result<String, PatchError> {
    let mut plain = String::with_capacity(step.len());
    let mut letters = step.chars();
    while let Some(letter) = letters.next() {
        if letter != '~' {
            plain.push(letter);
            continue;
        }
        match letters.next() {
            Some('0') => plain.push('~'),
            Some('1') => plain.push('/'),
            _ => return malformed(format!("{whole:?} is not a JSON pointer: ~ must be followed by 0 or 1")),
        }
    }
    Ok(plain)
}

/// An array index: digits without a leading zero.
fn index(step: &str) -> Option<usize> {
    let is_number = step.bytes().all(|byte| byte.is_ascii_digit()) && (step == "0" || !step.starts_with('0'));
    step.parse().ok().filter(|_| is_number)
}

fn find<'a>(document: &'a Value, path: &[String]) -> Option<&'a Value> {
    path.iter().try_fold(document, |value, step| match value {
        Value::Object(members) => members.get(step),
        Value::Array(items) => items.get(index(step)?),
        _ => None,
    })
}

fn find_mut<'a>(document: &'a mut Value, path: &[String], doing: &str) -> Result<&'a mut Value, PatchError> {
    let found = path.iter().try_fold(document, |value, step| match value {
        Value::Object(members) => members.get_mut(step),
        Value::Array(items) => items.get_mut(index(step)?),
        _ => None,
    });
    match found {
        Some(found) => Ok(found),
        None => missing(doing, path),
    }
}

fn missing<T>(doing: &str, path: &[String]) -> Result<T, PatchError> {
    unprocessable(format!("{doing} operation does not apply: doc is missing path: {}", shown(path)))
}

fn shown(path: &[String]) -> String {
    let escaped = path.iter().map(|step| step.replace('~', "~0").replace('/', "~1"));
    escaped.fold(String::new(), |path, step| path + "/" + &step)
}

fn fits(path: &[String], value: &Value) -> Result<(), PatchError> {
    if path.len() + depth(value) > MAX_DEPTH {
        return Err(PatchError::TooLarge(format!("the object is nested deeper than {MAX_DEPTH} levels")));
    }
    Ok(())
}

fn add(document: &mut Value, path: &[String], value: Value) -> Result<(), PatchError> {
    fits(path, &value)?;
    let Some((last, parents)) = path.split_last() else {
        *document = value;
        return Ok(());
    };
    match find_mut(document, parents, "add")? {
        Value::Object(members) => {
            members.insert(last.clone(), value);
            Ok(())
        }
        Value::Array(items) if last == "-" => {
            items.push(value);
            Ok(())
        }
        Value::Array(items) => match index(last) {
            Some(at) if at <= items.len() => {
                items.insert(at, value);
                Ok(())
            }
            _ => unprocessable(format!("add operation does not apply: invalid index: {}", shown(path))),
        },
        _ => missing("add", path),
    }
}

fn remove_at(document: &mut Value, path: &[String], doing: &str) -> Result<Value, PatchError> {
    let Some((last, parents)) = path.split_last() else {
        return Ok(document.take());
    };
    let taken = match find_mut(document, parents, doing)? {
        Value::Object(members) => members.remove(last),
        Value::Array(items) => index(last).filter(|at| *at < items.len()).map(|at| items.remove(at)),
        _ => None,
    };
    match taken {
        Some(taken) => Ok(taken),
        None => missing(doing, path),
    }
}

/// Equality as the RFC defines it: 1 and 1.0 are the same number.
fn same(one: &Value, other: &Value) -> bool {
    match (one, other) {
        (Value::Number(one), Value::Number(other)) => {
            one == other || (one.is_f64() || other.is_f64()) && one.as_f64() == other.as_f64()
        }
        (Value::Array(one), Value::Array(other)) => {
            one.len() == other.len() && one.iter().zip(other).all(|(one, other)| same(one, other))
        }
        (Value::Object(one), Value::Object(other)) => {
            one.len() == other.len()
                && one.iter().all(|(name, value)| other.get(name).is_some_and(|other| same(value, other)))
        }
        (one, other) => one == other,
    }
}
