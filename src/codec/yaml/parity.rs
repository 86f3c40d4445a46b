//! This reader and the crate serde-saphyr, which it stands for (ADR 0048), read the same.

use proptest::prelude::*;
use serde_saphyr::{Budget, DuplicateKeyPolicy, Options};

use super::*;

fn options(strict: bool) -> Options {
    let mut budget = Budget::default();
    budget.max_documents = 1;
    budget.max_nodes = MAX_NODES;
    budget.max_events = 3 * MAX_NODES;
    budget.max_depth = MAX_DEPTH;
    budget.flow_nesting_limit = MAX_DEPTH;
    budget.max_aliases = MAX_ALIASES;
    budget.max_anchors = MAX_ALIASES;
    budget.max_recorded_anchor_events = MAX_ALIAS_NODES;
    let mut options = Options::default();
    options.budget = Some(budget);
    options.duplicate_keys = if strict { DuplicateKeyPolicy::Error } else { DuplicateKeyPolicy::LastWins };
    options.legacy_octal_numbers = true;
    options.with_snippet = false;
    options.alias_limits.max_total_replayed_events = MAX_ALIAS_NODES;
    options
}

/// A value, or where it is refused and with which words of the crate's.
fn reference(text: &str, strict: bool) -> Result<Value, (u64, u64, String)> {
    serde_saphyr::from_str_with_options(text, options(strict)).map_err(|error| {
        let place = error.location().map_or((0, 0), |place| (place.line(), place.column()));
        (place.0, place.1, error.to_string())
    })
}

fn compare(text: &str) -> Result<(), String> {
    compare_with(text, true)
}

/// With the words and places of errors, unless the text may have several: which is the first may differ.
fn compare_with(text: &str, has_one_error: bool) -> Result<(), String> {
    for strict in [true, false] {
        let expected = reference(text, strict);
        let read = compose::document(text, strict);
        let differs = |what: &str| Err(format!("{what}, strict {strict}\n{text}\n{read:?}\n{expected:?}"));
        match (&read, &expected) {
            (Ok(value), Ok(expected)) if value == expected => {}
            // The crate drops a member that another one replaces before it looks at what is in it. When it is strict,
            // only a merged member can be replaced.
            (Err(error), Ok(_))
                if (!strict || text.contains("<<")) && error.message.contains("contains it") => {}
            (Err(error), Err((line, column, message))) => {
                // Bounds have words of their own, and what an alias stands for its own place.
                let told = has_one_error
                    && !text.contains('*')
                    && !message.starts_with("budget")
                    && !message.contains("limit");
                let same_words = message.starts_with(&error.message)
                    || ["duplicate", "!!binary"].iter().any(|word| message.starts_with(word));
                if told && !same_words {
                    return differs("message");
                }
                let placed = (error.line, error.column) == (*line, *column);
                if told && !placed && error.message != "expected string scalar" {
                    return differs("place");
                }
            }
            _ => return differs("outcome"),
        }
    }
    Ok(())
}

const SCALARS: &[&str] = &[
    "",
    "~",
    "null",
    "NULL",
    "Null",
    "yes",
    "No",
    "on",
    "OFF",
    "y",
    "N",
    "true",
    "False",
    "0",
    "-0",
    "+0",
    "00",
    "0644",
    "-0644",
    "+0644",
    "08",
    "0888",
    "0_7",
    "0_",
    "_1",
    "1_",
    "1_000",
    "1__0",
    "0x1F",
    "0X_ff",
    "0x",
    "0x_",
    "0o17",
    "0O8",
    "0b11",
    "0b2",
    "-0x10",
    "+12",
    "-12",
    "+-1",
    "-+1",
    "--1",
    "1e3",
    "1E-2",
    "1e400",
    "-1e400",
    "1e",
    "0.5",
    ".5",
    "5.",
    ".",
    "-.5",
    "+.5",
    ".inf",
    "-.INF",
    "+.inf",
    ".nan",
    "-.nan",
    "inf",
    "nan",
    "Infinity",
    "-inf",
    "1:30",
    "2001-01-01",
    "1.5Gi",
    "18446744073709551615",
    "18446744073709551616",
    "-9223372036854775808",
    "-9223372036854775809",
    "0777777777777777777777777",
    "340282366920938463463374607431768211456",
    "-170141183460469231731687303715884105728",
    "1.",
    "1.0",
    "1e0",
    "9007199254740993.0",
    "<<",
    "=",
    "x",
    "a b",
    "\u{85}",
    "\u{a0}1",
    "é",
    "\"\"",
    "''",
    "\"1\"",
    "'null'",
    "\"\\n1\"",
    "\"\\u0031\"",
    "\" 1 \"",
    "'it''s'",
    "\"\\x00\"",
    "\"\\q\"",
    "\"\\ud83d\\ude00\"",
    "|\n  7\n",
    ">\n  yes\n  no\n",
    "[]",
    "{}",
    "[1, 2]",
    "{a: 1}",
    "@x",
    "`x",
    "%x",
    "# c",
    "? a",
    "- 1",
    "- - 1",
    "aGk=",
    "aGl=",
    "aGk",
    "====",
    "/w==",
    "a GVs\n  bG8=",
];
const TAGS: &[&str] = &[
    "!!str",
    "!!int",
    "!!float",
    "!!bool",
    "!!null",
    "!!seq",
    "!!map",
    "!!binary",
    "!!timestamp",
    "!!merge",
    "!!value",
    "!!set",
    "!",
    "!local",
    "!int",
    "!str",
    "!map",
    "!seq",
    "!time",
    "!degrees",
    "!include",
    "!include#x",
    "!!include",
    "!<tag:yaml.org,2002:int>",
    "!<x>",
    "!<!int>",
    "!merge",
    "!binary",
    "!null",
    "!e!x",
];

#[test]
fn scalars_and_tags_are_read_as_the_crate_reads_them() {
    for scalar in SCALARS {
        for tag in std::iter::once(&"").chain(TAGS) {
            for text in [
                format!("{tag} {scalar}"),
                format!("a: {tag} {scalar}\n"),
                format!("- {tag} {scalar}\n- 1\n"),
                format!("{tag} {scalar}: 1\n"),
                format!("? {tag} {scalar}\n: 1\n"),
                format!("{{{tag} {scalar}: 1, {tag} {scalar}: 2}}"),
                format!("x: &a {tag} {scalar}\ny: *a\n"),
                format!("<<: {tag} {scalar}\nb: 1\n"),
            ] {
                compare(&text).unwrap();
            }
        }
    }
}

#[test]
fn keys_and_merges_are_read_as_the_crate_reads_them() {
    let keys = [
        "a",
        "\"a\"",
        "!x a",
        "!!str a",
        "1",
        "\"1\"",
        "0x1",
        "01",
        "+1",
        "!!int 1",
        "<<",
        "\"<<\"",
        "!!merge <<",
    ];
    for first in keys {
        for second in keys {
            for third in ["a", "1", "0x1", "<<"] {
                for value in [
                    "{a: 5, 1: 6, z: 7}",
                    "[{a: 5}, {a: 6, 0x1: 7}]",
                    ".nan",
                    "~",
                    "[[{q: 1}]]",
                    "{<<: {a: 9}}",
                ] {
                    compare(&format!("{first}: 1\n{second}: {value}\n{third}: 3\n")).unwrap();
                    compare(&format!("{first}: {value}\n{second}: {value}\n{third}: {value}\n")).unwrap();
                    compare(&format!("b: &b {value}\nc:\n  {first}: *b\n  {second}: *b\n  {third}: *b\n"))
                        .unwrap();
                    compare(&format!("<<: {{{first}: 1, {second}: {value}, {third}: 3}}\n{third}: 4\n"))
                        .unwrap();
                }
            }
        }
    }
}

#[test]
fn hostile_texts_are_read_as_the_crate_reads_them() {
    let nested = |levels: usize| format!("{}1{}", "[".repeat(levels), "]".repeat(levels));
    let blocks = |levels: usize| {
        (0..levels).map(|level| format!("{}a:\n", " ".repeat(level))).collect::<Vec<_>>().concat()
    };
    let aliases = |uses: usize| format!("a: &a [1, 2]\nb: [{}]\n", vec!["*a"; uses].join(", "));
    let anchors = |count: usize| (0..count).map(|n| format!("- &a{n} x\n")).collect::<Vec<_>>().concat();
    let wide =
        |items: usize, uses: usize| format!("a: &a [{}]\nb: [{}]\n", "1,".repeat(items), "*a,".repeat(uses));
    for text in [
        nested(63),
        nested(64),
        nested(65),
        nested(300),
        blocks(64),
        blocks(65),
        "- ".repeat(64),
        "- ".repeat(65),
        "- ".repeat(400),
        "? ".repeat(70),
        aliases(99),
        aliases(100),
        aliases(1000),
        aliases(1001),
        anchors(1000),
        anchors(1001),
        wide(997, 9),
        wide(9_997, 9),
        wide(9_998, 9),
        wide(99_000, 1),
        wide(99_999, 1),
        "- 1\n".repeat(MAX_NODES - 1),
        "- 1\n".repeat(MAX_NODES),
        format!("k: &a {}\nl: [{}]\n", "x".repeat(5_000_000), "*a, ".repeat(14)),
        "a: &a [*a]".to_owned(),
        "a: *b".to_owned(),
        "&a a: *a".to_owned(),
        "? &a [1]\n: *a".to_owned(),
        "a: 1\r---\rb: 2\r".to_owned(),
        "a: 1\r...\r} garbage".to_owned(),
        "[1] [2]".to_owned(),
        "a: 1\n b: 2".to_owned(),
        "\"a".to_owned(),
        "a: [1".to_owned(),
        "}".to_owned(),
        "a: b: c".to_owned(),
        "\ta: 1".to_owned(),
        "%YAML 1.1\n--- a".to_owned(),
        "%TAG !e! tag:yaml.org,2002:\n---\n!e!int '1'".to_owned(),
        format!("{}: 1", "k".repeat(1_024)),
        format!("{}: 1", "k".repeat(1_025)),
        "\u{feff}a: 1".to_owned(),
        "a: \u{0}".to_owned(),
        "a: \u{7}".to_owned(),
        "- &a 1\n- &a 2\n- *a".to_owned(),
        "a: |9\n x".to_owned(),
        "{a: &x 1, *x : 2}".to_owned(),
        "<<: *u".to_owned(),
        "a: &a {<<: *a}".to_owned(),
        "<<: &b {1: &a {a: *a}}\n1: {}".to_owned(),
        "? {a: 1}\n: 2".to_owned(),
    ] {
        let outcome = compare(&text).map_err(|error| error.chars().take(600).collect::<String>());
        assert_eq!(outcome, Ok(()));
    }
}

fn pieces() -> impl Strategy<Value = String> {
    let marks = &[
        "\n", "\n  ", "\n    ", ": ", "- ", ", ", "[", "]", "{", "}", "&a ", "*a", "*a ", "&b ", "*b", "? ",
        "<<: ", "a: ",
    ];
    let piece = prop_oneof![
        4 => proptest::sample::select(marks.as_slice()),
        3 => proptest::sample::select(SCALARS),
        1 => proptest::sample::select(TAGS),
    ];
    proptest::collection::vec(piece, 0..24).prop_map(|pieces| pieces.concat())
}

/// Maps and lists that are well formed, so that more than errors is compared.
fn blocks() -> impl Strategy<Value = String> {
    let keys = &["a", "b", "1", "0x1", "\"1\"", "<<", "<<", "!x a", "'~'"];
    let scalar = (
        proptest::sample::select(SCALARS),
        proptest::sample::select(&["", "", "", "!!str ", "&a ", "&b ", "!t "]),
    )
        .prop_map(|(scalar, before)| format!("{before}{scalar}"));
    let leaf = prop_oneof![3 => scalar, 1 => Just("*a".to_owned()), 1 => Just("*b".to_owned())];
    let node = leaf.prop_recursive(4, 24, 4, move |inner| {
        let member = (proptest::sample::select(keys.as_slice()), inner.clone())
            .prop_map(|(key, value)| format!("{key}: {value}"));
        let anchor = || proptest::sample::select(&["", "", "&a ", "&b "]);
        prop_oneof![
            (anchor(), proptest::collection::vec(member, 0..4))
                .prop_map(|(at, all)| format!("{at}{{{}}}", all.join(", "))),
            (anchor(), proptest::collection::vec(inner, 0..4))
                .prop_map(|(at, all)| format!("{at}[{}]", all.join(", "))),
        ]
    });
    proptest::collection::vec((proptest::sample::select(keys.as_slice()), node), 0..5).prop_map(|members| {
        members.iter().map(|(key, value)| format!("{key}: {value}\n")).collect::<Vec<_>>().concat()
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(600))]

    #[test]
    fn random_texts_are_read_as_the_crate_reads_them(text in prop_oneof![pieces(), blocks(), "\\PC{0,40}"]) {
        compare_with(&text, false).map_err(TestCaseError::fail)?;
    }
}
