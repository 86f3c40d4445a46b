//! What a Grafana dashboard asks of Prometheus: metrics with their labels, compared with the pages that the agent serves.

use std::collections::BTreeSet;

use serde_json::Value;

use super::prometheus::Sample;

/// Labels that Prometheus adds while it scrapes.
const OF_THE_SCRAPE: [&str; 2] = ["instance", "job"];

/// One query of a panel.
#[derive(Debug)]
pub struct Query {
    /// The panel's title.
    pub panel: String,
    pub expression: String,
}

/// Every query of every panel.
pub fn queries(dashboard: &Value) -> Vec<Query> {
    let panels = dashboard["panels"].as_array().expect("panels");
    let of_panel = |panel: &Value| {
        let title = panel["title"].as_str().expect("a title").to_owned();
        let targets = panel["targets"].as_array().cloned().unwrap_or_default();
        targets
            .into_iter()
            .map(|target| Query {
                panel: title.clone(),
                expression: target["expr"].as_str().expect("an expression").to_owned(),
            })
            .collect::<Vec<_>>()
    };
    panels.iter().flat_map(of_panel).collect()
}

/// A metric and what is asked of its labels: name, operator, value.
type Selector = (String, Vec<(String, String, String)>);

impl Query {
    /// `name{a="b", c=~"d"}`, all of them.
    fn selectors(&self) -> Vec<Selector> {
        let mut found = Vec::new();
        for (at, _) in self.expression.match_indices('{') {
            let before = &self.expression[..at];
            let is_part = |letter: char| letter.is_ascii_alphanumeric() || letter == '_';
            let name = &before[before.rfind(|letter| !is_part(letter)).map_or(0, |end| end + 1)..];
            let inner = self.expression[at + 1..].split('}').next().expect("text");
            let labels = inner.split(", ").map(|matcher| {
                let end = matcher.find(['=', '!']).unwrap_or_else(|| panic!("{}", self.expression));
                let start = matcher.find('"').expect("a value");
                let value = matcher[start + 1..].trim_end_matches('"').to_owned();
                (matcher[..end].to_owned(), matcher[end..start].to_owned(), value)
            });
            found.push((name.to_owned(), labels.collect()));
        }
        found
    }

    /// Labels of `by (a, b)`.
    fn grouped_by(&self) -> BTreeSet<&str> {
        let lists = self.expression.split("by (").skip(1);
        lists.flat_map(|rest| rest.split(')').next().expect("text").split(", ")).collect()
    }

    /// Why the query has no answer from these samples.
    pub fn trouble(&self, samples: &[Sample]) -> Option<String> {
        let selectors = self.selectors();
        if selectors.is_empty() {
            return Some("it asks for no metric".to_owned());
        }
        let grouped = self.grouped_by();
        selectors.iter().find_map(|(name, matchers)| {
            let has = |sample: &&Sample| {
                sample.name == *name
                    && matchers.iter().all(|(label, operator, value)| {
                        let found = sample.labels.get(label);
                        match (operator.as_str(), value.as_str()) {
                            _ if OF_THE_SCRAPE.contains(&label.as_str()) => true,
                            ("=", value) => found.is_some_and(|found| found == value),
                            ("!=", "") => found.is_some_and(|found| !found.is_empty()),
                            // Of a label that is there; whether such a value has come yet is another matter.
                            ("!=", _) => found.is_some(),
                            ("=~", value) if value.starts_with('$') => found.is_some(),
                            other => panic!("{other:?}: the test does not know this"),
                        }
                    })
            };
            let Some(sample) = samples.iter().find(has) else {
                return Some(format!("no series of {name} with {matchers:?}"));
            };
            let lacks = grouped
                .iter()
                .find(|label| !OF_THE_SCRAPE.contains(label) && !sample.labels.contains_key(**label));
            lacks.map(|label| format!("{name} has no label {label}: {:?}", sample.labels))
        })
    }
}

#[test]
fn query_without_its_metric_or_label_is_in_trouble() {
    let sample = |name: &str, label: &str| Sample {
        name: name.to_owned(),
        labels: [(label.to_owned(), "x".to_owned())].into(),
        value: 1.0,
    };
    let samples = [sample("a_total", "pod"), sample("b", "pod")];
    let trouble = |expression: &str| {
        Query { panel: String::new(), expression: expression.to_owned() }.trouble(&samples)
    };
    for good in [
        "sum by (pod) (rate(a_total{instance=~\"$instance\", pod=~\"$pod\"}[5m])) / sum by (pod) (b{pod=\"x\"} > 0)",
        "a_total{pod!=\"\"}",
        "sum by (instance) (b{job=\"kubelet\"})",
    ] {
        assert_eq!(trouble(good), None, "{good}");
    }
    for bad in [
        "c{pod=\"x\"}",
        "a_total{pod=\"y\"}",
        "a_total{node=~\"$n\"}",
        "sum by (node) (b{pod=\"x\"})",
        "sum(b)",
    ] {
        assert!(trouble(bad).is_some(), "{bad}");
    }
}
