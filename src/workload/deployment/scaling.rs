//! Sizes of the ReplicaSets when the Deployment is scaled in the middle of a rollout, or while it is paused.
//!
//! Pure: what it returns depends on its arguments alone.

use super::{DESIRED, DeploymentStep, MAX, Set};
use crate::model::ordered::Sortable as _;

impl DeploymentStep<'_, '_> {
    /// Upstream: `scale`.
    pub(super) fn scale(&mut self) {
        let active: Vec<usize> = (0..self.sets.len()).filter(|at| self.sets[*at].replicas > 0).collect();
        let one = match active[..] {
            [only] => Some(only),
            // The newest of all.
            [] => self.new.or(self.sets.len().checked_sub(1)),
            _ => None,
        };
        if let Some(only) = one {
            if self.sets[only].replicas == self.wanted.replicas {
                let key = self.sets[only].key.clone();
                self.annotate_size(&key);
            }
            self.resize(only, self.wanted.replicas);
        } else if self.is_saturated() {
            for at in self.old().filter(|at| active.contains(at)).collect::<Vec<_>>() {
                self.resize(at, 0);
            }
        } else if !self.wanted.recreate {
            self.scale_in_proportion(active);
        }
    }

    /// The new set has everything that is wanted.
    fn is_saturated(&self) -> bool {
        let Some(new) = self.new.map(|new| &self.sets[new]) else { return false };
        self.annotated(new, DESIRED) == Some(self.wanted.replicas)
            && new.replicas == self.wanted.replicas
            && new.available == self.wanted.replicas
    }

    fn annotated(&self, set: &Set, name: &str) -> Option<i64> {
        self.world.item(&set.key)?.annotation(name)?.parse().ok()
    }

    fn scale_in_proportion(&mut self, mut active: Vec<usize>) {
        let allowed = if self.wanted.replicas > 0 { self.wanted.replicas + self.wanted.surge } else { 0 };
        let total: i64 = active.iter().map(|at| self.sets[*at].replicas).sum();
        let to_add = allowed - total;
        // The largest first; of two of one size the newer one when they grow, else the older one.
        active.order_by(|one, other| {
            let (one, other) = (&self.sets[*one], &self.sets[*other]);
            let by_age = one.created.cmp(&other.created);
            let by_age = if to_add > 0 { by_age.reverse() } else { by_age };
            other.replicas.cmp(&one.replicas).then(by_age)
        });
        let mut added = 0;
        let mut sizes = Vec::new();
        for at in active {
            let set = &self.sets[at];
            let left = to_add - added;
            let fraction = self.fraction(set);
            let part = match left {
                0 => 0,
                left if to_add > 0 => fraction.min(left),
                left => fraction.max(left),
            };
            added += part;
            sizes.push((at, set.replicas + part));
        }
        if let Some((_, first)) = sizes.first_mut() {
            *first = (*first + to_add - added).max(0);
        }
        for (at, size) in sizes {
            let key = self.sets[at].key.clone();
            self.annotate_size(&key);
            self.resize(at, size);
        }
    }

    /// How much a set grows when the most that there may be changes (upstream: `getReplicaSetFraction`).
    fn fraction(&self, set: &Set) -> i64 {
        if self.wanted.replicas == 0 {
            return -set.replicas;
        }
        let most = self.wanted.replicas + self.wanted.surge;
        let shown = self.item.int("/status/replicas", 0);
        let before = self.annotated(set, MAX).filter(|most| *most > 0).unwrap_or(shown).max(1);
        // Rounded half away from zero, as upstream.
        (2 * set.replicas * most + before) / (2 * before) - set.replicas
    }
}
