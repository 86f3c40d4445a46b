//! The types of everything that the node's Kubernetes API serves and that manifests hold: their fields, which
//! are required, how lists are merged, and a few words on each.
//!
//! Owns the table and its format. The table is compressed in the program and unpacked by each load. Pure.
//!
//! The format, in `schema/*.txt`; a line that begins with `#` is for its readers:
//!
//! ```text
//! = PACKAGE GROUP/VERSION                      what follows belongs there
//! Type MARKS: words                            `kind`: it has apiVersion and kind;
//!                                              `list`: there is a TypeList, too;
//!                                              `atomic`: it is changed as a whole;
//!                                              `scalar=ALTERNATIVES/FORMAT`
//!  field! SHAPE MARKS: words                   `!`: required
//! ```
//!
//! A shape is `string`, `bytes`, `bool`, `int32`, `int64`, `double`, a type, `[]SHAPE` or `{}SHAPE` (a map).
//! A type is looked for in its own package first. Marks of a field: `enum=A,B`, `default=X`, `atomic` (a map,
//! or whatever the type says) and its contrary `granular`; of lists `by=KEY,KEY` (a map by these keys, which
//! a strategic merge patch merges by the first), `keys=KEY` (a map that is patched as a whole), `patch=KEY`
//! (merged by a patch, owned as a whole), `set`, `union` (a set to which a patch adds), `retain` (the patch
//! says which members stay). A list without a mark is one value. `#NUMBER` is the field's number in Kubernetes'
//! protobuf encoding, `#OUTER.INNER` that of a message which JSON inlines; with a `z` behind it zero is absent.

pub mod check;
pub mod nearest;

use std::cmp::Ordering;
use std::collections::BTreeSet;

use crate::codec::packed;
use crate::model::ordered::Sortable as _;

/// The length of the table as four bytes, least significant first, and the table as a zlib stream.
static PACKED: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/schema.z"));

/// What every kind has.
const KIND: &str =
    " apiVersion string: API group and version of this object.\n kind string: Kind of this object.\n";
/// What lists have.
const LIST: &str = " items! []@: List of objects.\n metadata ListMeta: Standard list metadata.\n";

pub struct Schema {
    text: String,
    blocks: Vec<Block>,
    /// The places in `blocks` of what is no list, sorted by name: objects are checked with thousands of lookups.
    by_name: Vec<usize>,
}

/// Where a type is written: places in the text.
struct Block {
    package: usize,
    start: usize,
    end: usize,
    is_list: bool,
}

impl Block {
    fn name<'s>(&self, text: &'s str) -> &'s str {
        before(&text[self.start..self.end], |byte| matches!(byte, b' ' | b':' | b'\n'))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Type<'s> {
    /// `io.k8s.api.core.v1`.
    pub package: &'s str,
    /// `v1`; empty for a package without kinds.
    pub group_version: &'s str,
    pub text: &'s str,
    name: &'s str,
    marks: &'s str,
    body: &'s str,
    is_list: bool,
    index: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field<'s> {
    /// As in JSON.
    pub name: &'s str,
    pub is_required: bool,
    pub shape: &'s str,
    pub text: &'s str,
    marks: &'s str,
}

/// The part of an answer's name that changes with the table.
#[must_use]
pub fn hash() -> String {
    // The checksum at the end of the packed form.
    let sum = PACKED.iter().rev().take(4).fold(0, |sum: u32, byte| sum << 8 | u32::from(*byte));
    format!("{sum:08x}")
}

#[cfg(test)]
thread_local! {
    /// How often this thread has unpacked the table.
    pub(crate) static LOADS: std::cell::Cell<u32> = const { std::cell::Cell::new(0) };
}

impl Schema {
    /// Unpacks the table.
    #[must_use]
    pub fn load() -> Self {
        #[cfg(test)]
        LOADS.set(LOADS.get() + 1);
        Self::parse(packed::unpack(PACKED))
    }

    fn parse(text: String) -> Self {
        let mut blocks: Vec<Block> = Vec::new();
        let (mut package, mut at) = (0, 0);
        for line in text.split_inclusive('\n') {
            let end = at + line.len();
            match line.as_bytes().first() {
                Some(b'#' | b'\n') => {}
                Some(b'=') => package = at,
                Some(b' ') => {
                    for block in blocks.iter_mut().rev().take_while(|block| block.end == at) {
                        block.end = end;
                    }
                }
                _ => {
                    let block = |is_list| Block { package, start: at, end, is_list };
                    blocks.push(block(false));
                    if has(split(line).1, "list") {
                        blocks.push(block(true));
                    }
                }
            }
            at = end;
        }
        let mut by_name: Vec<usize> = (0..blocks.len()).filter(|index| !blocks[*index].is_list).collect();
        by_name.order_by(|one, other| blocks[*one].name(&text).cmp(blocks[*other].name(&text)));
        Self { text, blocks, by_name }
    }

    pub fn types(&self) -> impl Iterator<Item = Type<'_>> {
        (0..self.blocks.len()).map(|index| self.at(index))
    }

    fn at(&self, index: usize) -> Type<'_> {
        let block = &self.blocks[index];
        let package = self.text[block.package..].lines().next().unwrap_or_default();
        let mut package = package.split_whitespace().skip(1);
        let (head, body) = self.text[block.start..block.end].split_once('\n').unwrap_or_default();
        let (name, marks, text) = split(head);
        Type {
            package: package.next().unwrap_or_default(),
            group_version: package.next().unwrap_or_default(),
            text: if block.is_list { "A list of objects." } else { text },
            name,
            marks: if block.is_list { "kind" } else { marks },
            body: if block.is_list { LIST } else { body },
            is_list: block.is_list,
            index,
        }
    }

    #[must_use]
    pub fn of_kind(&self, group_version: &str, kind: &str) -> Option<Type<'_>> {
        self.all_named(kind).find(|known| known.is_kind() && known.group_version == group_version)
    }

    /// The type that a shape within `from` names, without `[]` and `{}`; none for a plain value.
    #[must_use]
    pub fn named(&self, from: Type<'_>, name: &str) -> Option<Type<'_>> {
        if name == "@" {
            return self.types().find(|known| known.name == from.name && known.package == from.package);
        }
        if !name.starts_with(|first: char| first.is_ascii_uppercase()) {
            return None;
        }
        let mut found = None;
        for known in self.all_named(name) {
            if known.package == from.package {
                return Some(known);
            }
            found = found.or(Some(known));
        }
        found
    }

    /// The types of this name in all packages, in the order of the table.
    fn all_named<'a>(&'a self, name: &str) -> impl Iterator<Item = Type<'a>> {
        let name_of = |index: usize| self.blocks[index].name(&self.text);
        let first = self.by_name.partition_point(|index| name_of(*index) < name);
        let named = self.by_name[first..].iter().take_while(move |index| name_of(**index) == name);
        named.map(|index| self.at(*index))
    }

    /// The places of these types, in [`Self::types`], and of all that they consist of.
    #[must_use]
    pub fn closure(&self, roots: &[Type<'_>]) -> BTreeSet<usize> {
        let mut found = BTreeSet::new();
        let mut new: Vec<usize> = roots.iter().map(|root| root.index).collect();
        while let Some(index) = new.pop() {
            if found.insert(index) {
                let from = self.at(index);
                let parts = from.fields().filter_map(|field| self.named(from, inner(field.shape)));
                new.extend(parts.map(|part| part.index));
            }
        }
        found
    }

    /// The list of a type, where there is one.
    #[must_use]
    pub fn list_of(&self, of: Type<'_>) -> Option<Type<'_>> {
        self.types().nth(of.index + 1).filter(|next| next.is_list && next.name == of.name)
    }

    /// The type at a place of [`Self::types`].
    #[must_use]
    pub fn nth(&self, index: usize) -> Option<Type<'_>> {
        (index < self.blocks.len()).then(|| self.at(index))
    }
}

impl<'s> Type<'s> {
    /// `io.k8s.api.core.v1.PodList`.
    #[must_use]
    pub fn full_name(&self) -> String {
        format!("{}.{}", self.package, self.short_name())
    }

    /// `PodList`.
    #[must_use]
    pub fn short_name(&self) -> String {
        format!("{}{}", self.name, if self.is_list { "List" } else { "" })
    }

    /// It has `apiVersion` and `kind`.
    #[must_use]
    pub fn is_kind(&self) -> bool {
        has(self.marks, "kind")
    }

    /// The type is changed as a whole.
    #[must_use]
    pub fn is_atomic(&self) -> bool {
        has(self.marks, "atomic")
    }

    /// Of a plain value with a name: what it may be, `|` between, and perhaps its format behind a `/`.
    #[must_use]
    pub fn scalar(&self) -> Option<&'s str> {
        mark(self.marks, "scalar")
    }

    pub fn fields(self) -> impl Iterator<Item = Field<'s>> {
        self.lines().map(Field::of)
    }

    fn lines(self) -> impl Iterator<Item = &'s str> {
        let kind = if self.is_kind() { KIND } else { "" };
        kind.lines().chain(self.body.lines())
    }

    /// Reads few others than that: the fields of a type are sorted by name.
    #[must_use]
    pub fn field(self, name: &str) -> Option<Field<'s>> {
        let own =
            if self.is_kind() { KIND.lines().map(Field::of).find(|field| field.name == name) } else { None };
        own.or_else(|| sorted_line(self.body, name).map(Field::of).filter(|field| field.name == name))
    }
}

/// The line of a field that may have this name, by halves.
fn sorted_line<'s>(body: &'s str, name: &str) -> Option<&'s str> {
    let mut left = body;
    while !left.is_empty() {
        let half = &left.as_bytes()[..left.len() / 2];
        let start = half.iter().rposition(|byte| *byte == b'\n').map_or(0, |end| end + 1);
        let (line, _) = left[start..].split_once('\n').unwrap_or((&left[start..], ""));
        let known = before(&line[1..], |byte| matches!(byte, b' ' | b'!'));
        match known.cmp(name) {
            Ordering::Equal => return Some(line),
            Ordering::Less => left = left[start..].get(line.len() + 1..).unwrap_or_default(),
            Ordering::Greater => left = &left[..start],
        }
    }
    None
}

impl<'s> Field<'s> {
    fn of(line: &'s str) -> Self {
        let (head, marks, text) = split(&line[1..]);
        let (shape, marks) = marks.split_once(' ').unwrap_or((marks, ""));
        let (name, is_required) = match head.strip_suffix('!') {
            Some(name) => (name, true),
            None => (head, false),
        };
        Self { name, is_required, shape, text, marks }
    }

    /// The word is among its marks.
    #[must_use]
    pub fn has(&self, word: &str) -> bool {
        has(self.marks, word)
    }

    /// In Kubernetes' protobuf encoding: `5`, `2.1` of a message that is inlined.
    #[must_use]
    pub fn number(&self) -> Option<&'s str> {
        let mark = self.marks.split(' ').find_map(|mark| mark.strip_prefix('#'))?;
        Some(mark.trim_end_matches('z'))
    }

    /// In that encoding zero, which is always written, stands for no value.
    #[must_use]
    pub fn is_zero_absent(&self) -> bool {
        self.marks.split(' ').any(|mark| mark.starts_with('#') && mark.ends_with('z'))
    }

    #[must_use]
    pub fn mark(&self, name: &str) -> Option<&'s str> {
        mark(self.marks, name)
    }
}

/// The text before the first such byte, which is ASCII. A pattern of several characters goes through the text character by
/// character, and there are thousands of lookups for each start.
fn before(text: &str, is_end: impl Fn(u8) -> bool) -> &str {
    let end = text.bytes().position(is_end);
    end.map_or(text, |end| &text[..end])
}

/// A shape without `[]` and `{}`.
#[must_use]
pub fn inner(shape: &str) -> &str {
    shape.trim_start_matches("[]").trim_start_matches("{}").trim_start_matches("[]")
}

/// The first word, the other words, and the description.
fn split(line: &str) -> (&str, &str, &str) {
    let line = line.trim_end();
    let (head, text) = line.split_once(": ").unwrap_or((line, ""));
    let (name, marks) = head.split_once(' ').unwrap_or((head, ""));
    (name, marks, text)
}

fn has(marks: &str, word: &str) -> bool {
    marks.split(' ').any(|mark| mark == word)
}

fn mark<'s>(marks: &'s str, name: &str) -> Option<&'s str> {
    marks.split(' ').find_map(|mark| mark.strip_prefix(name)?.strip_prefix('='))
}

#[cfg(test)]
mod tests;
