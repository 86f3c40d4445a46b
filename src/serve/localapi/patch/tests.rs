//! Patches: the examples of their standards, upstream's rules for lists, ownership, and hostile input.

use proptest::prelude::*;
use serde_json::{Value, json};

use super::apply::{Conflicts, apply as server_side};
use super::fields::{FieldSet, misplaced};
use super::managed::{ManagerEntry, Operation, Writer, after_update, read, write};
use super::schema::Shape;
use super::{PatchError, bounded, json_patch, merge_patch, strategic};
use crate::model::api::schema::Schema;
use crate::model::types::Timestamp;

fn of_kind(kind: &str) -> Shape<'static> {
    static SCHEMA: std::sync::LazyLock<Schema> = std::sync::LazyLock::new(Schema::load);
    Shape::of_kind(&SCHEMA, "v1", kind)
}

fn is_unprocessable(result: &Result<Value, PatchError>) -> bool {
    matches!(result, Err(PatchError::Unprocessable(_)))
}

/// The cases of RFC 6902, appendix A.
#[test]
fn json_patches_do_what_the_standard_shows() {
    for (document, patch, expected) in [
        (
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/baz", "value": "qux"}]),
            json!({"baz": "qux", "foo": "bar"}),
        ),
        (
            json!({"foo": ["bar", "baz"]}),
            json!([{"op": "add", "path": "/foo/1", "value": "qux"}]),
            json!({"foo": ["bar", "qux", "baz"]}),
        ),
        (
            json!({"baz": "qux", "foo": "bar"}),
            json!([{"op": "remove", "path": "/baz"}]),
            json!({"foo": "bar"}),
        ),
        (
            json!({"foo": ["bar", "qux", "baz"]}),
            json!([{"op": "remove", "path": "/foo/1"}]),
            json!({"foo": ["bar", "baz"]}),
        ),
        (
            json!({"baz": "qux"}),
            json!([{"op": "replace", "path": "/baz", "value": "boo"}]),
            json!({"baz": "boo"}),
        ),
        (
            json!({"foo": {"bar": "baz", "waldo": "fred"}, "qux": {"corge": "grault"}}),
            json!([{"op": "move", "from": "/foo/waldo", "path": "/qux/thud"}]),
            json!({"foo": {"bar": "baz"}, "qux": {"corge": "grault", "thud": "fred"}}),
        ),
        (
            json!({"foo": ["all", "grass", "cows", "eat"]}),
            json!([{"op": "move", "from": "/foo/1", "path": "/foo/3"}]),
            json!({"foo": ["all", "cows", "eat", "grass"]}),
        ),
        (
            json!({"baz": "qux", "foo": ["a", 2, "c"]}),
            json!([{"op": "test", "path": "/baz", "value": "qux"}, {"op": "test", "path": "/foo/1", "value": 2.0}]),
            json!({"baz": "qux", "foo": ["a", 2, "c"]}),
        ),
        (
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/child", "value": {"grandchild": {}}}]),
            json!({"foo": "bar", "child": {"grandchild": {}}}),
        ),
        (
            json!({"foo": "bar"}),
            json!([{"op": "add", "path": "/baz", "value": "qux", "xyz": 123}]),
            json!({"foo": "bar", "baz": "qux"}),
        ),
        (
            json!({"/": 9, "~1": 10}),
            json!([{"op": "test", "path": "/~01", "value": 10}, {"op": "remove", "path": "/~1"}]),
            json!({"~1": 10}),
        ),
        (
            json!({"foo": ["bar"]}),
            json!([{"op": "add", "path": "/foo/-", "value": ["abc", "def"]}]),
            json!({"foo": ["bar", ["abc", "def"]]}),
        ),
        (
            json!({"a": {"b": 1}}),
            json!([{"op": "copy", "from": "/a", "path": "/c"}]),
            json!({"a": {"b": 1}, "c": {"b": 1}}),
        ),
        (json!({"a": 1}), json!([{"op": "replace", "path": "", "value": null}]), json!(null)),
    ] {
        assert_eq!(json_patch::apply(document.clone(), patch.clone()), Ok(expected), "{document} {patch}");
    }
}

#[test]
fn json_patches_that_cannot_be_carried_out_are_refused() {
    for (document, patch) in [
        (json!({"baz": "qux"}), json!([{"op": "test", "path": "/baz", "value": "bar"}])),
        (json!({"foo": "bar"}), json!([{"op": "add", "path": "/baz/bat", "value": "qux"}])),
        (json!({"/": 9}), json!([{"op": "test", "path": "/~1", "value": "9"}])),
        (json!({"a": [1]}), json!([{"op": "add", "path": "/a/2", "value": 1}])),
        (json!({"a": [1]}), json!([{"op": "add", "path": "/a/01", "value": 1}])),
        (json!({"a": [1]}), json!([{"op": "replace", "path": "/a/-", "value": 1}])),
        (json!({"a": {}}), json!([{"op": "replace", "path": "/a/b", "value": 1}])),
        (json!({"a": {}}), json!([{"op": "move", "from": "/a", "path": "/a/b"}])),
        (json!({"a": 1}), json!([{"op": "remove", "path": "/a/b"}])),
    ] {
        assert!(is_unprocessable(&json_patch::apply(document.clone(), patch.clone())), "{document} {patch}");
    }
    for patch in [
        json!({"op": "add"}),
        json!([1]),
        json!([{"op": "add", "value": 1}]),
        json!([{"op": "add", "path": "/a"}]),
        json!([{"op": "add", "path": "a", "value": 1}]),
        json!([{"op": "add", "path": "/~2", "value": 1}]),
        json!([{"op": "grow", "path": "/a", "value": 1}]),
    ] {
        let result = json_patch::apply(json!({}), patch.clone());
        assert!(matches!(result, Err(PatchError::Malformed(_))), "{patch}: {result:?}");
    }
}

#[test]
fn json_patch_growth_is_bounded() {
    let doubling: Vec<Value> =
        (0..40).map(|n| json!({"op": "copy", "from": "", "path": format!("/{n}")})).collect();
    let result = json_patch::apply(json!({"text": "x".repeat(1000)}), json!(doubling));
    assert!(matches!(result, Err(PatchError::TooLarge(_))), "{:?}", result.map(|_| ()));
    let nesting: Vec<Value> =
        (0..9000).map(|_| json!({"op": "move", "from": "/a", "path": "/b/c"})).collect();
    assert!(json_patch::apply(json!({"a": 1, "b": {}}), json!(nesting)).is_err());
    let many = json!(vec![json!({"op": "test", "path": "/a", "value": 1}); 10_001]);
    assert!(matches!(json_patch::apply(json!({"a": 1}), many), Err(PatchError::TooLarge(_))));
    assert!(bounded(json!("x".repeat(2_000_000))).is_err());
}

/// The table of RFC 7386, appendix A.
#[test]
fn merge_patches_do_what_the_standard_shows() {
    for (target, patch, expected) in [
        (json!({"a": "b"}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "b"}), json!({"b": "c"}), json!({"a": "b", "b": "c"})),
        (json!({"a": "b"}), json!({"a": null}), json!({})),
        (json!({"a": "b", "b": "c"}), json!({"a": null}), json!({"b": "c"})),
        (json!({"a": ["b"]}), json!({"a": "c"}), json!({"a": "c"})),
        (json!({"a": "c"}), json!({"a": ["b"]}), json!({"a": ["b"]})),
        (json!({"a": {"b": "c"}}), json!({"a": {"b": "d", "c": null}}), json!({"a": {"b": "d"}})),
        (json!({"a": [{"b": "c"}]}), json!({"a": [1]}), json!({"a": [1]})),
        (json!(["a", "b"]), json!(["c", "d"]), json!(["c", "d"])),
        (json!({"a": "b"}), json!(["c"]), json!(["c"])),
        (json!({"a": "foo"}), json!(null), json!(null)),
        (json!({"a": "foo"}), json!("bar"), json!("bar")),
        (json!({"e": null}), json!({"a": 1}), json!({"e": null, "a": 1})),
        (json!([1, 2]), json!({"a": "b", "c": null}), json!({"a": "b"})),
        (json!({}), json!({"a": {"bb": {"ccc": null}}}), json!({"a": {"bb": {}}})),
    ] {
        assert_eq!(merge_patch::apply(target.clone(), patch.clone()), expected, "{target} {patch}");
    }
}

fn strategic_pod(spec: &Value, patch: &Value) -> Result<Value, PatchError> {
    let patched = strategic::apply(json!({"spec": spec}), json!({"spec": patch}), of_kind("Pod"))?;
    Ok(patched["spec"].clone())
}

#[test]
fn strategic_patches_merge_lists_by_their_keys() {
    for (spec, patch, expected) in [
        (
            json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "1"}]}),
            json!({"containers": [{"name": "b", "image": "2"}, {"name": "c", "image": "3"}]}),
            json!({"containers": [{"name": "a", "image": "1", "args": ["x"]}, {"name": "b", "image": "2"}, {"name": "c", "image": "3"}]}),
        ),
        (
            json!({"containers": [{"name": "a", "args": ["x", "y"], "env": [{"name": "K", "value": "1"}]}]}),
            json!({"containers": [{"name": "a", "args": ["z"], "env": [{"name": "L", "value": "2"}, {"name": "K", "$patch": "delete"}]}]}),
            json!({"containers": [{"name": "a", "args": ["z"], "env": [{"name": "L", "value": "2"}]}]}),
        ),
        (
            json!({"tolerations": [{"key": "a"}], "nodeSelector": {"a": "b"}}),
            json!({"tolerations": [{"key": "b"}], "nodeSelector": {"c": "d"}}),
            json!({"tolerations": [{"key": "b"}], "nodeSelector": {"a": "b", "c": "d"}}),
        ),
        (
            json!({"containers": [{"name": "a"}, {"name": "b"}]}),
            json!({"containers": [{"$patch": "replace"}, {"name": "c"}]}),
            json!({"containers": [{"name": "c"}]}),
        ),
        (
            json!({"securityContext": {"runAsUser": 1, "fsGroup": 2}}),
            json!({"securityContext": {"$patch": "replace", "runAsUser": 3}}),
            json!({"securityContext": {"runAsUser": 3}}),
        ),
        (
            json!({"securityContext": {"runAsUser": 1}, "hostNetwork": true}),
            json!({"securityContext": {"$patch": "delete"}, "hostNetwork": null}),
            json!({"securityContext": {}}),
        ),
        (
            json!({"volumes": [{"name": "v", "emptyDir": {}}]}),
            json!({"volumes": [{"name": "v", "$retainKeys": ["name", "hostPath"], "hostPath": {"path": "/x"}}]}),
            json!({"volumes": [{"name": "v", "hostPath": {"path": "/x"}}]}),
        ),
        // The patch defines the order; items that it does not contain keep their places.
        (
            json!({"containers": [{"name": "a"}, {"name": "s"}, {"name": "b"}]}),
            json!({"$setElementOrder/containers": [{"name": "b"}, {"name": "n"}, {"name": "a"}], "containers": [{"name": "n"}]}),
            json!({"containers": [{"name": "s"}, {"name": "b"}, {"name": "n"}, {"name": "a"}]}),
        ),
        (
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP"}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "name": "web"}, {"containerPort": 81}]}]}),
            json!({"containers": [{"name": "a", "ports": [{"containerPort": 80, "protocol": "TCP", "name": "web"}, {"containerPort": 81}]}]}),
        ),
    ] {
        assert_eq!(strategic_pod(&spec, &patch), Ok(expected), "{spec} {patch}");
    }
    assert!(is_unprocessable(&strategic_pod(&json!({}), &json!({"containers": [{"image": "x"}]}))));
    assert!(
        strategic_pod(
            &json!({}),
            &json!({"volumes": [{"name": "v", "$retainKeys": ["name"], "emptyDir": {}}]})
        )
        .is_err()
    );
    assert!(strategic_pod(&json!({}), &json!({"$patch": "explode"})).is_err());
}

#[test]
fn strategic_patch_replaces_lists_without_merge_keys() {
    let claims = |names: &[&str]| {
        let claims: Vec<Value> = names.iter().map(|name| json!({"name": name})).collect();
        json!({"containers": [{"name": "c", "resources": {"claims": claims}}]})
    };
    assert_eq!(strategic_pod(&claims(&["a", "b"]), &claims(&["c"])), Ok(claims(&["c"])));
    let owned = FieldSet::of(&json!({"spec": claims(&["a"])}), of_kind("Pod")).paths();
    assert!(
        owned.contains(&".spec.containers[name=\"c\"].resources.claims[name=\"a\"]".to_owned()),
        "{owned:?}"
    );
    // Conversely: a patch merges them, and they have one owner.
    let addresses = json!({"status": {"hostIPs": [{"ip": "10.0.0.1"}]}});
    let more = json!({"status": {"hostIPs": [{"ip": "fd00::1"}]}});
    assert_eq!(FieldSet::of(&addresses, of_kind("Pod")).paths(), [".status.hostIPs"]);
    assert_eq!(
        strategic::apply(addresses, more, of_kind("Pod")),
        Ok(json!({"status": {"hostIPs": [{"ip": "10.0.0.1"}, {"ip": "fd00::1"}]}}))
    );
}

#[test]
fn strategic_patches_treat_finalizers_as_a_set() {
    let metadata = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    let patched = strategic::apply(
        metadata(json!(["a/1", "b/2"])),
        json!({"metadata": {"finalizers": ["c/3", "b/2"], "$deleteFromPrimitiveList/finalizers": ["a/1"],
            "$setElementOrder/finalizers": ["c/3", "b/2"]}}),
        of_kind("ConfigMap"),
    );
    assert_eq!(patched, Ok(metadata(json!(["c/3", "b/2"]))));
}

fn writer(manager: &str, second: i64) -> Writer<'_> {
    Writer { manager, api_version: "v1", subresource: "", now: Timestamp::from_secs(second) }
}

/// A ConfigMap with several appliers.
#[derive(Default)]
struct Live {
    object: Value,
    entries: Vec<ManagerEntry>,
}

impl Live {
    fn apply(&mut self, manager: &str, data: &Value, force: bool) -> Result<(), Conflicts> {
        let config =
            json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": data});
        let live = if self.object.is_null() { json!({}) } else { self.object.clone() };
        let shape = of_kind("ConfigMap");
        let applied = server_side(&live, self.entries.clone(), config, shape, &writer(manager, 1), force)?;
        (self.object, self.entries) = (applied.object, applied.entries);
        Ok(())
    }

    fn owned_by(&self, manager: &str) -> Vec<String> {
        let entry = self.entries.iter().find(|entry| entry.manager == manager);
        entry.map(|entry| entry.fields.paths()).unwrap_or_default()
    }
}

#[test]
fn applied_field_is_owned_until_it_is_no_longer_applied() {
    let mut live = Live::default();
    live.apply("one", &json!({"a": "1", "b": "1"}), false).unwrap();
    live.apply("two", &json!({"b": "1", "c": "2"}), false).unwrap();
    assert_eq!(live.object["data"], json!({"a": "1", "b": "1", "c": "2"}));
    assert_eq!(live.owned_by("two"), [".data.b", ".data.c"]);

    let conflict = live.apply("two", &json!({"a": "2", "b": "2"}), false).unwrap_err();
    assert_eq!(
        conflict.message(),
        "Apply failed with 2 conflicts: conflicts with \"one\":\n- .data.a\n- .data.b"
    );
    let conflict = live.apply("two", &json!({"a": "2"}), false).unwrap_err();
    assert_eq!(conflict.message(), "Apply failed with 1 conflict: conflict with \"one\": .data.a");
    assert_eq!(live.object["data"]["a"], "1", "nothing was done");

    // No longer applied: fields without another owner are removed, fields of other appliers stay.
    live.apply("two", &json!({"d": "2"}), false).unwrap();
    assert_eq!(live.object["data"], json!({"a": "1", "b": "1", "d": "2"}));
    live.apply("two", &json!({"a": "2", "d": "2"}), true).unwrap();
    assert_eq!(live.object["data"], json!({"a": "2", "b": "1", "d": "2"}));
    assert_eq!(
        (live.owned_by("one"), live.owned_by("two")),
        (vec![".data.b".to_owned()], vec![".data.a".to_owned(), ".data.d".to_owned()])
    );

    let before = live.entries.clone();
    live.apply("two", &json!({"a": "2", "d": "2"}), false).unwrap();
    assert_eq!(live.entries, before, "applied twice");
}

#[test]
fn updates_take_over_fields_and_later_applies_conflict() {
    let mut live = Live::default();
    live.apply("one", &json!({"a": "1", "b": "1"}), false).unwrap();
    let mut edited = live.object.clone();
    edited["data"] = json!({"a": "9", "c": "9"});
    live.entries =
        after_update(live.entries, &live.object, &edited, of_kind("ConfigMap"), &writer("kubectl-edit", 5));
    live.object = edited;
    assert_eq!(live.owned_by("one"), Vec::<String>::new());
    assert_eq!(live.owned_by("kubectl-edit"), [".data.a", ".data.c"]);
    let conflict = live.apply("one", &json!({"a": "1"}), false).unwrap_err();
    assert_eq!(
        conflict.message(),
        "Apply failed with 1 conflict: conflict with \"kubectl-edit\" using v1 at 1970-01-01T00:00:05Z: .data.a"
    );
    assert_eq!(live.entries, read(&write(live.entries.clone())), "as they are stored");
    assert!(live.entries.iter().all(|entry| entry.operation == Operation::Update));
}

#[test]
fn unowned_object_conflicts_with_before_first_apply() {
    let mut live = Live { object: json!({"metadata": {"name": "m"}, "data": {"a": "1"}}), ..Live::default() };
    let conflict = live.apply("one", &json!({"a": "2"}), false).unwrap_err();
    assert!(conflict.message().contains("\"before-first-apply\" using v1"), "{}", conflict.message());
    live.apply("one", &json!({"a": "1", "b": "1"}), false).unwrap();
    assert_eq!(live.object["data"], json!({"a": "1", "b": "1"}));
}

#[test]
fn lists_apply_by_key_and_items_are_removed_with_their_owner() {
    let shape = of_kind("Pod");
    let container =
        |name: &str, image: &str| json!({"name": name, "image": image, "ports": [{"containerPort": 80}]});
    let config = |containers: Value| json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "p"}, "spec": {"containers": containers}});
    let first = config(json!([container("a", "1"), container("b", "1")]));
    let applied = server_side(&json!({}), Vec::new(), first, shape, &writer("one", 1), false).unwrap();
    let mut defaulted = applied.object.clone();
    defaulted["spec"]["containers"][0]["ports"][0]["protocol"] = json!("TCP");
    defaulted["spec"]["containers"][1]["imagePullPolicy"] = json!("Always");
    let fields = applied.entries[0].fields.write();
    assert_eq!(
        fields["f:spec"]["f:containers"]["k:{\"name\":\"a\"}"],
        json!({".": {}, "f:image": {}, "f:name": {},
            "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}}})
    );
    let second = config(json!([container("n", "3"), container("a", "2")]));
    let again = server_side(&defaulted, applied.entries, second, shape, &writer("one", 2), false).unwrap();
    assert_eq!(
        again.object["spec"]["containers"],
        json!([
            {"name": "n", "image": "3", "ports": [{"containerPort": 80}]},
            {"name": "a", "image": "2", "ports": [{"containerPort": 80, "protocol": "TCP"}]},
        ]),
        "b is gone with its defaults"
    );
    let conflict = server_side(
        &again.object,
        again.entries,
        config(json!([{"name": "a", "image": "x"}])),
        shape,
        &writer("two", 3),
        false,
    );
    assert_eq!(
        conflict.unwrap_err().message(),
        "Apply failed with 1 conflict: conflict with \"one\": .spec.containers[name=\"a\"].image"
    );
}

#[test]
fn an_applied_item_replaces_all_live_ones_of_its_key() {
    let metadata = |finalizers: Value| json!({"metadata": {"finalizers": finalizers}});
    let live = metadata(json!(["a/1", "b/2", "a/1", "c/3", "c/3"]));
    let config = metadata(json!(["a/1", "d/4"]));
    let shape = of_kind("ConfigMap");
    let applied = server_side(&live, Vec::new(), config, shape, &writer("one", 1), true).unwrap();
    assert_eq!(applied.object, metadata(json!(["a/1", "d/4", "b/2", "c/3", "c/3"])));
}

#[test]
fn items_that_are_not_unique_are_named_with_their_list() {
    let ports =
        json!([{"containerPort": 80}, {"containerPort": 80, "protocol": "TCP"}, {"containerPort": 81}]);
    let config = json!({"metadata": {"finalizers": ["a/1", null, "b/2", "a/1"]},
        "spec": {"containers": [{"name": "c", "args": ["x", "x"], "ports": ports}]}});
    assert_eq!(
        misplaced(&config, of_kind("Pod"), ""),
        [
            ".metadata.finalizers: element 1: associative list without keys has an element that's an explicit null",
            ".metadata.finalizers: duplicate entries for key [=\"a/1\"]",
            ".spec.containers[name=\"c\"].ports: duplicate entries for key [containerPort=80,protocol=\"TCP\"]",
        ]
    );
}

#[test]
fn many_different_clients_leave_a_bounded_number_of_entries() {
    let mut live = Live::default();
    for n in 0..50 {
        let mut next = if live.object.is_null() { json!({"data": {}}) } else { live.object.clone() };
        next["data"][format!("k{n}")] = json!("v");
        let old = std::mem::replace(&mut live.object, next);
        let manager = format!("m{n}");
        live.entries =
            after_update(live.entries, &old, &live.object, of_kind("ConfigMap"), &writer(&manager, n));
    }
    assert_eq!(live.entries.len(), 10);
    assert_eq!(live.owned_by("ancient-changes").len(), 41, "nothing is lost");
}

/// Values composed of the words that are special to the algorithms.
fn value() -> impl Strategy<Value = Value> {
    let words = [
        "name",
        "containers",
        "spec",
        "metadata",
        "finalizers",
        "env",
        "$patch",
        "delete",
        "replace",
        "$retainKeys",
        "$setElementOrder/containers",
        "$deleteFromPrimitiveList/finalizers",
        "ports",
        "containerPort",
        "a",
    ];
    let word = prop::sample::select(words.to_vec());
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (0..3i64).prop_map(Value::from),
        word.clone().prop_map(Value::from),
    ];
    leaf.prop_recursive(5, 40, 5, move |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map(word.clone().prop_map(str::to_owned), inner, 0..5)
                .prop_map(|members| Value::Object(members.into_iter().collect())),
        ]
    })
}

fn object() -> impl Strategy<Value = Value> {
    (value(), value()).prop_map(|(spec, metadata)| json!({"spec": spec, "metadata": metadata}))
}

proptest! {
    #[test]
    fn no_patch_panics(target in object(), patch in object(), raw in value()) {
        let _ = json_patch::apply(target.clone(), raw.clone());
        let _ = json_patch::apply(target.clone(), json!([{"op": "add", "path": "/spec/a", "value": raw.clone(), "from": "/spec"}]));
        let _ = strategic::apply(target.clone(), patch.clone(), of_kind("Pod"));
        let merged = merge_patch::apply(target, patch.clone());
        prop_assert_eq!(merge_patch::apply(merged.clone(), patch), merged);
        let _ = read(&[raw.clone(), json!({"operation": "Apply", "fieldsV1": raw})]);
    }

    #[test]
    fn what_is_applied_twice_is_applied_once(live in object(), other in object(), config in object()) {
        let shape = of_kind("Pod");
        let by = |live: &Value, entries, config: &Value, manager: &str| {
            server_side(live, entries, config.clone(), shape, &writer(manager, 1), true).unwrap()
        };
        let first = by(&live, Vec::new(), &other, "other");
        let once = by(&first.object, first.entries, &config, "me");
        let twice = by(&once.object, once.entries.clone(), &config, "me");
        prop_assert_eq!(&twice.object, &once.object);
        prop_assert_eq!(read(&write(twice.entries)), read(&write(once.entries)));
    }

    #[test]
    fn an_update_that_changes_nothing_changes_no_owner(object in object(), second in object()) {
        let shape = of_kind("Pod");
        let entries = after_update(Vec::new(), &Value::Null, &object, shape, &writer("a", 1));
        prop_assert_eq!(after_update(entries.clone(), &object, &object, shape, &writer("b", 2)), entries.clone());
        let _ = after_update(entries, &object, &second, shape, &writer("b", 2));
    }
}
