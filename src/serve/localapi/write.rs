//! Creating, changing and deleting.
//!
//! Owns the verbs that write: each is one decision over the desired state, made in the loop that owns it, and
//! is on disk before the answer.

mod account;
mod body;
mod change;
mod custom;
mod delete;
mod event;
mod expansion;
mod finalize;
mod grant;
mod new;
mod node;
mod scale;
mod status_part;
mod stored;

use std::cell::OnceCell;
use std::rc::Rc;

use hyper::header::{HeaderValue, USER_AGENT, WARNING};
use hyper::{Request, Response, StatusCode};
use serde_json::Value;

use super::patch::managed::Writer;
use super::patch::schema::Shape;
use super::path::RequestInfo;
use super::resource::{Store, Verb};
use super::scale::ScalePlaces;
use super::shape::own;
use super::status::{self, Cause, Failure};
use super::{LocalApi, definitions, objects};
use crate::desired::pod_config::PodConfig;
use crate::desired::pod_config::edit::{ApiChange, EditError};
use crate::model::api::pod::Pod;
use crate::model::api::schema::Schema;
use crate::model::api::schema::check::{Findings, check};
use crate::model::field_error::{FieldError, FieldErrorKind};
use crate::model::provenance::is_of_cluster;
use crate::model::types::Timestamp;
use crate::platform::sys::node::random_uid;
use crate::serve::server::access::{Policy, User};
use crate::serve::server::body::{Body, object};
use crate::serve::server::incoming::IncomingBody;
use body::Content;

pub(super) struct WriteOutcome {
    /// 200 or 201.
    code: StatusCode,
    /// The object after the write, or a `Status`.
    object: Value,
    /// The object exists afterwards, so the answer carries the version that a later read returns.
    is_kept: bool,
    /// The pod whose stored form `object` shows.
    pod: Option<Rc<Pod>>,
    /// Warnings about accepted but doubtful input.
    warnings: Vec<String>,
}

/// A change and its answer; after a failure nothing changes.
type Decision = Result<(ApiChange, WriteOutcome), Failure>;

/// A request to write, with everything that its decision needs.
pub(super) struct Task {
    api: Rc<LocalApi>,
    wanted: RequestInfo,
    content: Content,
    /// The object's `apiVersion`: `v1`, `node.k8s.io/v1`.
    api_version: String,
    /// Paths of members that appear twice in one object of the body.
    duplicates: Vec<String>,
    /// `fieldManager`, or the client's name.
    manager: String,
    user: User,
    policy: Policy,
    now: Timestamp,
    /// The uid of a new object.
    uid: String,
    dry_run: bool,
    /// The schema of its kind, loaded on demand.
    schema: OnceCell<Schema>,
    /// Of a resource of a definition: the members of its version.
    definition: Option<Value>,
}

/// Executes `create`, `update`, `patch`, `delete` and `deletecollection` of objects and of the subresources
/// with an object as body (`status`, `resize`, `ephemeralcontainers`, `eviction`). The caller has authorized
/// `user`.
pub(crate) async fn change(
    api: &Rc<LocalApi>,
    wanted: &RequestInfo,
    request: Request<IncomingBody>,
    (user, policy): (&User, Policy),
) -> Result<Response<Body>, Failure> {
    let client = request.headers().get(USER_AGENT).and_then(|agent| agent.to_str().ok()).unwrap_or_default();
    let manager = match wanted.options.field_manager.as_str() {
        "" => client.split('/').next().unwrap_or_default().chars().take(MAX_MANAGER).collect(),
        manager => manager.to_owned(),
    };
    check_options(wanted)?;
    let (content, duplicates) = body::read(wanted, request).await?;
    let uid = random_uid().map_err(|error| status::internal(&error.to_string()))?;
    let (verb, resource) = (wanted.verb, wanted.resource);
    let part = wanted.subresource.map_or("", |part| part.name);
    let asked = Task {
        api: Rc::clone(api),
        dry_run: !wanted.options.dry_run.is_empty() || content.is_dry_run(),
        wanted: wanted.clone(),
        content,
        api_version: resource.api_version(),
        duplicates,
        manager,
        user: user.clone(),
        policy,
        now: api.clock.now(),
        uid,
        schema: OnceCell::new(),
        definition: api.definition(resource),
    };
    if resource.store == Store::Events {
        return event::write(&asked).map(|done| respond(api, wanted, done));
    }
    let decide =
        decision(verb, part, resource.store).ok_or_else(|| status::not_supported(resource, verb.as_str()))?;
    log::debug!(user = user.name, verb = verb.as_str(), resource = resource.plural; "API write");
    let edited = api.editor.edit(move |config| match decide(&asked, config) {
        Ok((change, done)) if asked.dry_run => (ApiChange::default(), Ok((drop(change), done).1)),
        Ok((change, done)) => (change, Ok(done)),
        Err(failure) => (ApiChange::default(), Err(failure)),
    });
    let done = match edited.await {
        Ok(decided) => decided?,
        Err(EditError::Ending) => {
            return Err(Failure::new(503, "ServiceUnavailable", "the agent is shutting down"));
        }
        Err(error) => return Err(status::internal(&error.to_string())),
    };
    Ok(respond(api, wanted, done))
}

fn decision(verb: Verb, part: &str, store: Store) -> Option<fn(&Task, &PodConfig) -> Decision> {
    Some(match (verb, part) {
        (Verb::Update | Verb::Patch, "status") if store == Store::Pods => change::change_status,
        (Verb::Update | Verb::Patch, "status") => status_part::change,
        (Verb::Update | Verb::Patch, "scale") => scale::change,
        (Verb::Update | Verb::Patch, "") if store == Store::Nodes => node::change,
        (Verb::Create, "eviction") | (Verb::Delete, "") => delete::one,
        (Verb::DeleteCollection, "") => delete::many,
        (Verb::Create, "") => new::create,
        (Verb::Update | Verb::Patch, "" | "resize" | "ephemeralcontainers") => change::change,
        _ => return None,
    })
}

/// Upstream's limit for the name of a manager.
const MAX_MANAGER: usize = 128;

fn respond(api: &LocalApi, wanted: &RequestInfo, done: WriteOutcome) -> Response<Body> {
    let mut shown = done.object;
    let store = wanted.resource.store;
    let at = |pointer: &str| super::text(&shown, pointer).to_owned();
    let [uid, namespace, name] = ["/metadata/uid", "/metadata/namespace", "/metadata/name"].map(at);
    let pod = done.pod.filter(|_| done.is_kept);
    let found = pod.as_ref().and_then(|pod| api.node.pod(&namespace, &name, Some(&pod.metadata.uid)));
    match (pod, found) {
        (Some(pod), Some(found)) if pod.metadata == found.metadata && pod.spec == found.spec => {
            objects::complete(api, found, &mut shown);
            api.versions.borrow_mut().remember(store, &shown);
        }
        _ if done.is_kept => {
            let found = api.find(store, &namespace, &name);
            let found = found.filter(|found| super::text(found, "/metadata/uid") == uid);
            shown = found.map_or(shown, |found| show(api, wanted, &found));
        }
        _ => {}
    }
    let mut response = object(done.code, &shown);
    for warning in done.warnings {
        let quoted = warning.replace('\\', "\\\\").replace('"', "\\\"");
        if let Ok(value) = HeaderValue::from_str(&format!("299 - \"{quoted}\"")) {
            response.headers_mut().append(WARNING, value);
        }
    }
    response
}

/// An object as the request's resource shows it.
fn show(api: &LocalApi, wanted: &RequestInfo, found: &Value) -> Value {
    if wanted.subresource.is_some_and(|part| part.name == "scale") {
        return ScalePlaces::of(api.definition(wanted.resource).as_ref()).show(found);
    }
    own(wanted.resource, found)
}

fn check_options(wanted: &RequestInfo) -> Result<(), Failure> {
    let options = &wanted.options;
    let kind = match wanted.verb {
        Verb::Create => "CreateOptions",
        Verb::Update => "UpdateOptions",
        Verb::Patch => "PatchOptions",
        _ => "DeleteOptions",
    };
    let wrong = |field: &str, value: &str, supported: &str| {
        let message = format!("Unsupported value: {value:?}: supported values: {supported}");
        let cause = Cause { reason: "FieldValueNotSupported".to_owned(), message, field: field.to_owned() };
        Err(options_failure(kind, cause))
    };
    if let Some(other) = options.dry_run.iter().find(|value| *value != "All") {
        return wrong("dryRun", other, "\"All\"");
    }
    if !matches!(options.field_validation.as_str(), "" | "Ignore" | "Warn" | "Strict") {
        return wrong("fieldValidation", &options.field_validation, "\"Ignore\", \"Strict\", \"Warn\"");
    }
    if !matches!(options.propagation_policy.as_str(), "" | "Orphan" | "Background" | "Foreground") {
        let supported = "\"Background\", \"Foreground\", \"Orphan\"";
        return wrong("propagationPolicy", &options.propagation_policy, supported);
    }
    if options.field_manager.len() > MAX_MANAGER {
        let message = format!("Too long: may not be more than {MAX_MANAGER} bytes");
        let field = "fieldManager".to_owned();
        return Err(options_failure(kind, Cause { reason: "FieldValueTooLong".to_owned(), message, field }));
    }
    Ok(())
}

fn options_failure(kind: &str, cause: Cause) -> Failure {
    let message = format!("{kind}.meta.k8s.io \"\" is invalid: {}: {}", cause.field, cause.message);
    Failure::new(422, "Invalid", message).about("meta.k8s.io", kind, "").because(&[cause])
}

/// Checks that the value is an object of this kind.
pub(super) fn is_of(schema: &Schema, api_version: &str, kind: &str, value: &Value) -> Result<(), Failure> {
    let findings = schema.of_kind(api_version, kind).map(|of| check(schema, of, &mut value.clone()));
    match findings.unwrap_or_default().misfits.first() {
        None => Ok(()),
        Some(misfit) => Err(status::bad_request(format!(
            "{kind} in version {api_version:?} cannot be handled as a {kind}: {}",
            misfit.as_json_error()
        ))),
    }
}

fn causes(errors: &[FieldError]) -> Vec<Cause> {
    errors
        .iter()
        .map(|error| {
            let text = error.to_string();
            let message = text.strip_prefix(&format!("{}: ", error.path)).unwrap_or(&text).to_owned();
            let reason = match error.kind {
                FieldErrorKind::Required => "FieldValueRequired",
                FieldErrorKind::Invalid => "FieldValueInvalid",
                FieldErrorKind::NotSupported => "FieldValueNotSupported",
                FieldErrorKind::Duplicate => "FieldValueDuplicate",
                FieldErrorKind::Forbidden => "FieldValueForbidden",
                FieldErrorKind::NotFound => "FieldValueNotFound",
                FieldErrorKind::TooLong => "FieldValueTooLong",
                FieldErrorKind::TooMany => "FieldValueTooMany",
            };
            Cause { reason: reason.to_owned(), message, field: error.path.clone() }
        })
        .collect()
}

impl Task {
    fn namespace(&self) -> &str {
        self.wanted.namespace.as_deref().unwrap_or_default()
    }

    fn name(&self) -> &str {
        self.wanted.name.as_deref().unwrap_or_default()
    }

    fn store(&self) -> Store {
        self.wanted.resource.store
    }

    fn types(&self) -> &Schema {
        self.schema.get_or_init(Schema::load)
    }

    /// Of a resource of a definition: lists are values, and objects merge by member.
    fn shape(&self) -> Shape<'_> {
        Shape::of_kind(self.types(), &self.api_version, self.wanted.resource.kind)
    }

    /// Removes from an object the fields that its type does not have or whose values have a wrong type.
    fn check(&self, value: &mut Value) -> Findings {
        if let Some(definition) = &self.definition {
            return custom::fit(&definitions::schema(definition), value);
        }
        let (schema, resource) = (self.types(), self.wanted.resource);
        let of = schema.of_kind(&self.api_version, resource.kind);
        of.map(|of| check(schema, of, value)).unwrap_or_default()
    }

    fn writer(&self) -> Writer<'_> {
        let subresource = self.wanted.subresource.map_or("", |part| part.name);
        Writer { manager: &self.manager, api_version: &self.api_version, subresource, now: self.now }
    }

    fn refused(&self, name: &str, why: &str) -> Failure {
        let resource = self.wanted.resource;
        let message = format!("{} \"{name}\" is forbidden: {why}", resource.qualified());
        status::forbidden(resource.group, resource.plural, name, message)
    }

    /// An object of a manifest is changed in the manifest, one of the cluster in the cluster.
    fn read_only(&self, name: &str, whose: &str) -> Failure {
        self.refused(name, &format!("the object {whose}; change it there"))
    }

    /// A pod that is no longer desired and ends.
    fn check_realm(&self, pod: &Pod) -> Result<(), Failure> {
        if is_of_cluster(pod) {
            return Err(self.refused(self.name(), "the pod is the cluster's, which is deleting it"));
        }
        Ok(())
    }

    fn invalid(&self, name: &str, errors: &[FieldError]) -> Failure {
        status::invalid(self.wanted.resource, name, &causes(errors))
    }

    fn missing(&self) -> Failure {
        status::not_found(self.wanted.resource, self.name())
    }
}

#[cfg(test)]
mod tests;
