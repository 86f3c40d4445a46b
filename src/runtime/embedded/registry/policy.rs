//! Which images may be pulled, and which signatures they need: the policy file.
//!
//! Owns the file's format and the choice of a rule.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use serde_json::Value;

use super::PullError;
use crate::codec::json::{self, Parsed};
use crate::model::image_name::apply_default_tag;
use crate::runtime::embedded::images::reference::Reference;

/// The default policy file, used if it exists and no other is configured.
const DEFAULT_FILE: &str = "/etc/agent/image-policy.json";
/// No real policy is longer.
const MAX_FILE_BYTES: u64 = 1024 * 1024;

/// The policy in force: the configured file, else the default file if it exists.
#[must_use]
pub(crate) fn policy_file(named: Option<&Path>) -> Option<PathBuf> {
    let usual = Path::new(DEFAULT_FILE);
    named.map(Path::to_owned).or_else(|| is_there(usual).then(|| usual.to_owned()))
}

/// A link to a file that is missing, and a file whose existence cannot be checked, do not count as missing: pulls fail
/// then, where without a policy they would not be checked.
fn is_there(file: &Path) -> bool {
    !matches!(file.symlink_metadata(), Err(error) if error.kind() == std::io::ErrorKind::NotFound)
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Rule {
    /// Pull it without a signature.
    Accept,
    /// Do not pull it, and why.
    Reject(String),
    /// One of the keys in these files must have signed it.
    Keys(Vec<PathBuf>),
}

/// The file's rule for this image.
///
/// # Errors
/// When any part of the file cannot be read or parsed: no image is pulled by an incomplete policy.
pub(super) fn rule_for(file: &Path, image: &Reference) -> Result<Rule, PullError> {
    let bad = |problem: String| PullError::Policy { path: file.to_owned(), problem };
    let text = read(file).map_err(|error| bad(format!("cannot be read: {error}")))?;
    let rules = parse(&text).map_err(bad)?;
    let directory = file.parent().unwrap_or(Path::new("/"));
    let best = rules
        .into_iter()
        .filter_map(|(pattern, rule)| Some((rank(&pattern, image)?, pattern, rule)))
        .max_by(|(one, ..), (two, ..)| one.cmp(two));
    Ok(match best {
        Some((_, _, Rule::Keys(files))) => {
            Rule::Keys(files.into_iter().map(|name| directory.join(name)).collect())
        }
        Some((_, pattern, Rule::Reject(_))) => {
            Rule::Reject(format!("{pattern:?} is rejected by {}", file.display()))
        }
        Some((.., rule)) => rule,
        None => Rule::Reject(format!("not matched by any pattern of {}", file.display())),
    })
}

fn read(file: &Path) -> std::io::Result<String> {
    if std::fs::metadata(file)?.len() > MAX_FILE_BYTES {
        return Err(std::io::Error::new(std::io::ErrorKind::FileTooLarge, "larger than 1 MiB"));
    }
    std::fs::read_to_string(file)
}

/// `{"images": {PATTERN: "accept" | "reject" | {"keys": [FILE, ...]}}}`
fn parse(text: &str) -> Result<Vec<(String, Rule)>, String> {
    let Parsed { value, duplicates } =
        json::parse_one(text.as_bytes()).map_err(|error| format!("not JSON: {error}"))?;
    if let Some(duplicate) = duplicates.first() {
        return Err(format!("{duplicate} is defined twice"));
    }
    let members = value.as_object().ok_or("not a JSON object")?;
    if let Some(unknown) = members.keys().find(|key| *key != "images") {
        return Err(format!("unknown key {unknown:?}; only \"images\" is supported"));
    }
    let images = members.get("images").and_then(Value::as_object);
    let images = images.ok_or("\"images\" is missing, or not an object of patterns")?;
    let one = |(pattern, value): (&String, &Value)| {
        check_pattern(pattern)?;
        Ok((pattern.clone(), rule(value).map_err(|problem| format!("images[{pattern:?}]: {problem}"))?))
    };
    let rules: Vec<(String, Rule)> = images.iter().map(one).collect::<Result<_, String>>()?;
    let mut known = BTreeSet::new();
    match rules.iter().find(|(pattern, _)| !known.insert(pattern.to_ascii_lowercase())) {
        Some((pattern, _)) => Err(format!("images[{pattern:?}] is defined twice: hosts have no case")),
        None => Ok(rules),
    }
}

fn rule(value: &Value) -> Result<Rule, String> {
    const WANTED: &str = "must be \"accept\", \"reject\" or {\"keys\": [\"file.pem\"]}";
    match value {
        Value::String(word) if word == "accept" => Ok(Rule::Accept),
        Value::String(word) if word == "reject" => Ok(Rule::Reject(String::new())),
        Value::Object(members) if members.len() == 1 => {
            let files = members.get("keys").and_then(Value::as_array).ok_or(WANTED)?;
            let paths: Option<Vec<PathBuf>> =
                files.iter().map(|file| file.as_str().map(PathBuf::from)).collect();
            let paths = paths.filter(|paths| !paths.is_empty());
            paths.map(Rule::Keys).ok_or_else(|| "keys: must list at least one file".to_owned())
        }
        _ => Err(WANTED.to_owned()),
    }
}

fn check_pattern(pattern: &str) -> Result<(), String> {
    if pattern == "*" {
        return Ok(());
    }
    let (host, path) = pattern.split_once('/').unwrap_or((pattern, ""));
    let name = host.strip_prefix("*.").unwrap_or(host);
    let problem = if !host.contains(['.', ':']) && host != "localhost" {
        "must begin with the registry, such as \"docker.io/library/busybox\""
    } else if name.contains('*') || path.contains('*') {
        "'*' must stand alone, or for the first labels of a host such as \"*.example.com\""
    } else if path.contains([':', '@']) {
        "must not contain a tag or digest"
    } else if name.eq_ignore_ascii_case("index.docker.io") {
        "never matches: images of Docker Hub are below \"docker.io\""
    } else {
        // As an image below the pattern, which is written as images are.
        let image = format!("{name}/{}x", if path.is_empty() { String::new() } else { format!("{path}/") });
        match apply_default_tag(&image) {
            Ok(_) => return Ok(()),
            Err(_) => "must be a registry and a path, as in the name of an image",
        }
    };
    Err(format!("images[{pattern:?}]: {problem}"))
}

/// How closely a pattern matches; the closest is the largest: a whole host before a part of one, then the
/// longer path.
fn rank(pattern: &str, image: &Reference) -> Option<(bool, usize, usize)> {
    if pattern == "*" {
        return Some((false, 0, 0));
    }
    let (host, path) = pattern.split_once('/').unwrap_or((pattern, ""));
    // Host names are case-insensitive: capitals must not circumvent the policy.
    let (host, registry) = (host.to_ascii_lowercase(), image.registry.to_ascii_lowercase());
    let is_whole = host == registry;
    let is_part = host.strip_prefix('*').is_some_and(|end| registry.ends_with(end));
    let rest = image.repository.strip_prefix(path)?;
    let is_below = path.is_empty() || rest.is_empty() || rest.starts_with('/');
    ((is_whole || is_part) && is_below).then_some((is_whole, host.len(), path.len()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;
    use crate::runtime::embedded::images::reference::normalise_reference;

    fn rule_of(text: &str, image: &str) -> Result<Rule, String> {
        let directory = TempDir::new();
        let file = directory.join("policy.json");
        std::fs::write(&file, text).unwrap();
        rule_for(&file, &normalise_reference(image).unwrap()).map_err(|error| error.to_string())
    }

    #[test]
    fn the_closest_pattern_decides_and_none_means_no() {
        let policy = r#"{"images": {
            "docker.io/library": "accept", "docker.io": "reject", "docker.io/library/busybox": {"keys": ["b.pem", "/k/c.pem"]},
            "*.example.com": "accept", "*.b.example.com": "reject", "a.b.example.com/x": "accept", "localhost:5000": "accept"}}"#;
        let word = |image: &str| match rule_of(policy, image).unwrap() {
            Rule::Accept => "accept".to_owned(),
            Rule::Reject(why) => format!("reject {}", why.split(' ').next().unwrap_or_default()),
            Rule::Keys(files) => format!("{} keys", files.len()),
        };
        for (image, expected) in [
            ("busybox:1.36", "2 keys"),
            ("alpine", "accept"),
            ("grafana/loki", "reject \"docker.io\""),
            ("docker.io/library2/x", "reject \"docker.io\""),
            ("r.example.com/a", "accept"),
            ("a.b.example.com/y", "reject \"*.b.example.com\""),
            ("a.b.example.com/x/y", "accept"),
            ("a.b.example.com/xy", "reject \"*.b.example.com\""),
            ("notexample.com/a", "reject not"),
            ("localhost:5000/a", "accept"),
            ("A.B.Example.COM/y", "reject \"*.b.example.com\""),
            ("localhost:5001/a", "reject not"),
            ("Docker.IO/busybox", "2 keys"),
            ("LOCALHOST:5000/a", "accept"),
        ] {
            assert_eq!(word(image), expected, "{image}");
        }
        let Rule::Keys(files) = rule_of(policy, "busybox").unwrap() else { panic!("it has keys") };
        assert!(files[0].is_absolute() && files[0].ends_with("b.pem"), "beside the policy: {files:?}");
        assert_eq!(files[1], PathBuf::from("/k/c.pem"));
        assert_eq!(rule_of(r#"{"images": {"*": "accept"}}"#, "busybox"), Ok(Rule::Accept));
    }

    #[test]
    fn a_policy_that_is_not_understood_lets_nothing_in() {
        for (text, words) in [
            ("", "not JSON"),
            ("[]", "not a JSON object"),
            ("{}", "\"images\" is missing"),
            (r#"{"image": {}}"#, "unknown key \"image\""),
            (r#"{"images": {"busybox": "accept"}}"#, "images[\"busybox\"]: must begin with the registry"),
            (r#"{"images": {"docker.io/a:v1": "accept"}}"#, "tag or digest"),
            (r#"{"images": {"docker.io/a*": "accept"}}"#, "'*' must stand alone"),
            (r#"{"images": {"docker.io/a/": "accept"}}"#, "must be a registry and a path"),
            (r#"{"images": {"r.example/X": "accept"}}"#, "must be a registry and a path"),
            (r#"{"images": {"r.example ": "accept"}}"#, "must be a registry and a path"),
            (r#"{"images": {".example.com": "accept"}}"#, "must be a registry and a path"),
            (r#"{"images": {"r.example./x": "accept"}}"#, "must be a registry and a path"),
            (r#"{"images": {"r.example/../x": "accept"}}"#, "must be a registry and a path"),
            (r#"{"images": {"index.docker.io/a": "accept"}}"#, "below \"docker.io\""),
            (r#"{"images": {"*": "reject", "*": "accept"}}"#, "images.* is defined twice"),
            (r#"{"images": {"*": "reject"}, "images": {"*": "accept"}}"#, "images is defined twice"),
            (r#"{"images": {"r.example": "reject", "R.example": "accept"}}"#, "is defined twice"),
            (r#"{"images": {"*": "allow"}}"#, "images[\"*\"]: must be \"accept\""),
            (r#"{"images": {"*": {"keys": []}}}"#, "at least one file"),
            (r#"{"images": {"*": {"keys": ["k"], "or": 1}}}"#, "must be \"accept\", \"reject\" or"),
        ] {
            let error = rule_of(text, "busybox").unwrap_err();
            assert!(error.contains(words) && error.contains(".json: "), "{text}: {error}");
        }
        let scheme = rule_of(r#"{"images": {"https://r.example": "accept"}}"#, "busybox").unwrap_err();
        assert!(scheme.contains("images[\"https://r.example\"]: must"), "{scheme}");
        let missing = rule_for(Path::new("/nonexistent/p.json"), &normalise_reference("a").unwrap());
        assert!(missing.unwrap_err().to_string().starts_with("/nonexistent/p.json: cannot be read"));
    }

    #[test]
    fn dangling_link_is_a_policy_that_cannot_be_read() {
        let directory = TempDir::new();
        let file = directory.join("policy.json");
        assert!(!is_there(&file));
        std::os::unix::fs::symlink("/nonexistent/p.json", &file).unwrap();
        assert!(is_there(&file));
        let refused = rule_for(&file, &normalise_reference("a").unwrap()).unwrap_err().to_string();
        assert!(refused.contains("cannot be read"), "{refused}");
    }
}
