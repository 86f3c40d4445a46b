use super::*;
use crate::managers::topology::{Cpu, NodeMemory, NumaNode};

const GIB: u64 = 1 << 30;

fn set(text: &str) -> CpuSet {
    CpuSet::parse(text).unwrap()
}

/// Cores of `threads` CPUs that follow each other; as many sockets as NUMA nodes.
fn ledger(cpus: u32, threads: u32, nodes: u32, reserved: &str) -> Ledger {
    let per_node = cpus / nodes;
    let cpu = |id| Cpu {
        id,
        core: id / threads * threads,
        socket: id / per_node,
        node: id / per_node,
        cache: id / per_node,
    };
    let memory = || vec![NodeMemory { kind: "memory".to_owned(), total: 10 * GIB }];
    let node = |id| NumaNode { id, memory: memory(), distances: Vec::new() };
    let topology = Topology {
        cpus: (0..cpus).map(cpu).collect(),
        nodes: (0..nodes).map(node).collect(),
        isolated: CpuSet::default(),
    };
    let policy = CpuPolicy { options: CpuOptions::default(), reserved: set(reserved) };
    Ledger { topology, cpu: Some(policy), ..Ledger::default() }
}

fn app(container: &str, cpus: usize) -> ResourceRequest {
    ResourceRequest { container: container.to_owned(), cpus, ..ResourceRequest::default() }
}

fn init(container: &str, cpus: usize) -> ResourceRequest {
    ResourceRequest { is_init: true, ..app(container, cpus) }
}

fn sidecar(container: &str, cpus: usize) -> ResourceRequest {
    ResourceRequest { is_sidecar: true, ..init(container, cpus) }
}

fn with_memory(request: ResourceRequest, gib: u64) -> ResourceRequest {
    ResourceRequest { memory: vec![("memory".to_owned(), gib * GIB)], ..request }
}

fn uid(name: &str) -> PodUid {
    PodUid::from(name)
}

/// Admits all containers without a topology policy.
fn admit(ledger: &mut Ledger, pod: &str, requests: &[ResourceRequest]) -> Result<(), AdmissionRefusal> {
    let mut one = |at| ledger.allocate(&uid(pod), requests, at, Hint::default());
    (0..requests.len()).try_for_each(|at| one(at).map(drop))
}

fn cpus(ledger: &Ledger, pod: &str, container: &str) -> String {
    ledger.entry(&uid(pod), container).map_or("-".to_owned(), |entry| entry.cpus.to_string())
}

#[test]
fn two_cpus_serve_one_exclusive_container() {
    let mut board = ledger(2, 1, 1, "0");
    assert_eq!(board.shared().to_string(), "0-1");
    admit(&mut board, "p", &[app("a", 1)]).unwrap();
    assert_eq!((cpus(&board, "p", "a"), board.shared().to_string()), ("1".to_owned(), "0".to_owned()));
    let why = admit(&mut board, "q", &[app("a", 1)]).unwrap_err();
    let message = "Allocate failed due to not enough cpus available to satisfy request: requested=1, available=0, \
                   which is unexpected";
    assert_eq!((why.reason, why.message.as_str()), ("UnexpectedAdmissionError", message));
    assert!(board.release(&uid("p")) && !board.release(&uid("p")));
    assert_eq!(board.shared().to_string(), "0-1");
}

#[test]
fn init_containers_lend_cpus_and_sidecars_keep_them() {
    let mut board = ledger(8, 1, 1, "0");
    admit(&mut board, "p", &[init("i", 4), app("a", 2), app("b", 2)]).unwrap();
    assert_eq!(cpus(&board, "p", "i"), "1-4");
    assert_eq!((cpus(&board, "p", "a"), cpus(&board, "p", "b")), ("1-2".to_owned(), "3-4".to_owned()));
    assert_eq!(board.shared().to_string(), "0,5-7");
    let mut board = ledger(8, 1, 1, "0");
    admit(&mut board, "p", &[sidecar("s", 2), init("i", 2), app("a", 3)]).unwrap();
    assert_eq!((cpus(&board, "p", "s"), cpus(&board, "p", "i")), ("1-2".to_owned(), "3-4".to_owned()));
    assert_eq!(cpus(&board, "p", "a"), "3-5");
    let mut board = ledger(8, 1, 1, "0");
    admit(&mut board, "p", &[init("i", 3), sidecar("s", 1), init("j", 2), app("a", 2)]).unwrap();
    assert_eq!(
        (cpus(&board, "p", "s"), cpus(&board, "p", "j"), cpus(&board, "p", "a")),
        ("1".to_owned(), "2-3".to_owned(), "2-3".to_owned())
    );
}

#[test]
fn whole_cores_are_required_when_asked() {
    let full = |reserved| {
        let mut board = ledger(8, 2, 1, reserved);
        board.cpu.as_mut().unwrap().options.full_pcpus_only = true;
        board
    };
    let why = admit(&mut full("0"), "p", &[app("a", 1)]).unwrap_err();
    let message = "SMT Alignment Error: requested 1 cpus not multiple cpus per core = 2";
    assert_eq!((why.reason, why.message.as_str()), ("SMTAlignmentError", message));
    let mut board = full("0");
    admit(&mut board, "p", &[app("a", 4)]).unwrap();
    assert_eq!(cpus(&board, "p", "a"), "2-5", "the core of a reserved CPU is not whole");
    let why = admit(&mut board, "q", &[app("a", 4)]).unwrap_err();
    let message = "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = 2, requested CPUs = 4, \
                   CPUs per core = 2";
    assert_eq!(why.message, message);
}

#[test]
fn strict_reservation_keeps_shared_containers_away() {
    let mut board = ledger(4, 1, 1, "0-1");
    board.cpu.as_mut().unwrap().options.strict_reservation = true;
    assert_eq!(board.shared().to_string(), "2-3");
    admit(&mut board, "p", &[app("a", 1)]).unwrap();
    assert_eq!(board.shared().to_string(), "3");
    admit(&mut board, "q", &[app("a", 1)]).unwrap();
    assert_eq!(board.shared().to_string(), "0-1", "rather than on another's CPU, or nowhere");
    assert_eq!(board.allocatable().to_string(), "2-3");
}

#[test]
fn isolated_cpus_are_not_shared() {
    let mut board = ledger(4, 1, 1, "0");
    board.topology.isolated = set("2-3");
    assert_eq!(board.shared().to_string(), "0-1");
    admit(&mut board, "p", &[app("a", 1)]).unwrap();
    assert_eq!((cpus(&board, "p", "a"), board.shared().to_string()), ("2".to_owned(), "0-1".to_owned()));
}

#[test]
fn cpus_hints_are_of_nodes_with_enough_free_ones() {
    let mut server = ledger(8, 1, 2, "0");
    let shown = |server: &Ledger, pod: &str, requests: &[ResourceRequest], at| {
        let hints = server.hints(&uid(pod), requests, at).remove(0);
        let one = |hint: &Hint| format!("{}{}", hint.nodes.unwrap(), if hint.preferred { "" } else { "?" });
        hints.map_or("any".to_owned(), |hints| hints.iter().map(one).collect::<Vec<_>>().join(" "))
    };
    assert_eq!(shown(&server, "p", &[app("a", 2)], Some(0)), "0 1 0-1?");
    assert_eq!(shown(&server, "p", &[app("a", 4)], Some(0)), "1 0-1?");
    assert_eq!(shown(&server, "p", &[app("a", 6)], Some(0)), "0-1");
    assert_eq!(shown(&server, "p", &[app("a", 0)], Some(0)), "any");
    assert_eq!(shown(&server, "p", &[app("a", 2), app("b", 3)], None), "0-1");
    assert_eq!(shown(&server, "p", &[init("i", 3), app("a", 2)], None), "0 1 0-1?");
    server
        .allocate(&uid("p"), &[app("a", 2)], 0, Hint { nodes: Some(NodeMask(2)), preferred: true })
        .unwrap();
    assert_eq!(cpus(&server, "p", "a"), "4-5", "near the hint");
    assert_eq!(shown(&server, "p", &[app("a", 2)], Some(0)), "1 0-1?", "what it has is the hint again");
    assert_eq!(shown(&server, "p", &[app("a", 3)], Some(0)), "", "what it has is not what it asks for");
    server.cpu.as_mut().unwrap().options.align_by_socket = true;
    assert_eq!(shown(&server, "q", &[app("a", 3)], Some(0)), "0 0-1?");
}

#[test]
fn more_than_the_hint_has_comes_from_elsewhere() {
    let mut server = ledger(8, 1, 2, "0");
    server
        .allocate(&uid("p"), &[app("a", 5)], 0, Hint { nodes: Some(NodeMask(2)), preferred: false })
        .unwrap();
    assert_eq!(cpus(&server, "p", "a"), "1,4-7");
}

#[test]
fn memory_is_taken_beside_the_cpus() {
    let mut server = ledger(8, 1, 2, "0");
    server.memory = Some(vec![(0, "memory".to_owned(), GIB)]);
    let with = with_memory;
    let requests = [with(init("i", 0), 8), with(app("a", 2), 6), with(app("b", 0), 2)];
    let near = Hint { nodes: Some(NodeMask(2)), preferred: true };
    (0..3).for_each(|at| assert_eq!(server.allocate(&uid("p"), &requests, at, near), Ok(true)));
    let sizes: Vec<u64> = server.entries.iter().map(|entry| entry.memory[0].size / GIB).collect();
    assert_eq!(sizes, [0, 6, 2], "what the init container had is used again, and counted once");
    let other = [with(app("a", 0), 3)];
    assert_eq!(
        server.hints(&uid("q"), &other, Some(0))[1],
        Some(vec![Hint { nodes: Some(NodeMask(1)), preferred: true },])
    );
    let why = admit(&mut server, "r", &[with(app("a", 0), 12)]).unwrap_err();
    assert_eq!(why.reason, UNEXPECTED);
    server.release(&uid("p"));
    admit(&mut server, "r", &[with(app("a", 0), 12)]).unwrap();
    assert_eq!(server.entry(&uid("r"), "a").unwrap().memory[0].nodes, NodeMask(3));
}

#[test]
fn a_changed_machine_keeps_what_fits_and_moves_the_rest() {
    let entry = |pod: &str, cpus: &str| ExclusiveEntry {
        pod: uid(pod),
        container: "a".to_owned(),
        cpus: set(cpus),
        memory: Vec::new(),
    };
    let restored = |mut board: Ledger, entries: &[ExclusiveEntry]| {
        let changes = board.restore(entries.to_vec());
        let messages: Vec<String> = changes.into_iter().map(|change| change.message).collect();
        (board, messages)
    };
    let (board, messages) = restored(ledger(4, 1, 1, "0"), &[entry("p", "1"), entry("q", "2")]);
    assert_eq!((cpus(&board, "p", "a"), cpus(&board, "q", "a")), ("1".to_owned(), "2".to_owned()));
    assert!(messages.is_empty());
    let (board, messages) = restored(ledger(4, 1, 1, "0"), &[entry("p", "4-5")]);
    assert_eq!(cpus(&board, "p", "a"), "1-2");
    assert_eq!(messages, ["CPUs 4-5 are not available any more; the container runs on CPUs 1-2"]);
    let (board, messages) = restored(ledger(4, 1, 1, "0-1"), &[entry("p", "1")]);
    assert_eq!((cpus(&board, "p", "a"), messages.len()), ("2".to_owned(), 1), "reserved now");
    let (board, messages) = restored(ledger(2, 1, 1, "0"), &[entry("p", "1"), entry("q", "3")]);
    assert_eq!(cpus(&board, "q", "a"), "-");
    assert_eq!(messages, ["CPUs 3 are not available any more; the container runs on shared CPUs"]);
    let (board, messages) = restored(ledger(2, 1, 1, "0"), &[entry("p", "1-2")]);
    assert_eq!((cpus(&board, "p", "a"), messages.len()), ("1".to_owned(), 1), "part of them");
    let (board, _) = restored(ledger(4, 1, 1, "0"), &[entry("p", "1"), entry("q", "1")]);
    assert_eq!(
        (cpus(&board, "p", "a"), cpus(&board, "q", "a")),
        ("1".to_owned(), "2".to_owned()),
        "never shared"
    );
    let (board, messages) = restored(ledger(4, 1, 1, "0"), &[entry("p", "4"), entry("q", "1")]);
    assert_eq!((cpus(&board, "p", "a"), cpus(&board, "q", "a")), ("2".to_owned(), "1".to_owned()));
    assert_eq!(messages.len(), 1, "what is missing is not taken from those that come later");
    let (board, _) = restored(ledger(2, 1, 1, "0"), &[entry("p", "0"), entry("q", "1")]);
    assert_eq!(cpus(&board, "p", "a"), "0", "rather a reserved one than none");
    let none = Ledger { cpu: None, ..ledger(4, 1, 1, "0") };
    assert_eq!(restored(none, &[entry("p", "1")]).0.entries, []);
}

#[test]
fn a_later_policy_gives_what_a_container_still_lacks() {
    let requests = [with_memory(app("a", 2), 3)];
    let reserved = Some(vec![(0, "memory".to_owned(), GIB)]);
    for memory_first in [true, false] {
        let mut board = Ledger { memory: reserved.clone(), ..ledger(4, 1, 1, "0") };
        let both = board.clone();
        if memory_first {
            board.cpu = None;
        } else {
            board.memory = None;
        }
        admit(&mut board, "p", &requests).unwrap();
        assert_eq!(board.lacks(&uid("p"), &requests[0]), [false, false], "as far as there are policies");
        board = Ledger { entries: board.entries, ..both };
        assert_eq!(board.lacks(&uid("p"), &requests[0]), [memory_first, !memory_first]);
        let mut add = || board.allocate(&uid("p"), &requests, 0, Hint::default());
        assert_eq!((add(), add()), (Ok(true), Ok(false)));
        let [entry] = &board.entries[..] else { panic!("{:?}", board.entries) };
        assert_eq!((entry.cpus.to_string(), entry.memory[0].size), ("1-2".to_owned(), 3 * GIB));
    }
}

#[test]
fn what_was_for_other_requests_is_released() {
    let mut board = ledger(8, 1, 1, "0");
    board.memory = Some(vec![(0, "memory".to_owned(), GIB)]);
    let requests = [with_memory(init("i", 0), 8), with_memory(app("a", 2), 6)];
    for other in [
        vec![requests[0].clone(), with_memory(app("a", 3), 6)],
        vec![requests[0].clone(), with_memory(app("a", 2), 7)],
        vec![requests[0].clone(), app("a", 2)],
        vec![with_memory(init("i", 0), 1), requests[1].clone()],
        vec![requests[0].clone()],
    ] {
        admit(&mut board, "p", &requests).unwrap();
        admit(&mut board, "q", &[app("a", 1)]).unwrap();
        assert!(!board.release_changed(&uid("p"), &requests), "the init container's memory is used again");
        assert!(board.release_changed(&uid("p"), &other), "{other:?}");
        assert_eq!(board.entries.len(), 1, "all of this pod, nothing of others");
    }
    admit(&mut board, "p", &requests).unwrap();
    board.entries.iter_mut().for_each(|entry| entry.cpus = CpuSet::default());
    assert!(!board.release_changed(&uid("p"), &requests), "CPUs that were lost are no other request");
}

#[test]
fn whole_cores_of_different_sizes_make_up_a_request() {
    let mut board = ledger(8, 1, 1, "6-7");
    // Two cores with two threads, four with one.
    board.topology.cpus.iter_mut().take(4).for_each(|cpu| cpu.core = cpu.id / 2 * 2);
    board.cpu.as_mut().unwrap().options.full_pcpus_only = true;
    admit(&mut board, "p", &[app("a", 3)]).unwrap();
    assert_eq!(cpus(&board, "p", "a"), "0-1,4");
    // The hint's node has one CPU more than fit there as whole cores.
    let mut board = ledger(8, 1, 2, "6-7");
    board.topology.cpus.iter_mut().take(4).for_each(|cpu| cpu.core = cpu.id / 2 * 2);
    board.cpu.as_mut().unwrap().options.full_pcpus_only = true;
    let near = Hint { nodes: Some(NodeMask(1)), preferred: false };
    board.allocate(&uid("p"), &[app("a", 3)], 0, near).unwrap();
    assert_eq!(cpus(&board, "p", "a"), "0-1,4");
}
