//! Who has which CPUs and which memory of the node, and who may get what.
//!
//! Owns the policy `static` of CPUs and of memory: which containers count, what of an init container is used again,
//! and what becomes of an allocation when the machine has changed.
//!
//! Pure: what it returns depends on its arguments alone.

use super::cpu_set::{CpuSet, NodeMask};
use super::cpus::{CpuOptions, is_whole, take, take_cores};
use super::hints::{self, Hint, Hints, Policy};
use super::memory::{self, Block, MemoryRequest, Reservation, Tables};
use super::topology::{Level, Topology};
use crate::model::types::PodUid;

/// What a container has to itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ExclusiveEntry {
    pub pod: PodUid,
    pub container: String,
    pub cpus: CpuSet,
    pub memory: Vec<Block>,
}

/// What a container of a Guaranteed pod asks for.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResourceRequest {
    pub container: String,
    /// It ends before others start, so that they may have what it had.
    pub is_init: bool,
    pub is_sidecar: bool,
    /// Whole CPUs; 0 for the shared pool.
    pub cpus: usize,
    pub memory: Vec<MemoryRequest>,
}

/// Why a pod is not admitted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AdmissionRefusal {
    pub reason: &'static str,
    pub message: String,
}

pub(crate) const UNEXPECTED: &str = "UnexpectedAdmissionError";
pub(crate) const SMT: &str = "SMTAlignmentError";
pub(crate) const AFFINITY: &str = "TopologyAffinityError";

impl AdmissionRefusal {
    pub(crate) fn unexpected(why: &str) -> Self {
        Self { reason: UNEXPECTED, message: format!("Allocate failed due to {why}, which is unexpected") }
    }

    pub(crate) fn affinity() -> Self {
        let message = "Resources cannot be allocated with Topology locality".to_owned();
        Self { reason: AFFINITY, message }
    }

    fn smt(text: &str) -> Self {
        Self { reason: SMT, message: format!("SMT Alignment Error: {text}") }
    }
}

/// `cpuManagerPolicy: static`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct CpuPolicy {
    pub options: CpuOptions,
    pub reserved: CpuSet,
}

/// What became of an allocation of an earlier process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct CpuChange {
    pub pod: PodUid,
    pub container: String,
    pub message: String,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Ledger {
    pub topology: Topology,
    pub cpu: Option<CpuPolicy>,
    /// `memoryManagerPolicy: Static`, with what is reserved.
    pub memory: Option<Vec<Reservation>>,
    pub policy: Policy,
    pub pod_scope: bool,
    /// `prefer-closest-numa-nodes`.
    pub closest: bool,
    pub entries: Vec<ExclusiveEntry>,
}

impl Ledger {
    #[must_use]
    pub(crate) fn entry(&self, pod: &PodUid, container: &str) -> Option<&ExclusiveEntry> {
        self.entries.iter().find(|entry| entry.pod == *pod && entry.container == container)
    }

    /// All CPUs that some container has to itself.
    #[must_use]
    pub(crate) fn exclusive(&self) -> CpuSet {
        self.entries.iter().fold(CpuSet::default(), |set, entry| set.or(&entry.cpus))
    }

    /// Upstream's default set: what is not exclusive, reserved ones included unless they are strictly so.
    #[must_use]
    pub(crate) fn default_set(&self) -> CpuSet {
        let rest = self.topology.all().minus(&self.exclusive());
        match &self.cpu {
            Some(policy) if policy.options.strict_reservation => rest.minus(&policy.reserved),
            _ => rest,
        }
    }

    /// Where containers without CPUs of their own run: never on isolated CPUs, which the kernel does not balance, and
    /// never on CPUs of others; on reserved ones rather than nowhere.
    #[must_use]
    pub(crate) fn shared(&self) -> CpuSet {
        let open = self.default_set().minus(&self.topology.isolated);
        let reserved = self.cpu.map(|policy| policy.reserved).unwrap_or_default();
        let choices = [open, self.default_set(), reserved.minus(&self.exclusive()), reserved];
        choices.into_iter().find(|set| !set.is_empty()).unwrap_or_default()
    }

    fn available(&self) -> CpuSet {
        self.default_set().minus(&self.cpu.map(|policy| policy.reserved).unwrap_or_default())
    }

    /// CPUs that may become exclusive at all.
    #[must_use]
    pub(crate) fn allocatable(&self) -> CpuSet {
        self.topology.all().minus(&self.cpu.map(|policy| policy.reserved).unwrap_or_default())
    }

    fn tables(&self, reserved: &[Reservation]) -> Tables {
        let blocks = self.entries.iter().flat_map(|entry| &entry.memory);
        Tables::new(&self.topology, reserved, blocks)
    }

    /// CPUs that ended init containers of the pod leave to the containers from `at` on.
    fn reusable_cpus(&self, pod: &PodUid, requests: &[ResourceRequest], at: usize) -> CpuSet {
        let mut reusable = CpuSet::default();
        for request in requests.iter().take(at) {
            let Some(entry) = self.entry(pod, &request.container) else { continue };
            let is_left = request.is_init && !request.is_sidecar;
            reusable = if is_left { reusable.or(&entry.cpus) } else { reusable.minus(&entry.cpus) };
        }
        reusable
    }

    /// What is left of the memory of the pod's init containers before `at`.
    fn reusable_memory(&self, pod: &PodUid, requests: &[ResourceRequest], at: usize) -> Vec<Block> {
        let mut blocks = Vec::new();
        for request in requests.iter().take(at).filter(|request| request.is_init && !request.is_sidecar) {
            let entry = self.entry(pod, &request.container);
            blocks.extend(entry.into_iter().flat_map(|entry| entry.memory.iter().cloned()));
        }
        blocks
    }

    /// What CPUs and memory say of one container, or, with `None`, of the pod as a whole.
    #[must_use]
    pub(crate) fn hints(&self, pod: &PodUid, requests: &[ResourceRequest], at: Option<usize>) -> Vec<Hints> {
        let (cpus, memory) = match at.and_then(|at| requests.get(at)) {
            Some(request) => (request.cpus, request.memory.clone()),
            None => totals(requests),
        };
        let own = |request: &&ResourceRequest| self.entry(pod, &request.container);
        let entries: Vec<&ExclusiveEntry> = match at {
            Some(at) => requests.get(at).iter().filter_map(own).collect(),
            None => requests.iter().filter_map(|request| own(&request)).collect(),
        };
        let mut all = Vec::new();
        if self.cpu.is_some() {
            let before = at.unwrap_or_default();
            let given = entries.iter().fold(CpuSet::default(), |set, entry| set.or(&entry.cpus));
            all.push(match cpus {
                0 => None,
                _ if !given.is_empty() && given.len() == cpus => {
                    Some(self.cpu_hints(&given, &CpuSet::default(), cpus))
                }
                _ if !given.is_empty() && at.is_some() => Some(Vec::new()),
                _ => {
                    let reusable = self.reusable_cpus(pod, requests, before).or(&given);
                    Some(self.cpu_hints(&self.available(), &reusable, cpus))
                }
            });
        }
        if let Some(reserved) = self.memory.as_ref().filter(|_| !memory.is_empty()) {
            let known = entries.iter().find_map(|entry| entry.memory.first());
            all.push(if let Some(block) = known {
                Some(vec![Hint { nodes: Some(block.nodes), preferred: true }])
            } else {
                let reusable = self.reusable_memory(pod, requests, at.unwrap_or_default());
                memory::as_given(self.tables(reserved).hints(&memory, &reusable))
            });
        }
        all
    }

    fn cpu_hints(&self, available: &CpuSet, reusable: &CpuSet, count: usize) -> Vec<Hint> {
        let topology = &self.topology;
        let nodes = topology.nodes_of(&topology.all());
        let needed = topology.nodes_of(reusable);
        let within = |set: &CpuSet, mask| set.and(&topology.of_nodes(mask));
        let usable = available.or(reusable);
        let fits = |mask| topology.of_nodes(mask).len() >= count;
        let may = |mask: NodeMask| mask.0 & needed.0 == needed.0 && within(&usable, mask).len() >= count;
        let (mut all, least) = hints::hints(nodes, fits, may);
        if self.cpu.is_some_and(|policy| policy.options.align_by_socket) {
            let sockets = |mask| topology.groups(&topology.of_nodes(mask), Level::Socket).len();
            let per_socket = nodes.count() as usize / sockets(nodes).max(1);
            let wanted = (least as usize).div_ceil(per_socket.max(1));
            for hint in &mut all {
                hint.preferred |= hint.nodes.is_some_and(|mask| sockets(mask) == wanted);
            }
        }
        all
    }

    /// Whether the container has no CPUs, and no memory, although it asks for them: each may be newer than the other.
    #[must_use]
    pub(crate) fn lacks(&self, pod: &PodUid, request: &ResourceRequest) -> [bool; 2] {
        let entry = self.entry(pod, &request.container);
        let no_cpus = entry.is_none_or(|entry| entry.cpus.is_empty());
        let no_memory = entry.is_none_or(|entry| entry.memory.is_empty());
        [
            no_cpus && request.cpus > 0 && self.cpu.is_some(),
            no_memory && !request.memory.is_empty() && self.memory.is_some(),
        ]
    }

    /// Releases everything of a pod that is about to run and had something for other requests. True when it had.
    pub(crate) fn release_changed(&mut self, pod: &PodUid, requests: &[ResourceRequest]) -> bool {
        let differs = |entry: &ExclusiveEntry| {
            let Some(request) = requests.iter().find(|request| request.container == entry.container) else {
                return true;
            };
            // The part of an init container's memory that is used again is counted elsewhere.
            let may_be_less = request.is_init && !request.is_sidecar;
            let is_asked = |block: &Block| {
                let mut all = request.memory.iter().filter(|(kind, _)| *kind == block.kind);
                all.any(|(_, size)| block.size == *size || may_be_less && block.size < *size)
            };
            let same_memory = entry.memory.len() == request.memory.len() && entry.memory.iter().all(is_asked);
            !entry.cpus.is_empty() && entry.cpus.len() != request.cpus
                || !entry.memory.is_empty() && !same_memory
        };
        self.entries.iter().any(|entry| entry.pod == *pod && differs(entry)) && self.release(pod)
    }

    /// Allocates the CPUs and the memory that one container lacks. True when there was something to allocate.
    ///
    /// # Errors
    /// Upstream's reason and message. What was allocated to other containers of the pod stays.
    pub(crate) fn allocate(
        &mut self,
        pod: &PodUid,
        requests: &[ResourceRequest],
        at: usize,
        hint: Hint,
    ) -> Result<bool, AdmissionRefusal> {
        let Some(request) = requests.get(at) else { return Ok(false) };
        let [lacks_cpus, lacks_memory] = self.lacks(pod, request);
        let mut cpus = CpuSet::default();
        if let Some(policy) = self.cpu.filter(|_| lacks_cpus) {
            cpus = self.choose_cpus(policy, request.cpus, hint, &self.reusable_cpus(pod, requests, at))?;
        }
        let mut memory = Vec::new();
        if let Some(reserved) = self.memory.as_ref().filter(|_| lacks_memory) {
            let reusable = self.reusable_memory(pod, requests, at);
            let chosen = self.tables(reserved).choose(&request.memory, &reusable, hint);
            let nodes = chosen.map_err(|why| AdmissionRefusal::unexpected(&why))?;
            let block = |(kind, size): &MemoryRequest| Block { nodes, kind: kind.clone(), size: *size };
            memory = request.memory.iter().map(block).collect();
            self.use_again(pod, requests, at, &memory);
        }
        let is_it = |entry: &&mut ExclusiveEntry| entry.pod == *pod && entry.container == request.container;
        if let Some(entry) = self.entries.iter_mut().find(is_it) {
            entry.cpus = entry.cpus.or(&cpus);
            entry.memory.extend(memory);
        } else if lacks_cpus || lacks_memory {
            let container = request.container.clone();
            self.entries.push(ExclusiveEntry { pod: pod.clone(), container, cpus, memory });
        }
        Ok(lacks_cpus || lacks_memory)
    }

    /// What an init container leaves is counted once: for the container that uses it again.
    fn use_again(&mut self, pod: &PodUid, requests: &[ResourceRequest], at: usize, memory: &[Block]) {
        for block in memory {
            let mut left = block.size;
            for request in requests.iter().take(at).filter(|request| request.is_init && !request.is_sidecar) {
                let is_it =
                    |entry: &&mut ExclusiveEntry| entry.pod == *pod && entry.container == request.container;
                let own = self.entries.iter_mut().find(is_it).into_iter().flat_map(|entry| &mut entry.memory);
                for old in own.filter(|old| old.nodes == block.nodes && old.kind == block.kind) {
                    let part = old.size.min(left);
                    old.size -= part;
                    left -= part;
                }
            }
        }
    }

    fn choose_cpus(
        &self,
        policy: CpuPolicy,
        count: usize,
        hint: Hint,
        reusable: &CpuSet,
    ) -> Result<CpuSet, AdmissionRefusal> {
        let topology = &self.topology;
        let options = policy.options;
        if options.full_pcpus_only {
            let threads = topology.threads_per_core();
            if !count.is_multiple_of(threads) {
                let text = format!("requested {count} cpus not multiple cpus per core = {threads}");
                return Err(AdmissionRefusal::smt(&text));
            }
            let cores = self.default_set().minus(&topology.whole_cores(&policy.reserved)).len();
            if count > cores {
                return Err(AdmissionRefusal::smt(&format!(
                    "not enough free physical CPUs: available physical CPUs = {cores}, requested CPUs = {count}, \
                     CPUs per core = {threads}"
                )));
            }
        }
        let mut free = self.available().or(reusable);
        if options.full_pcpus_only {
            // A sibling of a reserved CPU is not a whole core.
            free = free.minus(&topology.whole_cores(&policy.reserved).minus(reusable));
        }
        let unexpected = |why: String| AdmissionRefusal::unexpected(&why);
        let mut taken = CpuSet::default();
        if let Some(nodes) = hint.nodes {
            let mut near = topology.of_nodes(nodes);
            if options.align_by_socket {
                for socket in topology.groups(&near, Level::Socket) {
                    near = near.or(&topology.within(&topology.all(), Level::Socket, socket));
                }
            }
            let near = free.and(&near);
            taken = take(topology, options, &near, count.min(near.len())).map_err(unexpected)?;
        }
        let rest = take(topology, options, &free.minus(&taken), count - taken.len()).map_err(unexpected)?;
        let mut taken = taken.or(&rest);
        if options.full_pcpus_only && !is_whole(topology, &taken) {
            taken = take_cores(topology, &free, count).unwrap_or(taken);
        }
        if options.full_pcpus_only && !is_whole(topology, &taken) {
            let cores = topology.whole_cores(&free).and(&free).len();
            return Err(AdmissionRefusal::smt(&format!(
                "not enough free physical CPUs: available physical CPUs = {cores}, requested CPUs = {count}, CPUs per \
                 core = {}",
                topology.threads_per_core()
            )));
        }
        Ok(taken)
    }

    /// Releases everything of a pod. True when it had something.
    pub(crate) fn release(&mut self, pod: &PodUid) -> bool {
        let before = self.entries.len();
        self.entries.retain(|entry| entry.pod != *pod);
        self.entries.len() != before
    }

    /// Takes over the allocations of an earlier process, or of a kubelet: what still fits stays, then the rest moves.
    pub(crate) fn restore(&mut self, entries: Vec<ExclusiveEntry>) -> Vec<CpuChange> {
        let nodes = self.topology.node_mask();
        let mut before = Vec::new();
        for mut entry in entries {
            if self.memory.is_none() || entry.memory.iter().any(|block| block.nodes.0 & !nodes.0 != 0) {
                entry.memory.clear();
            }
            if self.cpu.is_none() {
                entry.cpus = CpuSet::default();
            }
            before.push(entry.cpus);
            entry.cpus = entry.cpus.and(&self.allocatable()).minus(&self.exclusive_to_others(&entry.pod));
            self.entries.push(entry);
        }
        let options = self.cpu.map(|policy| policy.options).unwrap_or_default();
        let mut changes = Vec::new();
        for (at, before) in before.into_iter().enumerate() {
            let ExclusiveEntry { pod, container, cpus: good, .. } = self.entries[at].clone();
            if good == before {
                continue;
            }
            let missing = before.len() - good.len();
            let more = take(&self.topology, options, &self.available().minus(&good), missing);
            // Rather on reserved ones than on none.
            let online = || before.and(&self.topology.all()).minus(&self.exclusive_to_others(&pod));
            let cpus = more.map_or_else(|_| online(), |more| good.or(&more));
            self.entries[at].cpus = cpus;
            if cpus != before {
                let gone = before.minus(&good);
                let now = if cpus.is_empty() { "shared CPUs".to_owned() } else { format!("CPUs {cpus}") };
                let message = format!("CPUs {gone} are not available any more; the container runs on {now}");
                changes.push(CpuChange { pod, container, message });
            }
        }
        self.entries.retain(|entry| !entry.cpus.is_empty() || !entry.memory.is_empty());
        changes
    }

    fn exclusive_to_others(&self, pod: &PodUid) -> CpuSet {
        let others = self.entries.iter().filter(|entry| entry.pod != *pod);
        others.fold(CpuSet::default(), |set, entry| set.or(&entry.cpus))
    }

    /// Whether all CPUs of a container share a last-level cache.
    #[must_use]
    pub(crate) fn shares_cache(&self, cpus: &CpuSet) -> bool {
        self.topology.share_cache(cpus)
    }
}

/// The larger of what the pod needs while it starts and while it runs.
fn totals(requests: &[ResourceRequest]) -> (usize, Vec<MemoryRequest>) {
    let mut kinds: Vec<&str> = Vec::new();
    for (kind, _) in requests.iter().flat_map(|request| &request.memory) {
        if !kinds.contains(&kind.as_str()) {
            kinds.push(kind);
        }
    }
    let cpus = total(requests, |request| request.cpus as u64);
    let memory = |kind: &str| {
        total(requests, |request| request.memory.iter().filter(|own| own.0 == kind).map(|own| own.1).sum())
    };
    let memory = kinds.iter().map(|kind| ((*kind).to_owned(), memory(kind))).collect();
    (usize::try_from(cpus).unwrap_or(usize::MAX), memory)
}

fn total(requests: &[ResourceRequest], amount: impl Fn(&ResourceRequest) -> u64) -> u64 {
    let mut parts = requests.iter().map(|request| (request.is_init, request.is_sidecar, amount(request)));
    peak(&mut parts)
}

/// What is needed at most at one time, of each container in the order of their start: is it an init container, a sidecar,
/// and what it needs.
pub(super) fn peak(parts: &mut dyn Iterator<Item = (bool, bool, u64)>) -> u64 {
    let (mut sidecars, mut starting, mut running) = (0, 0, 0);
    for (is_init, is_sidecar, own) in parts {
        if is_sidecar {
            sidecars += own;
        } else if is_init {
            starting = starting.max(sidecars + own);
        } else {
            running += own;
        }
    }
    starting.max(sidecars + running)
}

#[cfg(test)]
mod tests;
