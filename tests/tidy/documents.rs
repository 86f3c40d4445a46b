//! What the pages for operators promise: the index lists them all, links lead somewhere, messages are the program's own.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use super::phrases::phrases;
use super::table::OTHERS_WORDS;
use super::tree::{files, relative, repository};

/// Whose tables of messages are compared with the program.
const PAGES_OF_MESSAGES: [&str; 3] = ["docs/troubleshooting.md", "docs/networking.md", "docs/secrets.md"];

/// Columns of a line of prose.
const LONG_LINE: usize = 120;

/// Characters of prose in a cell of a table.
const LONG_CELL: usize = 160;

fn read(name: &str) -> String {
    fs::read_to_string(repository().join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Every page that is ours, from the repository's root.
fn pages() -> Vec<String> {
    let all = files(repository()).into_iter().map(|path| relative(&path));
    all.filter(|name| Path::new(name).extension().is_some_and(|ending| ending == "md"))
        .filter(|name| !name.starts_with('.'))
        .collect()
}

/// The text before the first code in backticks, of any number of them, the code, and what follows it.
fn split_at_code(text: &str) -> Option<(&str, &str, &str)> {
    let (before, rest) = text.split_at(text.find('`')?);
    let (ticks, after) = rest.split_at(rest.len() - rest.trim_start_matches('`').len());
    let (code, after) = after.split_once(ticks)?;
    Some((before, code, after))
}

/// The text between backticks.
fn quoted(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some((_, code, after)) = split_at_code(rest) {
        found.push(code.trim());
        rest = after;
    }
    found
}

/// A text without code in backticks and without the targets of links.
fn plain(text: &str) -> String {
    let mut without_code = String::new();
    let mut rest = text;
    while let Some((before, _, after)) = split_at_code(rest) {
        without_code.push_str(before);
        rest = after;
    }
    without_code.push_str(rest);
    let mut parts = without_code.split("](");
    let mut found = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        found.push(']');
        found.push_str(part.split_once(')').map_or(part, |(_, after)| after));
    }
    found
}

/// Lines outside of fenced blocks.
fn prose(text: &str) -> impl Iterator<Item = &str> {
    let mut is_code = false;
    text.lines().filter(move |line| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    })
}

fn cells(line: &str) -> Vec<&str> {
    line.trim().trim_matches('|').split('|').map(str::trim).collect()
}

/// What stands in the columns called `message`, in backticks.
fn messages(page: &str) -> Vec<&str> {
    let lines: Vec<&str> = prose(page).collect();
    let mut found = Vec::new();
    let mut column = None;
    for (number, line) in lines.iter().enumerate() {
        if !line.starts_with('|') {
            column = None;
        } else if lines.get(number + 1).is_some_and(|next| next.starts_with("|---")) {
            column = cells(line).iter().position(|cell| cell.starts_with("message"));
        } else if let Some(column) = column {
            found.extend(cells(line).get(column).into_iter().flat_map(|cell| quoted(cell)));
        }
    }
    found
}

/// The program's text, with its strings as they are printed: continued lines joined, quotes without backslashes.
fn program() -> String {
    let mut text = String::new();
    for path in files(&repository().join("src")) {
        let name = relative(&path);
        if name.ends_with("/tests.rs") || name.ends_with("_tests.rs") || name.contains("/tests/") {
            continue;
        }
        let Ok(source) = fs::read_to_string(&path) else { continue };
        let source = source.split("#[cfg(test)]\nmod tests {").next().unwrap_or_default();
        let mut lines = source.lines();
        while let Some(line) = lines.next() {
            let mut line = line.to_owned();
            while let Some(begun) = line.strip_suffix('\\') {
                line = format!("{begun}{}", lines.next().unwrap_or_default().trim_start());
            }
            text.push_str(&line.replace("\\\"", "\""));
            text.push('\n');
        }
    }
    text
}

/// The first part of a message that the program does not have; `...` stands for what differs.
fn unknown_part<'a>(message: &'a str, program: &str) -> Option<&'a str> {
    let mut parts = message.split("...").map(str::trim).filter(|part| part.len() > 1).peekable();
    if parts.peek().is_none() {
        return Some(message);
    }
    parts.find(|part| !program.contains(part))
}

/// A heading's anchor, as the usual viewers make it.
fn anchor(heading: &str) -> String {
    let kept = heading.trim().chars().filter(|one| one.is_alphanumeric() || [' ', '-', '_'].contains(one));
    kept.flat_map(char::to_lowercase).map(|one| if one == ' ' { '-' } else { one }).collect()
}

fn anchors(text: &str) -> BTreeSet<String> {
    let headings = prose(text).filter(|line| line.starts_with('#'));
    headings.map(|line| anchor(line.trim_start_matches('#'))).collect()
}

/// The targets of a page's links, `[...](target)`.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        for after in line.split("](").skip(1) {
            found.extend(after.split(')').next().map(str::to_owned));
        }
    }
    found
}

/// What is wrong with one link of a page.
fn broken(page: &str, link: &str) -> Option<String> {
    if link.contains("://") || link.starts_with("mailto:") {
        return None;
    }
    let (file, part) = link.split_once('#').unwrap_or((link, ""));
    let here = repository().join(page);
    let target = if file.is_empty() { here } else { here.parent()?.join(file) };
    if !target.exists() {
        return Some(format!("{page}: ({link}): there is no such file"));
    }
    if part.is_empty() || target.extension().is_none_or(|ending| ending != "md") {
        return None;
    }
    let text = fs::read_to_string(&target).ok()?;
    (!anchors(&text).contains(part)).then(|| format!("{page}: ({link}): there is no such heading"))
}

/// A page's paragraphs; a phrase may continue on the next line. Headings are left out, as links name them.
fn paragraphs(text: &str) -> Vec<String> {
    let lines: Vec<&str> = prose(text).map(|line| if line.starts_with('#') { "" } else { line }).collect();
    lines.split(|line| line.trim().is_empty()).map(|lines| lines.join("\n")).collect()
}

/// What is hard to read on a page: long lines, long cells, banned phrases.
fn unreadable(page: &str, text: &str) -> Vec<String> {
    let mut found = Vec::new();
    for line in prose(text) {
        if line.trim_start().starts_with('|') {
            let line = plain(line);
            let cells = line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']));
            let long = cells.filter(|cell| cell.chars().count() > LONG_CELL);
            found.extend(long.map(|cell| format!("{page}: more than {LONG_CELL} characters: {cell}")));
        } else if line.chars().count() > LONG_LINE {
            found.push(format!("{page}: more than {LONG_LINE} columns: {line}"));
        }
    }
    for paragraph in paragraphs(text) {
        let paragraph = plain(&paragraph);
        found.extend(phrases(&paragraph).map(|phrase| format!("{page}: `{phrase}` in {paragraph}")));
    }
    found
}

#[test]
fn pages_have_short_lines_short_cells_and_no_banned_phrase() {
    let found: Vec<String> = pages().iter().flat_map(|page| unreadable(page, &read(page))).collect();
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn the_index_lists_every_page() {
    let index = read("docs/index.md");
    for page in pages() {
        let Some(name) = page.strip_prefix("docs/") else { continue };
        if name.starts_with("adr/") && name != "adr/README.md" || name == "index.md" {
            continue;
        }
        assert!(index.contains(&format!("]({name})")), "docs/index.md does not list {name}");
    }
}

#[test]
fn every_link_leads_to_a_file_and_a_heading() {
    let mut found = Vec::new();
    for page in pages() {
        let text = read(&page);
        found.extend(links(&text).iter().filter_map(|link| broken(&page, link)));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}

#[test]
fn every_message_on_the_pages_is_one_of_the_program() {
    let (pages, program) = (PAGES_OF_MESSAGES.map(read).join("\n"), program());
    let messages = messages(&pages);
    assert!(messages.len() > 150, "only {} messages are found", messages.len());
    let is_others = |message: &str| OTHERS_WORDS.iter().any(|(words, _)| message == *words);
    let unknown: Vec<String> = messages
        .iter()
        .filter(|message| !is_others(message))
        .filter_map(|message| {
            Some(format!("`{message}`: not in src: {:?}", unknown_part(message, &program)?))
        })
        .collect();
    assert!(unknown.is_empty(), "{}", unknown.join("\n"));
    for (words, whose) in OTHERS_WORDS {
        assert!(messages.contains(words), "`{words}` ({whose}) is not on the page any more");
    }
}

/// The string that `text` begins with.
fn string_after(text: &str) -> Option<&str> {
    text.trim_start().strip_prefix('"')?.split('"').next()
}

/// What the program logs for somebody to read: the last string of each `warn!` and `error!`.
fn logged(program: &str) -> BTreeSet<&str> {
    let calls = ["warn!(", "error!("].into_iter().flat_map(|call| program.split(call).skip(1));
    let calls = calls.filter_map(|call| call.split("\");").next()).filter(|call| !call.contains(";\n"));
    let texts = calls.filter_map(|call| call.rsplit('"').next());
    texts.filter(|text| text.starts_with(char::is_uppercase) && !text.contains(['{', '\n'])).collect()
}

#[test]
fn every_logged_warning_and_event_reason_is_documented() {
    let (page, program) = (read("docs/troubleshooting.md"), program());
    let logged = logged(&program);
    assert!(logged.len() > 50, "only {} lines of the log are found", logged.len());
    let reasons = ["EventType::Warning,", "EventType::Normal,"]
        .into_iter()
        .flat_map(|kind| program.split(kind).skip(1).filter_map(string_after));
    let reasons: BTreeSet<&str> = reasons.filter(|reason| !reason.contains(' ')).collect();
    assert!(reasons.len() > 15, "only {} reasons are found", reasons.len());
    let missing: Vec<&str> =
        logged.into_iter().chain(reasons).filter(|text| !page.contains(&format!("`{text}`"))).collect();
    assert!(missing.is_empty(), "docs/troubleshooting.md does not have:\n{}", missing.join("\n"));
}

#[test]
fn the_checks_of_documents_find_what_they_are_for() {
    assert_eq!(quoted("a `b` and `` c `d` e ``, `f"), ["b", "c `d` e"]);
    let page = "| status | message | do |\n|---|---|---|\n| `A` | `b ...`, `c` | `d` |\n| `e` | | `f` |\n\n| x |\n|---|\n| `y` |\n";
    assert_eq!(messages(page), ["b ...", "c"]);
    assert_eq!(plain("see [`a`](b.md#c) or ``d ` e`` at [f](g), `h"), "see [] or  at [f], `h");
    let hard_to_read = |text: &str| unreadable("a.md", text).len();
    let (line, cell) = ("\u{e9}".repeat(LONG_LINE), "\u{e9}".repeat(LONG_CELL));
    assert_eq!(hard_to_read(&format!("{line}\n{line}.\n```\n{line}.\n```")), 1);
    assert_eq!(
        hard_to_read(&format!("| a | {cell} |\n| {cell}`{cell}` | [a]({cell}) |\n| {cell}. | a |")),
        1
    );
    assert_eq!(hard_to_read("# Nobody\n\nIt is\n  told `nobody` anew.\n\nlet\n\ngo\n```\nwhoever\n```"), 2);
    assert_eq!(unknown_part("no ... is here", "there is no {name} is here"), None);
    assert_eq!(unknown_part("no ... was here", "there is no {name} is here"), Some("was here"));
    assert_eq!(unknown_part("...", "..."), Some("..."));
    assert_eq!(anchor(" `agent init`, and what it does "), "agent-init-and-what-it-does");
    assert_eq!(links("see [a](b.md#c) and\n```\n[x](y)\n```\n[d](e)"), ["b.md#c", "e"]);
    let program = "warn!(err:% = why(&it); \"It failed\");\nerror!(\"{line}\");\nwarn!(\"At once\");";
    assert_eq!(logged(program), BTreeSet::from(["At once", "It failed"]));
    assert!(broken("docs/index.md", "manifests.md#volumes").is_none());
    assert!(broken("docs/index.md", "manifests.md#no-such-heading").is_some());
    assert!(broken("docs/index.md", "no-such-page.md").is_some());
}

/// A name that selects nothing would leave out a test in silence.
#[test]
fn emulated_test_list_names_existing_tests() {
    let check = read("packaging/check");
    let listed = |name: &&str| name.starts_with("process::") && name.len() > "process::".len();
    let names: Vec<&str> = check.lines().map(str::trim).filter(listed).collect();
    assert!(names.len() > 10, "the list is not where it was: {names:?}");
    for name in names {
        let (module, test) = name["process::".len()..].split_once("::").expect("process::MODULE::TEST");
        let source = read(&format!("tests/process/{module}.rs"));
        assert!(source.contains(&format!("#[test]\nfn {test}")), "packaging/check names {name}");
    }
}

/// A filter that selects no test would leave one out of CI, or run none on containerd, without a word.
#[test]
fn the_part_of_the_tests_for_ci_names_tests_that_exist() {
    let settings = read(".config/nextest.toml");
    let filter = settings.split("[profile.ci]").nth(1).and_then(|text| text.split("\"\"\"").nth(1));
    let filter = filter.expect("profile ci has a default-filter of several lines");
    let scenarios: String =
        files(&repository().join("tests/pods")).iter().map(|path| read(&relative(path))).collect();
    let names: Vec<&str> =
        filter.split("test(/::").skip(1).filter_map(|rest| rest.split("$/)").next()).collect();
    assert!(names.len() > 10, "the list is not where it was: {names:?}");
    for name in names {
        assert!(scenarios.contains(name), ".config/nextest.toml names {name}, which is no scenario");
    }
    let modules = filter.split("test(/^pods::(").nth(1).and_then(|rest| rest.split(')').next());
    for module in modules.expect("whole modules are listed").split('|') {
        assert!(
            repository().join(format!("tests/pods/{module}.rs")).is_file(),
            ".config/nextest.toml: {module}"
        );
    }
}
