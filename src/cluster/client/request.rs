//! Paths and queries of the Kubernetes API.
//!
//! Pure: a resource in, a path out. Owns how requests are spelled.

use std::fmt::Write;

use serde_json::Value;

/// Which resource, which object of it, which part of that.
///
/// `group` is `""` for the core group. Its version is v1 unless it is named: `coordination.k8s.io`,
/// `certificates.k8s.io/v1beta1`. An empty `name` means the collection; `part` is a subresource or empty.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum ResourcePath {
    Namespaced {
        group: &'static str,
        plural: &'static str,
        namespace: String,
        name: String,
        part: &'static str,
    },
    /// Of the whole cluster: resources without namespaces, and collections of all namespaces.
    Whole { group: &'static str, plural: &'static str, name: String, part: &'static str },
}

/// What a watch asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WatchQuery {
    /// A field selector, `spec.nodeName=n`; empty for all.
    pub fields: String,
    /// Where to begin; empty for the newest state (`initial`), or for now.
    pub version: String,
    /// A streaming list: all objects as ADDED, then a bookmark that says so.
    pub initial: bool,
    pub bookmarks: bool,
    /// When the server ends the watch.
    pub seconds: u32,
}

/// One page of a list.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Page {
    pub items: Vec<Value>,
    /// The version of the list; the same on all its pages.
    pub version: String,
    /// The token of the next page; empty on the last one.
    pub go_on: String,
}

impl ResourcePath {
    /// One object of a namespace. `name` may be empty.
    #[must_use]
    pub(crate) fn namespaced(group: &'static str, plural: &'static str, namespace: &str, name: &str) -> Self {
        Self::Namespaced { group, plural, namespace: namespace.to_owned(), name: name.to_owned(), part: "" }
    }

    /// One object of the whole cluster. `name` may be empty.
    #[must_use]
    pub(crate) fn whole(group: &'static str, plural: &'static str, name: &str) -> Self {
        Self::Whole { group, plural, name: name.to_owned(), part: "" }
    }

    /// The same with another subresource.
    #[must_use]
    pub(crate) fn with_part(mut self, of: &'static str) -> Self {
        match &mut self {
            Self::Namespaced { part, .. } | Self::Whole { part, .. } => *part = of,
        }
        self
    }

    /// The collection that the object is in: where one is created.
    #[must_use]
    pub(crate) fn without_name(mut self) -> Self {
        match &mut self {
            Self::Namespaced { name, .. } | Self::Whole { name, .. } => name.clear(),
        }
        self
    }

    /// The plural of the resource, for messages.
    #[must_use]
    pub(crate) fn plural(&self) -> &'static str {
        match self {
            Self::Namespaced { plural, .. } | Self::Whole { plural, .. } => plural,
        }
    }

    /// The object's name; empty for a collection.
    #[must_use]
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Namespaced { name, .. } | Self::Whole { name, .. } => name,
        }
    }

    /// Without a query.
    #[must_use]
    pub(crate) fn path(&self) -> String {
        let part = match self {
            Self::Namespaced { part, .. } | Self::Whole { part, .. } => part,
        };
        let mut path = self.collection();
        for next in [self.name(), part].into_iter().filter(|next| !next.is_empty()) {
            step(&mut path, next);
        }
        path
    }

    fn collection(&self) -> String {
        let (group, place) = match self {
            Self::Namespaced { group, namespace, .. } => (*group, Some(namespace)),
            Self::Whole { group, .. } => (*group, None),
        };
        let mut path = match group {
            "" => "/api/v1".to_owned(),
            group if group.contains('/') => format!("/apis/{group}"),
            group => format!("/apis/{group}/v1"),
        };
        if let Some(namespace) = place {
            path.push_str("/namespaces");
            step(&mut path, namespace);
        }
        step(&mut path, self.plural());
        path
    }

    /// One page of the list; `go_on` is the token of the page before. Never asks for version 0: the state of any
    /// server's cache may be older than what this node has seen (kubernetes issue 59848).
    #[must_use]
    pub(crate) fn page(&self, selector: &str, go_on: &str, limit: u32) -> String {
        let mut path = self.collection();
        let limit = limit.to_string();
        query(&mut path, &[("fieldSelector", selector), ("limit", &limit), ("continue", go_on)]);
        path
    }

    /// A watch of the collection: one object is watched by a selector of its name.
    #[must_use]
    pub(crate) fn watch(&self, of: &WatchQuery) -> String {
        let mut path = self.collection();
        let yes = |value: bool| if value { "true" } else { "" };
        let seconds = of.seconds.to_string();
        query(
            &mut path,
            &[
                ("watch", "true"),
                ("fieldSelector", &of.fields),
                ("resourceVersion", &of.version),
                ("resourceVersionMatch", if of.initial { "NotOlderThan" } else { "" }),
                ("sendInitialEvents", yes(of.initial)),
                ("allowWatchBookmarks", yes(of.bookmarks || of.initial)),
                ("timeoutSeconds", &seconds),
            ],
        );
        path
    }
}

/// Appends a step of a path, encoded.
fn step(path: &mut String, name: &str) {
    path.push('/');
    encode(path, name);
}

/// Appends the members that have a value.
fn query(path: &mut String, members: &[(&str, &str)]) {
    let mut mark = '?';
    for (name, value) in members.iter().filter(|(_, value)| !value.is_empty()) {
        path.push(mark);
        path.push_str(name);
        path.push('=');
        encode(path, value);
        mark = '&';
    }
}

fn encode(path: &mut String, text: &str) {
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.' | b'_' | b'~') {
            path.push(char::from(byte));
        } else {
            // Writing to a string does not fail.
            let _ = write!(path, "%{byte:02X}");
        }
    }
}
