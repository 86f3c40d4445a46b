//! Field errors and the path they are reported at (upstream: `field.Error`, `field.Path`).
//!
//! Owns the printed form.

use crate::model::ordered::Sortable as _;
use std::fmt;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FieldError {
    /// For example `spec.containers[0].image`.
    pub path: String,
    pub kind: FieldErrorKind,
    /// The offending value as printed (text in quotes, numbers plain); empty where the kind shows none.
    pub value: String,
    /// What the rule requires; may be empty.
    pub detail: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FieldErrorKind {
    Required,
    Invalid,
    /// Not one of the allowed values.
    NotSupported,
    Duplicate,
    Forbidden,
    /// Refers to a missing object.
    NotFound,
    TooLong,
    TooMany,
}

impl fmt::Display for FieldErrorKind {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(match self {
            Self::Required => "Required value",
            Self::Invalid => "Invalid value",
            Self::NotSupported => "Unsupported value",
            Self::Duplicate => "Duplicate value",
            Self::Forbidden => "Forbidden",
            Self::NotFound => "Not found",
            Self::TooLong => "Too long",
            Self::TooMany => "Too many",
        })
    }
}

impl fmt::Display for FieldError {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.path, self.kind)?;
        for part in [&self.value, &self.detail] {
            if !part.is_empty() {
                write!(formatter, ": {part}")?;
            }
        }
        Ok(())
    }
}

/// The path of a value, borrowed from its parents: nothing is formatted unless there is an error to report.
#[derive(Clone, Copy)]
pub(crate) enum Path<'a> {
    Root(&'a str),
    Child(&'a Path<'a>, &'a str),
    Index(&'a Path<'a>, usize),
    Key(&'a Path<'a>, &'a str),
}

impl<'a> Path<'a> {
    #[must_use]
    pub(crate) fn child(&'a self, name: &'a str) -> Path<'a> {
        Path::Child(self, name)
    }

    #[must_use]
    pub(crate) fn index(&'a self, index: usize) -> Path<'a> {
        Path::Index(self, index)
    }

    #[must_use]
    pub(crate) fn key(&'a self, key: &'a str) -> Path<'a> {
        Path::Key(self, key)
    }
}

impl fmt::Display for Path<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Root(name) => formatter.write_str(name),
            Self::Child(parent, name) => write!(formatter, "{parent}.{name}"),
            Self::Index(parent, index) => write!(formatter, "{parent}[{index}]"),
            Self::Key(parent, key) => write!(formatter, "{parent}[{key}]"),
        }
    }
}

#[derive(Default)]
pub(crate) struct Errors(pub Vec<FieldError>);

/// Longer values are cut in messages: an event's text is bounded, and so is a log line.
const VALUE_SHOWN_CHARS: usize = 256;

impl Errors {
    fn push(&mut self, path: &Path<'_>, kind: FieldErrorKind, value: String, detail: impl Into<String>) {
        self.0.push(FieldError { path: path.to_string(), kind, value, detail: detail.into() });
    }

    pub(crate) fn required(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, FieldErrorKind::Required, String::new(), detail);
    }

    pub(crate) fn invalid(&mut self, path: &Path<'_>, value: &str, detail: impl Into<String>) {
        self.push(path, FieldErrorKind::Invalid, quoted(value), detail);
    }

    pub(crate) fn invalid_number(
        &mut self,
        path: &Path<'_>,
        value: impl fmt::Display,
        detail: impl Into<String>,
    ) {
        self.push(path, FieldErrorKind::Invalid, cut(value.to_string()), detail);
    }

    pub(crate) fn not_supported(&mut self, path: &Path<'_>, value: &str, supported: &[&str]) {
        let mut texts: Vec<String> = supported.iter().map(|text| quoted(text)).collect();
        texts.order_by(Ord::cmp);
        let detail = format!("supported values: {}", texts.join(", "));
        self.push(path, FieldErrorKind::NotSupported, quoted(value), detail);
    }

    pub(crate) fn duplicate(&mut self, path: &Path<'_>, value: &str) {
        self.push(path, FieldErrorKind::Duplicate, quoted(value), "");
    }

    pub(crate) fn forbidden(&mut self, path: &Path<'_>, detail: &str) {
        self.push(path, FieldErrorKind::Forbidden, String::new(), detail);
    }

    pub(crate) fn not_found(&mut self, path: &Path<'_>, value: &str) {
        self.push(path, FieldErrorKind::NotFound, quoted(value), "");
    }

    pub(crate) fn too_long(&mut self, path: &Path<'_>, most_bytes: usize) {
        let detail = format!("may not be more than {most_bytes} bytes");
        self.push(path, FieldErrorKind::TooLong, String::new(), detail);
    }

    pub(crate) fn too_many(&mut self, path: &Path<'_>, count: usize, most: usize) {
        let detail = format!("must have at most {most} items");
        self.push(path, FieldErrorKind::TooMany, count.to_string(), detail);
    }
}

fn quoted(value: &str) -> String {
    format!("{:?}", cut(value.to_owned()))
}

fn cut(mut text: String) -> String {
    if let Some((end, _)) = text.char_indices().nth(VALUE_SHOWN_CHARS) {
        text.truncate(end);
        text.push('…');
    }
    text
}

impl Errors {
    /// One `Invalid` per complaint.
    pub(crate) fn all(&mut self, path: &Path<'_>, value: &str, complaints: Vec<String>) {
        for complaint in complaints {
            self.invalid(path, value, complaint);
        }
    }

    /// The same for numbers.
    pub(crate) fn all_number(&mut self, path: &Path<'_>, value: impl fmt::Display, complaints: Vec<String>) {
        for complaint in complaints {
            self.invalid_number(path, &value, complaint);
        }
    }

    /// `Required` when empty, otherwise checked by `rule`.
    pub(crate) fn name(&mut self, path: &Path<'_>, value: &str, rule: impl Fn(&str) -> Vec<String>) {
        if value.is_empty() {
            self.required(path, "");
        } else {
            self.all(path, value, rule(value));
        }
    }

    /// `Required` when empty.
    pub(crate) fn present(&mut self, path: &Path<'_>, value: &str) {
        if value.is_empty() {
            self.required(path, "");
        }
    }

    /// One of a set; empty counts as absent and is an error, too.
    pub(crate) fn one_of(&mut self, path: &Path<'_>, value: &str, supported: &[&str]) {
        if value.is_empty() {
            self.required(path, "");
        } else if !supported.contains(&value) {
            self.not_supported(path, value, supported);
        }
    }

    /// One of a set, when it is set at all.
    pub(crate) fn optional_of(&mut self, path: &Path<'_>, value: Option<&str>, supported: &[&str]) {
        if let Some(value) = value
            && !supported.contains(&value)
        {
            self.not_supported(path, value, supported);
        }
    }

    pub(crate) fn not_negative(&mut self, path: &Path<'_>, value: i64) {
        if value < 0 {
            self.invalid_number(path, value, "must be greater than or equal to 0");
        }
    }
}
