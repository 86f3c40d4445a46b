//! Merging what CPUs, memory and devices prefer into one set of NUMA nodes (upstream: `topologymanager`).
//!
//! Pure: what it returns depends on its arguments alone.

use super::cpu_set::NodeMask;
use super::topology::Topology;

/// Where one resource could come from. Without nodes: from anywhere.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Hint {
    pub nodes: Option<NodeMask>,
    pub preferred: bool,
}

/// What one provider says of one resource: `None` has no preference, an empty list no possibility.
pub(crate) type Hints = Option<Vec<Hint>>;

/// `topologyManagerPolicy`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Policy {
    #[default]
    None,
    BestEffort,
    Restricted,
    SingleNumaNode,
}

impl Policy {
    /// Validated before; anything else is none.
    #[must_use]
    pub(crate) fn from_name(name: &str) -> Self {
        match name {
            "best-effort" => Self::BestEffort,
            "restricted" => Self::Restricted,
            "single-numa-node" => Self::SingleNumaNode,
            _ => Self::None,
        }
    }
}

/// Every set of nodes of this machine that is large enough, by `may`; those of the least size that `fits` are preferred.
pub(super) fn hints(
    nodes: NodeMask,
    fits: impl Fn(NodeMask) -> bool,
    may: impl Fn(NodeMask) -> bool,
) -> (Vec<Hint>, u32) {
    let mut least = nodes.count();
    let mut all = Vec::new();
    for mask in nodes.subsets() {
        if fits(mask) {
            least = least.min(mask.count());
        }
        if may(mask) {
            all.push(Hint { nodes: Some(mask), preferred: false });
        }
    }
    for hint in &mut all {
        hint.preferred = hint.nodes.is_some_and(|mask| mask.count() == least);
    }
    (all, least)
}

/// The best common set of nodes, and whether the policy admits it.
#[must_use]
pub(crate) fn merge(policy: Policy, topology: &Topology, closest: bool, given: &[Hints]) -> (Hint, bool) {
    let single = policy == Policy::SingleNumaNode;
    let mut lists: Vec<Vec<Hint>> = Vec::new();
    for hints in given {
        let mut list = match hints {
            None => vec![Hint { nodes: None, preferred: true }],
            Some(hints) if hints.is_empty() => vec![Hint { nodes: None, preferred: false }],
            Some(hints) => hints.clone(),
        };
        if single {
            list.retain(|hint| hint.preferred && hint.nodes.is_none_or(|mask| mask.count() == 1));
        }
        lists.push(list);
    }
    let all = topology.node_mask();
    let narrowest = |list: &Vec<Hint>| list.iter().filter_map(|hint| Some(hint.nodes?.count())).min();
    let merger = Merger {
        topology,
        closest: closest && !single,
        count: lists.iter().filter_map(narrowest).max().unwrap_or(0),
    };
    let mut best = None;
    merger.walk(&lists, all, None, true, &mut best);
    let mut best = best.unwrap_or(Hint { nodes: Some(all), preferred: false });
    if single && best.nodes == Some(all) {
        best.nodes = None;
    }
    let admitted = match policy {
        Policy::None | Policy::BestEffort => true,
        Policy::Restricted | Policy::SingleNumaNode => best.preferred,
    };
    (best, admitted)
}

struct Merger<'a> {
    topology: &'a Topology,
    closest: bool,
    /// How many nodes a result has at least that is not preferred, if all is well.
    count: u32,
}

impl Merger<'_> {
    /// Tries one hint of each list.
    fn walk(
        &self,
        lists: &[Vec<Hint>],
        nodes: NodeMask,
        first: Option<NodeMask>,
        preferred: bool,
        best: &mut Option<Hint>,
    ) {
        let Some((list, rest)) = lists.split_first() else {
            let candidate = Hint { nodes: Some(nodes), preferred };
            if nodes.count() > 0 && best.is_none_or(|best| self.is_better(candidate, best)) {
                *best = Some(candidate);
            }
            return;
        };
        for hint in list {
            let own = hint.nodes.unwrap_or(nodes);
            let same = hint.nodes.is_none() || first.is_none() || hint.nodes == first;
            self.walk(
                rest,
                NodeMask(nodes.0 & own.0),
                first.or(hint.nodes),
                preferred && hint.preferred && same,
                best,
            );
        }
    }

    fn is_better(&self, candidate: Hint, best: Hint) -> bool {
        let (Some(new), Some(old)) = (candidate.nodes, best.nodes) else { return false };
        if candidate.preferred != best.preferred {
            return candidate.preferred;
        }
        let (count, wanted) = ((new.count(), old.count()), self.count);
        if !candidate.preferred && count.1 <= wanted {
            match count {
                (new, old) if old == wanted && new != wanted => return false,
                (new, old) if old < wanted && new != old => return new > old && new <= wanted,
                _ => {}
            }
        }
        self.is_smaller(new, old)
    }

    fn is_smaller(&self, new: NodeMask, old: NodeMask) -> bool {
        if new == old {
            return false;
        }
        if self.closest && new.count() == old.count() {
            let ((new_sum, new_pairs), (old_sum, old_pairs)) = (self.distance(new), self.distance(old));
            if new_sum * old_pairs != old_sum * new_pairs {
                return new_sum * old_pairs < old_sum * new_pairs;
            }
        }
        new.is_narrower_than(old)
    }

    /// The sum of the distances between all pairs, and their number.
    fn distance(&self, nodes: NodeMask) -> (u64, u64) {
        let all = &self.topology.nodes;
        let (mut sum, mut pairs) = (0, 0);
        for from in all.iter().filter(|node| nodes.contains(node.id)) {
            for (at, _) in all.iter().enumerate().filter(|(_, node)| nodes.contains(node.id)) {
                sum += u64::from(from.distances.get(at).copied().unwrap_or(u32::MAX));
                pairs += 1;
            }
        }
        (sum, pairs)
    }
}

#[cfg(test)]
mod tests;
