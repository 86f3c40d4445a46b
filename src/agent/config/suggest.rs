//! The nearest known word to a mistyped one.
//!
//! Owns the distance limit.

use crate::model::api::schema::nearest::distance;

/// Longer words are not compared.
const MAX_WORD: usize = 64;

/// The most similar known word; `None` when none is similar.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn typo_suggests_the_nearest_name_and_noise_suggests_none() {
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
