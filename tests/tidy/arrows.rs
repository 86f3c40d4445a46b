//! Which module may import which.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use super::tree::{Modules, imports, is_within, modules, parse, repository};

/// The program, which is above all rooms.
const PROGRAM: &str = "main";

/// The rooms in the order in which `lib.rs` declares them, lowest first.
fn rooms(lib: &str) -> Vec<String> {
    let declared = lib.lines().filter_map(|line| line.strip_prefix("pub mod ")?.strip_suffix(';'));
    declared.map(str::to_owned).chain([PROGRAM.to_owned()]).collect()
}

/// Every arrow that points upwards, and one circle among files if there is any. A module may import the modules it is a part
/// of; those arrows are not followed.
fn violations(rooms: &[String], modules: &Modules) -> Vec<String> {
    let mut found = Vec::new();
    let mut arrows: BTreeMap<&str, BTreeSet<String>> = BTreeMap::new();
    let place = |name: &str| rooms.iter().position(|room| is_within(name, room));
    for (name, module) in modules {
        let Some(from) = place(name) else {
            found.push(format!("{}: {name} is in no room of src/lib.rs", module.file));
            continue;
        };
        for (target, shown) in imports(modules, name) {
            if place(&target).is_some_and(|to| to > from) {
                let room = &rooms[from];
                found.push(format!("{}: `{shown}`: {target} is above {room}", module.file));
            } else if !is_within(name, &target) {
                arrows.entry(name).or_default().insert(target);
            }
        }
    }
    found.extend(circle(&arrows).map(|circle| format!("files import each other: {}", circle.join(" -> "))));
    found
}

/// One circle, if there is any.
fn circle(arrows: &BTreeMap<&str, BTreeSet<String>>) -> Option<Vec<String>> {
    fn visit(
        name: &str,
        arrows: &BTreeMap<&str, BTreeSet<String>>,
        trail: &mut Vec<String>,
        done: &mut BTreeSet<String>,
    ) -> Option<Vec<String>> {
        if let Some(start) = trail.iter().position(|earlier| earlier == name) {
            let mut circle = trail[start..].to_vec();
            circle.push(name.to_owned());
            return Some(circle);
        }
        if done.contains(name) {
            return None;
        }
        trail.push(name.to_owned());
        for target in arrows.get(name).into_iter().flatten() {
            if let Some(circle) = visit(target, arrows, trail, done) {
                return Some(circle);
            }
        }
        trail.pop();
        done.insert(name.to_owned());
        None
    }
    let mut done = BTreeSet::new();
    arrows.keys().find_map(|name| visit(name, arrows, &mut Vec::new(), &mut done))
}

#[test]
fn arrows_point_down_and_no_files_import_each_other() {
    let lib = fs::read_to_string(repository().join("src/lib.rs")).expect("read src/lib.rs");
    let rooms = rooms(&lib);
    assert!(rooms.len() <= 17, "at most sixteen rooms: {rooms:?}");
    let found = violations(&rooms, &modules());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

fn sample(files: &[(&str, &str)]) -> Vec<String> {
    let rooms = rooms("//! A map.\n\npub mod model;\npub mod store;\npub mod pod;\n");
    violations(&rooms, &parse(files.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned()))))
}

#[test]
fn an_upward_arrow_is_found_however_it_is_written() {
    for text in [
        "use crate::store::Store;",
        "use crate::{model::A, store::Store};",
        "fn f() { crate::store::open() }",
        "use super::store;",
    ] {
        let found = sample(&[("src/model.rs", text), ("src/store.rs", "")]);
        assert_eq!(found, [format!("src/model.rs: `{}`: store is above model", shown(text))], "{text}");
    }
    assert_eq!(sample(&[("src/novel.rs", "")]).len(), 1, "a module outside the rooms");
    assert_eq!(sample(&[("src/main.rs", "use edge_agent::pod;"), ("src/pod.rs", "")]), Vec::<String>::new());
}

fn shown(text: &str) -> &str {
    match text {
        "fn f() { crate::store::open() }" => "crate::store::open",
        "use super::store;" => "super::store",
        _ => "crate::store::Store",
    }
}

#[test]
fn downward_arrows_and_those_of_tests_are_allowed() {
    let files = [
        ("src/store.rs", "use crate::model::A; mod schema; use self::schema::B;"),
        ("src/store/schema.rs", "use crate::model::C;"),
        ("src/model.rs", "#[cfg(test)] mod tests { use crate::store::Store; }\n#[cfg(test)]\nmod far;"),
        ("src/model/far.rs", "use crate::store::Store;"),
    ];
    assert_eq!(sample(&files), Vec::<String>::new());
}

#[test]
fn a_part_may_import_the_module_it_belongs_to() {
    let files =
        [("src/pod.rs", "mod plan; fn f() { plan::run() }"), ("src/pod/plan.rs", "use super::Error;")];
    assert_eq!(sample(&files), Vec::<String>::new());
}

#[test]
fn a_circle_among_files_is_found() {
    let files = [
        ("src/pod.rs", ""),
        ("src/pod/a.rs", "use crate::pod::b::B;"),
        ("src/pod/b.rs", "use super::c;  fn f() { c::f(); super::c::g() }"),
        ("src/pod/c.rs", "use crate::pod::a;  fn f() -> crate::pod::a::A {}"),
    ];
    assert_eq!(sample(&files), ["files import each other: pod::a -> pod::b -> pod::c -> pod::a"]);
    let through_a_part = [
        ("src/pod.rs", ""),
        ("src/pod/a.rs", "mod part; fn f() { part::g() }"),
        ("src/pod/a/part.rs", "use crate::pod::b::B;"),
        ("src/pod/b.rs", "use super::a::A;"),
    ];
    assert_eq!(
        sample(&through_a_part),
        ["files import each other: pod::a -> pod::a::part -> pod::b -> pod::a"]
    );
}
