use serde_json::json;

use super::*;

fn one(text: &str) -> Value {
    let mut values = yaml_to_values(text, true).unwrap();
    assert_eq!(values.len(), 1, "{values:?}");
    values.remove(0)
}

fn refusal(text: &str) -> YamlError {
    yaml_to_values(text, false).unwrap_err()
}

#[test]
fn scalars_mean_what_they_mean_to_kubernetes() {
    let value = one(
        "mode: 0644\non_: yes\noff_: off\nquoted: \"0644\"\nnine: 08\nthousand: 1e3\nhalf: 0.5\nnone: ~\n",
    );
    let expected = json!({
        "mode": 420, "on_": true, "off_": false, "quoted": "0644", "nine": 8, "thousand": 1000, "half": 0.5,
        "none": null,
    });
    assert_eq!(value, expected);
}

/// Where YAML parsers disagree, pinned: a newer version of the parser must not change what a manifest means
/// unnoticed.
#[test]
fn unusual_scalar_spellings_parse_to_pinned_values() {
    for (text, expected) in [
        ("0x1F", json!(31)),
        ("0b11", json!(3)),
        ("1_000", json!(1000)),
        ("-0644", json!(-420)),
        ("0888", json!(888)),
        ("1:30", json!("1:30")),
        ("2001-01-01", json!("2001-01-01")),
        ("1.5Gi", json!("1.5Gi")),
        ("5.", json!(5)),
        ("y", json!(true)),
        ("N", json!(false)),
        ("NULL", Value::Null),
        ("!!str 5", json!("5")),
        ("!local x", json!("x")),
        ("!!binary aGk=", json!("hi")),
        ("18446744073709551615", json!(u64::MAX)),
        ("18446744073709551616", json!(18_446_744_073_709_551_616.0)),
    ] {
        assert_eq!(one(&format!("a: {text}\n"))["a"], expected, "{text}");
    }
}

#[test]
fn merge_keys_are_merged_and_own_keys_win() {
    let value = one("base: &base {a: 1, b: 2}\nuse:\n  <<: *base\n  b: 3\n");
    assert_eq!(value["use"], json!({"a": 1, "b": 3}));
}

#[test]
fn surrogate_pairs_written_as_escapes_become_one_character() {
    assert_eq!(one(r#"a: "\ud83d\ude00""#), json!({"a": "\u{1f600}"}));
}

#[test]
fn escaped_apostrophe_is_accepted_in_double_quotes_only() {
    for (text, expected) in [
        (r#"a: "it\'s" # don\'t"#, json!("it's")),
        (r#"a: ["x", "\'1\'", "\'\\\"\u0041\'"]"#, json!(["x", "'1'", "'\\\"A'"])),
        ("a: |\n  it\\'s\n", json!("it\\'s\n")),
        (r"a: it\'s", json!(r"it\'s")),
        ("b: ä\na: [ä, \"ä\\'ä\n   z\"]", json!(["ä", "ä'ä z"])),
    ] {
        assert_eq!(one(text)["a"], expected, "{text}");
    }
    let unknown = r#"a: "\'\q""#;
    assert!(refusal(unknown).message.contains("unknown escape"), "{:?}", refusal(unknown));
    assert_eq!(refusal(r#"a: "\'"#).line, 1);
    let many = format!("[{}]", r#""\'","#.repeat(10_000));
    assert!(refusal(&many).message.contains("unknown escape"));
}

#[test]
fn documents_are_cut_at_markers_and_empty_ones_are_skipped() {
    let text =
        "# head\n%YAML 1.1\n---\n# nothing\n---\na: |\n  text\n...\n# between\n---\n---\nb: 2\n--- {c: 3}\n";
    let numbers: Vec<(usize, Value)> =
        yaml_documents(text).map(|document| (document.number, document.value.unwrap())).collect();
    assert_eq!(numbers, [(1, json!({"a": "text\n"})), (2, json!({"b": 2})), (3, json!({"c": 3}))]);
    assert_eq!(yaml_to_values("\u{feff}a: 1\r\n---\r\nb: 2\r\n", true).unwrap().len(), 2);
    assert!(yaml_documents("# only\n---\n~\n---\n\n").next().is_none());
}

#[test]
fn dashes_inside_a_block_scalar_do_not_end_the_document() {
    let value = one("a: |\n  ---\n  x\nb: |2\n   ----\n");
    assert_eq!(value, json!({"a": "---\nx\n", "b": " ----\n"}));
}

#[test]
fn broken_document_reports_its_line_and_spares_the_others() {
    let documents: Vec<YamlDocument> = yaml_documents("a: 1\n---\nb: 1\nc: [\n---\nd: 1\n").collect();
    assert!(documents[0].value.is_ok() && documents[2].value.is_ok());
    let error = documents[1].value.clone().unwrap_err();
    assert!(error.line >= 3, "{error}");
    assert!(error.to_string().starts_with("line "), "{error}");
    assert!(!error.message.contains("at line"), "{error}");
}

#[test]
fn duplicate_key_fails_when_strict_and_else_the_last_wins() {
    let error = yaml_to_values("x: 0\na: 1\na: 2\n", true).unwrap_err();
    assert_eq!(error.to_string(), "line 3, column 1: duplicate key \"a\"");
    assert_eq!(yaml_to_values("x: 0\na: 1\na: 2\n", false).unwrap(), [json!({"x": 0, "a": 2})]);
    let document = yaml_documents("a: 1\na: 2\n").next().unwrap();
    assert_eq!(document.value.unwrap(), json!({"a": 2}));
    assert_eq!(document.warnings, ["line 2, column 1: duplicate key \"a\"; the last one is used"]);
}

#[test]
fn bombs_are_refused_at_once() {
    let mut laughs = "a: &a [x, x, x, x, x, x, x, x, x, x]\n".to_owned();
    for (name, before) in ["b", "c", "d", "e", "f", "g", "h", "i"].iter().zip("abcdefgh".chars()) {
        let uses = vec![format!("*{before}"); 10].join(", ");
        laughs += &[name, ": &", name, " [", &uses, "]\n"].concat();
    }
    let keys: Vec<String> = (0..300_000).map(|n| format!("k{n}: 1\n")).collect();
    let anchors: Vec<String> = (0..50_000).map(|n| format!("- &a{n} x\n")).collect();
    let started = std::time::Instant::now();
    for (what, text) in [
        ("laughs", laughs),
        ("deep maps", "{a: ".repeat(50_000)),
        ("deep lists", "[".repeat(100_000)),
        ("deep blocks", "- ".repeat(50_000)),
        ("deep keys", "? ".repeat(50_000)),
        ("keys", keys.concat()),
        ("anchors", anchors.concat()),
        ("itself", "a: &a [*a]".to_owned()),
        ("documents", "a: 1\n---\n".repeat(10_000)),
        ("not a number", "a: .nan".to_owned()),
        ("unknown alias", "a: *b".to_owned()),
    ] {
        let error = refusal(&text);
        assert!(!error.message.is_empty(), "{what}");
    }
    println!("all bombs: {:?}", started.elapsed());
    assert!(started.elapsed() < std::time::Duration::from_secs(60));
}
