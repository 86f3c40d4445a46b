//! Metrics of the agent, recorded where the events happen, and Prometheus' text format.
//!
//! Owns the metrics of this thread, the only one that makes decisions; a metric costs a few dozen bytes and
//! nothing is sampled. A custom writer because the required format (0.0.4, with times) is a page of code.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::{self, Display, Write};
use std::rc::Rc;
use std::time::Duration;

use crate::model::types::Timestamp;

/// The content type of Prometheus' text format.
pub(crate) const CONTENT_TYPE: &str = "text/plain; version=0.0.4; charset=utf-8";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MetricKind {
    Counter,
    Gauge,
    /// The number of observations up to each bound.
    Histogram,
}

impl MetricKind {
    fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
            Self::Histogram => "histogram",
        }
    }
}

/// Metrics of one name.
#[derive(Debug)]
pub(crate) struct Family {
    pub name: &'static str,
    pub help: &'static str,
    pub kind: MetricKind,
    pub labels: &'static [&'static str],
    /// Upper bounds, ascending, of a histogram's buckets.
    pub buckets: &'static [f64],
}

impl Family {
    #[must_use]
    pub(crate) const fn counter(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { name, help, kind: MetricKind::Counter, labels, buckets: &[] }
    }

    #[must_use]
    pub(crate) const fn gauge(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { name, help, kind: MetricKind::Gauge, labels, buckets: &[] }
    }

    /// A histogram of seconds, with the default buckets of Prometheus' clients.
    #[must_use]
    pub(crate) const fn seconds(
        name: &'static str,
        help: &'static str,
        labels: &'static [&'static str],
    ) -> Self {
        Self { name, help, kind: MetricKind::Histogram, labels, buckets: &SECONDS }
    }

    #[must_use]
    pub(crate) const fn with_buckets(self, buckets: &'static [f64]) -> Self {
        Self { buckets, ..self }
    }
}

/// Prometheus' default buckets.
pub(crate) const SECONDS: [f64; 11] = [0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0];

/// Values of labels, each but the last followed by [`END`]: one text costs less than six.
type Values = Box<str>;
const END: char = '\0';

fn packed(values: &[&str]) -> String {
    let mut packed = String::with_capacity(values.iter().map(|value| value.len() + 1).sum());
    for (index, value) in values.iter().enumerate() {
        if index > 0 {
            packed.push(END);
        }
        packed.extend(value.chars().filter(|letter| *letter != END));
    }
    packed
}

enum Cell {
    Number(u64),
    Level(f64),
    Spread { counts: Box<[u64]>, sum: f64 },
}

struct Recorded {
    family: &'static Family,
    cells: BTreeMap<Values, Cell>,
}

thread_local! {
    static RECORDED: RefCell<BTreeMap<&'static str, Recorded>> = const { RefCell::new(BTreeMap::new()) };
}

/// Writes families whose numbers are kept elsewhere.
type Shows = Rc<dyn Fn(&mut Text)>;

thread_local! {
    static SHOWN: RefCell<BTreeMap<&'static str, Shows>> = const { RefCell::new(BTreeMap::new()) };
}

/// From now on, families whose name starts with `prefix` are written by `shows`, for many metrics that are
/// best kept with their subject. The last registration counts.
pub(crate) fn show(prefix: &'static str, shows: impl Fn(&mut Text) + 'static) {
    SHOWN.with_borrow_mut(|all| drop(all.insert(prefix, Rc::new(shows))));
}

fn change(
    family: &'static Family,
    values: &[&str],
    new: fn(&Family) -> Cell,
    change: impl FnOnce(&mut Cell),
) {
    debug_assert_eq!(family.labels.len(), values.len(), "{}", family.name);
    RECORDED.with_borrow_mut(|all| {
        let recorded = all.entry(family.name).or_insert_with(|| Recorded { family, cells: BTreeMap::new() });
        let values = packed(values);
        match recorded.cells.get_mut(values.as_str()) {
            Some(cell) => change(cell),
            None => change(recorded.cells.entry(values.into()).or_insert_with(|| new(family))),
        }
    });
}

/// Counts one more.
pub(crate) fn count(family: &'static Family, values: &[&str]) {
    change(
        family,
        values,
        |_| Cell::Number(0),
        |cell| {
            if let Cell::Number(number) = cell {
                *number = number.saturating_add(1);
            }
        },
    );
}

/// Shows a counter without labels from zero on: an alert on its increase sees the first event.
pub(crate) fn begin(family: &'static Family) {
    change(family, &[], |_| Cell::Number(0), |_| {});
}

pub(crate) fn set(family: &'static Family, values: &[&str], level: f64) {
    change(family, values, |_| Cell::Level(0.0), |cell| *cell = Cell::Level(level));
}

/// Moves a gauge.
pub(crate) fn add(family: &'static Family, values: &[&str], by: f64) {
    change(
        family,
        values,
        |_| Cell::Level(0.0),
        |cell| {
            if let Cell::Level(level) = cell {
                *level += by;
            }
        },
    );
}

/// Adds an observation to a histogram of seconds.
pub(crate) fn observe(family: &'static Family, values: &[&str], took: Duration) {
    let new = |family: &Family| Cell::Spread { counts: vec![0; family.buckets.len() + 1].into(), sum: 0.0 };
    let seconds = took.as_secs_f64();
    change(family, values, new, |cell| {
        if let Cell::Spread { counts, sum } = cell {
            let bucket = family.buckets.partition_point(|bound| *bound < seconds);
            counts[bucket] = counts[bucket].saturating_add(1);
            *sum += seconds;
        }
    });
}

/// Writes all recorded families whose name starts with one of these.
pub(crate) fn write_recorded(text: &mut Text, prefixes: &[&str]) {
    RECORDED.with_borrow(|all| {
        let wanted = all
            .values()
            .filter(|recorded| prefixes.iter().any(|prefix| recorded.family.name.starts_with(prefix)));
        for Recorded { family, cells } in wanted {
            text.family(family.kind, family.name, family.help);
            for (values, cell) in cells {
                let labels: Vec<(&str, &str)> =
                    family.labels.iter().copied().zip(values.split(END)).collect();
                match cell {
                    Cell::Number(number) => text.sample(&labels, number),
                    Cell::Level(level) => text.sample(&labels, level),
                    Cell::Spread { counts, sum } => text.histogram(&labels, family.buckets, counts, *sum),
                }
            }
        }
    });
    let shown = SHOWN.with_borrow(|all| {
        let wanted =
            |(prefix, shows): (&&'static str, &Shows)| prefixes.contains(prefix).then(|| Rc::clone(shows));
        all.iter().filter_map(wanted).collect::<Vec<_>>()
    });
    for shows in shown {
        shows(text);
    }
}

/// Nanoseconds as seconds, with all digits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Seconds(pub u64);

impl Display for Seconds {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (whole, part) = (self.0 / 1_000_000_000, self.0 % 1_000_000_000);
        if part == 0 {
            return write!(formatter, "{whole}");
        }
        formatter.write_str(format!("{whole}.{part:09}").trim_end_matches('0'))
    }
}

/// A page in Prometheus' text format, 0.0.4.
#[derive(Debug, Default)]
pub(crate) struct Text {
    out: String,
    name: &'static str,
    /// The head of a family that has no sample yet.
    head: String,
}

impl Text {
    /// Starts a family; its samples follow. A family without samples is left out. All samples of a family
    /// must be adjacent.
    pub(crate) fn family(&mut self, kind: MetricKind, name: &'static str, help: &str) {
        let help = help.replace('\\', "\\\\").replace('\n', "\\n");
        self.name = name;
        self.head = format!("# HELP {name} {help}\n# TYPE {name} {}\n", kind.as_str());
    }

    /// A sample. Its labels must be unique in the family.
    pub(crate) fn sample(&mut self, labels: &[(&str, &str)], value: &dyn Display) {
        self.line("", labels, value, None);
    }

    pub(crate) fn sample_at(&mut self, labels: &[(&str, &str)], value: &dyn Display, at: Timestamp) {
        self.line("", labels, value, Some(at));
    }

    /// The samples of a histogram; `counts` are not cumulative, one per bucket and one for the rest.
    pub(crate) fn histogram(&mut self, labels: &[(&str, &str)], buckets: &[f64], counts: &[u64], sum: f64) {
        let mut below = 0_u64;
        for (index, count) in counts.iter().enumerate() {
            below = below.saturating_add(*count);
            let bound = buckets.get(index).map_or_else(|| "+Inf".to_owned(), f64::to_string);
            let mut labels = labels.to_vec();
            labels.push(("le", &bound));
            self.line("_bucket", &labels, &below, None);
        }
        self.line("_sum", labels, &sum, None);
        self.line("_count", labels, &below, None);
    }

    fn line(&mut self, suffix: &str, labels: &[(&str, &str)], value: &dyn Display, at: Option<Timestamp>) {
        self.out += &std::mem::take(&mut self.head);
        self.out += self.name;
        self.out += suffix;
        for (index, (name, value)) in labels.iter().enumerate() {
            self.out += if index == 0 { "{" } else { "," };
            self.out += name;
            self.out += "=\"";
            for letter in value.chars() {
                match letter {
                    '\\' => self.out += "\\\\",
                    '"' => self.out += "\\\"",
                    '\n' => self.out += "\\n",
                    other => self.out.push(other),
                }
            }
            self.out.push('"');
        }
        if !labels.is_empty() {
            self.out.push('}');
        }
        // Writing to a text does not fail.
        let _ = write!(self.out, " {value}");
        if let Some(at) = at {
            let _ = write!(self.out, " {}", at.as_nanos() / 1_000_000);
        }
        self.out.push('\n');
    }

    #[must_use]
    pub(crate) fn finish(self) -> String {
        self.out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    static CALLS: Family = Family::counter("test_calls_total", "Calls.", &["who"]);
    static TOOK: Family = Family::seconds("test_took_seconds", "Time.", &[]).with_buckets(&[0.1, 1.0]);
    static LEVEL: Family = Family::gauge("test_level", "A level\nof \\ things.", &[]);

    #[test]
    fn what_is_counted_is_written_with_hostile_labels_escaped() {
        count(&CALLS, &["a\"b\\c\nd"]);
        count(&CALLS, &["a\"b\0\\c\nd"]);
        for millis in [50, 100, 500, 5000] {
            observe(&TOOK, &[], Duration::from_millis(millis));
        }
        set(&LEVEL, &[], 1.5);
        let mut text = Text::default();
        write_recorded(&mut text, &["test_"]);
        let expected = concat!(
            "# HELP test_calls_total Calls.\n# TYPE test_calls_total counter\n",
            "test_calls_total{who=\"a\\\"b\\\\c\\nd\"} 2\n",
            "# HELP test_level A level\\nof \\\\ things.\n# TYPE test_level gauge\ntest_level 1.5\n",
            "# HELP test_took_seconds Time.\n# TYPE test_took_seconds histogram\n",
            "test_took_seconds_bucket{le=\"0.1\"} 2\ntest_took_seconds_bucket{le=\"1\"} 3\n",
            "test_took_seconds_bucket{le=\"+Inf\"} 4\ntest_took_seconds_sum 5.65\ntest_took_seconds_count 4\n",
        );
        assert_eq!(text.finish(), expected);
    }

    #[test]
    fn empty_metric_family_is_omitted_and_seconds_stay_exact() {
        let mut text = Text::default();
        text.family(MetricKind::Gauge, "nothing", "Nothing.");
        text.family(MetricKind::Counter, "cpu_seconds_total", "CPU.");
        text.sample_at(&[], &Seconds(18_446_744_073_000_000_001), Timestamp::from_secs(2));
        text.sample(&[("a", "b")], &Seconds(1_500_000_000));
        text.sample(&[("a", "c")], &Seconds(0));
        assert_eq!(
            text.finish(),
            "# HELP cpu_seconds_total CPU.\n# TYPE cpu_seconds_total counter\ncpu_seconds_total 18446744073.000000001 2000\ncpu_seconds_total{a=\"b\"} 1.5\ncpu_seconds_total{a=\"c\"} 0\n"
        );
    }
}
