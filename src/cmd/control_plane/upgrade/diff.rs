//! The difference of two texts in the unified form.
//!
//! Pure: texts in, a text out.

use std::fmt::Write as _;

/// A table of lines against lines is not made larger than this; what differs is shown as a whole then.
const MOST_CELLS: usize = 4_000_000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Side {
    Both,
    Old,
    New,
}

/// Lines around each difference are `context`. Empty: the texts are equal.
pub(super) fn unified((from, old): (&str, &str), (to, new): (&str, &str), context: usize) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (old.lines().collect(), new.lines().collect());
    let script = script(&old, &new);
    let changed: Vec<usize> =
        script.iter().enumerate().filter(|(_, (side, _))| *side != Side::Both).map(|(at, _)| at).collect();
    let mut text = String::new();
    let mut rest = changed.as_slice();
    while let Some(first) = rest.first() {
        // Differences whose contexts touch are one hunk.
        let together = rest.windows(2).take_while(|pair| pair[1] - pair[0] <= 2 * context + 1).count();
        let start = first.saturating_sub(context);
        let end = (rest[together] + context + 1).min(script.len());
        rest = &rest[together + 1..];
        if text.is_empty() {
            let _ = writeln!(text, "--- {from}\n+++ {to}");
        }
        let lines = |side: Side, part: &[(Side, &str)]| {
            part.iter().filter(|(of, _)| *of == side || *of == Side::Both).count()
        };
        let range = |side: Side| {
            let before = lines(side, &script[..start]);
            match lines(side, &script[start..end]) {
                0 => format!("{before},0"),
                1 => (before + 1).to_string(),
                count => format!("{},{count}", before + 1),
            }
        };
        let _ = writeln!(text, "@@ -{} +{} @@", range(Side::Old), range(Side::New));
        for (side, line) in &script[start..end] {
            let mark = match side {
                Side::Both => ' ',
                Side::Old => '-',
                Side::New => '+',
            };
            let _ = writeln!(text, "{mark}{line}");
        }
    }
    text
}

/// All lines in order, each with whose it is; the longest common subsequence is both's.
fn script<'a>(old: &[&'a str], new: &[&'a str]) -> Vec<(Side, &'a str)> {
    let begin = old.iter().zip(new).take_while(|(one, other)| one == other).count();
    let (head, old, new) = (&old[..begin], &old[begin..], &new[begin..]);
    let end = old.iter().rev().zip(new.iter().rev()).take_while(|(one, other)| one == other).count();
    let (old, tail) = old.split_at(old.len() - end);
    let new = &new[..new.len() - end];
    let mut script: Vec<_> = head.iter().map(|line| (Side::Both, *line)).collect();
    let width = new.len() + 1;
    let is_small = (old.len() + 1).saturating_mul(width) <= MOST_CELLS;
    // How long the common subsequence of the rests is.
    let mut lengths = vec![0_u32; if is_small { (old.len() + 1) * width } else { 0 }];
    if is_small {
        for one in (0..old.len()).rev() {
            for other in (0..new.len()).rev() {
                lengths[one * width + other] = if old[one] == new[other] {
                    lengths[(one + 1) * width + other + 1] + 1
                } else {
                    lengths[(one + 1) * width + other].max(lengths[one * width + other + 1])
                };
            }
        }
    }
    let (mut one, mut other) = (0, 0);
    while one < old.len() || other < new.len() {
        let is_common = is_small && one < old.len() && other < new.len() && old[one] == new[other];
        let takes_old = one < old.len()
            && (other == new.len()
                || !is_small
                || lengths[(one + 1) * width + other] >= lengths[one * width + other + 1]);
        if is_common {
            script.push((Side::Both, old[one]));
            (one, other) = (one + 1, other + 1);
        } else if takes_old {
            script.push((Side::Old, old[one]));
            one += 1;
        } else {
            script.push((Side::New, new[other]));
            other += 1;
        }
    }
    script.extend(tail.iter().map(|line| (Side::Both, *line)));
    script
}

#[cfg(test)]
mod tests {
    use super::*;

    fn lines(numbers: &[u32]) -> String {
        numbers.iter().flat_map(|number| [number.to_string(), "\n".to_owned()]).collect()
    }

    #[test]
    fn equal_texts_have_no_difference() {
        assert_eq!(unified(("a", "x\ny\n"), ("b", "x\ny\n"), 3), "");
        assert_eq!(unified(("a", ""), ("b", ""), 3), "");
    }

    #[test]
    fn a_changed_line_has_its_context() {
        let old = lines(&[1, 2, 3, 4, 5, 6, 7, 8, 9]);
        let new = old.replace("5\n", "five\n");
        assert_eq!(
            unified(("old", &old), ("new", &new), 2),
            "--- old\n+++ new\n@@ -3,5 +3,5 @@\n 3\n 4\n-5\n+five\n 6\n 7\n"
        );
        assert_eq!(unified(("old", &old), ("new", &new), 0), "--- old\n+++ new\n@@ -5 +5 @@\n-5\n+five\n");
    }

    #[test]
    fn differences_far_apart_are_hunks_of_their_own() {
        let old = lines(&(1..=30).collect::<Vec<_>>());
        let new = old.replace("\n2\n", "\n").replace("\n28\n", "\n28\nmore\n");
        let text = unified(("a", &old), ("b", &new), 3);
        assert!(text.contains("@@ -1,5 +1,4 @@\n 1\n-2\n 3\n"), "{text}");
        assert!(text.contains("@@ -26,5 +25,6 @@\n 26\n 27\n 28\n+more\n 29\n 30\n"), "{text}");
        // Near each other, they are one.
        let near = old.replace("\n2\n", "\n").replace("\n9\n", "\n");
        assert_eq!(unified(("a", &old), ("b", &near), 3).matches("@@ -").count(), 1);
    }

    #[test]
    fn what_was_empty_is_new_as_a_whole() {
        assert_eq!(unified(("a", ""), ("b", "x\n"), 3), "--- a\n+++ b\n@@ -0,0 +1 @@\n+x\n");
        assert_eq!(unified(("a", "x\ny\n"), ("b", ""), 3), "--- a\n+++ b\n@@ -1,2 +0,0 @@\n-x\n-y\n");
    }

    /// What is both's and the old text's is the old text, whatever the texts are; likewise of the new one.
    #[test]
    fn a_script_has_both_texts() {
        let mut seed = 7_u32;
        let mut next = || {
            seed = seed.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            seed >> 16
        };
        for _ in 0..200 {
            let mut text =
                || (0..next() % 12).map(|_| ["a", "b", "c"][(next() % 3) as usize]).collect::<Vec<_>>();
            let (old, new) = (text(), text());
            let script = script(&old, &new);
            let of = |side| -> Vec<&str> {
                script
                    .iter()
                    .filter(|(of, _)| *of == side || *of == Side::Both)
                    .map(|(_, line)| *line)
                    .collect()
            };
            assert_eq!((of(Side::Old), of(Side::New)), (old, new));
        }
    }
}
