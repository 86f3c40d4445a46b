//! Discovery in both of its forms, and the release.
//!
//! Owns the shapes. Pure: everything is derived from the table of resources.

use serde_json::{Value, json};

use crate::model::ordered::Sortable as _;
use crate::pod::admission::rules::go_arch;

use super::resource::{Catalog, Resource, Subresource, Verb, group_version};

pub(crate) use crate::serve::server::RELEASE;

/// The supported versions of aggregated discovery, the newest first.
pub(in crate::serve) const AGGREGATED: [(&str, &str); 2] = [
    ("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
    ("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
];

fn verb_names(verbs: &[Verb]) -> Vec<&'static str> {
    verbs.iter().map(|verb| verb.as_str()).collect()
}

fn of_version(catalog: &Catalog, group: &str, version: &str) -> Vec<&'static Resource> {
    catalog.all().filter(|resource| resource.group == group && resource.version == version).collect()
}

/// `/`: the existing paths, sorted.
#[must_use]
pub(crate) fn paths(catalog: &Catalog) -> Value {
    let mut paths: Vec<String> =
        ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2"]
            .map(str::to_owned)
            .into();
    paths.extend(["/openapi/v3", "/openapi/v3/api/v1", "/readyz", "/version"].map(str::to_owned));
    for (group, versions) in catalog.groups() {
        let path = format!("/apis/{group}");
        for version in versions {
            paths.extend([format!("{path}/{version}"), format!("/openapi/v3{path}/{version}")]);
        }
        paths.push(path);
    }
    paths.order_by(Ord::cmp);
    json!({"paths": paths})
}

/// `/api`.
#[must_use]
pub(crate) fn core() -> Value {
    json!({
        "kind": "APIVersions",
        "versions": ["v1"],
        "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": ""}],
    })
}

fn group_entry(group: &str, versions: &[&str]) -> Value {
    let entry = |version: &&str| json!({"groupVersion": group_version(group, version), "version": version});
    let versions: Vec<Value> = versions.iter().map(entry).collect();
    json!({"name": group, "preferredVersion": versions.first(), "versions": versions})
}

/// `/apis`.
#[must_use]
pub(in crate::serve) fn group_list(catalog: &Catalog) -> Value {
    let groups: Vec<Value> =
        catalog.groups().iter().map(|(group, versions)| group_entry(group, versions)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
#[must_use]
pub(crate) fn group(catalog: &Catalog, group: &str) -> Value {
    let versions = catalog.groups().into_iter().find(|(known, _)| *known == group).unwrap_or_default().1;
    let mut entry = group_entry(group, &versions);
    entry["kind"] = json!("APIGroup");
    entry["apiVersion"] = json!("v1");
    entry
}

/// `/api/v1`, `/apis/GROUP/VERSION`.
#[must_use]
pub(crate) fn resources(catalog: &Catalog, group: &str, version: &str) -> Value {
    let mut list = Vec::new();
    for resource in of_version(catalog, group, version) {
        let mut entry = json!({
            "name": resource.plural,
            "singularName": resource.singular,
            "namespaced": resource.namespaced,
            "kind": resource.kind,
            "verbs": verb_names(resource.verbs),
        });
        put_names(&mut entry, resource);
        list.push(entry);
        for part in resource.subresources {
            let mut entry = json!({
                "name": format!("{}/{}", resource.plural, part.name),
                "singularName": "",
                "namespaced": resource.namespaced,
                "kind": part.kind.2,
                "verbs": verb_names(part.verbs),
            });
            if !part.kind.1.is_empty() {
                entry["group"] = json!(part.kind.0);
                entry["version"] = json!(part.kind.1);
            }
            list.push(entry);
        }
    }
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version(group, version),
        "resources": list,
    })
}

fn put_names(entry: &mut Value, resource: &Resource) {
    for (field, names) in [("shortNames", resource.short_names), ("categories", resource.categories)] {
        if !names.is_empty() {
            entry[field] = json!(names);
        }
    }
}

/// `/api` and `/apis` for clients of aggregated discovery; `version` is discovery's own.
#[must_use]
pub(in crate::serve) fn aggregated(catalog: &Catalog, core: bool, version: &str) -> Value {
    let groups = if core { vec![("", vec!["v1"])] } else { catalog.groups() };
    let of_group = |(group, versions): (&'static str, Vec<&'static str>)| {
        let of_version = |of: &'static str| {
            let resources: Vec<Value> = of_version(catalog, group, of).into_iter().map(whole).collect();
            json!({"version": of, "resources": resources, "freshness": "Current"})
        };
        let versions: Vec<Value> = versions.into_iter().map(of_version).collect();
        json!({"metadata": {"name": group, "creationTimestamp": null}, "versions": versions})
    };
    let items: Vec<Value> = groups.into_iter().map(of_group).collect();
    json!({
        "kind": "APIGroupDiscoveryList",
        "apiVersion": format!("apidiscovery.k8s.io/{version}"),
        "metadata": {},
        "items": items,
    })
}

fn whole(resource: &Resource) -> Value {
    let mut entry = json!({
        "resource": resource.plural,
        "responseKind": {"group": resource.group, "version": resource.version, "kind": resource.kind},
        "scope": if resource.namespaced { "Namespaced" } else { "Cluster" },
        "singularResource": resource.singular,
        "verbs": verb_names(resource.verbs),
    });
    put_names(&mut entry, resource);
    let part = |part: &Subresource| {
        let (group, version) = if part.kind.1.is_empty() {
            (resource.group, resource.version)
        } else {
            (part.kind.0, part.kind.1)
        };
        json!({
            "subresource": part.name,
            "responseKind": {"group": group, "version": version, "kind": part.kind.2},
            "verbs": verb_names(part.verbs),
        })
    };
    if !resource.subresources.is_empty() {
        entry["subresources"] = resource.subresources.iter().map(part).collect();
    }
    entry
}

/// `/version`: the upstream release that this follows, with the agent's own version appended.
#[must_use]
pub(crate) fn version() -> Value {
    json!({
        "major": "1",
        "minor": "36",
        "gitVersion": RELEASE,
        "gitCommit": "",
        "gitTreeState": "",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "rustc",
        "platform": format!("linux/{}", go_arch(std::env::consts::ARCH)),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_forms_tell_the_same() {
        let catalog = Catalog::default();
        let listed: Vec<String> = catalog
            .group_versions()
            .into_iter()
            .flat_map(|(group, version)| {
                let list = resources(&catalog, group, version);
                let name = |entry: &Value| format!("{group}/{version}/{}", entry["name"].as_str().unwrap());
                list["resources"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
            })
            .collect();
        let mut told = Vec::new();
        for core in [true, false] {
            for group in aggregated(&catalog, core, "v2")["items"].as_array().unwrap() {
                let name = group["metadata"]["name"].as_str().unwrap();
                for version in group["versions"].as_array().unwrap() {
                    let name = format!("{name}/{}", version["version"].as_str().unwrap());
                    for resource in version["resources"].as_array().unwrap() {
                        let plural = resource["resource"].as_str().unwrap();
                        told.push(format!("{name}/{plural}"));
                        for part in resource["subresources"].as_array().into_iter().flatten() {
                            told.push(format!("{name}/{plural}/{}", part["subresource"].as_str().unwrap()));
                        }
                    }
                }
            }
        }
        assert_eq!(listed, told);
        for wanted in [
            "/v1/pods/log",
            "metrics.k8s.io/v1beta1/nodes",
            "apps/v1/deployments/scale",
            "autoscaling/v1/horizontalpodautoscalers",
        ] {
            assert!(listed.contains(&wanted.to_owned()), "{wanted}");
        }
        let scaling = group(&catalog, "autoscaling");
        assert_eq!(scaling["preferredVersion"]["version"], "v2");
        assert_eq!(scaling["versions"].as_array().map(Vec::len), Some(2));
    }

    #[test]
    fn an_eviction_is_of_its_own_group() {
        let list = resources(&Catalog::default(), "", "v1");
        let eviction =
            list["resources"].as_array().unwrap().iter().find(|entry| entry["name"] == "pods/eviction");
        assert_eq!(eviction.unwrap()["group"], "policy");
    }
}
