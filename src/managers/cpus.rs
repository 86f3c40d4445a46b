//! Which CPUs a container gets: upstream's order of taking, over enumerated groups.
//!
//! Best fit: whole NUMA nodes and sockets, then whole caches when asked, whole cores, single CPUs; of equals the lowest.
//!
//! Pure: what it returns depends on its arguments alone.

use std::cmp::Reverse;

use super::cpu_set::{CpuSet, combinations};
use super::topology::{Level, Topology};
use crate::model::ordered::Sortable as _;

/// `cpuManagerPolicyOptions`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[expect(clippy::struct_excessive_bools, reason = "the options are upstream's")]
pub(crate) struct CpuOptions {
    pub full_pcpus_only: bool,
    pub distribute_across_numa: bool,
    pub distribute_across_cores: bool,
    pub align_by_socket: bool,
    pub strict_reservation: bool,
    pub prefer_uncore_cache: bool,
}

/// Takes `count` of the free CPUs; isolated ones first, and never both kinds while one suffices.
pub(super) fn take(
    topology: &Topology,
    options: CpuOptions,
    free: &CpuSet,
    count: usize,
) -> Result<CpuSet, String> {
    let isolated = free.and(&topology.isolated);
    if !isolated.is_empty() && count > 0 {
        for part in [isolated, free.minus(&isolated)] {
            if part.len() >= count
                && let Ok(taken) = take_any(topology, options, &part, count)
                && (!options.full_pcpus_only || is_whole(topology, &taken))
            {
                return Ok(taken);
            }
        }
    }
    take_any(topology, options, free, count)
}

/// The reserved CPUs: the lowest cores, isolated ones last. Where cores differ, CPU 0 is not passed over for a core with
/// fewer threads: the kernel's own work is there.
pub(super) fn reserve(topology: &Topology, options: CpuOptions, count: usize) -> CpuSet {
    let all = topology.all();
    let open = all.minus(&topology.isolated);
    let from = if open.len() >= count { open } else { all };
    let cores = topology.groups(&all, Level::Core);
    if cores.len() * topology.threads_per_core() < all.len() {
        let cpus = cores.iter().flat_map(|core| topology.within(&from, Level::Core, *core).iter());
        return cpus.take(count).fold(CpuSet::default(), |set, cpu| set.or(&CpuSet::of(cpu)));
    }
    take_any(topology, options, &from, count).unwrap_or_default()
}

pub(super) fn is_whole(topology: &Topology, cpus: &CpuSet) -> bool {
    topology.whole_cores(cpus) == *cpus
}

/// So many CPUs as whole free cores, the widest first: cores may differ in size.
pub(super) fn take_cores(topology: &Topology, free: &CpuSet, count: usize) -> Option<CpuSet> {
    let all = topology.all();
    let cores = topology.groups(free, Level::Core).into_iter();
    let mut cores: Vec<CpuSet> = cores.map(|core| topology.within(&all, Level::Core, core)).collect();
    cores.order_by_key(|core| Reverse(core.len()));
    let mut taken = CpuSet::default();
    for core in cores {
        if core.minus(free).is_empty() && core.len() <= count - taken.len() {
            taken = taken.or(&core);
        }
    }
    (taken.len() == count).then_some(taken)
}

fn take_any(topology: &Topology, options: CpuOptions, free: &CpuSet, count: usize) -> Result<CpuSet, String> {
    let group = if options.full_pcpus_only { topology.threads_per_core() } else { 1 };
    let taken = if options.distribute_across_numa && count.is_multiple_of(group) {
        take_distributed(topology, options, free, count, group)
    } else {
        take_packed(topology, options, free, count)
    }?;
    if options.full_pcpus_only && !is_whole(topology, &taken) {
        return Ok(take_cores(topology, free, count).unwrap_or(taken));
    }
    Ok(taken)
}

/// What is taken and what is left, while a request is served.
struct Accumulator<'a> {
    topology: &'a Topology,
    options: CpuOptions,
    all: CpuSet,
    free: CpuSet,
    taken: CpuSet,
    needed: usize,
    /// From the widest group to the narrowest.
    levels: [Level; 2],
}

impl<'a> Accumulator<'a> {
    fn new(topology: &'a Topology, options: CpuOptions, free: &CpuSet, count: usize) -> Result<Self, String> {
        let all = topology.all();
        let free = free.and(&all);
        if count > free.len() {
            return Err(format!(
                "not enough cpus available to satisfy request: requested={count}, available={}",
                free.len()
            ));
        }
        let numbers = |level| topology.groups(&all, level).len();
        let nodes_are_wider = numbers(Level::Socket) >= numbers(Level::Node);
        let levels =
            if nodes_are_wider { [Level::Node, Level::Socket] } else { [Level::Socket, Level::Node] };
        Ok(Self { topology, options, all, free, taken: CpuSet::default(), needed: count, levels })
    }

    fn take(&mut self, cpus: &CpuSet) {
        self.taken = self.taken.or(cpus);
        self.free = self.free.minus(cpus);
        self.needed = self.needed.saturating_sub(cpus.len());
    }

    /// Groups of a level with free CPUs of `among`, the one with the fewest first. Counts are of all free ones.
    fn fewest_first(&self, among: &CpuSet, level: Level) -> Vec<u32> {
        let mut groups = self.topology.groups(among, level);
        groups.order_by_key(|group| (self.topology.within(&self.free, level, *group).len(), *group));
        groups
    }

    /// Groups below each group of the levels above, each level with the fewest free CPUs first.
    fn nested(&self, levels: &[Level]) -> Vec<u32> {
        let mut places = vec![self.free];
        let mut groups = Vec::new();
        for level in levels {
            let mut inside = Vec::new();
            groups.clear();
            for place in &places {
                for group in self.fewest_first(place, *level) {
                    groups.push(group);
                    inside.push(self.topology.within(place, *level, group));
                }
            }
            places = inside;
        }
        groups
    }

    fn order(&self, level: Level) -> Vec<u32> {
        let [outer, inner] = self.levels;
        if level == outer {
            self.nested(&[outer])
        } else if level == inner {
            self.nested(&[outer, inner])
        } else if level == Level::Core {
            self.nested(&[outer, inner, Level::Core])
        } else if outer == Level::Node {
            self.nested(&[outer, level])
        } else {
            self.nested(&[outer, inner, level])
        }
    }

    /// Whole groups of which no CPU is in use, as long as the request needs them.
    fn take_whole(&mut self, level: Level) {
        for group in self.order(level) {
            let whole = self.topology.within(&self.all, level, group);
            let is_free = whole.minus(&self.free).is_empty();
            if is_free && whole.len() <= self.needed && !whole.is_empty() {
                self.take(&whole);
            }
        }
    }

    fn take_caches(&mut self) {
        for cache in self.order(Level::Cache) {
            self.take_whole(Level::Cache);
            if self.needed == 0 {
                return;
            }
            self.take_part_of_cache(cache);
            if self.needed == 0 {
                return;
            }
        }
    }

    /// The rest of the request, if this cache has it in as few cores as possible.
    fn take_part_of_cache(&mut self, cache: u32) {
        let free = self.topology.within(&self.free, Level::Cache, cache);
        let mut part = CpuSet::default();
        let cores = self.needed.div_ceil(self.topology.threads_per_core());
        for core in self.topology.groups(&free, Level::Core).into_iter().take(cores) {
            for cpu in self.topology.within(&free, Level::Core, core).iter() {
                if part.len() < self.needed {
                    part.insert(cpu);
                }
            }
        }
        if part.len() == self.needed {
            self.take(&part);
        }
    }

    fn take_single(&mut self) {
        let order = if self.options.distribute_across_cores {
            let sockets = self.order(Level::Socket);
            sockets
                .iter()
                .map(|socket| self.topology.within(&self.free, Level::Socket, *socket))
                .collect::<Vec<_>>()
        } else {
            let cores = self.order(Level::Core);
            cores.iter().map(|core| self.topology.within(&self.free, Level::Core, *core)).collect()
        };
        for cpu in order.iter().flat_map(CpuSet::iter) {
            if self.needed == 0 {
                return;
            }
            if self.free.contains(cpu) {
                self.take(&CpuSet::of(cpu));
            }
        }
    }
}

fn take_packed(
    topology: &Topology,
    options: CpuOptions,
    free: &CpuSet,
    count: usize,
) -> Result<CpuSet, String> {
    let mut accumulator = Accumulator::new(topology, options, free, count)?;
    for level in accumulator.levels {
        accumulator.take_whole(level);
    }
    if options.prefer_uncore_cache && accumulator.needed > 0 {
        accumulator.take_caches();
    }
    if !options.distribute_across_cores {
        accumulator.take_whole(Level::Core);
    }
    accumulator.take_single();
    if accumulator.needed > 0 { Err("failed to allocate cpus".to_owned()) } else { Ok(accumulator.taken) }
}

/// The standard deviation in thousandths, rounded as upstream does.
fn balance(free: &[usize]) -> u64 {
    #[expect(clippy::cast_precision_loss, reason = "numbers of CPUs")]
    let number = |value: usize| value as f64;
    let rounded = |value: f64| (value * 1000.0).round();
    let length = number(free.len());
    let mean = rounded(free.iter().map(|value| number(*value)).sum::<f64>() / length) / 1000.0;
    let squares: f64 = free.iter().map(|value| (number(*value) - mean).powi(2)).sum();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "small and positive")]
    let score = rounded((squares / length).sqrt()) as u64;
    score
}

/// One way to spread a request: so many from each node, and the rest from some.
struct Spread {
    balance: u64,
    nodes: Vec<u32>,
    rest: Vec<u32>,
}

/// `distribute-cpus-across-numa`: evenly over the fewest NUMA nodes that can, in whole groups of CPUs.
fn take_distributed(
    topology: &Topology,
    options: CpuOptions,
    free: &CpuSet,
    count: usize,
    group: usize,
) -> Result<CpuSet, String> {
    let packed = CpuOptions { prefer_uncore_cache: false, ..options };
    let mut accumulator = Accumulator::new(topology, options, free, count)?;
    if count == 0 {
        return Ok(CpuSet::default());
    }
    let all_nodes = topology.groups(&accumulator.all, Level::Node).len().max(1);
    let nodes = accumulator.order(Level::Node);
    let groups_per_node = accumulator.all.len().div_ceil(group).div_ceil(all_nodes);
    let needed_groups = count.div_ceil(group);
    let least = needed_groups.div_ceil(groups_per_node.max(1));
    for size in least..=needed_groups.min(nodes.len()) {
        let mut best: Option<Spread> = None;
        combinations(&nodes, size, &mut |chosen| {
            if let Some(spread) = spread(&accumulator, &nodes, chosen, count, group)
                && best.as_ref().is_none_or(|best| spread.balance < best.balance)
            {
                best = Some(spread);
            }
            best.as_ref().is_none_or(|best| best.balance > 0)
        });
        let Some(best) = best else { continue };
        let share = count / size / group * group;
        let mut part = |node: u32, count: usize| {
            let free = topology.within(&accumulator.free, Level::Node, node);
            let taken = take_packed(topology, packed, &free, count);
            taken.inspect(|taken| accumulator.take(taken)).is_ok()
        };
        for node in &best.nodes {
            part(*node, share);
        }
        let mut rest = count - share * size;
        loop {
            let before = rest;
            for node in &best.rest {
                if rest > 0 && part(*node, group) {
                    rest = rest.saturating_sub(group);
                }
            }
            if rest == before {
                break;
            }
        }
        if accumulator.needed == 0 {
            return Ok(accumulator.taken);
        }
        break;
    }
    take_packed(topology, packed, free, count)
}

/// How the request would lie on these nodes; `None` when they cannot hold it evenly.
fn spread(
    accumulator: &Accumulator<'_>,
    nodes: &[u32],
    chosen: &[u32],
    count: usize,
    group: usize,
) -> Option<Spread> {
    let free_of = |node: u32| accumulator.topology.within(&accumulator.free, Level::Node, node).len();
    let whole: usize = chosen.iter().map(|node| free_of(*node) / group * group).sum();
    let share = count / chosen.len() / group * group;
    if whole < count || chosen.iter().any(|node| free_of(*node) < share) {
        return None;
    }
    let mut left: Vec<usize> = nodes.iter().map(|node| free_of(*node)).collect();
    let at = |node: u32| nodes.iter().position(|each| *each == node).unwrap_or_default();
    for node in chosen {
        left[at(*node)] -= share;
    }
    let rest = count - share * chosen.len();
    if rest == 0 {
        return Some(Spread { balance: balance(&left), nodes: chosen.to_vec(), rest: Vec::new() });
    }
    let able: Vec<u32> = chosen.iter().copied().filter(|node| left[at(*node)] >= group).collect();
    let mut best: Option<Spread> = None;
    for size in (1..=able.len()).rev() {
        combinations(&able, size, &mut |subset| {
            let mut left = left.clone();
            let mut rest = rest;
            if subset.iter().map(|node| left[at(*node)] / group * group).sum::<usize>() < rest {
                return true;
            }
            while rest > 0 {
                for node in subset {
                    if rest > 0 && left[at(*node)] >= group {
                        left[at(*node)] -= group;
                        rest = rest.saturating_sub(group);
                    }
                }
            }
            let balance = balance(&left);
            if best.as_ref().is_none_or(|best| balance < best.balance) {
                best = Some(Spread { balance, nodes: chosen.to_vec(), rest: subset.to_vec() });
            }
            true
        });
    }
    best
}

#[cfg(test)]
mod tests;
