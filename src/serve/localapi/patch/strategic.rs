//! Strategic merge patch: a merge patch that knows which lists are maps by a key, with upstream's directives
//! (`$patch`, `$retainKeys`, `$setElementOrder/…`, `$deleteFromPrimitiveList/…`).
//!
//! Owns the directives.

use serde_json::{Map, Value};

use super::schema::{Keyed, Patch, Shape};
use super::{PatchError, malformed, unprocessable};
use crate::model::ordered::Sortable as _;

const DIRECTIVE: &str = "$patch";
const RETAIN_KEYS: &str = "$retainKeys";
const SET_ELEMENT_ORDER: &str = "$setElementOrder/";
const DELETE_FROM_PRIMITIVE_LIST: &str = "$deleteFromPrimitiveList/";

/// Merges `patch` into `target`, an object of `shape`.
///
/// # Errors
/// An invalid directive, or a list item without its key.
pub(crate) fn apply(target: Value, patch: Value, shape: Shape<'_>) -> Result<Value, PatchError> {
    match (target, patch) {
        (Value::Object(target), Value::Object(patch)) => Ok(Value::Object(object(target, patch, shape)?)),
        _ => malformed("a strategic merge patch must be an object"),
    }
}

fn object(
    mut target: Map<String, Value>,
    mut patch: Map<String, Value>,
    shape: Shape<'_>,
) -> Result<Map<String, Value>, PatchError> {
    match patch.remove(DIRECTIVE).as_ref().map(|directive| directive.as_str()) {
        None | Some(Some("merge")) => {}
        Some(Some("replace")) => return Ok(patch),
        Some(Some("delete")) => return Ok(Map::new()),
        Some(other) => return bad_directive(other),
    }
    if let Some(kept) = patch.remove(RETAIN_KEYS) {
        retain(&mut target, &patch, &kept)?;
    }
    let mut orders = Vec::new();
    let mut changes = Vec::new();
    for (name, change) in patch {
        if let Some(list) = name.strip_prefix(SET_ELEMENT_ORDER) {
            orders.push((list.to_owned(), change));
        } else if let Some(list) = name.strip_prefix(DELETE_FROM_PRIMITIVE_LIST) {
            let Value::Array(gone) = change else { return malformed(format!("{name} must be a list")) };
            if let Some(Value::Array(items)) = target.get_mut(list) {
                items.retain(|item| !gone.contains(item));
            }
        } else {
            changes.push((name, change));
        }
    }
    // The previous order: items that the patch does not name keep their places.
    let before: Vec<Option<Value>> = orders.iter().map(|(list, _)| target.get(list).cloned()).collect();
    for (name, change) in changes {
        if change.is_null() {
            target.remove(&name);
            continue;
        }
        let member = shape.member(&name);
        let old = target.remove(&name);
        target.insert(name, value(old, change, member)?);
    }
    for ((list, order), before) in orders.into_iter().zip(before) {
        let Value::Array(order) = order else {
            return malformed(format!("{SET_ELEMENT_ORDER}{list} must be a list"));
        };
        if let Some(Value::Array(items)) = target.get_mut(&list) {
            let before = before.and_then(as_list).unwrap_or_default();
            *items = in_order(std::mem::take(items), &before, &order, shape.member(&list));
        }
    }
    Ok(target)
}

fn as_list(value: Value) -> Option<Vec<Value>> {
    match value {
        Value::Array(items) => Some(items),
        _ => None,
    }
}

fn bad_directive<T>(directive: Option<&str>) -> Result<T, PatchError> {
    malformed(format!("Unknown patch type found: {}", directive.unwrap_or("not a string")))
}

fn retain(
    target: &mut Map<String, Value>,
    patch: &Map<String, Value>,
    kept: &Value,
) -> Result<(), PatchError> {
    let Some(kept) = kept.as_array() else { return malformed(format!("{RETAIN_KEYS} must be a list")) };
    let is_kept = |name: &String| kept.iter().any(|kept| kept.as_str() == Some(name));
    if let Some(other) = patch.keys().find(|name| !name.starts_with('$') && !is_kept(name)) {
        return malformed(format!("{RETAIN_KEYS} does not list {other:?}, which the patch sets"));
    }
    target.retain(|name, _| is_kept(name));
    Ok(())
}

fn value(old: Option<Value>, change: Value, shape: Shape<'_>) -> Result<Value, PatchError> {
    match change {
        Value::Object(change) => {
            let old = match old {
                Some(Value::Object(old)) => old,
                _ => Map::new(),
            };
            object(old, change, shape).map(Value::Object)
        }
        Value::Array(change) => {
            let old = old.and_then(as_list).unwrap_or_default();
            match shape {
                Shape::Keyed(keyed @ Keyed { merge_key: Some(key), .. }) => {
                    keyed_list(old, change, &keyed, key).map(Value::Array)
                }
                Shape::Set(Patch::Adds) => Ok(Value::Array(union(old, change))),
                _ => Ok(Value::Array(change)),
            }
        }
        scalar => Ok(scalar),
    }
}

fn union(mut old: Vec<Value>, change: Vec<Value>) -> Vec<Value> {
    for item in change {
        if !old.contains(&item) {
            old.push(item);
        }
    }
    old
}

fn keyed_list(
    mut items: Vec<Value>,
    change: Vec<Value>,
    keyed: &Keyed<'_>,
    merge_key: &str,
) -> Result<Vec<Value>, PatchError> {
    let directive = |item: &Value| item.get(DIRECTIVE).map(|directive| directive.as_str().map(str::to_owned));
    if change.iter().any(|item| directive(item) == Some(Some("replace".to_owned()))) {
        let is_item = |item: &Value| directive(item).is_none();
        return Ok(change.into_iter().filter(is_item).collect());
    }
    for item in change {
        let directive = directive(&item);
        let Value::Object(mut item) = item else {
            return unprocessable(format!("a list merged by {merge_key:?} must contain objects"));
        };
        let Some(key) = item.get(merge_key).cloned() else {
            return unprocessable(format!(
                "map: {} does not contain declared merge key: {merge_key}",
                Value::Object(item)
            ));
        };
        let is_it = |item: &Value| item.get(merge_key) == Some(&key);
        match directive.as_ref().map(Option::as_deref) {
            Some(Some("delete")) => items.retain(|item| !is_it(item)),
            None | Some(Some("merge")) => {
                item.remove(DIRECTIVE);
                let at = items.iter().position(is_it);
                let old = at.map(|at| items[at].take());
                let new = value(old, Value::Object(item), keyed.members())?;
                match at {
                    Some(at) => items[at] = new,
                    None => items.push(new),
                }
            }
            Some(other) => return bad_directive(other),
        }
    }
    Ok(items)
}

/// Sorts `items`: those in `order` follow it, and the others keep their places among the items `before`.
fn in_order(items: Vec<Value>, before: &[Value], order: &[Value], shape: Shape<'_>) -> Vec<Value> {
    let key = |item: &Value| match shape {
        Shape::Keyed(Keyed { merge_key: Some(key), .. }) => item.get(key).cloned().unwrap_or(Value::Null),
        _ => item.clone(),
    };
    let order: Vec<Value> = order.iter().map(key).collect();
    let before: Vec<Value> = before.iter().map(key).collect();
    arrange(items, &key, &before, &order)
}

/// The order of a list that two sides define. `order` rules the items it contains. Between an item it
/// contains and one it does not, the earlier one in `before` comes first, or the former if `before` does not
/// have both.
pub(super) fn arrange<K: PartialEq>(
    items: Vec<Value>,
    key: &impl Fn(&Value) -> K,
    before: &[K],
    order: &[K],
) -> Vec<Value> {
    let place = |known: &[K], item: &Value| {
        let key = key(item);
        known.iter().position(|known| *known == key)
    };
    let (mut named, others): (Vec<Value>, Vec<Value>) =
        items.into_iter().partition(|item| place(order, item).is_some());
    named.order_by_key(|item| place(order, item));
    let mut arranged = Vec::with_capacity(named.len() + others.len());
    let (mut named, mut others) = (named.into_iter().peekable(), others.into_iter().peekable());
    loop {
        let takes_other = match (others.peek(), named.peek()) {
            (Some(other), Some(named)) => {
                matches!((place(before, other), place(before, named)), (Some(other), Some(named)) if other < named)
            }
            (Some(_), None) => true,
            (None, Some(_)) => false,
            (None, None) => return arranged,
        };
        arranged.extend(if takes_other { others.next() } else { named.next() });
    }
}
