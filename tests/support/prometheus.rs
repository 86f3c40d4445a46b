//! A strict reader of Prometheus' text format, 0.0.4, with the checks that `promtool check metrics` makes.

use std::collections::{BTreeMap, BTreeSet};

/// What upstream named before there were rules: two counters, and a gauge.
const UPSTREAMS_OWN: [&str; 3] =
    ["kubelet_server_expiration_renew_errors", "container_memory_failcnt", "container_fs_inodes_total"];

/// A page.
#[derive(Debug, Default)]
pub struct Page {
    samples: Vec<Sample>,
}

/// One line.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample {
    /// With a histogram's suffix.
    pub name: String,
    /// By name.
    pub labels: BTreeMap<String, String>,
    /// The number.
    pub value: f64,
}

impl Page {
    /// Reads a page; the error names the line.
    pub fn parse(text: &str) -> Result<Self, String> {
        if !text.is_empty() && !text.ends_with('\n') {
            return Err("the last line is not whole".to_owned());
        }
        let mut page = Self::default();
        let (mut family, mut kind) = (String::new(), String::new());
        let (mut families, mut series) = (BTreeSet::new(), BTreeSet::new());
        let mut lines = text.lines();
        while let Some(line) = lines.next() {
            let bad = |what: &str| Err(format!("{what}: {line}"));
            if let Some(rest) = line.strip_prefix("# HELP ") {
                let Some((name, help)) = rest.split_once(' ') else { return bad("no help") };
                let next = lines.next().unwrap_or_default();
                let Some(told) = next.strip_prefix(&format!("# TYPE {name} ")) else {
                    return bad("no type after the help");
                };
                if help.is_empty() || !families.insert(name.to_owned()) {
                    return bad("an empty help or a family twice");
                }
                if !matches!(told, "counter" | "gauge" | "histogram") {
                    return bad("an unknown type");
                }
                if (told == "counter") != name.ends_with("_total") && !UPSTREAMS_OWN.contains(&name) {
                    return bad("counters, and nothing else, end in _total");
                }
                if told != "histogram"
                    && ["_bucket", "_sum", "_count"].iter().any(|suffix| name.ends_with(suffix))
                {
                    return bad("a histogram's suffix");
                }
                (family, kind) = (name.to_owned(), told.to_owned());
                continue;
            }
            let sample = parse_sample(line)?;
            let base = ["_bucket", "_sum", "_count"]
                .iter()
                .filter(|_| kind == "histogram")
                .find_map(|suffix| sample.name.strip_suffix(suffix));
            if base.unwrap_or(&sample.name) != family {
                return bad("a sample outside its family");
            }
            if !series.insert((sample.name.clone(), sample.labels.clone())) {
                return bad("a series twice");
            }
            if kind != "gauge" && sample.value < 0.0 {
                return bad("less than nothing");
            }
            page.samples.push(sample);
        }
        Ok(page)
    }

    /// All of it.
    pub fn samples(&self) -> &[Sample] {
        &self.samples
    }

    /// The values of a name whose labels have these.
    pub fn values(&self, name: &str, labels: &[(&str, &str)]) -> Vec<f64> {
        let has = |sample: &&Sample| {
            let is_there =
                |(label, value): &(&str, &str)| sample.labels.get(*label).is_some_and(|found| found == value);
            sample.name == name && labels.iter().all(is_there)
        };
        self.samples.iter().filter(has).map(|sample| sample.value).collect()
    }
}

fn is_name(name: &str) -> bool {
    !name.is_empty()
        && !name.starts_with(|first: char| first.is_ascii_digit())
        && name.chars().all(|letter| letter.is_ascii_alphanumeric() || letter == '_')
}

fn parse_sample(line: &str) -> Result<Sample, String> {
    let bad = |what: &str| format!("{what}: {line}");
    let end = line.find(['{', ' ']).ok_or_else(|| bad("no value"))?;
    let (name, mut rest) = line.split_at(end);
    if !is_name(name) {
        return Err(bad("no name of a metric"));
    }
    let mut labels = BTreeMap::new();
    if let Some(inner) = rest.strip_prefix('{') {
        rest = inner;
        loop {
            let (label, value) = rest.split_once("=\"").ok_or_else(|| bad("no label"))?;
            let mut read = String::new();
            let mut letters = value.char_indices();
            let end = loop {
                match letters.next().ok_or_else(|| bad("a label without end"))? {
                    (at, '"') => break at,
                    (_, '\\') => match letters.next() {
                        Some((_, 'n')) => read.push('\n'),
                        Some((_, letter @ ('\\' | '"'))) => read.push(letter),
                        _ => return Err(bad("an unknown escape")),
                    },
                    (_, letter) => read.push(letter),
                }
            };
            if !is_name(label) || labels.insert(label.to_owned(), read).is_some() {
                return Err(bad("a bad label"));
            }
            rest = &value[end + 1..];
            match rest.strip_prefix(',') {
                Some(more) => rest = more,
                None => break,
            }
        }
        rest = rest.strip_prefix('}').ok_or_else(|| bad("labels without end"))?;
    }
    let mut words = rest.strip_prefix(' ').ok_or_else(|| bad("no value"))?.split(' ');
    let value = words.next().and_then(|word| word.parse().ok()).ok_or_else(|| bad("no number"))?;
    if words.next().is_some_and(|time| time.parse::<i64>().is_err()) || words.next().is_some() {
        return Err(bad("no time"));
    }
    Ok(Sample { name: name.to_owned(), labels, value })
}

#[test]
fn the_reader_refuses_what_prometheus_refuses() {
    let head = "# HELP a_total A.\n# TYPE a_total counter\n";
    let page = Page::parse(&format!("{head}a_total{{x=\"1\\\"\\n\"}} 2 17\na_total 3\n")).expect("a page");
    assert_eq!(page.values("a_total", &[("x", "1\"\n")]), [2.0]);
    for bad in [
        "a_total 1\n".to_owned(),
        format!("{head}a_total 1"),
        format!("{head}a_total 1\na_total 1\n"),
        format!("{head}b_total 1\n"),
        format!("{head}a_total{{x=\"1}} 1\n"),
        format!("{head}a_total{{x=\"\\q\"}} 1\n"),
        format!("{head}a_total -1\n"),
        format!("{head}a_total one\n"),
        "# HELP a A.\n# TYPE a counter\n".to_owned(),
        "# HELP a_total A.\n# TYPE a_total gauge\n".to_owned(),
        format!("{head}a_total 1\n{head}"),
    ] {
        assert!(Page::parse(&bad).is_err(), "{bad}");
    }
}
