//! Whether an object has the form of its type, at every depth.
//!
//! Owns the walk and the messages: Go's for answers of the API, the decoder's for manifests. The rules are
//! those of Kubernetes' JSON decoder: null counts as absent, names are compared with their case, a required
//! field may be missing.

use std::fmt::{self, Write as _};

use serde_json::{Map, Value, json};

use super::{Schema, Type};
use crate::model::api::quantity::Quantity;
use crate::model::types::Timestamp;

/// Notes kept for one object. More do not help, and a body of the API may have hundreds of thousands of
/// unknown fields.
const MAX_NOTES: usize = 100;
/// The characters of a text that a message quotes.
const TEXT_SHOWN: usize = 64;
/// Go's layout of a time.
const LAYOUT: &str = "2006-01-02T15:04:05Z07:00";
const QUANTITY: &str =
    "quantities must match the regular expression '^([+-]?[0-9.]+)([eEinumkKMGTP]*[-+]?[0-9]*)$'";

/// The parts of an object that do not fit its type. They have been removed from it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub unknown: Vec<Unknown>,
    pub misfits: Vec<Misfit>,
}

/// A field that its type does not have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown {
    /// `spec.containers[0].imagee`.
    pub path: String,
    /// The field of the type that was probably meant.
    pub meant: Option<String>,
}

/// A value that its field cannot hold.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Misfit {
    /// `spec.containers[0].ports[0].containerPort`.
    pub path: String,
    found: String,
    wanted: String,
    go: String,
}

impl Misfit {
    /// In the words of Kubernetes' decoder: `json: cannot unmarshal number into Go struct field ...`.
    #[must_use]
    pub fn as_json_error(&self) -> &str {
        &self.go
    }

    /// In the words of server-side apply: `.spec.affinity.podAffinity: expected map, got ...`.
    #[must_use]
    pub fn as_typed_error(&self) -> String {
        format!(".{}: expected {}, got {}", self.path, self.wanted, self.found)
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: invalid type: {}, expected {}", self.path, self.found, self.wanted)
    }
}

/// Removes from `object` the fields that its type does not have and the values that they cannot hold.
pub fn check(schema: &Schema, of: Type<'_>, object: &mut Value) -> Findings {
    let mut walk = Walk { schema, steps: Vec::new(), findings: Findings::default() };
    match object {
        Value::Object(members) => walk.members(of, members),
        other => walk.misfit(of, other, "a map", &go_name(of), None),
    }
    walk.findings
}

enum FieldStep<'s> {
    Field(&'s str),
    Key(String),
    Index(usize),
}

struct Walk<'s> {
    schema: &'s Schema,
    steps: Vec<FieldStep<'s>>,
    findings: Findings,
}

impl<'s> Walk<'s> {
    fn path(&self) -> String {
        let mut path = String::new();
        for step in &self.steps {
            let dot = if path.is_empty() { "" } else { "." };
            // Writing to a string does not fail.
            let _ = match step {
                FieldStep::Field(name) => write!(path, "{dot}{name}"),
                FieldStep::Key(key) => write!(path, "{dot}{key}"),
                FieldStep::Index(index) => write!(path, "[{index}]"),
            };
        }
        path
    }

    /// As Go's decoder writes it: without indexes and the keys of maps.
    fn go_path(&self) -> String {
        let fields = self.steps.iter().filter_map(|step| match step {
            FieldStep::Field(name) => Some(*name),
            FieldStep::Key(_) | FieldStep::Index(_) => None,
        });
        fields.collect::<Vec<_>>().join(".")
    }

    /// Records a value that its field cannot hold; `words` replace Go's usual message.
    fn misfit(&mut self, holder: Type<'s>, value: &Value, wanted: &str, go: &str, words: Option<String>) {
        if self.findings.misfits.len() == MAX_NOTES {
            return;
        }
        let go_kind = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(_) => "bool".to_owned(),
            Value::Number(number) if go.starts_with("int") => format!("number {number}"),
            Value::Number(_) => "number".to_owned(),
            Value::String(_) => "string".to_owned(),
            Value::Array(_) => "array".to_owned(),
            Value::Object(_) => "object".to_owned(),
        };
        let place = match self.go_path() {
            path if path.is_empty() => "Go value".to_owned(),
            path => format!("Go struct field {}.{path}", holder.short_name()),
        };
        let found = match value {
            Value::Null => "null".to_owned(),
            Value::Bool(value) => format!("boolean `{value}`"),
            Value::Number(number) if number.is_f64() => format!("floating point `{number}`"),
            Value::Number(number) => format!("integer `{number}`"),
            Value::String(text) => format!("string {:?}", text.chars().take(TEXT_SHOWN).collect::<String>()),
            Value::Array(_) => "sequence".to_owned(),
            Value::Object(_) => "map".to_owned(),
        };
        let go =
            words.unwrap_or_else(|| format!("json: cannot unmarshal {go_kind} into {place} of type {go}"));
        self.findings.misfits.push(Misfit { path: self.path(), found, wanted: wanted.to_owned(), go });
    }

    fn members(&mut self, of: Type<'s>, members: &mut Map<String, Value>) {
        members.retain(|name, value| {
            let Some(field) = of.field(name) else {
                if self.findings.unknown.len() < MAX_NOTES {
                    self.steps.push(FieldStep::Key(name.clone()));
                    let path = self.path();
                    self.steps.pop();
                    let meant = of.closest_field(name).map(str::to_owned);
                    self.findings.unknown.push(Unknown { path, meant });
                }
                return false;
            };
            self.at(FieldStep::Field(field.name), |walk| walk.fits(of, field.shape, value))
        });
    }

    fn at(&mut self, step: FieldStep<'s>, fits: impl FnOnce(&mut Self) -> bool) -> bool {
        self.steps.push(step);
        let fits = fits(self);
        self.steps.pop();
        fits
    }

    /// Whether a field of `holder` with this shape, or a part of it, may hold the value. Corrects the values
    /// below it.
    fn fits(&mut self, holder: Type<'s>, shape: &'s str, value: &mut Value) -> bool {
        if value.is_null() {
            return true;
        }
        if let Some(item) = shape.strip_prefix("[]") {
            let Value::Array(items) = value else {
                self.misfit(holder, value, "a sequence", &self.go_type(holder, shape), None);
                return false;
            };
            let mut index = 0;
            items.retain_mut(|value| {
                if value.is_null() {
                    *value = self.zero(holder, item);
                }
                let fits = self.at(FieldStep::Index(index), |walk| walk.fits(holder, item, value));
                index += 1;
                fits
            });
            return true;
        }
        if let Some(entry) = shape.strip_prefix("{}") {
            let Value::Object(members) = value else {
                self.misfit(holder, value, "a map", &self.go_type(holder, shape), None);
                return false;
            };
            members.retain(|key, value| {
                self.at(FieldStep::Key(key.clone()), |walk| walk.fits(holder, entry, value))
            });
            return true;
        }
        match self.schema.named(holder, shape) {
            Some(named) if named.scalar().is_some() => self.scalar_fits(holder, named, value),
            Some(named) => {
                let Value::Object(members) = value else {
                    self.misfit(holder, value, "a map", &go_name(named), None);
                    return false;
                };
                self.members(named, members);
                true
            }
            None => self.plain_fits(holder, shape, value),
        }
    }

    fn plain_fits(&mut self, holder: Type<'s>, shape: &str, value: &Value) -> bool {
        let is_i32 = |number: i64| i32::try_from(number).is_ok();
        let (fits, wanted) = match shape {
            "bool" => (value.is_boolean(), "a boolean"),
            "int32" => (value.as_i64().is_some_and(is_i32), "a 32-bit integer"),
            "int64" => (value.is_i64(), "a 64-bit integer"),
            "double" => (value.is_number(), "a number"),
            _ => (value.is_string(), "a string"),
        };
        if !fits {
            self.misfit(holder, value, wanted, plain_go_type(shape), None);
        }
        fits
    }

    fn scalar_fits(&mut self, holder: Type<'s>, of: Type<'s>, value: &Value) -> bool {
        let (wanted, go, words) = match (of.name, value) {
            _ if of.scalar() == Some("any") => return true,
            ("IntOrString" | "Duration", Value::String(_))
            | ("FieldsV1" | "RawExtension", Value::Object(_)) => return true,
            ("IntOrString", Value::Number(number))
                if number.as_i64().is_some_and(|number| i32::try_from(number).is_ok()) =>
            {
                return true;
            }
            ("IntOrString", _) => ("a 32-bit integer or a string", "int32", None),
            ("Quantity", Value::String(text)) if Quantity::parse(text.trim()).is_ok() => return true,
            ("Quantity", Value::Number(number)) if Quantity::parse(&number.to_string()).is_ok() => {
                return true;
            }
            ("Quantity", _) => ("a quantity such as 500m, 1.5 or 64Mi", "", Some(QUANTITY.to_owned())),
            ("Time" | "MicroTime", Value::String(text)) => {
                if Timestamp::parse_rfc3339(text).is_some() {
                    return true;
                }
                let text = format!("{:?}", text.chars().take(TEXT_SHOWN).collect::<String>());
                let words = format!("parsing time {text} as {LAYOUT:?}: cannot parse {text} as \"2006\"");
                ("a time such as 2006-01-02T15:04:05Z", "", Some(words))
            }
            ("FieldsV1", _) => ("a map", "v1.FieldsV1", None),
            ("RawExtension", _) => ("a map", "runtime.RawExtension", None),
            _ => ("a string", "string", None),
        };
        self.misfit(holder, value, wanted, go, words);
        false
    }

    /// The value of null in a list.
    fn zero(&self, holder: Type<'s>, shape: &str) -> Value {
        match shape {
            "bool" => json!(false),
            "int32" | "int64" | "double" => json!(0),
            _ if shape.starts_with("[]") => json!([]),
            _ => match self.schema.named(holder, shape) {
                Some(named) if named.scalar().is_some() => Value::Null,
                None if !shape.starts_with("{}") => json!(""),
                _ => json!({}),
            },
        }
    }

    fn go_type(&self, holder: Type<'s>, shape: &str) -> String {
        if shape == "{}Quantity" {
            return "v1.ResourceList".to_owned();
        }
        if let Some(item) = shape.strip_prefix("[]") {
            return format!("[]{}", self.go_type(holder, item));
        }
        if let Some(entry) = shape.strip_prefix("{}") {
            return format!("map[string]{}", self.go_type(holder, entry));
        }
        match self.schema.named(holder, shape) {
            Some(named) => go_name(named),
            None => plain_go_type(shape).to_owned(),
        }
    }
}

/// `v1.PodSpec`, `resource.Quantity`.
fn go_name(of: Type<'_>) -> String {
    let package = of.package.rsplit('.').next().unwrap_or_default();
    format!("{package}.{}", of.short_name())
}

fn plain_go_type(shape: &str) -> &str {
    match shape {
        "bytes" => "[]uint8",
        "double" => "float64",
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::api::decode::decode;
    use crate::model::api::pod::Pod;
    use proptest::prelude::*;

    fn findings(object: &mut Value) -> Findings {
        let schema = Schema::load();
        let of = schema.of_kind("v1", "Pod").unwrap();
        check(&schema, of, object)
    }

    /// A pod of which `pointer` is something else.
    fn pod_with(pointer: &str, value: Value) -> Value {
        let mut pod = rich();
        let mut at = &mut pod;
        for step in pointer.split('/').skip(1) {
            at = match step.parse::<usize>() {
                Ok(index) => &mut at[index],
                Err(_) => &mut at[step],
            };
        }
        *at = value;
        pod
    }

    fn rich() -> Value {
        let term = json!({"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "k", "operator": "In", "values": ["v"]}]}});
        json!({
            "apiVersion": "v1", "kind": "Pod",
            "metadata": {
                "name": "p", "labels": {"a": "b"}, "creationTimestamp": null,
                "ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u", "controller": true}],
                "managedFields": [{"manager": "m", "operation": "Update", "apiVersion": "v1", "fieldsV1": {"f:spec": {}}}],
            },
            "spec": {
                "affinity": {
                    "nodeAffinity": {
                        "requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [{"matchExpressions": [{"key": "k", "operator": "Exists"}]}]},
                        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 1, "preference": {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}}],
                    },
                    "podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]},
                    "podAntiAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 5, "podAffinityTerm": term}]},
                },
                "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "zone", "whenUnsatisfiable": "ScheduleAnyway", "labelSelector": {}}],
                "tolerations": [{"key": "k", "operator": "Exists", "tolerationSeconds": 5}],
                "schedulingGates": [{"name": "a/b"}],
                "resourceClaims": [{"name": "c", "resourceClaimName": "d"}],
                "containers": [{
                    "name": "c", "image": "x", "ports": [{"containerPort": 80}],
                    "resources": {"limits": {"cpu": 1, "memory": "64Mi"}, "claims": [{"name": "c"}]},
                    "livenessProbe": {"httpGet": {"port": "http"}, "periodSeconds": 3},
                    "securityContext": {"windowsOptions": {"hostProcess": false}},
                }],
                "volumes": [
                    {"name": "v", "iscsi": {"targetPortal": "t", "iqn": "i", "lun": 1, "portals": ["p"]}},
                    {"name": "w", "projected": {"sources": [{"clusterTrustBundle": {"path": "p", "labelSelector": {}}}]}},
                ],
            },
            "status": {"phase": "Pending", "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-02T03:04:05Z"}]},
        })
    }

    #[test]
    fn a_whole_pod_fits_and_stays_as_it_is() {
        let mut pod = rich();
        assert_eq!(findings(&mut pod), Findings::default());
        assert_eq!(pod, rich());
    }

    #[test]
    fn type_mismatch_at_any_depth_is_reported_like_upstream() {
        let affinity = "/spec/affinity";
        for (pointer, value, words) in [
            (
                &format!("{affinity}/podAffinity")[..],
                json!(5),
                "json: cannot unmarshal number into Go struct field Affinity.spec.affinity.podAffinity of type v1.PodAffinity",
            ),
            (
                affinity,
                json!([]),
                "json: cannot unmarshal array into Go struct field PodSpec.spec.affinity of type v1.Affinity",
            ),
            (
                &format!(
                    "{affinity}/podAffinity/requiredDuringSchedulingIgnoredDuringExecution/0/labelSelector/matchLabels/a"
                ),
                json!(true),
                "json: cannot unmarshal bool into Go struct field LabelSelector.spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution.labelSelector.matchLabels of type string",
            ),
            (
                "/spec/topologySpreadConstraints/0/maxSkew",
                json!(1.5),
                "json: cannot unmarshal number 1.5 into Go struct field TopologySpreadConstraint.spec.topologySpreadConstraints.maxSkew of type int32",
            ),
            (
                "/spec/tolerations/0/tolerationSeconds",
                json!("5"),
                "json: cannot unmarshal string into Go struct field Toleration.spec.tolerations.tolerationSeconds of type int64",
            ),
            (
                "/spec/containers/0/livenessProbe/httpGet/port",
                json!(false),
                "json: cannot unmarshal bool into Go struct field HTTPGetAction.spec.containers.livenessProbe.httpGet.port of type int32",
            ),
            (
                "/spec/containers",
                json!({}),
                "json: cannot unmarshal object into Go struct field PodSpec.spec.containers of type []v1.Container",
            ),
            (
                "/metadata/labels",
                json!("a"),
                "json: cannot unmarshal string into Go struct field ObjectMeta.metadata.labels of type map[string]string",
            ),
            (
                "/spec/containers/0/resources/limits",
                json!(1),
                "json: cannot unmarshal number into Go struct field ResourceRequirements.spec.containers.resources.limits of type v1.ResourceList",
            ),
            ("/spec/containers/0/resources/limits/cpu", json!("much"), QUANTITY),
            (
                "/status/conditions/0/lastTransitionTime",
                json!("now"),
                "parsing time \"now\" as \"2006-01-02T15:04:05Z07:00\": cannot parse \"now\" as \"2006\"",
            ),
            (
                "/metadata/managedFields/0/fieldsV1",
                json!(7),
                "json: cannot unmarshal number into Go struct field ManagedFieldsEntry.metadata.managedFields.fieldsV1 of type v1.FieldsV1",
            ),
            (
                "/metadata/ownerReferences/0/controller",
                json!("yes"),
                "json: cannot unmarshal string into Go struct field OwnerReference.metadata.ownerReferences.controller of type bool",
            ),
            (
                "/spec/volumes/0/iscsi/lun",
                json!(2_147_483_648_u32),
                "json: cannot unmarshal number 2147483648 into Go struct field ISCSIVolumeSource.spec.volumes.iscsi.lun of type int32",
            ),
        ] {
            let mut pod = pod_with(pointer, value);
            let found = findings(&mut pod);
            let told: Vec<&str> = found.misfits.iter().map(Misfit::as_json_error).collect();
            assert_eq!(told, [words], "{pointer}");
            assert_eq!(pod.pointer(pointer), None, "what does not fit is taken out");
            assert_eq!(findings(&mut pod), Findings::default(), "{pointer}");
        }
        let mut pod = pod_with("/spec/affinity/podAffinity", json!(5));
        let found = findings(&mut pod).misfits.remove(0);
        assert_eq!(found.to_string(), "spec.affinity.podAffinity: invalid type: integer `5`, expected a map");
        assert_eq!(found.as_typed_error(), ".spec.affinity.podAffinity: expected a map, got integer `5`");
        assert_eq!(
            findings(&mut json!([])).misfits[0].as_json_error(),
            "json: cannot unmarshal array into Go value of type v1.Pod"
        );
    }

    #[test]
    fn unknown_fields_are_named_with_their_path_and_go() {
        let mut pod = rich();
        pod["spec"]["affinity"]["podAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"][0]["topologykey"] =
            json!("x");
        pod["spec"]["volumes"][1]["projected"]["sources"][0]["clusterTrustBundle"]["pfad"] = json!(1);
        pod["metadata"]["managedFields"][0]["what"] = json!(1);
        pod["spec"]["workloadRef"] = json!({});
        let mut found: Vec<String> =
            findings(&mut pod).unknown.into_iter().map(|unknown| unknown.path).collect();
        found.sort();
        assert_eq!(
            found,
            [
                "metadata.managedFields[0].what",
                "spec.affinity.podAffinity.requiredDuringSchedulingIgnoredDuringExecution[0].topologykey",
                "spec.volumes[1].projected.sources[0].clusterTrustBundle.pfad",
                "spec.workloadRef",
            ]
        );
        assert_eq!(pod, rich());
    }

    #[test]
    fn null_counts_as_absent_and_as_zero_in_a_list() {
        let mut pod = rich();
        pod["spec"]["affinity"] = Value::Null;
        pod["spec"]["topologySpreadConstraints"] = json!([null]);
        pod["spec"]["containers"][0]["command"] = json!(["a", null]);
        assert_eq!(findings(&mut pod), Findings::default());
        assert_eq!(pod["spec"]["topologySpreadConstraints"], json!([{}]));
        assert_eq!(pod["spec"]["containers"][0]["command"], json!(["a", ""]));
    }

    /// All places of an object.
    fn places(value: &Value, at: &str, found: &mut Vec<String>) {
        found.push(at.to_owned());
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    places(value, &format!("{at}/{name}"), found);
                }
            }
            Value::Array(items) => {
                for (index, value) in items.iter().enumerate() {
                    places(value, &format!("{at}/{index}"), found);
                }
            }
            _ => {}
        }
    }

    fn any_json() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<i16>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "[a-z0-9.:/-]{0,8}".prop_map(Value::from),
        ];
        let names = prop_oneof![
            Just("name".to_owned()),
            Just("key".to_owned()),
            Just("values".to_owned()),
            Just("labelSelector".to_owned()),
            "[a-zA-Z]{1,6}",
        ];
        leaf.prop_recursive(3, 16, 4, move |inner| {
            prop_oneof![
                proptest::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                proptest::collection::btree_map(names.clone(), inner, 0..4)
                    .prop_map(|members| Value::from(Map::from_iter(members))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(512))]

        /// Any JSON anywhere in a pod: it is refused, or the pod decodes, is encoded again, and still has its
        /// type's form.
        #[test]
        fn any_json_anywhere_is_refused_or_decodes(place in any::<prop::sample::Index>(), value in any_json()) {
            let mut all = Vec::new();
            places(&rich(), "", &mut all);
            let pointer = place.get(&all);
            let mut pod = if pointer.is_empty() { value } else { pod_with(pointer, value) };
            let found = findings(&mut pod);
            let shown = pod.clone();
            let decoded = decode::<Pod>(pod);
            if found.misfits.is_empty() {
                let decoded = decoded.map_err(|error| TestCaseError::fail(format!("{error} in {shown}")))?;
                prop_assert_eq!(decoded.unknown_fields, Vec::<String>::new());
                let mut written = json!(decoded.object);
                prop_assert_eq!(findings(&mut written), Findings::default(), "{}", shown);
            } else if !pointer.is_empty() {
                // The rest is valid too: a stored object is loaded without the invalid part.
                prop_assert!(decoded.is_ok(), "{:?}", decoded);
            }
        }
    }
}
