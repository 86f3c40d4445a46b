//! The `--config` file and the drop-in directory: reading, strictness, relative paths, merging.
//!
//! Owns files.

use std::io::Read;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use super::error::{API_VERSION, ConfigError, FileError, KIND};
use super::fields::{KubeletConfiguration, RELATIVE_PATHS};
use super::tree;
use crate::codec::yaml::yaml_to_values;
use crate::model::api::decode::decode;
use crate::model::objects::ObjectKind;
use crate::model::ordered::Sortable as _;

/// A configuration has a few kilobytes; this is two orders of magnitude more.
const MAX_FILE_BYTES: u64 = 1 << 20;
/// The most entries of the drop-in tree, so that `--config-dir /` ends.
const MAX_ENTRIES: usize = 10_000;

/// A file as JSON, nulls included, and the errors of strict decoding.
#[derive(Debug)]
pub(super) struct Loaded {
    pub(super) path: PathBuf,
    pub(super) value: Value,
    pub(super) warnings: Vec<String>,
}

pub(super) fn config_file(path: &Path) -> Result<Loaded, ConfigError> {
    if path.is_dir() {
        return Err(ConfigError::ConfigIsDirectory { path: path.to_owned() });
    }
    let mut loaded = read(path).map_err(|error| ConfigError::File { path: path.to_owned(), error })?;
    resolve_relative_paths(&mut loaded.value, path);
    Ok(loaded)
}

/// Reads every `*.conf` below `directory` in lexical order of the walk.
pub(super) fn drop_ins(directory: &Path) -> Result<Vec<Loaded>, ConfigError> {
    let mut paths = Vec::new();
    let mut budget = MAX_ENTRIES;
    walk(directory, &mut paths, &mut budget)?;
    let load = |path: PathBuf| read(&path).map_err(|error| ConfigError::DropIn { path, error });
    paths.into_iter().map(load).collect()
}

fn walk(directory: &Path, found: &mut Vec<PathBuf>, budget: &mut usize) -> Result<(), ConfigError> {
    let fail = |error: FileError| ConfigError::DropIn { path: directory.to_owned(), error };
    let mut entries = Vec::new();
    for entry in std::fs::read_dir(directory).map_err(|error| fail(FileError::Read { error }))? {
        let entry = entry.map_err(|error| fail(FileError::Read { error }))?;
        *budget = budget.checked_sub(1).ok_or_else(|| fail(FileError::TooMany { limit: MAX_ENTRIES }))?;
        entries.push(entry);
    }
    entries.order_by_key(std::fs::DirEntry::file_name);
    for entry in entries {
        let path = entry.path();
        // As in upstream's walk, a link to a directory is not followed; a link to a file is read.
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            walk(&path, found, budget)?;
        } else if path.extension().is_some_and(|extension| extension == "conf") {
            found.push(path);
        }
    }
    Ok(())
}

fn read(path: &Path) -> Result<Loaded, FileError> {
    let file = std::fs::File::open(path).map_err(|error| FileError::Read { error })?;
    let mut text = String::new();
    file.take(MAX_FILE_BYTES + 1).read_to_string(&mut text).map_err(|error| FileError::Read { error })?;
    if text.len() as u64 > MAX_FILE_BYTES {
        return Err(FileError::TooLarge { limit: MAX_FILE_BYTES });
    }
    let (value, warnings) = parse(&text, path)?;
    Ok(Loaded { path: path.to_owned(), value, warnings })
}

/// Strict first; what only lenient decoding accepts is a warning.
fn parse(text: &str, path: &Path) -> Result<(Value, Vec<String>), FileError> {
    if text.trim().is_empty() {
        return Err(FileError::Empty);
    }
    let mut complaints = Vec::new();
    let documents = yaml_to_values(text, true).or_else(|strict| {
        let documents = yaml_to_values(text, false).map_err(FileError::Yaml)?;
        complaints.push(strict.to_string());
        Ok(documents)
    })?;
    if let Some(kind) = documents.first().and_then(manifest_kind) {
        return Err(FileError::Manifest { kind, path: path.to_owned() });
    }
    let count = documents.len();
    let mut value = documents.into_iter().next().ok_or(FileError::Empty)?;
    if count > 1 {
        return Err(FileError::Documents { count });
    }
    check_kind(&value)?;
    normalise(&mut value);
    let decoded = decode::<KubeletConfiguration>(value.clone()).map_err(FileError::Decode)?;
    complaints.extend(decoded.unknown_fields.iter().map(|field| format!("unknown field \"{field}\"")));
    let warnings = if complaints.is_empty() {
        Vec::new()
    } else {
        let complaints = complaints.join(", ");
        vec![format!("Using lenient decoding for {}: strict decoding error: {complaints}", path.display())]
    };
    Ok((value, warnings))
}

/// The kind, if it is one that `--manifest-dir` accepts.
fn manifest_kind(value: &Value) -> Option<String> {
    let kind = value.get("kind")?.as_str()?;
    let is_known = matches!(kind, "Pod" | "PodList" | "List")
        || ObjectKind::from_name(kind).is_some_and(ObjectKind::is_in_manifests);
    is_known.then(|| kind.to_owned())
}

fn check_kind(value: &Value) -> Result<(), FileError> {
    let member = |name: &str| value.get(name).and_then(Value::as_str).unwrap_or_default();
    match (member("apiVersion"), member("kind")) {
        (API_VERSION, KIND) => Ok(()),
        ("", _) | (_, "") => Err(FileError::NoKind),
        (api_version, kind) => {
            Err(FileError::WrongKind { api_version: api_version.to_owned(), kind: kind.to_owned() })
        }
    }
}

/// Component-base reads `logging.flushFrequency` as a duration or as nanoseconds.
fn normalise(value: &mut Value) {
    const PATH: &str = "logging.flushFrequency";
    if let Some(nanos) = tree::get(value, PATH).and_then(Value::as_i64) {
        let duration = crate::model::duration::GoDuration::from_nanos(nanos);
        tree::set(value, PATH, Value::String(duration.to_string()));
    }
}

fn resolve_relative_paths(value: &mut Value, file: &Path) {
    let directory = file.parent().unwrap_or(Path::new("."));
    // Without a working directory a relative path is left unchanged and resolved when it is opened.
    let directory = std::path::absolute(directory).unwrap_or_else(|_| directory.to_owned());
    for path in RELATIVE_PATHS {
        let Some(text) = tree::get(value, path).and_then(Value::as_str) else { continue };
        if text.is_empty() || Path::new(text).is_absolute() {
            continue;
        }
        let resolved = clean(&directory.join(text));
        tree::set(value, path, Value::String(resolved));
    }
}

/// Lexically clean, as Go's `filepath.Clean`. Symbolic links are not resolved.
pub(super) fn clean(path: &Path) -> String {
    use std::path::Component;
    let mut parts: Vec<String> = Vec::new();
    let mut rooted = false;
    for component in path.components() {
        match component {
            Component::RootDir => rooted = true,
            Component::CurDir | Component::Prefix(_) => {}
            Component::ParentDir => {
                if parts.last().is_some_and(|part| part != "..") {
                    parts.pop();
                } else if !rooted {
                    parts.push("..".to_owned());
                }
            }
            Component::Normal(part) => parts.push(part.to_string_lossy().into_owned()),
        }
    }
    let joined = parts.join("/");
    match (rooted, joined.is_empty()) {
        (true, _) => format!("/{joined}"),
        (false, true) => ".".to_owned(),
        (false, false) => joined,
    }
}

/// RFC 7386: objects merge, null deletes, everything else replaces.
pub(super) fn merge_patch(target: &mut Value, patch: &Value) {
    let Value::Object(patch) = patch else {
        target.clone_from(patch);
        return;
    };
    if !target.is_object() {
        *target = Value::Object(Map::new());
    }
    let Value::Object(members) = target else { return };
    for (name, value) in patch {
        if value.is_null() {
            members.remove(name);
        } else {
            merge_patch(members.entry(name.clone()).or_insert(Value::Null), value);
        }
    }
}
