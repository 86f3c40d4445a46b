use super::*;
use crate::managers::topology::{NodeMemory, NumaNode};

const GIB: u64 = 1 << 30;

/// Nodes of 10 GiB, one of it reserved.
fn machine(nodes: u32) -> (Topology, Vec<Reservation>) {
    let memory = |kind: &str, total| NodeMemory { kind: kind.to_owned(), total };
    let node = |id| NumaNode {
        id,
        memory: vec![memory("hugepages-1Gi", 2 * GIB), memory("memory", 12 * GIB)],
        ..NumaNode::default()
    };
    let topology = Topology { nodes: (0..nodes).map(node).collect(), ..Topology::default() };
    (topology, (0..nodes).map(|node| (node, "memory".to_owned(), GIB)).collect())
}

fn block(nodes: u64, gib: u64) -> Block {
    Block { nodes: NodeMask(nodes), kind: "memory".to_owned(), size: gib * GIB }
}

fn tables(nodes: u32, blocks: &[Block]) -> Tables {
    let (topology, reserved) = machine(nodes);
    Tables::new(&topology, &reserved, blocks.iter())
}

fn request(gib: u64) -> Vec<MemoryRequest> {
    vec![("memory".to_owned(), gib * GIB)]
}

fn shown(hints: &[Hint]) -> String {
    let one = |hint: &Hint| format!("{}{}", hint.nodes.unwrap(), if hint.preferred { "" } else { "?" });
    hints.iter().map(one).collect::<Vec<_>>().join(" ")
}

#[test]
fn reservation_and_huge_pages_are_not_allocatable() {
    let (topology, reserved) = machine(1);
    let rows = allocatable(&topology, &reserved);
    let rows: Vec<(u32, &str, u64)> =
        rows.iter().map(|(node, kind, size)| (*node, kind.as_str(), size / GIB)).collect();
    assert_eq!(rows, [(0, "hugepages-1Gi", 2), (0, "memory", 9)]);
}

#[test]
fn reserved_memory_must_be_what_the_node_reserves() {
    let (topology, reserved) = machine(2);
    assert_eq!(check_reserved(&topology, &reserved, 2 * GIB), Ok(()));
    let cases: &[(&[Reservation], u64, &str)] = &[
        (
            &reserved,
            GIB,
            "the total amount \"2147483648\" of type \"memory\" is not equal to the value \"1073741824\" determined \
             by Node Allocatable feature",
        ),
        (&[(2, "memory".to_owned(), GIB)], GIB, "references a NUMA node 2 that does not exist"),
        (&[], GIB, "the total amount \"0\" of type \"memory\""),
        (&[(0, "hugepages-1Gi".to_owned(), GIB)], 0, "of type \"hugepages-1Gi\""),
        (&[], 0, "you should specify the system reserved memory"),
    ];
    for (reserved, node, expected) in cases {
        let why = check_reserved(&topology, reserved, *node).unwrap_err();
        assert!(why.contains(expected), "{why}");
    }
}

#[test]
fn hints_prefer_the_fewest_nodes_that_could_hold_it() {
    let cases: &[(&[Block], u64, &str)] = &[
        (&[], 5, "0 1 0-1?"),
        (&[], 10, "0-1"),
        (&[block(1, 5)], 5, "1"),
        (&[block(1, 5), block(2, 5)], 5, ""),
        (&[block(3, 10)], 2, "0-1?"),
        (&[block(3, 10)], 10, ""),
        (&[block(1, 1)], 10, ""),
        (&[], 19, ""),
    ];
    for (blocks, gib, expected) in cases {
        let hints = tables(2, blocks).hints(&request(*gib), &[]);
        assert_eq!(shown(&hints), *expected, "{gib} GiB beside {blocks:?}");
    }
}

#[test]
fn nodes_are_chosen_near_the_hint() {
    type Chosen = Result<u64, &'static str>;
    let near = |nodes, preferred| Hint { nodes: Some(NodeMask(nodes)), preferred };
    let cases: &[(&[Block], u64, Hint, Chosen)] = &[
        (&[], 5, Hint::default(), Ok(1)),
        (&[], 5, near(2, true), Ok(2)),
        (&[], 12, Hint::default(), Ok(3)),
        (&[], 12, near(2, false), Ok(3)),
        (&[block(1, 6)], 5, Hint::default(), Ok(2)),
        (&[block(1, 6)], 5, near(1, false), Err("failed to find NUMA nodes to extend")),
        (&[block(1, 6)], 12, Hint::default(), Err("failed to get the default NUMA affinity")),
        (
            &[block(3, 12)],
            2,
            Hint { nodes: None, preferred: true },
            Err("failed to find the default preferred hint"),
        ),
        (&[block(3, 2)], 2, near(1, true), Ok(1)),
        (&[block(1, 2)], 2, near(3, false), Err("preferred hint violates NUMA node allocation")),
        (&[block(3, 12)], 2, near(3, false), Ok(3)),
    ];
    for (blocks, gib, hint, expected) in cases {
        let chosen = tables(2, blocks).choose(&request(*gib), &[], *hint);
        match (chosen, expected) {
            (Ok(nodes), Ok(expected)) => assert_eq!(nodes.0, *expected, "{gib} GiB beside {blocks:?}"),
            (Err(why), Err(expected)) => assert!(why.contains(expected), "{why}"),
            (chosen, _) => panic!("{gib} GiB beside {blocks:?}: {chosen:?}"),
        }
    }
}

#[test]
fn what_an_init_container_leaves_is_free_for_its_pod() {
    let blocks = [block(1, 8)];
    let full = tables(1, &blocks);
    assert_eq!(shown(&full.hints(&request(8), &[])), "");
    assert_eq!(shown(&full.hints(&request(8), &blocks)), "0");
}
