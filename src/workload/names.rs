//! Names that the controllers give: hashes of templates, random ends, positions in time.
//!
//! Owns the alphabet, and the numbers that one pass draws.
//!
//! Pure: what it returns depends on its arguments alone.

use serde_json::Value;

/// Upstream's, without vowels and digits that look like letters.
const ALPHABET: &[u8] = b"bcdfghjklmnpqrstvwxz2456789";
/// Of the random end of a name.
const SUFFIX: usize = 5;
/// A name of a pod is the host name of its containers.
const MAX_NAME: usize = 63;

/// The same numbers for the same seed: `SplitMix64` (Steele, Lea, Flood 2014).
#[derive(Clone, Debug)]
pub(super) struct Names(pub u64);

impl Names {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        word ^ (word >> 31)
    }

    pub(super) fn uid(&mut self) -> String {
        let (high, low) = (self.next(), self.next());
        // Version and variant of a random UUID.
        let (high, low) = (high & !0xf000 | 0x4000, low & !(3 << 62) | 2 << 62);
        format!(
            "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
            high >> 32,
            high >> 16 & 0xffff,
            high & 0xffff,
            low >> 48,
            low & 0xffff_ffff_ffff
        )
    }

    /// The base with a random end. A long base is cut, as upstream.
    pub(super) fn generate(&mut self, base: &str) -> String {
        let most = MAX_NAME - SUFFIX;
        let mut name: String = base.chars().take(most).collect();
        let mut word = self.next();
        for _ in 0..SUFFIX {
            name.push(letter(word));
            word /= 27;
        }
        name
    }
}

fn letter(word: u64) -> char {
    let position = usize::try_from(word % 27).unwrap_or_default();
    char::from(ALPHABET[position])
}

/// Upstream's `SafeEncodeString` of a 32-bit FNV-1a hash: of the same template and count always the same, at most ten
/// characters.
pub(super) fn hash(template: &Value, collisions: i64) -> String {
    let text = template.to_string();
    let extra = if collisions > 0 { collisions.to_string() } else { String::new() };
    let hash = text
        .bytes()
        .chain(extra.bytes())
        .fold(0x811c_9dc5_u32, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193));
    hash.to_string().bytes().map(|digit| letter(u64::from(digit))).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn hashes_depend_on_template_and_collisions_alone() {
        let template = json!({"spec": {"containers": [{"image": "a", "name": "b"}]}});
        let same = json!({"spec": {"containers": [{"name": "b", "image": "a"}]}});
        assert_eq!(hash(&template, 0), hash(&same, 0));
        assert_ne!(hash(&template, 0), hash(&template, 1));
        assert_ne!(hash(&template, 0), hash(&json!({}), 0));
        let text = hash(&template, 0);
        assert!(text.len() <= 10 && text.bytes().all(|byte| ALPHABET.contains(&byte)), "{text}");
    }

    #[test]
    fn generated_names_fit_a_host_name() {
        let mut names = Names(1);
        let long = names.generate(&"a".repeat(80));
        assert_eq!(long.len(), 63);
        assert!(
            names.generate("web-").starts_with("web-") && names.generate("web-") != names.generate("web-")
        );
        let uid = names.uid();
        assert_eq!((uid.len(), &uid[14..15]), (36, "4"));
        assert!(matches!(&uid[19..20], "8" | "9" | "a" | "b"), "{uid}");
    }
}
