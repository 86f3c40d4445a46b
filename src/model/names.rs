//! The forms of names: DNS labels and subdomains, label values, ports, environment variables, keys, paths.
//!
//! Owns the messages of each form. Each function returns what is wrong, nothing for a valid name.

use std::net::IpAddr;

const LABEL: &str = "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?')";
const SUBDOMAIN: &str = "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')";
const QUALIFIED: &str = "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]')";
const LABEL_VALUE: &str = "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?')";
const CONFIG_KEY: &str = "a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')";
const ENV_NAME: &str =
    "a valid environment variable name must consist only of printable ASCII characters other than '='";
const HEADER: &str = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
const IP: &str = "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)";
const SYSCTL: &str = "must have at most 253 characters and match regex ^([a-z0-9]([-_a-z0-9]*[a-z0-9])?[\\./])*([a-z0-9][-_a-z0-9]*)?[a-z0-9]$";
const NO_BACKSTEPS: &str = "must not contain '..'";

/// What is wrong with a name.
pub(super) type Complaints = Vec<String>;

fn failed_rules(rules: &[(bool, &str)]) -> Complaints {
    rules.iter().filter(|(good, _)| !good).map(|(_, text)| (*text).to_owned()).collect()
}

fn at_most(name: &str, most: usize) -> Complaints {
    if name.len() > most { vec![format!("must be no more than {most} characters")] } else { Vec::new() }
}

fn starts_and_ends_alphanumeric(name: &str) -> bool {
    name.starts_with(|c: char| c.is_ascii_alphanumeric())
        && name.ends_with(|c: char| c.is_ascii_alphanumeric())
}

fn is_label_shape(name: &str) -> bool {
    starts_and_ends_alphanumeric(name)
        && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-')
}

fn is_name_part(name: &str) -> bool {
    starts_and_ends_alphanumeric(name)
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.'))
}

/// RFC 1123 label.
#[must_use]
pub(crate) fn dns_label(name: &str) -> Complaints {
    let mut complaints = at_most(name, 63);
    complaints.extend(failed_rules(&[(is_label_shape(name), LABEL)]));
    complaints
}

/// RFC 1123 subdomain.
#[must_use]
pub(crate) fn dns_subdomain(name: &str) -> Complaints {
    let mut complaints = at_most(name, 253);
    complaints.extend(failed_rules(&[(name.split('.').all(is_label_shape), SUBDOMAIN)]));
    complaints
}

/// A name that may be any part of a path: those of roles and their bindings.
#[must_use]
pub(crate) fn path_segment(name: &str) -> Complaints {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    let found = ['/', '%'].into_iter().filter(|letter| name.contains(*letter));
    found.map(|letter| format!("may not contain '{letter}'")).collect()
}

/// A DNS search domain: like a subdomain, but underscores and a final dot are allowed.
#[must_use]
pub(crate) fn search_domain(name: &str) -> Complaints {
    if name == "." {
        return Vec::new();
    }
    dns_subdomain(&name.strip_suffix('.').unwrap_or(name).replace('_', "0"))
}

/// `prefix/name` or `name`: keys of labels, annotations, taints; extended resources.
#[must_use]
pub(crate) fn qualified_name(name: &str) -> Complaints {
    let mut complaints = Vec::new();
    let part = match name.split_once('/') {
        None => name,
        Some((_, rest)) if rest.contains('/') => {
            return vec![format!(
                "a qualified name {} with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')",
                QUALIFIED.strip_prefix("name part ").unwrap_or(QUALIFIED)
            )];
        }
        Some((prefix, rest)) => {
            if prefix.is_empty() {
                complaints.push("prefix part must be non-empty".to_owned());
            } else {
                complaints
                    .extend(dns_subdomain(prefix).into_iter().map(|text| format!("prefix part {text}")));
            }
            rest
        }
    };
    if part.is_empty() {
        complaints.push("name part must be non-empty".to_owned());
    } else if part.len() > 63 {
        complaints.push("name part must be no more than 63 characters".to_owned());
    }
    complaints.extend(failed_rules(&[(is_name_part(part), QUALIFIED)]));
    complaints
}

#[must_use]
pub(crate) fn label_value(value: &str) -> Complaints {
    let mut complaints = at_most(value, 63);
    complaints.extend(failed_rules(&[(value.is_empty() || is_name_part(value), LABEL_VALUE)]));
    complaints
}

#[must_use]
pub(crate) fn port_name(name: &str) -> Complaints {
    let mut complaints = at_most(name, 15);
    let in_set = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    complaints.extend(failed_rules(&[
        (name.bytes().all(in_set), "must contain only alphanumeric characters (a-z, 0-9), and hyphens (-)"),
        (name.bytes().any(|byte| byte.is_ascii_lowercase()), "must contain at least one letter (a-z)"),
        (!name.contains("--"), "must not contain consecutive hyphens"),
        (!name.starts_with('-') && !name.ends_with('-'), "must not begin or end with a hyphen"),
    ]));
    complaints
}

#[must_use]
pub(crate) fn port_number(port: i32) -> Complaints {
    failed_rules(&[((1..=65535).contains(&port), "must be between 1 and 65535, inclusive")])
}

#[must_use]
pub(crate) fn env_name(name: &str) -> Complaints {
    let printable = name.bytes().all(|byte| (b' '..=b'~').contains(&byte) && byte != b'=');
    failed_rules(&[(!name.is_empty() && printable, ENV_NAME)])
}

#[must_use]
pub(crate) fn config_key(key: &str) -> Complaints {
    let in_set = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let mut complaints = at_most(key, 253);
    complaints.extend(failed_rules(&[(!key.is_empty() && key.bytes().all(in_set), CONFIG_KEY)]));
    if key == "." {
        complaints.push("must not be '.'".to_owned());
    } else if key == ".." {
        complaints.push("must not be '..'".to_owned());
    } else if key.starts_with("..") {
        complaints.push("must not start with '..'".to_owned());
    }
    complaints
}

#[must_use]
pub(crate) fn http_header(name: &str) -> Complaints {
    let in_set = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
    failed_rules(&[(!name.is_empty() && name.bytes().all(in_set), HEADER)])
}

#[must_use]
pub(crate) fn ip(address: &str) -> Complaints {
    failed_rules(&[(address.parse::<IpAddr>().is_ok(), IP)])
}

/// Name of a kernel parameter, with dots or slashes.
#[must_use]
pub(crate) fn sysctl(name: &str) -> Complaints {
    let in_set = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || matches!(byte, b'-' | b'_');
    let segments: Vec<&str> = name.split(['.', '/']).collect();
    let good = segments.iter().all(|part| starts_and_ends_alphanumeric(part) && part.bytes().all(in_set));
    failed_rules(&[(name.len() <= 253 && good, SYSCTL)])
}

/// A user or group id.
#[must_use]
pub(crate) fn id(id: i64) -> Complaints {
    failed_rules(&[((0..=i64::from(i32::MAX)).contains(&id), "must be between 0 and 2147483647, inclusive")])
}

#[must_use]
pub(crate) fn file_mode(mode: i32) -> Complaints {
    failed_rules(&[(
        (0..=0o777).contains(&mode),
        "must be a number between 0 and 0777 (octal), both inclusive",
    )])
}

/// A path without `..`.
#[must_use]
pub(crate) fn no_backsteps(path: &str) -> Complaints {
    failed_rules(&[(path.split('/').all(|part| part != ".."), NO_BACKSTEPS)])
}

/// A relative path without `..`.
#[must_use]
pub(crate) fn descending_path(path: &str) -> Complaints {
    let mut complaints = failed_rules(&[(!path.starts_with('/'), "must be a relative path")]);
    complaints.extend(no_backsteps(path));
    complaints
}

/// A path that stays in a projected volume, which reserves names that begin with two dots.
#[must_use]
pub(crate) fn projected_path(path: &str) -> Complaints {
    let mut complaints = descending_path(path);
    if path.starts_with("..") && complaints.is_empty() {
        complaints.push("must not start with '..'".to_owned());
    }
    complaints
}
