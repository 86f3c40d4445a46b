//! Where external crates live, what pure files must not touch, and who may be unsafe.

use std::collections::BTreeSet;
use std::fs;

use super::lexer::{Token, paths};
use super::table::{BANNED_IN_PURE, HOME_EXCEPTIONS, HOMELESS, HOMES, PURE};
use super::tree::{Module, Modules, is_within, modules, parse, repository};

/// Everything outside its home.
fn violations(modules: &Modules) -> Vec<String> {
    let mut found = Vec::new();
    for (name, module) in modules {
        let mentioned: BTreeSet<String> = paths(&module.tokens).iter().map(|path| path.join("::")).collect();
        for (external, homes) in HOMES {
            let excused =
                HOME_EXCEPTIONS.iter().any(|(row, place, _)| row == external && is_within(name, place));
            if excused || homes.iter().any(|home| is_within(name, home)) {
                continue;
            }
            if let Some(path) = mentioned.iter().find(|path| is_within(path, external)) {
                let homes = homes.join(", ");
                found.push(format!("{}: `{path}`: {external} lives in {homes}", module.file));
            }
        }
        if is_pure(modules, name) {
            for (banned, why) in BANNED_IN_PURE {
                if let Some(path) = mentioned.iter().find(|path| is_within(path, banned)) {
                    found.push(format!("{}: `{path}` in a pure file: {why}", module.file));
                }
            }
        }
        found.extend(unsafe_outside_sys(name, module));
    }
    found
}

/// True in a room of values, and below a file that says that it is pure.
fn is_pure(modules: &Modules, name: &str) -> bool {
    PURE.iter().any(|room| is_within(name, room))
        || modules.iter().any(|(marked, module)| module.is_pure && is_within(name, marked))
}

fn unsafe_outside_sys(name: &str, module: &Module) -> Option<String> {
    let has = module.tokens.contains(&Token::Word(concat!("un", "safe").to_owned()));
    (has && !is_within(name, "platform::sys"))
        .then(|| format!("{}: kernel calls are made in platform::sys alone", module.file))
}

/// The keys of `[dependencies]`, as code names them.
fn dependencies() -> BTreeSet<String> {
    let manifest = fs::read_to_string(repository().join("Cargo.toml")).expect("read Cargo.toml");
    let section = manifest.split("\n[dependencies]\n").nth(1).expect("Cargo.toml has dependencies");
    section
        .lines()
        .take_while(|line| !line.starts_with('['))
        .filter_map(|line| line.split_once(" = "))
        .map(|(name, _)| name.trim().replace('-', "_"))
        .collect()
}

#[test]
fn external_crates_stay_at_home_and_decisions_stay_pure() {
    let found = violations(&modules());
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_dependency_has_an_owner_and_every_owner_a_dependency() {
    let owned: BTreeSet<String> =
        HOMES.iter().map(|(name, _)| *name).chain(HOMELESS.iter().copied()).map(str::to_owned).collect();
    assert_eq!(dependencies(), owned, "Cargo.toml on the left, tests/tidy/table.rs on the right");
}

#[test]
fn every_exception_has_a_reason_and_a_use() {
    let modules = modules();
    for (external, place, why) in HOME_EXCEPTIONS {
        assert!(!why.is_empty(), "{external} in {place} needs a reason");
        let places: Vec<&Module> =
            modules.iter().filter(|(name, _)| is_within(name, place)).map(|(_, module)| module).collect();
        let mut mentioned = places.iter().flat_map(|module| paths(&module.tokens));
        assert!(
            places.is_empty() || mentioned.any(|path| path[0] == *external),
            "{external} is excused in {place}, which does not use it"
        );
    }
}

#[test]
fn the_checks_find_what_they_are_for() {
    let sample = |file: &str, text: &str| violations(&parse([(file.to_owned(), text.to_owned())])).len();
    assert_eq!(sample("src/agent/kubelet.rs", "use rusqlite::Connection;"), 1);
    assert_eq!(sample("src/store/schema.rs", "use rusqlite::Connection;"), 0);
    assert_eq!(sample("src/desired/source/file.rs", "fn f() { granit_parser::read(x) }"), 1);
    assert_eq!(sample("src/codec/yaml.rs", "fn f() { granit_parser::read(x) }"), 0);
    assert_eq!(sample("src/model/types.rs", "fn f() { log::info!(\"x\") }"), 1);
    assert_eq!(sample("src/model/api/pod.rs", "use std::{fs, fmt};"), 1);
    assert_eq!(sample("src/pod/plan.rs", "//! Pure: x\nuse std::time::{Duration, Instant};"), 1);
    assert_eq!(sample("src/pod/plan.rs", "//! Pure: x\nuse std::time::Duration; use std::fmt;"), 0);
    assert_eq!(sample("src/model/observed.rs", "use std::collections::HashMap;"), 1);
    assert_eq!(sample("src/platform/rt.rs", concat!("fn f() { un", "safe { g() } }")), 1);
    assert_eq!(sample("src/platform/sys/mount.rs", concat!("fn f() { un", "safe { nix::g() } }")), 0);
    assert_eq!(sample("src/model/types.rs", "#[cfg(test)] mod tests { use tokio::time::sleep; }"), 0);
}
