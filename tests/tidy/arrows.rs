//! Who may know whom.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::table::{ARROW_EXCEPTIONS, RANKS};
use super::tree::{Modules, imports, is_within, modules, parse, repository};

/// A module's place in the table: rank, then position in it.
fn place(name: &str) -> Option<(u8, usize)> {
    let mut prefix = name;
    loop {
        for (rank, members) in RANKS {
            if let Some(position) = members.iter().position(|member| *member == prefix) {
                return Some((*rank, position));
            }
        }
        prefix = prefix.rsplit_once("::")?.0;
    }
}

/// True when a row excuses this arrow; a row stands for what is below its modules, too.
fn is_excused(name: &str, target: &str) -> bool {
    ARROW_EXCEPTIONS.iter().any(|(from, to, _)| is_within(name, from) && is_within(target, to))
}

/// Every arrow that points upwards, and every knot among modules of one place.
fn violations(modules: &Modules) -> Vec<String> {
    let mut found = Vec::new();
    let mut siblings: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    for (name, module) in modules {
        let Some(from) = place(name) else {
            found.push(format!("{}: module {name} has no row in tests/tidy/table.rs", module.file));
            continue;
        };
        for (target, shown) in imports(modules, name) {
            if is_excused(name, &target) {
                continue;
            }
            match place(&target) {
                // A module and the files it is split into are one: they may know each other.
                Some(to) if to == from && is_within(name, &target) => {}
                Some(to) if to == from => {
                    siblings.entry(name).or_default().insert(target);
                }
                Some(to) if to > from => found.push(format!(
                    "{}: {name} (rank {}) must not know {target} (rank {}): `{shown}`",
                    module.file, from.0, to.0
                )),
                _ => {}
            }
        }
    }
    found.extend(
        knot(&siblings).map(|knot| format!("modules know each other in a circle: {}", knot.join(" -> "))),
    );
    found
}

/// One circle, if there is any.
fn knot(arrows: &BTreeMap<&str, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit(
        name: &str,
        arrows: &BTreeMap<&str, BTreeSet<String>>,
        trail: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = trail.iter().position(|earlier| earlier == name) {
            let mut knot = trail[start..].to_vec();
            knot.push(name.to_owned());
            return Some(knot);
        }
        if done.contains(name) {
            return None;
        }
        trail.push(name.to_owned());
        for target in arrows.get(name).into_iter().flatten() {
            if let Some(knot) = visit(target, arrows, trail, done) {
                return Some(knot);
            }
        }
        trail.pop();
        done.insert(name.to_owned());
        None
    }
    let mut done = BTreeSet::new();
    arrows.keys().find_map(|name| visit(name, arrows, &mut Vec::new(), &mut done))
}

/// `lib.rs` as pairs of rank comment and module.
fn map_of(lib: &str) -> BTreeMap<String, u8> {
    let mut rank = 0;
    let mut map = BTreeMap::new();
    for line in lib.lines() {
        if let Some(number) = line.strip_prefix("// Rank ").and_then(|rest| rest.split(':').next()) {
            rank = number.parse().expect("`// Rank N:` names a number");
        }
        if let Some(name) = line.strip_prefix("pub mod ").and_then(|rest| rest.strip_suffix(';')) {
            map.insert(name.to_owned(), rank);
        }
    }
    map
}

#[test]
fn no_module_knows_one_above_it_and_none_know_each_other() {
    let found = violations(&modules());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn lib_rs_maps_every_module_under_its_rank() {
    let lib = fs::read_to_string(repository().join("src/lib.rs")).expect("read src/lib.rs");
    let mapped = map_of(&lib);
    let present: BTreeMap<String, u8> = modules()
        .keys()
        .filter(|name| !name.contains("::") && *name != "main")
        .map(|name| (name.clone(), place(name).map_or(u8::MAX, |(rank, _)| rank)))
        .collect();
    assert_eq!(mapped, present, "src/lib.rs on the left, files and tests/tidy/table.rs on the right");
}

#[test]
fn an_exception_without_an_arrow_is_taken_out() {
    let modules = modules();
    for (from, to, why) in ARROW_EXCEPTIONS {
        assert!(!why.is_empty(), "{from} -> {to} needs a reason");
        let sources: Vec<&String> = modules.keys().filter(|name| is_within(name, from)).collect();
        let mut arrows = sources.iter().flat_map(|name| imports(&modules, name).into_keys());
        let used = arrows.any(|target| is_within(&target, to));
        assert!(used, "{from} -> {to} is excused in tests/tidy/table.rs and does not exist");
    }
}

fn sample(files: &[(&str, &str)]) -> Vec<String> {
    violations(&parse(files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))))
}

#[test]
fn an_upward_arrow_is_found_however_it_is_written() {
    for text in [
        "use crate::store::Store;",
        "use crate::{types::A, store::Store};",
        "fn f() { crate::store::open() }",
        "use super::store;",
    ] {
        let found = sample(&[("src/clock.rs", text), ("src/store.rs", ""), ("src/types.rs", "")]);
        assert_eq!(found.len(), 1, "{text}: {found:?}");
        assert!(found[0].contains("clock (rank 2) must not know store (rank 4)"), "{found:?}");
    }
    assert_eq!(
        sample(&[("src/types.rs", "use crate::api::Pod;"), ("src/api.rs", "")]).len(),
        1,
        "order in a rank"
    );
    assert_eq!(sample(&[("src/runtime.rs", "fn f() { cri::f() }"), ("src/runtime/cri.rs", "")]).len(), 1);
    assert_eq!(sample(&[("src/main.rs", "use edge_agent::cli;"), ("src/cli.rs", "")]), Vec::<String>::new());
    assert_eq!(sample(&[("src/novel.rs", "")]).len(), 1, "a module without a row");
}

#[test]
fn downward_arrows_and_those_of_tests_are_no_matter() {
    let files = [
        ("src/store.rs", "use crate::types::A; mod schema; use self::schema::B;"),
        ("src/store/schema.rs", "use crate::api::C;"),
        ("src/types.rs", "#[cfg(test)] mod tests { use crate::store::Store; }"),
        ("src/api.rs", "// crate::store::Store\n#[cfg(test)]\nmod far;"),
        ("src/api/far.rs", "use crate::store::Store;"),
    ];
    assert_eq!(sample(&files), Vec::<String>::new());
}

#[test]
fn a_module_and_its_parts_may_know_each_other() {
    let files = [("src/cli.rs", "mod get; fn f() { get::run() }"), ("src/cli/get.rs", "use super::Error;")];
    assert_eq!(sample(&files), Vec::<String>::new());
}

#[test]
fn a_circle_within_one_place_is_found() {
    let files = [
        ("src/reconcile.rs", ""),
        ("src/reconcile/a.rs", "use crate::reconcile::b::B;"),
        ("src/reconcile/b.rs", "use super::c;  fn f() { c::f(); super::c::g() }"),
        ("src/reconcile/c.rs", "use crate::reconcile::a;  fn f() -> crate::reconcile::a::A {}"),
    ];
    let found = sample(&files);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains("reconcile::a -> reconcile::b -> reconcile::c -> reconcile::a"), "{found:?}");
}
