//! The resources this API serves.
//!
//! Owns the catalog: what is in the table, and what CustomResourceDefinitions add. Discovery, paths, access and tables of
//! columns all read it. Pure.

mod table;

use std::cell::RefCell;
use std::cmp::Ordering;
use std::rc::Rc;

use crate::model::objects::ObjectKind;
use crate::model::ordered::Sortable as _;
use table::{ALONE, COMMON, JOINED, custom_parts};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Verb {
    Get,
    List,
    /// Many, and their changes.
    Watch,
    /// `POST`.
    Create,
    /// `PUT`.
    Update,
    Patch,
    Delete,
    DeleteCollection,
}

impl Verb {
    #[must_use]
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Create => "create",
            Self::Update => "update",
            Self::Patch => "patch",
            Self::Delete => "delete",
            Self::DeleteCollection => "deletecollection",
        }
    }

    #[must_use]
    pub(crate) fn reads(self) -> bool {
        matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// The origin of a kind's objects. Two resources of one store show the same objects in two shapes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Store {
    Pods,
    /// Written by clients and manifests, and stored unchanged.
    Objects(ObjectKind),
    Events,
    /// `Namespace`: those that clients created, and those in use.
    Namespaces,
    Nodes,
    /// `Lease`: the node's own, and those that clients created.
    Leases,
    /// `CustomResourceDefinition` of a node of a cluster: always empty.
    Definitions,
    /// Measured on request, without versions.
    PodMetrics,
    /// As [`Self::PodMetrics`].
    NodeMetrics,
    /// Nothing is stored: a request and its answer.
    Review,
}

impl Store {
    /// Whether its objects have versions from where they are changed.
    pub(super) fn is_stamped(self) -> bool {
        matches!(self, Self::Pods | Self::Objects(_))
    }
}

/// A subresource with a path of its own.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Subresource {
    /// The last part of the path.
    pub name: &'static str,
    /// Group, version and kind of its body, where they are not the object's own.
    pub kind: (&'static str, &'static str, &'static str),
    pub verbs: &'static [Verb],
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Resource {
    /// API group, empty for the core.
    pub group: &'static str,
    pub version: &'static str,
    /// As in paths.
    pub plural: &'static str,
    /// The singular name, which kubectl accepts as well.
    pub singular: &'static str,
    /// As in `kind`.
    pub kind: &'static str,
    pub short_names: &'static [&'static str],
    /// `kubectl get all`.
    pub categories: &'static [&'static str],
    pub namespaced: bool,
    pub verbs: &'static [Verb],
    pub subresources: &'static [Subresource],
    pub store: Store,
}

impl Resource {
    /// `v1`, `metrics.k8s.io/v1beta1`: as in `apiVersion`.
    #[must_use]
    pub(crate) fn api_version(&self) -> String {
        group_version(self.group, self.version)
    }

    /// `pods`, `pods.metrics.k8s.io`: as messages name it.
    #[must_use]
    pub(in crate::serve) fn qualified(&self) -> String {
        qualified(self.plural, self.group)
    }

    /// A definition defines it.
    #[must_use]
    pub(in crate::serve) fn is_custom(&self) -> bool {
        matches!(self.store, Store::Objects(ObjectKind::Custom(_)))
    }

    #[must_use]
    pub(in crate::serve) fn subresource(&self, name: &str) -> Option<&'static Subresource> {
        let parts: &'static [Subresource] = self.subresources;
        parts.iter().find(|part| part.name == name)
    }
}

/// `v1`, `metrics.k8s.io/v1beta1`.
#[must_use]
pub(crate) fn group_version(group: &str, version: &str) -> String {
    if group.is_empty() { version.to_owned() } else { format!("{group}/{version}") }
}

/// `pods`, `pods.metrics.k8s.io`.
#[must_use]
pub(in crate::serve) fn qualified(plural: &str, group: &str) -> String {
    if group.is_empty() { plural.to_owned() } else { format!("{plural}.{group}") }
}

/// The resources that are served, in the order of discovery.
#[derive(Clone, Debug)]
pub(crate) struct Catalog(Rc<[&'static Resource]>);

impl Catalog {
    /// `is_alone`: the node has not joined a cluster. `custom`: those of definitions.
    #[must_use]
    pub(crate) fn new(is_alone: bool, custom: &[&'static Resource]) -> Self {
        let more = if is_alone { ALONE } else { JOINED };
        let mut all: Vec<&'static Resource> = COMMON.iter().chain(more).collect();
        all.order_by(|one, other| {
            let key = |of: &Resource| (of.group, of.plural);
            (one.group.cmp(other.group))
                .then_with(|| compare_versions(one.version, other.version))
                .then_with(|| key(one).cmp(&key(other)))
        });
        let mut custom = custom.to_vec();
        custom.retain(|new| !all.iter().any(|known| known.group == new.group && known.plural == new.plural));
        custom.order_by(|one, other| {
            (one.group.cmp(other.group))
                .then_with(|| compare_versions(one.version, other.version))
                .then_with(|| one.plural.cmp(other.plural))
        });
        all.extend(custom);
        Self(all.into())
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &'static Resource> {
        self.0.iter().copied()
    }

    #[must_use]
    pub(crate) fn find(&self, group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
        self.all().find(|found| found.group == group && found.version == version && found.plural == plural)
    }

    /// Groups and their versions, the preferred one first, each once, without the core.
    #[must_use]
    pub(crate) fn groups(&self) -> Vec<(&'static str, Vec<&'static str>)> {
        let mut groups: Vec<(&'static str, Vec<&'static str>)> = Vec::new();
        for Resource { group, version, .. } in self.all().filter(|resource| !resource.group.is_empty()) {
            match groups.iter_mut().find(|(known, _)| known == group) {
                Some((_, versions)) if versions.contains(version) => {}
                Some((_, versions)) => versions.push(version),
                None => groups.push((group, vec![version])),
            }
        }
        for (_, versions) in &mut groups {
            versions.order_by(|one, other| compare_versions(one, other));
        }
        groups
    }

    /// Every group with every version, the core first.
    #[must_use]
    pub(crate) fn group_versions(&self) -> Vec<(&'static str, &'static str)> {
        let of_group = |(group, versions): (&'static str, Vec<&'static str>)| {
            versions.into_iter().map(move |version| (group, version))
        };
        std::iter::once(("", "v1")).chain(self.groups().into_iter().flat_map(of_group)).collect()
    }
}

impl Default for Catalog {
    fn default() -> Self {
        Self::new(true, &[])
    }
}

/// A resource of the table, as a node alone serves it.
#[cfg(test)]
#[must_use]
pub(crate) fn find(group: &str, version: &str, plural: &str) -> Option<&'static Resource> {
    Catalog::default().find(group, version, plural)
}

/// Kubernetes' order of versions, the preferred one first: v2, v1, v1beta1, v1alpha2, then others by name.
fn compare_versions(one: &str, other: &str) -> Ordering {
    match (rank(one), rank(other)) {
        (Some(one), Some(other)) => other.cmp(&one),
        (Some(_), None) => Ordering::Less,
        (None, Some(_)) => Ordering::Greater,
        (None, None) => one.cmp(other),
    }
}

/// Stability, major and minor number; none for a name of another form.
fn rank(version: &str) -> Option<(u8, u32, u32)> {
    let rest = version.strip_prefix('v')?;
    for (word, stability) in [("alpha", 0), ("beta", 1)] {
        if let Some((major, minor)) = rest.split_once(word) {
            return Some((stability, major.parse().ok()?, minor.parse().ok()?));
        }
    }
    Some((2, rest.parse().ok()?, 0))
}

/// What a definition says of one version of its resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CustomResource {
    pub group: String,
    pub version: String,
    pub plural: String,
    pub singular: String,
    pub kind: String,
    pub short_names: Vec<String>,
    pub categories: Vec<String>,
    pub namespaced: bool,
    pub has_status: bool,
    pub has_scale: bool,
}

/// Resources of definitions that one process has known: each costs some hundred bytes until it ends.
const MAX_CUSTOM: usize = 4_000;

thread_local! {
    static CUSTOM: RefCell<Vec<(CustomResource, &'static Resource)>> = const { RefCell::new(Vec::new()) };
}

/// The resource of a definition. `None`: there were too many.
pub(super) fn custom(wanted: &CustomResource) -> Option<&'static Resource> {
    let text = |text: &str| -> &'static str { Box::leak(text.to_owned().into_boxed_str()) };
    let texts = |list: &[String]| -> &'static [&'static str] {
        Box::leak(list.iter().map(|one| text(one)).collect::<Vec<_>>().into_boxed_slice())
    };
    CUSTOM.with_borrow_mut(|known| {
        if let Some((_, found)) = known.iter().find(|(of, _)| of == wanted) {
            return Some(*found);
        }
        if known.len() >= MAX_CUSTOM {
            return None;
        }
        let kind = ObjectKind::custom(&wanted.group, &wanted.kind, &wanted.plural, wanted.namespaced)?;
        let word = kind.as_str();
        let resource: &'static Resource = Box::leak(Box::new(Resource {
            group: kind.group(),
            version: text(&wanted.version),
            plural: kind.plural(),
            singular: text(&wanted.singular),
            kind: word,
            short_names: texts(&wanted.short_names),
            categories: texts(&wanted.categories),
            namespaced: wanted.namespaced,
            verbs: table::ALL,
            subresources: Box::leak(
                custom_parts(word, wanted.has_status, wanted.has_scale).into_boxed_slice(),
            ),
            store: Store::Objects(kind),
        }));
        known.push((wanted.clone(), resource));
        Some(resource)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_resource_is_found_and_groups_are_listed_once() {
        for catalog in [Catalog::default(), Catalog::new(false, &[])] {
            for resource in catalog.all() {
                assert_eq!(catalog.find(resource.group, resource.version, resource.plural), Some(resource));
                let mut verbs = resource.verbs.to_vec();
                verbs.dedup();
                assert_eq!(verbs, resource.verbs);
            }
        }
        assert_eq!(find("apps", "v2", "deployments"), None);
        let words = |catalog: Catalog| -> Vec<String> {
            catalog
                .groups()
                .into_iter()
                .map(|(group, versions)| format!("{group} {}", versions.join(" ")))
                .collect()
        };
        assert_eq!(
            words(Catalog::new(false, &[])),
            [
                "apiextensions.k8s.io v1",
                "authentication.k8s.io v1",
                "authorization.k8s.io v1",
                "coordination.k8s.io v1",
                "events.k8s.io v1",
                "metrics.k8s.io v1beta1",
                "node.k8s.io v1"
            ],
            "of a node of a cluster"
        );
        let alone = words(Catalog::default());
        assert!(
            alone.contains(&"apps v1".to_owned()) && alone.contains(&"autoscaling v2 v1".to_owned()),
            "{alone:?}"
        );
    }

    #[test]
    fn every_kind_that_is_stored_is_served_by_a_node_alone() {
        for kind in ObjectKind::BUILT_IN {
            let found = find(kind.group(), kind.version(), kind.plural());
            let found = found.unwrap_or_else(|| panic!("{} is not served", kind.as_str()));
            assert_eq!((found.kind, found.namespaced), (kind.as_str(), kind.is_namespaced()));
            assert!(found.verbs.contains(&Verb::Create), "{}", kind.as_str());
        }
    }

    #[test]
    fn versions_are_in_kubernetes_order() {
        let mut versions =
            ["foo10", "v1alpha1", "v3beta1", "v10", "v11beta2", "foo1", "v12alpha1", "v2", "v11alpha2", "v1"];
        versions.order_by(|one, other| compare_versions(one, other));
        assert_eq!(
            versions,
            ["v10", "v2", "v1", "v11beta2", "v3beta1", "v12alpha1", "v11alpha2", "v1alpha1", "foo1", "foo10"]
        );
    }

    #[test]
    fn a_definition_never_replaces_a_resource_of_kubernetes() {
        let gauge = |group: &str, plural: &str, version: &str| {
            custom(&CustomResource {
                group: group.to_owned(),
                version: version.to_owned(),
                plural: plural.to_owned(),
                kind: "Gauge".to_owned(),
                namespaced: true,
                has_scale: true,
                ..CustomResource::default()
            })
            .unwrap()
        };
        let both = [
            gauge("edge.example", "gauges", "v1beta1"),
            gauge("edge.example", "gauges", "v1"),
            gauge("apps", "deployments", "v1"),
        ];
        let catalog = Catalog::new(true, &both);
        assert_eq!(catalog.groups().last(), Some(&("edge.example", vec!["v1", "v1beta1"])));
        assert_eq!(catalog.find("apps", "v1", "deployments").unwrap().kind, "Deployment");
        let found = catalog.find("edge.example", "v1", "gauges").unwrap();
        assert!(found.subresource("scale").is_some() && found.subresource("status").is_none());
        assert!(std::ptr::eq(found, gauge("edge.example", "gauges", "v1")), "the same is kept once");
    }
}
