//! Giving a role to others: only what one holds (upstream: `ConfirmNoEscalation`, 1.36).
//!
//! Owns the comparison of rules and the message.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::{BTreeMap, BTreeSet};

use super::{ALL, PolicyRule, Subject, covers_path, has, has_or_all};

/// A role with more combinations of verbs, groups, resources and names than this, none of whose rules is held as a whole,
/// counts as not held: comparing them would take seconds.
const MAX_COMBINATIONS: usize = 20_000;
/// Missing rules that a message lists.
const MAX_LISTED: usize = 50;

/// What of these rules the user does not hold, in the smallest parts; empty if nothing.
#[must_use]
pub(crate) fn missing(held: &[&PolicyRule], wanted: &[PolicyRule]) -> Vec<PolicyRule> {
    let mut missing = Vec::new();
    let mut combinations = 0_usize;
    for rule in wanted {
        if held.iter().any(|owner| covers(owner, rule)) {
            continue;
        }
        combinations = combinations.saturating_add(size(rule));
        if combinations > MAX_COMBINATIONS {
            missing.push(rule.clone());
            continue;
        }
        for part in parts(rule) {
            if !held.iter().any(|owner| covers(owner, &part)) {
                missing.push(part);
            }
        }
    }
    missing
}

fn size(rule: &PolicyRule) -> usize {
    let resources =
        rule.groups.len().saturating_mul(rule.resources.len()).saturating_mul(rule.names.len().max(1));
    resources.saturating_add(rule.paths.len()).saturating_mul(rule.verbs.len())
}

/// A rule as many, each of one verb, group, resource and name, or of one verb and path.
fn parts(rule: &PolicyRule) -> Vec<PolicyRule> {
    let one = |word: &String| vec![word.clone()];
    let mut parts = Vec::new();
    for verb in &rule.verbs {
        for group in &rule.groups {
            for resource in &rule.resources {
                let part = PolicyRule {
                    verbs: one(verb),
                    groups: one(group),
                    resources: one(resource),
                    ..PolicyRule::default()
                };
                if rule.names.is_empty() {
                    parts.push(part.clone());
                }
                parts.extend(rule.names.iter().map(|name| PolicyRule { names: one(name), ..part.clone() }));
            }
        }
        let of_path =
            |path: &String| PolicyRule { verbs: one(verb), paths: one(path), ..PolicyRule::default() };
        parts.extend(rule.paths.iter().map(of_path));
    }
    parts
}

/// Whether a rule alone allows all that another one does.
fn covers(owner: &PolicyRule, rule: &PolicyRule) -> bool {
    let all = |owner: &[String], wanted: &[String]| wanted.iter().all(|word| has_or_all(owner, word));
    let names = owner.names.is_empty()
        || (!rule.names.is_empty() && rule.names.iter().all(|name| has(&owner.names, name)));
    all(&owner.verbs, &rule.verbs)
        && all(&owner.groups, &rule.groups)
        && rule.resources.iter().all(|resource| covers_resource(owner, resource))
        && rule.paths.iter().all(|path| owner.paths.iter().any(|owner| covers_path(owner, path)))
        && names
}

fn covers_resource(owner: &PolicyRule, resource: &str) -> bool {
    let of_any = || resource.split_once('/').map(|(_, part)| format!("{ALL}/{part}"));
    has_or_all(&owner.resources, resource) || of_any().is_some_and(|any| has(&owner.resources, &any))
}

/// Upstream's message: verbs of one resource together, in order.
#[must_use]
pub(crate) fn message(who: Subject<'_>, missing: &[PolicyRule]) -> String {
    let mut lines = BTreeSet::new();
    let mut together: BTreeMap<[&[String]; 3], Vec<String>> = BTreeMap::new();
    for rule in missing.iter().take(MAX_LISTED) {
        if rule.paths.is_empty() {
            let key = [&*rule.groups, &*rule.resources, &*rule.names];
            together.entry(key).or_default().extend(rule.verbs.iter().cloned());
        } else {
            lines.insert(line(rule));
        }
    }
    for (parts, verbs) in together {
        let [groups, resources, names] = parts.map(<[String]>::to_vec);
        lines.insert(line(&PolicyRule { verbs, groups, resources, names, paths: Vec::new() }));
    }
    let lines: Vec<String> = lines.into_iter().collect();
    format!(
        "user {:?} (groups={}) is attempting to grant RBAC permissions not currently held:\n{}",
        who.name,
        quoted(who.groups),
        lines.join("\n")
    )
}

fn line(rule: &PolicyRule) -> String {
    let lists = [
        ("APIGroups", &rule.groups),
        ("Resources", &rule.resources),
        ("NonResourceURLs", &rule.paths),
        ("ResourceNames", &rule.names),
        ("Verbs", &rule.verbs),
    ];
    let shown = lists.iter().filter(|(_, list)| !list.is_empty());
    let parts: Vec<String> = shown.map(|(name, list)| format!("{name}:{}", quoted(list))).collect();
    format!("{{{}}}", parts.join(", "))
}

fn quoted(list: &[String]) -> String {
    let words: Vec<String> = list.iter().map(|word| format!("{word:?}")).collect();
    format!("[{}]", words.join(" "))
}
