//! Names and documentation that say something: no type name is declared again and again, no documentation is one word,
//! no test's name is a sentence that does not fit on a line.

use std::collections::BTreeMap;
use std::fs;

use super::lexer::Token;
use super::tree::{Modules, files, modules, parse, relative, repository};

/// More types of one name, and a reader has to look up which is meant.
const MOST_TYPES_OF_A_NAME: usize = 3;
/// Subject, condition, result; in a test runner's list a longer name is not read to its end.
const LONGEST_TEST_NAME: usize = 60;
/// Documentation has more words than this.
const SHORTEST_DOCUMENTATION: usize = 2;

/// Names of types that are declared too often, each with the files that declare it.
fn repeated(modules: &Modules) -> Vec<String> {
    let mut declared: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for module in modules.values() {
        for pair in module.tokens.windows(2) {
            if let [Token::Word(keyword), Token::Word(name)] = pair
                && ["struct", "enum", "trait", "union"].contains(&keyword.as_str())
            {
                declared.entry(name).or_default().push(&module.file);
            }
        }
    }
    let repeated = declared.into_iter().filter(|(_, files)| files.len() > MOST_TYPES_OF_A_NAME);
    repeated.map(|(name, files)| format!("{name}: {}", files.join(", "))).collect()
}

/// Documentation of one line with a word or two. A name in backticks may stand alone: it says which of upstream's is meant.
fn empty_words(text: &str) -> Vec<&str> {
    let lines: Vec<&str> = text.lines().map(str::trim_start).collect();
    let is_documentation = |at: Option<&&str>| at.is_some_and(|line| line.starts_with("///"));
    let alone = (0..lines.len()).filter(|at| {
        let before = at.checked_sub(1).and_then(|before| lines.get(before));
        !is_documentation(before) && !is_documentation(lines.get(at + 1))
    });
    let documentation = alone.filter_map(|at| lines[at].strip_prefix("///"));
    let says_little = |words: &&str| {
        let is_plain = |character: char| character.is_ascii_digit() || "`:".contains(character);
        words.split_whitespace().count() <= SHORTEST_DOCUMENTATION && !words.contains(is_plain)
    };
    documentation.filter(says_little).collect()
}

/// Names of tests, and of scenarios that a macro makes tests of, that are too long.
fn long_names(text: &str) -> Vec<&str> {
    let names = text.lines().filter_map(|line| {
        let declared =
            line.trim_start().trim_start_matches("pub ").trim_start_matches("async ").strip_prefix("fn ")?;
        declared.split(['(', '<']).next()
    });
    names.filter(|name| name.len() > LONGEST_TEST_NAME).collect()
}

#[test]
fn test_names_have_at_most_60_characters() {
    let mut found = Vec::new();
    for path in ["src", "tests"].iter().flat_map(|room| files(&repository().join(room))) {
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("read a source file");
        found.extend(long_names(&text).iter().map(|name| format!("{}: {name}", relative(&path))));
    }
    assert!(
        found.is_empty(),
        "name subject, condition and result in {LONGEST_TEST_NAME}:\n{}",
        found.join("\n")
    );
}

#[test]
fn no_type_name_is_declared_more_than_three_times() {
    let found = repeated(&modules());
    assert!(found.is_empty(), "say whose they are:\n{}", found.join("\n"));
}

#[test]
fn documentation_says_what_the_name_cannot() {
    let mut found = Vec::new();
    for path in files(&repository().join("src")) {
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let name = relative(&path);
        let text = fs::read_to_string(&path).expect("read a source file");
        found.extend(empty_words(&text).iter().map(|words| format!("{name}: `///{words}`")));
    }
    assert!(found.is_empty(), "say more, or leave it out:\n{}", found.join("\n"));
}

#[test]
fn repeated_type_names_and_empty_comments_are_found() {
    let file = |name: &str, text: &str| (format!("src/{name}.rs"), text.to_owned());
    let sample = ["a", "b", "c", "d"].map(|name| file(name, "struct State; fn f() {}"));
    assert_eq!(repeated(&parse(sample.clone())), ["State: src/a.rs, src/b.rs, src/c.rs, src/d.rs"]);
    assert_eq!(repeated(&parse(sample.into_iter().take(3))), Vec::<String>::new());
    let long = "x".repeat(LONGEST_TEST_NAME + 1);
    assert_eq!(long_names(&format!("    async fn {long}() {{\nfn {}() {{", &long[1..])), [&long]);
    assert_eq!(empty_words("/// Which.\npub a: u8,\n\n/// Its name.\nfn b() {}"), [" Which.", " Its name."]);
    assert_eq!(
        empty_words("/// Which.\n/// And why.\n/// `maxPods`.\nfn a() {}\n\n/// The node's name.\n"),
        [""; 0]
    );
}
