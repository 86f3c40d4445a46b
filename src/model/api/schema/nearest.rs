//! The known name that is closest to a mistyped one.
//!
//! Owns the distance between words, and the field that an unknown name probably stands for. Pure.

use super::Type;

/// A name with more typing errors is another word.
const MAX_ERRORS: usize = 2;
/// A shorter prefix is too ambiguous.
const SHORTEST_BEGINNING: usize = 3;

impl<'s> Type<'s> {
    /// The field that a name which this type does not have stands for: the same letters in another case, else
    /// at most two typing errors away, else the only one of which the name is a longer or a shorter form
    /// (`enviroment`: `env`).
    #[must_use]
    pub fn closest_field(self, name: &str) -> Option<&'s str> {
        let fields = || self.fields().map(|field| field.name);
        if let Some(same) = fields().find(|field| field.eq_ignore_ascii_case(name)) {
            return Some(same);
        }
        let longest = |field: &str| field.len().max(name.len());
        let may_be_near = |field: &&str| field.len().abs_diff(name.len()) <= MAX_ERRORS;
        let near = fields().filter(may_be_near).map(|field| (distance(name, field), field));
        // A short name with as many errors is any other short name.
        let near = near.filter(|(errors, field)| *errors <= MAX_ERRORS && errors * 3 <= longest(field)).min();
        if let Some((_, near)) = near {
            return Some(near);
        }
        let begins = |one: &str, other: &str| other.len() >= SHORTEST_BEGINNING && one.starts_with(other);
        let mut forms = fields().filter(|field| begins(field, name) || begins(name, field));
        forms.next().filter(|_| forms.next().is_none())
    }
}

/// Edits between two words; case counts, and swapping neighbours is one edit.
#[must_use]
pub fn distance(left: &str, right: &str) -> usize {
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
    use super::super::Schema;

    #[test]
    fn a_mistyped_field_is_found_among_those_of_its_type() {
        let schema = Schema::load();
        let pod = schema.of_kind("v1", "Pod").unwrap();
        let of = |name: &str| schema.named(pod, name).unwrap();
        for (type_, written, meant) in [
            ("Container", "enviroment", Some("env")),
            ("Container", "imagee", Some("image")),
            ("Container", "livenesProbe", Some("livenessProbe")),
            ("Container", "liveness", Some("livenessProbe")),
            ("Container", "cmd", None),
            ("Container", "evn", Some("env")),
            ("Container", "restartpolicy", Some("restartPolicy")),
            ("Container", "hostnetwork", None),
            ("PodSpec", "hostnetwork", Some("hostNetwork")),
            ("PodSpec", "host", None),
            ("PodSpec", "containres", Some("containers")),
            ("PodSpec", "frobnicate", None),
            ("ObjectMeta", "env2", None),
            ("ObjectMeta", "lable", Some("labels")),
            ("TopologySpreadConstraint", "topologykey", Some("topologyKey")),
            ("Container", "", None),
        ] {
            assert_eq!(of(type_).closest_field(written), meant, "{type_}.{written}");
        }
    }
}
