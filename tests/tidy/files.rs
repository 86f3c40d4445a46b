//! What every file must say and must not say.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::table::{BANNED_WORDS, FOREIGN, LONG_FILE, LONG_FILES};
use super::tree::{files, relative, repository};

/// A text file: its name from the repository's root, and its text.
type Text = (String, String);

/// Every text file that is ours to word; what is not text is no matter.
fn texts() -> Vec<Text> {
    let ours = files(repository()).into_iter().map(|path| (relative(&path), path));
    ours.filter(|(name, _)| !FOREIGN.iter().any(|foreign| name.starts_with(foreign)))
        .filter_map(|(name, path)| Some((name, fs::read_to_string(path).ok()?)))
        .collect()
}

fn is_rust(name: &str) -> bool {
    Path::new(name).extension().is_some_and(|extension| extension == "rs")
}

/// A module's own tests, moved out of its file: the name says what they are for, and cases may be many.
fn is_beside_code(name: &str) -> bool {
    name.starts_with("src/") && (name.ends_with("/tests.rs") || name.ends_with("_tests.rs"))
}

/// What is wrong with one file.
fn complaints((name, text): &Text) -> Vec<String> {
    let mut found: Vec<String> = BANNED_WORDS
        .iter()
        .filter(|(word, _)| text.contains(word))
        .map(|(word, why)| format!("{name}: `{word}`: {why}"))
        .collect();
    if is_rust(name) && !is_beside_code(name) {
        if !text.starts_with("//! ") {
            found.push(format!("{name}: the first line says what the file is for (`//! ...`)"));
        }
        let lines = text.lines().count();
        if lines > LONG_FILE && !LONG_FILES.iter().any(|(row, _)| row == name) {
            found.push(format!(
                "{name}: {lines} lines: split it, or say in tests/tidy/table.rs why it is one thing"
            ));
        }
    }
    found
}

#[test]
fn files_have_a_header_bounded_length_and_no_banned_text() {
    let found: Vec<String> = texts().iter().flat_map(complaints).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn listed_long_files_are_still_long() {
    for (name, why) in LONG_FILES {
        let text = fs::read_to_string(repository().join(name)).unwrap_or_default();
        assert!(text.lines().count() > LONG_FILE, "{name} is no longer long ({why})");
    }
}

#[test]
fn the_checks_find_what_they_are_for() {
    let count = |name: &str, text: &str| complaints(&(name.to_owned(), text.to_owned())).len();
    assert_eq!(count("src/a.rs", "//! Good.\n"), 0);
    assert_eq!(count("src/a.rs", "use b::c;\n"), 1);
    assert_eq!(count("src/a.rs", &format!("//! Long.\n{}", "\n".repeat(LONG_FILE))), 1);
    assert_eq!(count("src/a/tests.rs", "use b::c;\n"), 0);
    assert_eq!(count("docs/a.md", concat!("see /wo", "rk/notes")), 1);
    assert_eq!(count("scripts/a", concat!("# TO", "DO: later")), 1);
}

#[test]
fn dependencies_come_from_the_public_registry_alone() {
    let lock = fs::read_to_string(repository().join("Cargo.lock")).expect("read Cargo.lock");
    let sources: BTreeSet<&str> = lock.lines().filter(|line| line.starts_with("source = ")).collect();
    let public = concat!("source = \"registry+https://github.com/rust-lang/", "crates.io-index\"");
    assert_eq!(sources, BTreeSet::from([public]));
}

#[test]
fn crates_that_deny_toml_bans_are_not_even_locked() {
    let read =
        |name: &str| fs::read_to_string(repository().join(name)).expect("read a file of the repository");
    let (bans, lock) = (read("deny.toml"), read("Cargo.lock"));
    let rows = bans.lines().filter(|line| line.contains("reason = ") && !line.contains("wrappers = "));
    let banned: Vec<&str> =
        rows.filter_map(|line| line.split("crate = \"").nth(1)?.split('"').next()).collect();
    assert!(banned.contains(&"openssl"), "deny.toml is not read as it is written: {banned:?}");
    for name in banned {
        assert!(!lock.contains(&format!("\nname = \"{name}\"\n")), "{name} is banned in deny.toml");
    }
}

#[test]
fn every_decision_record_is_whole_and_in_the_index() {
    let directory = repository().join("docs/adr");
    let index = fs::read_to_string(directory.join("README.md")).expect("read docs/adr/README.md");
    let mut numbers = BTreeSet::new();
    for path in files(&directory) {
        let name = path.file_name().expect("a file has a name").to_string_lossy().into_owned();
        if name == "README.md" {
            continue;
        }
        let (number, _) = name.split_once('-').expect("records are named NNNN-title.md");
        assert!(
            number.len() == 4 && number.parse::<u32>().is_ok(),
            "{name}: records are named NNNN-title.md"
        );
        assert!(numbers.insert(number.to_owned()), "{name}: the number {number} is taken");
        assert!(index.contains(&format!("({name})")), "{name} is missing in docs/adr/README.md");
        let text = fs::read_to_string(&path).expect("read a decision record");
        for heading in ["# ", "## Context", "## Decision", "## Consequences", "## What would change our mind"]
        {
            let found = text.lines().any(|line| line.starts_with(heading));
            assert!(found, "{name} has no heading `{heading}`");
        }
    }
    assert!(!numbers.is_empty(), "no decision records at all");
}

#[test]
fn scripts_say_what_they_do_and_stop_at_the_first_error() {
    let scripts = files(&repository().join("scripts")).into_iter().chain([repository().join(".ci/run")]);
    for path in scripts.filter(|path| path.extension().is_none()) {
        let text = fs::read_to_string(&path).expect("read a script");
        let name = relative(&path);
        assert!(
            text.starts_with("#!/bin/bash\n# "),
            "{name}: a script is bash and its second line says what it does"
        );
        assert!(text.contains("\nset -euo pipefail\n"), "{name}: set -euo pipefail");
    }
}
