//! Phrases that user-facing text avoids: string literals of the program, descriptions of the API's schema,
//! and the pages (`documents`).

use std::fs;
use std::path::Path;

use super::lexer::strings;
use super::tree::{files, relative, repository};

/// The field has plainer words for these.
const BANNED_PHRASES: [&str; 9] =
    ["anew", "going on with", "is told", "is wanted", "let go", "looked at", "nobody", "somebody", "whoever"];

/// The words of a text in lower case with one space around each; escapes and continued lines separate words.
fn words(text: &str) -> String {
    let text = text.replace("\\n", " ").replace("\\t", " ").to_lowercase();
    let words = text.split(|character: char| !character.is_alphabetic()).filter(|word| !word.is_empty());
    format!(" {} ", words.collect::<Vec<_>>().join(" "))
}

/// The banned phrases in a text.
pub fn phrases(text: &str) -> impl Iterator<Item = &'static str> {
    let words = words(text);
    BANNED_PHRASES.into_iter().filter(move |phrase| words.contains(&format!(" {phrase} ")))
}

/// The user-facing texts of a file of `src`: its string literals outside of tests, or the lines of a schema.
fn texts<'text>(name: &str, source: &'text str) -> Vec<&'text str> {
    let ends_in = |ending: &str| Path::new(name).extension().is_some_and(|extension| extension == ending);
    let is_test = name.ends_with("/tests.rs") || name.ends_with("_tests.rs") || name.contains("/tests/");
    if ends_in("txt") {
        source.lines().collect()
    } else if ends_in("rs") && !is_test {
        strings(source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default())
    } else {
        Vec::new()
    }
}

#[test]
fn messages_and_schema_descriptions_have_no_banned_phrase() {
    let mut found = Vec::new();
    for path in files(&repository().join("src")) {
        let name = relative(&path);
        let Ok(source) = fs::read_to_string(&path) else { continue };
        for text in texts(&name, &source) {
            found.extend(phrases(text).map(|phrase| format!("{name}: `{phrase}` in {text}")));
        }
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn banned_phrases_match_whole_words_only() {
    let found = |name: &str, source: &str| -> usize {
        texts(name, source).iter().map(|text| phrases(text).count()).sum()
    };
    assert_eq!(found("src/a.rs", "fn f() { g(\"Nobody\\nis \\\n   told\") } // anew"), 2);
    assert_eq!(found("src/a.rs", "g(\"\\nanew, renewed\");\n#[cfg(test)]\nmod tests { h(\"let go\") }"), 1);
    assert_eq!(found("src/a/tests.rs", "g(\"nobody\")"), 0);
    assert_eq!(found("src/api/a.txt", " field string: Looked at by whoever asks."), 2);
}
