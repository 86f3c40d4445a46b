//! The documentation's table of all settings, made from the tables of the code.

use std::fmt::Write as _;

use super::*;

/// One row for each field, flag and feature gate.
fn page() -> String {
    let silent = resolved(&[]);
    let defaults = silent.document();
    let mut text = String::from("| field | flag | default | effect |\n|---|---|---|---|\n");
    let cell = |text: &str| text.replace('|', "\\|");
    let code = |text: &str| if text.is_empty() { String::new() } else { format!("`{text}`") };
    for field in fields::FIELDS {
        let default =
            tree::get(&defaults, field.path).map_or_else(|| "unset".to_owned(), ToString::to_string);
        let effect = match effects::of(field.path) {
            Some(row) => row.told(),
            None if field.is_reloaded() => "acts, at once".to_owned(),
            None => "acts, from the next start".to_owned(),
        };
        let flag = if field.flag.is_empty() { String::new() } else { format!("--{}", field.flag) };
        let (flag, default) = (code(&flag), code(&default));
        writeln!(text, "| `{}` | {flag} | {} | {} |", field.path, cell(&default), cell(&effect)).unwrap();
    }
    text.push_str("\n## Flags without a field\n\n| flag | default | effect |\n|---|---|---|\n");
    for flag in flags::FLAGS {
        let name = format!("--{}", flag.name);
        let effect = match (effects::of(&name), flag.family) {
            (Some(row), _) => row.told(),
            (None, flags::Family::Cadvisor) => "none, with a warning: a flag of cAdvisor".to_owned(),
            (None, _) => "acts".to_owned(),
        };
        writeln!(text, "| `{name}` | {} | {} |", cell(&code(flag.default)), cell(&effect)).unwrap();
    }
    text.push_str("\n## Removed flags\n\n| flag | what is said |\n|---|---|\n");
    for removed in flags::REMOVED {
        let kind = if removed.fatal { "refused" } else { "ignored with a warning" };
        writeln!(text, "| `--{}` | {kind}: {} |", removed.name, removed.advice).unwrap();
    }
    text.push_str("\n## Feature gates\n\n| gate | default | effect |\n|---|---|---|\n");
    for (name, on) in gates::all() {
        let effect = if gates::is_fixed(name) { "locked to its default here" } else { "acts" };
        writeln!(text, "| `{name}` | {on} | {effect}{} |", gates::note(name)).unwrap();
    }
    text.push_str("\n## Feature gates of other components\n\nAccepted with a warning:\n\n");
    let mut width = 0;
    for name in gates::others() {
        let room = 115_usize.saturating_sub(name.len());
        let separator = match width {
            0 => "",
            wide if wide > room => ",\n",
            _ => ", ",
        };
        width = if separator == ",\n" { 0 } else { width + separator.len() } + name.len() + 2;
        write!(text, "{separator}`{name}`").unwrap();
    }
    text.push('\n');
    text
}

#[test]
fn settings_page_is_what_the_code_says() {
    let made = page();
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("docs/settings.md");
    let written = std::fs::read_to_string(path).unwrap();
    let (_, table) = written.split_once("## Fields\n\n").expect("the page has its table");
    assert!(table == made, "docs/settings.md differs; below \"## Fields\" it has to be:\n\n{made}");
}
