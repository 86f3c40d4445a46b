//! `agent top`: the usage of pods and the node, as kubectl shows it.
//!
//! Owns the command and its columns.

use crate::cmd::help;
use crate::model::ordered::Sortable as _;
use std::time::Duration;

use serde_json::Value;

use super::args::{Common, Has, Own, UsageError, text, value};
use super::{CliError, EXIT_OK, Environment, api, print, table};
use crate::model::api::quantity::Quantity;
use crate::platform::rt;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sort {
    Name,
    Cpu,
    Memory,
}

struct TopArgs {
    common: Common,
    nodes: bool,
    containers: bool,
    sort: Sort,
    no_headers: bool,
    watch: bool,
}

fn parse(arguments: &[String]) -> Result<TopArgs, UsageError> {
    let mut wanted = TopArgs {
        common: Common::default(),
        nodes: false,
        containers: false,
        sort: Sort::Name,
        no_headers: false,
        watch: false,
    };
    let message = |message: String| UsageError::Option { message };
    let mut what = None;
    wanted.common = Common::parse(arguments, Has::AllNamespaces, &mut |own, parser| {
        match own {
            Own::Option("--containers") => wanted.containers = true,
            Own::Option("--sort-by") => {
                let given = text(value(parser)?);
                wanted.sort = match given.as_str() {
                    "cpu" => Sort::Cpu,
                    "memory" => Sort::Memory,
                    _ => return Err(message(format!("--sort-by {given:?}: must be cpu or memory"))),
                };
            }
            Own::Option("-w" | "--watch") => wanted.watch = true,
            Own::Option("--no-headers") => wanted.no_headers = true,
            Own::Word(word) if what.is_none() => what = Some(word.to_owned()),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    wanted.nodes = match what.as_deref() {
        Some("node" | "nodes" | "no") => true,
        Some("pod" | "pods" | "po") => false,
        _ if wanted.common.help => false,
        _ => return Err(message("missing resource type: agent top pods or agent top nodes".to_owned())),
    };
    Ok(wanted)
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("top"))?;
        return Ok(EXIT_OK);
    }
    rt::run(async {
        loop {
            let table = show(&wanted, environment).await?;
            // On a terminal each table replaces the previous one.
            let clear = if wanted.watch && environment.terminal { CLEAR } else { "" };
            print(environment, &format!("{clear}{table}"))?;
            if !wanted.watch {
                return Ok(EXIT_OK);
            }
            tokio::time::sleep(INTERVAL).await;
        }
    })
    .map_err(CliError::Runtime)?
}

/// The interval of `--watch`. Usage is measured over a short time anyway.
const INTERVAL: Duration = Duration::from_secs(5);
/// Moves the cursor to the top left, and clears everything below.
const CLEAR: &str = "\u{1b}[H\u{1b}[J";

/// The table. It is empty when there is nothing to show, and standard error reports that.
async fn show(wanted: &TopArgs, environment: &mut Environment<'_>) -> Result<String, CliError> {
    let mut rows;
    if wanted.nodes {
        let nodes = api::fetch(&wanted.common.socket, "/api/v1/nodes", api::OBJECTS).await?;
        let metrics =
            api::fetch(&wanted.common.socket, "/apis/metrics.k8s.io/v1beta1/nodes", api::OBJECTS).await?;
        rows =
            vec![["NAME", "CPU(cores)", "CPU(%)", "MEMORY(bytes)", "MEMORY(%)"].map(str::to_owned).to_vec()];
        for metric in items(&metrics) {
            let named = |node: &&Value| node["metadata"]["name"] == metric["metadata"]["name"];
            let of = items(&nodes).iter().find(named);
            rows.push(node_row(metric, of));
        }
    } else {
        let place = wanted
            .common
            .namespace
            .as_ref()
            .map_or(String::new(), |name| format!("/namespaces/{}", super::client::escaped(name)));
        let path = format!("/apis/metrics.k8s.io/v1beta1{place}/pods");
        let metrics = api::fetch(&wanted.common.socket, &path, api::OBJECTS).await?;
        rows = pod_rows(wanted, items(&metrics));
        if rows.len() == 1 {
            let place = wanted
                .common
                .namespace
                .as_ref()
                .map_or(String::new(), |name| format!(" in {name} namespace."));
            let _ = writeln!(environment.err, "No resources found{place}");
            return Ok(String::new());
        }
    }
    if wanted.no_headers {
        rows.remove(0);
    }
    Ok(table::render(&rows))
}

fn items(list: &Value) -> &[Value] {
    list["items"].as_array().map(Vec::as_slice).unwrap_or_default()
}

/// Thousandths of a core, and bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Used {
    milli_cpu: i64,
    bytes: i64,
}

fn used(amounts: &Value) -> Used {
    let quantity = |name: &str| Quantity::parse(amounts[name].as_str().unwrap_or("0")).ok();
    Used {
        milli_cpu: quantity("cpu").map_or(0, Quantity::milli_value),
        bytes: quantity("memory").map_or(0, Quantity::value),
    }
}

impl Used {
    /// Rounded down, as in kubectl.
    fn cells(self) -> [String; 2] {
        [format!("{}m", self.milli_cpu), format!("{}Mi", self.bytes / (1024 * 1024))]
    }
}

fn node_row(metric: &Value, node: Option<&Value>) -> Vec<String> {
    let Used { milli_cpu, bytes } = used(&metric["usage"]);
    let [cpu, memory] = Used { milli_cpu, bytes }.cells();
    let all = node.map(|node| used(&node["status"]["allocatable"])).unwrap_or_default();
    let share = |part: i64, of: i64| {
        if of > 0 { format!("{}%", part.saturating_mul(100) / of) } else { "<unknown>".to_owned() }
    };
    let name = metric["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    vec![name, cpu, share(milli_cpu, all.milli_cpu), memory, share(bytes, all.bytes)]
}

fn pod_rows(wanted: &TopArgs, metrics: &[Value]) -> Vec<Vec<String>> {
    let place = wanted.common.namespace.is_none().then_some("NAMESPACE");
    let names: &[&str] = if wanted.containers { &["POD", "NAME"] } else { &["NAME"] };
    let header = place
        .into_iter()
        .chain(names.iter().copied())
        .chain(["CPU(cores)", "MEMORY(bytes)"])
        .map(str::to_owned);
    let mut lines: Vec<(Vec<String>, Used)> = Vec::new();
    for metric in metrics {
        let text = |name: &str| metric["metadata"][name].as_str().unwrap_or_default().to_owned();
        let of_pod: Vec<String> = wanted
            .common
            .namespace
            .is_none()
            .then(|| text("namespace"))
            .into_iter()
            .chain([text("name")])
            .collect();
        let containers = metric["containers"].as_array().map(Vec::as_slice).unwrap_or_default();
        let each = containers.iter().map(|container| {
            (container["name"].as_str().unwrap_or_default().to_owned(), used(&container["usage"]))
        });
        if wanted.containers {
            lines.extend(each.map(|(name, used)| ([&of_pod[..], &[name]].concat(), used)));
        } else {
            let sum = each.fold(Used::default(), |sum, (_, used)| Used {
                milli_cpu: sum.milli_cpu.saturating_add(used.milli_cpu),
                bytes: sum.bytes.saturating_add(used.bytes),
            });
            lines.push((of_pod, sum));
        }
    }
    lines.order_by(|(a, x), (b, y)| match wanted.sort {
        Sort::Name => a.cmp(b),
        Sort::Cpu => y.milli_cpu.cmp(&x.milli_cpu).then_with(|| a.cmp(b)),
        Sort::Memory => y.bytes.cmp(&x.bytes).then_with(|| a.cmp(b)),
    });
    let rows = lines.into_iter().map(|(name, used)| name.into_iter().chain(used.cells()).collect());
    std::iter::once(header.collect()).chain(rows).collect()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn shown(line: &str) -> Vec<String> {
        let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
        let container = |name, cpu, memory| json!({"name": name, "usage": {"cpu": cpu, "memory": memory}});
        let metrics = [
            json!({"metadata": {"name": "b", "namespace": "x"}, "containers": [container("c", "1500000n", "3Mi")]}),
            json!({"metadata": {"name": "a", "namespace": "y"},
                "containers": [container("d", "250m", "1Mi"), container("e", "1", "1048575")]}),
        ];
        let rows = pod_rows(&parse(&words).unwrap(), &metrics);
        rows.into_iter().map(|row| row.join(" ")).collect()
    }

    #[test]
    fn use_is_summed_sorted_and_rounded_as_kubectl_does() {
        assert_eq!(shown("pods"), ["NAME CPU(cores) MEMORY(bytes)", "a 1250m 1Mi", "b 2m 3Mi"]);
        assert_eq!(shown("po -A --sort-by memory")[1..], ["x b 2m 3Mi", "y a 1250m 1Mi"]);
        assert_eq!(
            shown("pod --containers --sort-by cpu")[1..],
            ["a e 1000m 0Mi", "a d 250m 1Mi", "b c 2m 3Mi"]
        );
        let metric = json!({"metadata": {"name": "box"}, "usage": {"cpu": "500m", "memory": "1Gi"}});
        let node = json!({"status": {"allocatable": {"cpu": "2", "memory": "4Gi"}}});
        assert_eq!(node_row(&metric, Some(&node)), ["box", "500m", "25%", "1024Mi", "25%"]);
        assert_eq!(node_row(&metric, None)[2], "<unknown>");
        assert!(parse(&["disks".to_owned()]).is_err());
    }
}
