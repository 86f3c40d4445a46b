//! Items are as private as their uses. The compiler reports unused code only among items that the crate keeps to itself.

use std::fs;

use super::tree::{files, repository};

/// Percent of the items with a visibility that are plain `pub`: those that `tests` and the program use, and the wire types.
const MOST_PLAIN_PUB: usize = 25;

/// Items of `text` that are plain `pub`, and those that are visible in a part of the crate.
fn visible(text: &str) -> (usize, usize) {
    const ITEMS: [&str; 13] = [
        "fn", "struct", "enum", "trait", "type", "static", "const", "union", "use", "mod", "async", "unsafe",
        "extern",
    ];
    let declared = text.lines().filter_map(|line| {
        let rest = line.trim_start().strip_prefix("pub")?;
        let (scope, rest) = match rest.strip_prefix('(') {
            Some(inner) => (true, inner.split_once(')')?.1),
            None => (false, rest),
        };
        ITEMS.contains(&rest.split_whitespace().next()?).then_some(scope)
    });
    declared
        .fold((0, 0), |(plain, scoped), scope| if scope { (plain, scoped + 1) } else { (plain + 1, scoped) })
}

#[test]
fn few_items_are_visible_outside_of_the_crate() {
    let (mut plain, mut scoped) = (0, 0);
    for path in files(&repository().join("src")) {
        if path.extension().is_none_or(|extension| extension != "rs") {
            continue;
        }
        let (more, others) = visible(&fs::read_to_string(&path).expect("read a source file"));
        (plain, scoped) = (plain + more, scoped + others);
    }
    let percent = plain * 100 / (plain + scoped);
    assert!(
        percent <= MOST_PLAIN_PUB,
        "{percent} % of the items are plain `pub` ({plain} of {}), at most {MOST_PLAIN_PUB} % may be: write \
         `pub(super)`, `pub(in crate::ROOM)` or `pub(crate)`",
        plain + scoped
    );
}

#[test]
fn visibilities_are_counted() {
    let sample = "pub fn a() {}\n    pub(super) async fn b() {}\npub(in crate::pod) struct C {\n    pub field: u8,\n}\npub use d::E;\n";
    assert_eq!(visible(sample), (2, 2));
}
