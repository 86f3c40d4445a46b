//! What the command line shows of a running agent, for people and for programs.

use serde_json::Value;

use super::node::Node;

#[test]
fn every_output_format_shows_the_same_pod() {
    let mut node = Node::new();
    node.start_with_neighbour();
    node.agent.wait_for_phase("neighbour", "Running");
    let get = |format: &[&str]| node.agent.cli(&[&["get", "pods"], format].concat()).expect("the pods");
    assert_eq!(get(&["-o", "name"]), "pod/neighbour-edge\n");
    let table = get(&[]);
    let rows: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["NAME", "READY", "STATUS", "RESTARTS", "AGE"]);
    assert_eq!(rows[1][..4], ["neighbour-edge", "1/1", "Running", "0"]);
    assert_eq!(get(&["--no-headers"]).lines().count(), 1);
    let wide = get(&["-o", "wide"]);
    assert!(wide.contains("IP") && wide.contains("NODE") && wide.contains(" edge"), "{wide}");
    let json: Value = serde_json::from_str(&get(&["-o", "json"])).expect("JSON");
    assert_eq!((&json["kind"], &json["apiVersion"]), (&"List".into(), &"v1".into()));
    let pod = &json["items"][0];
    assert_eq!((&pod["kind"], &pod["metadata"]["name"]), (&"Pod".into(), &"neighbour-edge".into()));
    assert_eq!(pod["metadata"]["annotations"]["kubernetes.io/config.source"], "file");
    let id = pod["status"]["containerStatuses"][0]["containerID"].as_str().unwrap_or_default();
    assert!(id.starts_with("fake://"), "{id}");
    let yaml = get(&["-o", "yaml"]);
    let documents = edge_agent::codec::yaml::yaml_to_values(&yaml, true).expect("YAML");
    assert_eq!(documents, [json]);
    let missing = node.agent.cli(&["get", "pods", "ghost"]).expect_err("there is none");
    assert!(missing.contains("pods \"ghost\" not found"), "{missing}");
}

#[test]
fn a_healthy_node_is_well_and_exits_zero() {
    let mut node = Node::new();
    node.start_with_neighbour();
    node.agent.wait_for_phase("neighbour", "Running");
    let text = node.agent.cli(&["status"]).expect("all is well");
    for word in ["Node:", "edge", "fake 1.0.0", "ready", "file", "neighbour-edge", "All is well."] {
        assert!(text.contains(word), "{word}: {text}");
    }
    let yaml = node.agent.cli(&["status", "-o", "yaml"]).expect("YAML");
    assert!(yaml.contains("nodeName: edge"), "{yaml}");
}
