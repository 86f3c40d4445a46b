//! The nearest known word to a mistyped one.
//!
//! Owns the distance and how near is near. Must not know what the words mean.

/// Longer words than this are not mistyped flags.
const MAX_WORD: usize = 64;

/// The known word a typist probably meant; `None` when nothing is near.
pub(super) fn nearest<'a>(word: &str, known: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    if word.is_empty() || word.len() > MAX_WORD {
        return None;
    }
    let near = (word.chars().count() / 3).clamp(1, 3);
    known
        .map(|candidate| (distance(word, candidate), candidate))
        .filter(|(far, _)| *far <= near)
        .min()
        .map(|(_, name)| name)
}

/// Edits between two words; case counts, and swapping neighbours is one edit.
fn distance(left: &str, right: &str) -> usize {
    let (left, right): (Vec<char>, Vec<char>) = (left.chars().collect(), right.chars().collect());
    let mut before: Vec<usize> = Vec::new();
    let mut last: Vec<usize> = (0..=right.len()).collect();
    for (row, a) in left.iter().enumerate() {
        let mut current = vec![row + 1];
        for (column, b) in right.iter().enumerate() {
            let replace = last[column] + usize::from(a != b);
            let mut best = replace.min(last[column + 1] + 1).min(current[column] + 1);
            if row > 0 && column > 0 && *a == right[column - 1] && left[row - 1] == *b {
                best = best.min(before[column - 1] + 1);
            }
            current.push(best);
        }
        before = std::mem::replace(&mut last, current);
    }
    last[right.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slip_of_the_finger_finds_its_word_and_noise_finds_none() {
        let words = ["pod-manifest-path", "port", "status", "get"];
        for (typed, meant) in [
            ("pod-manifest-pth", Some("pod-manifest-path")),
            ("pod-manfiest-path", Some("pod-manifest-path")),
            ("staus", Some("status")),
            ("prot", Some("port")),
            ("zebra", None),
            ("", None),
        ] {
            assert_eq!(nearest(typed, words.iter().copied()), meant, "{typed}");
        }
    }
}
