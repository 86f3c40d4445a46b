//! Sets of CPUs and of NUMA nodes, and the kernel's way to write them: `0-2,7`.
//!
//! Pure: what it returns depends on its arguments alone.

use std::fmt;

/// The kernel numbers CPUs below this on every machine that a node agent runs on.
pub(crate) const MAX_CPUS: u32 = 1024;
const WORDS: usize = 16;

/// A set of CPUs. One that is empty means "no restriction" to a runtime.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct CpuSet([u64; WORDS]);

impl CpuSet {
    /// The kernel's list format; `None` when the text is something else.
    #[must_use]
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut set = Self::default();
        let text = text.trim();
        if text.is_empty() {
            return Some(set);
        }
        for part in text.split(',') {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (first.trim().parse::<u32>().ok()?, last.trim().parse::<u32>().ok()?);
            if first > last || last >= MAX_CPUS {
                return None;
            }
            for cpu in first..=last {
                set.insert(cpu);
            }
        }
        Some(set)
    }

    pub(crate) fn insert(&mut self, cpu: u32) {
        if let Some(word) = self.0.get_mut(cpu as usize / 64) {
            *word |= 1 << (cpu % 64);
        }
    }

    #[must_use]
    pub(crate) fn of(cpu: u32) -> Self {
        let mut set = Self::default();
        set.insert(cpu);
        set
    }

    #[must_use]
    pub(crate) fn contains(&self, cpu: u32) -> bool {
        self.0.get(cpu as usize / 64).is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    #[must_use]
    pub(crate) fn len(&self) -> usize {
        self.0.iter().map(|word| word.count_ones() as usize).sum()
    }

    #[must_use]
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(|word| *word == 0)
    }

    fn with(mut self, other: &Self, combine: fn(u64, u64) -> u64) -> Self {
        for (word, other) in self.0.iter_mut().zip(other.0) {
            *word = combine(*word, other);
        }
        self
    }

    #[must_use]
    pub(crate) fn and(self, other: &Self) -> Self {
        self.with(other, |own, other| own & other)
    }

    #[must_use]
    pub(crate) fn or(self, other: &Self) -> Self {
        self.with(other, |own, other| own | other)
    }

    #[must_use]
    pub(crate) fn minus(self, other: &Self) -> Self {
        self.with(other, |own, other| own & !other)
    }

    /// In ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> + use<> {
        let set = *self;
        (0..MAX_CPUS).filter(move |cpu| set.contains(*cpu))
    }
}

/// Writes numbers in ascending order the kernel's way.
fn write_list(numbers: impl Iterator<Item = u32>, out: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut range: Option<(u32, u32)> = None;
    let mut comma = "";
    let mut end = |range: Option<(u32, u32)>| match range {
        None => Ok(()),
        Some((first, last)) => {
            let comma = std::mem::replace(&mut comma, ",");
            if first == last { write!(out, "{comma}{first}") } else { write!(out, "{comma}{first}-{last}") }
        }
    };
    for number in numbers {
        match &mut range {
            Some((_, last)) if *last + 1 == number => *last = number,
            _ => end(range.replace((number, number)))?,
        }
    }
    end(range)
}

impl fmt::Display for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(self.iter(), out)
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// A set of NUMA nodes.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct NodeMask(pub(crate) u64);

impl NodeMask {
    #[must_use]
    pub(crate) fn of(node: u32) -> Self {
        Self(1_u64.checked_shl(node).unwrap_or(0))
    }

    #[must_use]
    pub(crate) fn contains(self, node: u32) -> bool {
        self.0 & Self::of(node).0 != 0
    }

    #[must_use]
    pub(crate) fn count(self) -> u32 {
        self.0.count_ones()
    }

    #[must_use]
    pub(crate) fn or(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }

    /// In ascending order.
    pub(crate) fn iter(self) -> impl Iterator<Item = u32> {
        (0..64).filter(move |node| self.contains(*node))
    }

    /// Fewer nodes; of as many, the lower numbers.
    #[must_use]
    pub(crate) fn is_narrower_than(self, other: Self) -> bool {
        if self.count() == other.count() { self.0 < other.0 } else { self.count() < other.count() }
    }

    /// Every set of at least one of these nodes, smaller ones first.
    pub(crate) fn subsets(self) -> Vec<Self> {
        let nodes: Vec<u32> = self.iter().collect();
        let mut all = Vec::new();
        for size in 1..=nodes.len() {
            combinations(&nodes, size, &mut |chosen| {
                all.push(chosen.iter().fold(Self::default(), |mask, node| mask.or(Self::of(*node))));
                true
            });
        }
        all
    }
}

impl fmt::Display for NodeMask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_list(self.iter(), out)
    }
}

impl fmt::Debug for NodeMask {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, out)
    }
}

/// Calls `each` with every choice of `size` of the items, in order, until it returns false.
pub(super) fn combinations(items: &[u32], size: usize, each: &mut dyn FnMut(&[u32]) -> bool) {
    fn step(items: &[u32], size: usize, chosen: &mut Vec<u32>, each: &mut dyn FnMut(&[u32]) -> bool) -> bool {
        if chosen.len() == size {
            return each(chosen);
        }
        for (at, item) in items.iter().enumerate() {
            chosen.push(*item);
            let goes_on = step(&items[at + 1..], size, chosen, each);
            chosen.pop();
            if !goes_on {
                return false;
            }
        }
        true
    }
    if size > 0 && size <= items.len() {
        step(items, size, &mut Vec::new(), each);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_as_the_kernel_does() {
        for text in ["", "0", "0-2,7", "1,3,5", "0-63", "62-65,1023"] {
            assert_eq!(CpuSet::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(CpuSet::parse(" 0,1,2\n").unwrap().to_string(), "0-2");
        for text in ["a", "3-1", "0-", "1024", "1,,2"] {
            assert_eq!(CpuSet::parse(text), None, "{text}");
        }
        assert_eq!(NodeMask(0b1011).to_string(), "0-1,3");
    }

    #[test]
    fn sets_are_combined() {
        let (one, other) = (CpuSet::parse("0-3,100").unwrap(), CpuSet::parse("2-5").unwrap());
        assert_eq!(one.and(&other).to_string(), "2-3");
        assert_eq!(one.or(&other).to_string(), "0-5,100");
        assert_eq!(one.minus(&other).to_string(), "0-1,100");
        assert_eq!((one.len(), one.contains(100), one.contains(4)), (5, true, false));
    }

    #[test]
    fn subsets_come_by_size_then_by_number() {
        let all: Vec<String> = NodeMask(0b111).subsets().iter().map(ToString::to_string).collect();
        assert_eq!(all, ["0", "1", "2", "0-1", "0,2", "1-2", "0-2"]);
    }
}
