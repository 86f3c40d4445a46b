//! Discovery in both of its forms, and the release.
//!
//! Owns the shapes. Pure: everything is derived from the table of resources.

use serde_json::{Value, json};

use crate::pod::admission::rules::go_arch;

use super::resource::{RESOURCES, Resource, Subresource, Verb, group_version, groups};

pub(crate) use crate::serve::server::RELEASE;

/// The supported versions of aggregated discovery, the newest first.
pub(in crate::serve) const AGGREGATED: [(&str, &str); 2] = [
    ("v2", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList"),
    ("v2beta1", "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList"),
];

fn verb_names(verbs: &[Verb]) -> Vec<&'static str> {
    verbs.iter().map(|verb| verb.as_str()).collect()
}

fn of_group(group: &str) -> impl Iterator<Item = &'static Resource> {
    RESOURCES.iter().filter(move |resource| resource.group == group)
}

/// `/`: the existing paths, sorted.
#[must_use]
pub(crate) fn paths() -> Value {
    let mut paths: Vec<String> =
        ["/api", "/api/v1", "/apis", "/healthz", "/livez", "/metrics", "/openapi/v2"]
            .map(str::to_owned)
            .into();
    paths.extend(["/openapi/v3", "/openapi/v3/api/v1", "/readyz", "/version"].map(str::to_owned));
    for (group, version) in groups() {
        let path = format!("/apis/{group}");
        paths.extend([format!("{path}/{version}"), format!("/openapi/v3{path}/{version}"), path]);
    }
    paths.sort_unstable();
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

fn group_entry(group: &str, version: &str) -> Value {
    let version = json!({"groupVersion": group_version(group, version), "version": version});
    json!({"name": group, "versions": [version], "preferredVersion": version})
}

/// `/apis`.
#[must_use]
pub(in crate::serve) fn group_list() -> Value {
    let groups: Vec<Value> =
        groups().into_iter().map(|(group, version)| group_entry(group, version)).collect();
    json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups})
}

/// `/apis/GROUP`.
#[must_use]
pub(crate) fn group(group: &str, version: &str) -> Value {
    let mut entry = group_entry(group, version);
    entry["kind"] = json!("APIGroup");
    entry["apiVersion"] = json!("v1");
    entry
}

/// `/api/v1`, `/apis/GROUP/VERSION`.
#[must_use]
pub(crate) fn resources(group: &str, version: &str) -> Value {
    let mut list = Vec::new();
    for resource in of_group(group) {
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
pub(in crate::serve) fn aggregated(core: bool, version: &str) -> Value {
    let groups = if core { vec![("", "v1")] } else { groups() };
    let items: Vec<Value> = groups
        .into_iter()
        .map(|(group, of)| {
            let resources: Vec<Value> = of_group(group).map(whole).collect();
            json!({
                "metadata": {"name": group, "creationTimestamp": null},
                "versions": [{"version": of, "resources": resources, "freshness": "Current"}],
            })
        })
        .collect();
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
        let listed: Vec<String> = std::iter::once(("", "v1"))
            .chain(groups())
            .flat_map(|(group, version)| {
                let list = resources(group, version);
                let name = |entry: &Value| format!("{group}/{}", entry["name"].as_str().unwrap());
                list["resources"].as_array().unwrap().iter().map(name).collect::<Vec<_>>()
            })
            .collect();
        let mut told = Vec::new();
        for core in [true, false] {
            for group in aggregated(core, "v2")["items"].as_array().unwrap() {
                let name = group["metadata"]["name"].as_str().unwrap();
                for resource in group["versions"][0]["resources"].as_array().unwrap() {
                    let plural = resource["resource"].as_str().unwrap();
                    told.push(format!("{name}/{plural}"));
                    for part in resource["subresources"].as_array().into_iter().flatten() {
                        told.push(format!("{name}/{plural}/{}", part["subresource"].as_str().unwrap()));
                    }
                }
            }
        }
        assert_eq!(listed, told);
        assert!(
            listed.contains(&"/pods/log".to_owned()) && listed.contains(&"metrics.k8s.io/nodes".to_owned())
        );
    }

    #[test]
    fn an_eviction_is_of_its_own_group() {
        let list = resources("", "v1");
        let eviction =
            list["resources"].as_array().unwrap().iter().find(|entry| entry["name"] == "pods/eviction");
        assert_eq!(eviction.unwrap()["group"], "policy");
    }
}
