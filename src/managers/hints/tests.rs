use super::*;
use crate::managers::topology::NumaNode;

fn machine(nodes: u32) -> Topology {
    let node = |id| NumaNode { id, ..NumaNode::default() };
    Topology { nodes: (0..nodes).map(node).collect(), ..Topology::default() }
}

/// `0,1` is a preferred hint, `0,1?` is not; `-` stands for any node.
fn hint(text: &str) -> Hint {
    let preferred = !text.ends_with('?');
    let nodes = text.trim_end_matches('?');
    let mask = |nodes: &str| {
        nodes.split(',').fold(NodeMask(0), |mask, node| mask.or(NodeMask::of(node.parse().unwrap())))
    };
    Hint { nodes: (nodes != "-").then(|| mask(nodes)), preferred }
}

/// Resources with their hints: `none` has no preference, `never` no possibility.
fn given(resources: &[&str]) -> Vec<Hints> {
    let list = |text: &&str| match *text {
        "none" => None,
        "never" => Some(Vec::new()),
        hints => Some(hints.split(' ').map(hint).collect()),
    };
    resources.iter().map(list).collect()
}

/// Upstream's table, with its expectations.
const BEST_EFFORT: &[(&[&str], &str)] = &[
    (&["0", "0"], "0"),
    (&["1", "1"], "1"),
    (&["none", "0"], "0"),
    (&["0 1", "1"], "1"),
    (&["0 1", "0 0,1?"], "0"),
    (&["1 0,1?", "0 1 0,1?"], "1"),
    (&["0,1 0,2", "0,1 0,2"], "0,1"),
    (&[], "0,1,2,3"),
    (&["none"], "0,1,2,3"),
    (&["never"], "0,1,2,3?"),
    (&["-"], "0,1,2,3"),
    (&["-?"], "0,1,2,3?"),
    (&["0", "1"], "0,1,2,3?"),
    (&["0", "0?"], "0?"),
    (&["0", "0,1"], "0?"),
    (&["0 1", "0,1?"], "0?"),
    (&["0,1,2,3? 0,1?", "0,1?"], "0,1?"),
    (&["0,1,2,3? 0,1?", "0,3?"], "0,3?"),
    (&["0,1,2,3? 0,1?", "2,3?"], "2,3?"),
    (&["0,1,2,3? 0,1?", "1,2? 2,3?"], "1,2?"),
    (&["0,1,2,3? 0,1?", "1,2,3? 1,2? 1,3? 2,3?"], "1,2?"),
];

#[test]
fn hints_are_merged_as_the_kubelet_does() {
    let four = machine(4);
    for (resources, expected) in BEST_EFFORT {
        let expected = hint(expected);
        let merged = merge(Policy::BestEffort, &four, false, &given(resources));
        assert_eq!(merged, (expected, true), "{resources:?}");
        let merged = merge(Policy::Restricted, &four, false, &given(resources));
        assert_eq!(merged, (expected, expected.preferred), "{resources:?}");
    }
}

#[test]
fn a_single_node_is_required_by_its_policy() {
    let cases: &[(&[&str], &str)] = &[
        (&["0", "0"], "0"),
        (&["none", "1"], "1"),
        (&["0 1", "0 0,1?"], "0"),
        (&[], "-"),
        (&["none"], "-"),
        (&["never"], "-?"),
        (&["-"], "-"),
        (&["-?"], "-?"),
        (&["0", "1"], "-?"),
        (&["0", "0?"], "-?"),
        (&["0,1", "0 1 0,1?"], "-?"),
        (&["0 1 0,1?", "none"], "0"),
    ];
    for (resources, expected) in cases {
        let expected = hint(expected);
        let merged = merge(Policy::SingleNumaNode, &machine(4), false, &given(resources));
        assert_eq!(merged, (expected, expected.preferred), "{resources:?}");
    }
    let one = merge(Policy::SingleNumaNode, &machine(1), false, &given(&["0", "0"]));
    assert_eq!(one, (hint("-"), true), "the only node is no restriction");
}

#[test]
fn closest_nodes_win_when_asked() {
    let mut eight = machine(8);
    for node in &mut eight.nodes {
        let from = node.id;
        node.distances = (0..8)
            .map(|to| {
                if from == to {
                    10
                } else if from % 4 == to % 4 {
                    11
                } else {
                    21
                }
            })
            .collect();
    }
    let both = given(&["0,4 0,2", "0,4 0,2"]);
    assert_eq!(merge(Policy::BestEffort, &eight, false, &both).0, hint("0,2"));
    assert_eq!(merge(Policy::BestEffort, &eight, true, &both).0, hint("0,4"));
    let narrower = given(&["1 0,4", "1 0,4"]);
    assert_eq!(
        merge(Policy::Restricted, &eight, true, &narrower).0,
        hint("1"),
        "fewer nodes before near ones"
    );
}
