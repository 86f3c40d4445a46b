//! The parser's events of one document within bounds, with what an alias stands for in the alias's place.

use std::borrow::Cow;
use std::rc::Rc;

use granit_parser::{Event, Parser, ScalarStyle, ScanError, Span, StrInput};

use super::{MAX_ALIAS_NODES, MAX_ALIASES, MAX_DEPTH, MAX_NODES, YamlError};

/// Bytes of all scalars of a document, those of aliases counted at each use.
const MAX_SCALAR_BYTES: usize = 64 * 1024 * 1024;
/// Documents with this many aliases need an anchor for every ten of them.
const MANY_ALIASES: usize = 100;

#[derive(Clone)]
pub(super) struct YamlEvent<'a> {
    pub(super) what: What<'a>,
    pub(super) line: u64,
    pub(super) column: u64,
}

#[derive(Clone)]
pub(super) enum What<'a> {
    Scalar { text: Cow<'a, str>, tag: YamlTag, plain: bool },
    List,
    Map,
    End,
}

/// What a tag means for the node that carries it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum YamlTag {
    None,
    Null,
    Bool,
    Int,
    Float,
    Text,
    Binary,
    List,
    Map,
    /// `!`: a text, or a list or map without a type.
    Unspecific,
    /// `!!merge`: as the key `<<`.
    Merge,
    /// `!!value`, `!include`: for scalars only, and without further meaning.
    Scalar,
    /// Times and angles, which JSON does not have.
    Foreign,
    Other(String),
}

impl YamlTag {
    fn of(tag: &granit_parser::Tag) -> Self {
        const NAMESPACE: &str = "tag:yaml.org,2002:";
        let text = tag.to_string();
        let standard = text.strip_prefix(NAMESPACE);
        let local = standard.unwrap_or(&text);
        let name = local.strip_prefix("!!").or_else(|| local.strip_prefix('!')).unwrap_or(local);
        if name == local && standard.is_none() {
            return Self::Other(text);
        }
        match name {
            "null" => Self::Null,
            "bool" => Self::Bool,
            "int" => Self::Int,
            "float" => Self::Float,
            "str" => Self::Text,
            "binary" => Self::Binary,
            "seq" => Self::List,
            "map" => Self::Map,
            "" if standard.is_none() => Self::Unspecific,
            "merge" if standard == Some(name) => Self::Merge,
            "value" if standard == Some(name) => Self::Scalar,
            "timestamp" | "time" | "degrees" | "radians" => Self::Foreign,
            include if include == "include" || include.starts_with("include#") => Self::Scalar,
            _ => Self::Other(text),
        }
    }

    fn fits(&self, what: &What<'_>) -> bool {
        match self {
            Self::None | Self::Unspecific | Self::Other(_) => true,
            Self::List => matches!(what, What::List),
            Self::Map => matches!(what, What::Map),
            _ => matches!(what, What::Scalar { .. }),
        }
    }
}

impl YamlEvent<'_> {
    pub(super) fn error(&self, message: impl Into<String>) -> YamlError {
        YamlError { line: self.line, column: self.column, message: message.into() }
    }
}

struct Recording<'a> {
    anchor: usize,
    depth: usize,
    events: Vec<YamlEvent<'a>>,
}

struct Replay<'a> {
    events: Rc<[YamlEvent<'a>]>,
    next: usize,
    line: u64,
    column: u64,
}

pub(super) struct Events<'a> {
    parser: Parser<'a, StrInput<'a>>,
    /// Events that were read or put back, the next one last.
    ahead: Vec<YamlEvent<'a>>,
    /// By the parser's number of the anchor.
    anchored: Vec<Option<Rc<[YamlEvent<'a>]>>>,
    recordings: Vec<Recording<'a>>,
    replay: Option<Replay<'a>>,
    documents: usize,
    nodes: usize,
    depth: usize,
    scalar_bytes: usize,
    anchors: usize,
    aliases: usize,
    recorded: usize,
    recorded_bytes: usize,
    replayed: usize,
    ended_by_marker: bool,
}

impl<'a> Events<'a> {
    pub(super) fn new(text: &'a str) -> Self {
        let mut options = granit_parser::options! { flow_nesting_limit: MAX_DEPTH };
        options.set_emit_comments(false);
        Self {
            parser: Parser::new_from_str_with_options(text, options),
            ahead: Vec::new(),
            anchored: Vec::new(),
            recordings: Vec::new(),
            replay: None,
            documents: 0,
            nodes: 0,
            depth: 0,
            scalar_bytes: 0,
            anchors: 0,
            aliases: 0,
            recorded: 0,
            recorded_bytes: 0,
            replayed: 0,
            ended_by_marker: false,
        }
    }

    /// `None` after the last event of the document.
    pub(super) fn peek(&mut self) -> Result<Option<&YamlEvent<'a>>, YamlError> {
        if self.ahead.is_empty() {
            let next = self.pull()?;
            self.ahead.extend(next);
        }
        Ok(self.ahead.last())
    }

    pub(super) fn take(&mut self) -> Result<YamlEvent<'a>, YamlError> {
        self.peek()?;
        let missing = || YamlError { line: 0, column: 0, message: "unexpected end of input".to_owned() };
        self.ahead.pop().ok_or_else(missing)
    }

    /// Takes the next event if it ends a list or map.
    pub(super) fn take_end(&mut self) -> Result<bool, YamlError> {
        let ends = matches!(self.peek()?, Some(YamlEvent { what: What::End, .. }));
        if ends {
            self.ahead.pop();
        }
        Ok(ends)
    }

    /// Takes all events of the next node.
    pub(super) fn node(&mut self) -> Result<Vec<YamlEvent<'a>>, YamlError> {
        let mut events = Vec::new();
        let mut depth = 0_usize;
        loop {
            let event = self.take()?;
            match event.what {
                What::Scalar { .. } => {}
                What::List | What::Map => depth += 1,
                What::End => depth = depth.saturating_sub(1),
            }
            events.push(event);
            if depth == 0 {
                return Ok(events);
            }
        }
    }

    pub(super) fn put_back(&mut self, node: Vec<YamlEvent<'a>>) {
        self.ahead.extend(node.into_iter().rev());
    }

    /// The document's node was read; nothing may follow it.
    pub(super) fn finish(&mut self) -> Result<(), YamlError> {
        match self.pull() {
            Ok(None) => {}
            Ok(Some(event)) => return Err(event.error("multiple YAML documents in one")),
            Err(_) if self.ended_by_marker => {}
            Err(error) => return Err(error),
        }
        if self.aliases >= MANY_ALIASES && self.aliases > 10 * self.anchors {
            return Err(YamlError { line: 0, column: 0, message: too_many_aliases() });
        }
        Ok(())
    }

    fn pull(&mut self) -> Result<Option<YamlEvent<'a>>, YamlError> {
        if let Some(event) = self.pull_replayed()? {
            return Ok(Some(event));
        }
        while let Some(next) = self.parser.next() {
            let (event, span) = next.map_err(|error| scan_error(&error))?;
            if let Some(event) = self.read(event, &span)? {
                return Ok(Some(event));
            }
        }
        Ok(None)
    }

    fn pull_replayed(&mut self) -> Result<Option<YamlEvent<'a>>, YamlError> {
        let Some(replay) = &mut self.replay else { return Ok(None) };
        let Some(event) = replay.events.get(replay.next).cloned() else {
            self.replay = None;
            return Ok(None);
        };
        replay.next += 1;
        let (line, column) = (replay.line, replay.column);
        let refused = |message| YamlError { line, column, message };
        self.replayed += 1;
        if self.replayed > MAX_ALIAS_NODES {
            return Err(refused(too_many_aliases()));
        }
        self.count(&event.what, 0).map_err(refused)?;
        self.record(&event)?;
        Ok(Some(event))
    }

    /// `None` for an event that is no part of a node, and for an alias, whose node comes next.
    fn read(&mut self, event: Event<'a>, span: &Span) -> Result<Option<YamlEvent<'a>>, YamlError> {
        let (line, column) = (whole(span.start.line()), whole(span.start.col()) + 1);
        let refused = |message| YamlError { line, column, message };
        let (what, anchor, tag) = match event {
            Event::Scalar(text, style, anchor, tag) => {
                let plain = matches!(style, ScalarStyle::Plain);
                let meaning = tag.as_deref().map_or(YamlTag::None, YamlTag::of);
                (What::Scalar { text, tag: meaning, plain }, anchor, tag)
            }
            Event::SequenceStart(_, anchor, tag) => (What::List, anchor, tag),
            Event::MappingStart(_, anchor, tag) => (What::Map, anchor, tag),
            Event::SequenceEnd | Event::MappingEnd => (What::End, 0, None),
            Event::Alias(anchor) => {
                self.alias(anchor, line, column)?;
                return self.pull_replayed();
            }
            Event::DocumentStart(..) => {
                self.documents += 1;
                return if self.documents > 1 { Err(refused(too_many_nodes())) } else { Ok(None) };
            }
            Event::DocumentEnd => {
                self.ended_by_marker = !span.is_empty();
                return Ok(None);
            }
            _ => return Ok(None),
        };
        let tag_bytes = tag.as_deref().map_or(0, |tag| tag.handle().len() + tag.suffix().len());
        self.count(&what, tag_bytes).map_err(refused)?;
        if anchor != 0 {
            self.anchors += 1;
            if self.anchors > MAX_ALIASES {
                return Err(refused(too_many_aliases()));
            }
        }
        if let Some(tag) = tag.as_deref() {
            let meaning = YamlTag::of(tag);
            if !meaning.fits(&what) {
                return Err(refused(unsupported(&meaning, tag)));
            }
        }
        let event = YamlEvent { what, line, column };
        self.remember(&event, anchor)?;
        Ok(Some(event))
    }

    fn alias(&mut self, anchor: usize, line: u64, column: u64) -> Result<(), YamlError> {
        let refused = |message| Err(YamlError { line, column, message });
        self.aliases += 1;
        if self.aliases > MAX_ALIASES {
            return refused(too_many_aliases());
        }
        if self.recordings.iter().any(|recording| recording.anchor == anchor) {
            return refused("an alias stands for a value that contains it".to_owned());
        }
        let Some(events) = self.anchored.get(anchor).cloned().flatten() else {
            return refused("alias references unknown anchor".to_owned());
        };
        self.replay = Some(Replay { events, next: 0, line, column });
        Ok(())
    }

    fn count(&mut self, what: &What<'_>, tag_bytes: usize) -> Result<(), String> {
        let text_bytes = match what {
            What::Scalar { text, .. } => text.len(),
            What::List | What::Map => {
                self.depth += 1;
                0
            }
            What::End => {
                self.depth = self.depth.saturating_sub(1);
                return Ok(());
            }
        };
        self.nodes += 1;
        self.scalar_bytes += text_bytes + tag_bytes;
        if self.nodes > MAX_NODES {
            return Err(too_many_nodes());
        }
        if self.depth > MAX_DEPTH {
            return Err(too_deep());
        }
        if self.scalar_bytes > MAX_SCALAR_BYTES {
            return Err(too_many_nodes());
        }
        Ok(())
    }

    fn remember(&mut self, event: &YamlEvent<'a>, anchor: usize) -> Result<(), YamlError> {
        let is_scalar = matches!(event.what, What::Scalar { .. });
        if matches!(event.what, What::List | What::Map) {
            for recording in &mut self.recordings {
                recording.depth += 1;
            }
        }
        if anchor != 0 {
            self.recordings.push(Recording { anchor, depth: usize::from(!is_scalar), events: Vec::new() });
        }
        self.record(event)?;
        if matches!(event.what, What::End) {
            for recording in &mut self.recordings {
                recording.depth = recording.depth.saturating_sub(1);
            }
        }
        while let Some(done) = self.recordings.pop_if(|recording| recording.depth == 0) {
            if self.anchored.len() <= done.anchor {
                self.anchored.resize(done.anchor + 1, None);
            }
            self.anchored[done.anchor] = Some(done.events.into());
        }
        Ok(())
    }

    fn record(&mut self, event: &YamlEvent<'a>) -> Result<(), YamlError> {
        let owned = match &event.what {
            What::Scalar { text: Cow::Owned(text), .. } => text.len(),
            _ => 0,
        };
        for recording in &mut self.recordings {
            self.recorded += 1;
            self.recorded_bytes += owned;
            if self.recorded > MAX_ALIAS_NODES || self.recorded_bytes > MAX_SCALAR_BYTES {
                return Err(event.error(too_many_aliases()));
            }
            recording.events.push(event.clone());
        }
        Ok(())
    }
}

fn whole(number: usize) -> u64 {
    u64::try_from(number).unwrap_or(u64::MAX)
}

fn scan_error(error: &ScanError) -> YamlError {
    let message = match error.kind() {
        granit_parser::ErrorKind::UnknownAnchor => "alias references unknown anchor".to_owned(),
        granit_parser::ErrorKind::RecursionLimitExceeded => too_deep(),
        _ => printable(&error.info()),
    };
    let place = error.marker();
    YamlError { line: whole(place.line()), column: whole(place.col()) + 1, message }
}

/// With control characters escaped: messages may quote the document.
pub(super) fn printable(message: &str) -> String {
    let mut text = String::with_capacity(message.len());
    for character in message.chars() {
        if character.is_control() || matches!(character, '\u{2028}' | '\u{2029}') {
            text.extend(character.escape_debug());
        } else {
            text.push(character);
        }
    }
    text
}

fn unsupported(meaning: &YamlTag, tag: &granit_parser::Tag) -> String {
    if *meaning == YamlTag::Scalar && tag.suffix().contains("include") {
        return "!include currently only supports the scalar form: !include <path>".to_owned();
    }
    format!("unsupported tag `{}`", tag.original())
}

fn too_many_aliases() -> String {
    format!(
        "aliases expand to more than {MAX_ALIAS_NODES} values or exceed {MAX_ALIASES}; write out their content"
    )
}

fn too_many_nodes() -> String {
    format!("the document has more than {MAX_NODES} values; split it into several files")
}

fn too_deep() -> String {
    format!("nested more than {MAX_DEPTH} levels deep; check brackets and indentation")
}
