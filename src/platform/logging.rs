//! Log lines as the kubelet writes them: klog text (`I1120 16:00:00.000000  4711 kubelet.rs:7] "Message"
//! key="value"`) or JSON, on stderr.
//!
//! Owns the format and the mapping from `-v` to levels.

use std::fmt;
use std::io::Write;
use std::sync::PoisonError;
#[expect(clippy::disallowed_types, reason = "every thread logs, and the configuration may change")]
use std::sync::RwLock;

use log::kv::{Key, Value, VisitSource};
use log::{Level, LevelFilter, Record};
use time::OffsetDateTime;

use crate::platform::clock::Clock;

/// Below this verbosity (`-v`) only messages for operators are shown: the kubelet's V(0) to V(3).
const DEBUG_VERBOSITY: i32 = 4;
/// From this verbosity on payloads are shown too.
const TRACE_VERBOSITY: i32 = 6;

/// The library and the program around it.
const OWN_CRATES: [&str; 2] = ["edge_agent", "agent"];

/// `logging.format`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogFormat {
    Text,
    /// One object per line.
    Json,
}

#[derive(Clone, Debug)]
pub struct LogConfig {
    pub format: LogFormat,
    /// `-v`.
    pub verbosity: i32,
    /// `--vmodule`: pattern of file names (without `.rs`) to verbosity, first match wins.
    pub vmodule: Vec<(String, i32)>,
}

impl Default for LogConfig {
    fn default() -> Self {
        Self { format: LogFormat::Text, verbosity: 0, vmodule: Vec::new() }
    }
}

/// The configuration in force, once there is a logger.
#[expect(clippy::disallowed_types, reason = "every thread logs, and the configuration may change")]
static IN_FORCE: RwLock<Option<LogConfig>> = RwLock::new(None);

/// Replaces verbosity and `vmodule`; the format stays.
pub(crate) fn reconfigure(verbosity: i32, vmodule: Vec<(String, i32)>) {
    let mut in_force = IN_FORCE.write().unwrap_or_else(PoisonError::into_inner);
    if let Some(config) = in_force.as_mut() {
        (config.verbosity, config.vmodule) = (verbosity, vmodule);
        log::set_max_level(most_verbose(config).max(LevelFilter::Warn));
    }
}

/// Replaces the verbosity only.
pub(crate) fn set_verbosity(verbosity: i32) {
    let vmodule = IN_FORCE.read().ok().and_then(|config| Some(config.as_ref()?.vmodule.clone()));
    reconfigure(verbosity, vmodule.unwrap_or_default());
}

fn most_verbose(config: &LogConfig) -> LevelFilter {
    let all = config.vmodule.iter().map(|(_, verbosity)| *verbosity).chain([config.verbosity]);
    level(all.max().unwrap_or(config.verbosity))
}

/// Installs the logger. A second call changes nothing.
pub fn init(config: &LogConfig) {
    let mut builder = env_logger::Builder::new();
    // Libraries log only warnings and errors; the text of their messages is not under the agent's control.
    builder.filter_level(LevelFilter::Warn);
    for own in OWN_CRATES {
        // What each file may log is decided below, by a configuration that may change.
        builder.filter_module(own, LevelFilter::Trace);
    }
    let pid = std::process::id();
    builder.format(move |output, record| {
        let in_force = IN_FORCE.read().unwrap_or_else(PoisonError::into_inner);
        let Some(config) =
            in_force.as_ref().filter(|config| record.level() <= allowed(config, file_name(record)))
        else {
            return Ok(());
        };
        let line = match config.format {
            LogFormat::Text => text_line(record, pid),
            LogFormat::Json => json_line(record),
        };
        output.write_all(line.as_bytes())
    });
    if builder.try_init().is_ok() {
        log::set_max_level(most_verbose(config).max(LevelFilter::Warn));
        *IN_FORCE.write().unwrap_or_else(PoisonError::into_inner) = Some(config.clone());
    }
}

/// What a file may log: the verbosity of the first `--vmodule` pattern that matches its name without `.rs`,
/// else `-v`.
fn allowed(config: &LogConfig, file: &str) -> LevelFilter {
    let stem = file.strip_suffix(".rs").unwrap_or(file);
    let matching =
        config.vmodule.iter().find(|(pattern, _)| matches_glob(pattern.as_bytes(), stem.as_bytes()));
    level(matching.map_or(config.verbosity, |(_, verbosity)| *verbosity))
}

/// `*` is any text, `?` one character; klog supports no more either.
fn matches_glob(pattern: &[u8], text: &[u8]) -> bool {
    match (pattern.split_first(), text.split_first()) {
        (None, None) => true,
        (Some((b'*', rest)), _) => {
            matches_glob(rest, text) || (!text.is_empty() && matches_glob(pattern, &text[1..]))
        }
        (Some((b'?', rest)), Some((_, text))) => matches_glob(rest, text),
        (Some((wanted, rest)), Some((found, text))) => wanted == found && matches_glob(rest, text),
        (None, Some(_)) | (Some(_), None) => false,
    }
}

/// An error with all its causes on one line, as it is logged and shown: errors do not repeat their source.
#[must_use]
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// The least severe level that `-v N` shows.
#[must_use]
pub(crate) fn level(verbosity: i32) -> LevelFilter {
    match verbosity {
        TRACE_VERBOSITY.. => LevelFilter::Trace,
        DEBUG_VERBOSITY.. => LevelFilter::Debug,
        _ => LevelFilter::Info,
    }
}

fn now() -> OffsetDateTime {
    OffsetDateTime::from_unix_timestamp_nanos(i128::from(Clock::System.now().as_nanos()))
        .unwrap_or(OffsetDateTime::UNIX_EPOCH)
}

fn text_line(record: &Record<'_>, pid: u32) -> String {
    let letter = match record.level() {
        Level::Error => 'E',
        Level::Warn => 'W',
        Level::Info | Level::Debug | Level::Trace => 'I',
    };
    let time = now();
    let mut line = format!(
        "{letter}{:02}{:02} {:02}:{:02}:{:02}.{:06} {pid:7} {}:{}] {:?}",
        u8::from(time.month()),
        time.day(),
        time.hour(),
        time.minute(),
        time.second(),
        time.microsecond(),
        file_name(record),
        record.line().unwrap_or(0),
        record.args().to_string(),
    );
    let _ = record.key_values().visit(&mut TextKeys(&mut line));
    line.push('\n');
    line
}

fn file_name<'a>(record: &Record<'a>) -> &'a str {
    let path = record.file().unwrap_or("?");
    path.rsplit('/').next().unwrap_or(path)
}

struct TextKeys<'a>(&'a mut String);

impl<'kvs> VisitSource<'kvs> for TextKeys<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
        use fmt::Write as _;
        let plain_number = value.to_i64().is_some() || value.to_bool().is_some();
        let written = if plain_number {
            write!(self.0, " {key}={value}")
        } else {
            write!(self.0, " {key}={:?}", value.to_string())
        };
        written.map_err(log::kv::Error::from)
    }
}

fn json_line(record: &Record<'_>) -> String {
    let mut object = serde_json::Map::new();
    let millis = Clock::System.now().as_nanos() / 1_000_000;
    object.insert("ts".to_owned(), serde_json::Value::from(millis));
    object
        .insert("caller".to_owned(), format!("{}:{}", file_name(record), record.line().unwrap_or(0)).into());
    object.insert("msg".to_owned(), record.args().to_string().into());
    match record.level() {
        Level::Error => {}
        Level::Warn | Level::Info => {
            object.insert("v".to_owned(), 0.into());
        }
        Level::Debug => {
            object.insert("v".to_owned(), DEBUG_VERBOSITY.into());
        }
        Level::Trace => {
            object.insert("v".to_owned(), TRACE_VERBOSITY.into());
        }
    }
    let _ = record.key_values().visit(&mut JsonKeys(&mut object));
    let mut line = serde_json::Value::Object(object).to_string();
    line.push('\n');
    line
}

struct JsonKeys<'a>(&'a mut serde_json::Map<String, serde_json::Value>);

impl<'kvs> VisitSource<'kvs> for JsonKeys<'_> {
    fn visit_pair(&mut self, key: Key<'kvs>, value: Value<'kvs>) -> Result<(), log::kv::Error> {
        let json = match (value.to_i64(), value.to_bool()) {
            (Some(number), _) => number.into(),
            (None, Some(truth)) => truth.into(),
            (None, None) => value.to_string().into(),
        };
        self.0.insert(key.to_string(), json);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record<'a>(args: fmt::Arguments<'a>, values: &'a [(&'a str, &'a str)]) -> Record<'a> {
        Record::builder()
            .level(Level::Warn)
            .file(Some("src/agent/kubelet.rs"))
            .line(Some(7))
            .args(args)
            .key_values(Box::leak(Box::new(values.to_vec())))
            .build()
    }

    #[test]
    fn a_text_line_is_klogs_with_quoted_values_on_one_line() {
        let line = text_line(&record(format_args!("Started pod"), &[("pod", "a\nb"), ("n", "3")]), 42);
        assert!(line.starts_with('W'), "{line}");
        assert!(line.ends_with("      42 kubelet.rs:7] \"Started pod\" pod=\"a\\nb\" n=\"3\"\n"), "{line}");
    }

    #[test]
    fn a_json_line_is_one_object() {
        let line = json_line(&record(format_args!("Started pod"), &[("pod", "a\"b")]));
        let object: serde_json::Value = serde_json::from_str(&line).unwrap();
        assert_eq!(object["msg"], "Started pod");
        assert_eq!(object["pod"], "a\"b");
        assert_eq!(object["caller"], "kubelet.rs:7");
    }

    #[test]
    fn vmodule_patterns_name_files_and_the_first_that_matches_wins() {
        let vmodule = vec![("pod_*".to_owned(), 4), ("pod_worker".to_owned(), 6), ("?rt".to_owned(), 6)];
        let config = LogConfig { vmodule, ..LogConfig::default() };
        for (file, expected) in [
            ("pod_worker.rs", LevelFilter::Debug),
            ("worker.rs", LevelFilter::Info),
            ("rt.rs", LevelFilter::Info),
            ("xrt.rs", LevelFilter::Trace),
        ] {
            assert_eq!(allowed(&config, file), expected, "{file}");
        }
    }

    #[test]
    fn verbosity_maps_to_levels_as_the_kubelet_uses_them() {
        assert_eq!(level(0), LevelFilter::Info);
        assert_eq!(level(3), LevelFilter::Info);
        assert_eq!(level(4), LevelFilter::Debug);
        assert_eq!(level(10), LevelFilter::Trace);
    }
}
