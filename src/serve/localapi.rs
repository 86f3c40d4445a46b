//! The Kubernetes API of one node: what kubectl needs of an API server, answered from the agent's state.
//!
//! Owns the way from a request to the part that answers it. Without clients nothing is kept or computed,
//! except for a version number per object that a client has read.

pub mod pod_printer;
pub mod printers;

pub mod access;
pub mod age;
mod autoscaler;
mod client_events;
mod connect;
mod definitions;
pub mod discovery;
mod gnostic;
mod impersonate;
pub(crate) mod implied;
mod incoming;
pub mod local_node;
mod metrics;
pub mod objects;
pub(super) mod openapi;
pub mod patch;
pub mod path;
mod protobuf;
mod read;
pub mod resource;
mod review;
mod scale;
pub mod selector;
pub mod shape;
pub mod status;
mod token;
pub mod versions;
mod watch;
pub mod write;
pub mod written;

use std::cell::RefCell;
use std::rc::Rc;

use hyper::header::{ACCEPT, CACHE_CONTROL, HeaderValue};
use hyper::{Request, Response, StatusCode};
use serde_json::Value;

use crate::desired::kinds::definition_key;
use crate::desired::pod_config::edit::Editor;
use crate::model::objects::{ObjectKey, ObjectKind, VersionedObject};
use crate::model::revisions::Revisions;
use crate::platform::clock::Clock;
use crate::platform::rt::changes::Changes;
use crate::serve::accounts::Accounts;
use crate::serve::rbac::Rbac;
use crate::serve::roles::Roles;
use crate::serve::server::access::{Policy, User};
use crate::serve::server::answer::{HEALTH_CHECKS, health};
use crate::serve::server::body::{self, Body};
use crate::serve::server::delegate::{Delegate, DelegatedRequest};
use crate::serve::server::node::SharedNode;
use crate::serve::streaming::Pending;

use access::Access;
use client_events::ClientEvents;
use local_node::SharedLocalNode;
use path::{ApiCall, IssuerDocument, RequestInfo};
use resource::{Catalog, Resource, Store, Verb};
use shape::{Rows, View};
use status::Failure;
use versions::{Change, Keep, Observed, Versions};
use watch::Watchers;
use written::Retained;

pub(crate) struct LocalApi {
    pub(crate) node: SharedNode,
    pub(crate) cluster: SharedLocalNode,
    pub(crate) editor: Editor,
    pub(crate) clock: Clock,
    client_events: ClientEvents,
    /// Of a node of no cluster.
    accounts: Option<Rc<Accounts>>,
    roles: Box<dyn Fn() -> Rc<Rbac>>,
    versions: RefCell<Versions>,
    watchers: Watchers,
    options: ApiOptions,
    /// The versions of the definitions that the catalog was made from, and the catalog.
    catalog: RefCell<(Vec<u64>, Catalog)>,
}

/// What this node serves.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ApiOptions {
    /// It has not joined a cluster.
    pub is_alone: bool,
    /// Objects of kinds that nothing acts on are kept, with a warning; otherwise they are refused.
    pub keeps_unacted: bool,
}

impl Default for ApiOptions {
    fn default() -> Self {
        Self { is_alone: true, keeps_unacted: true }
    }
}

impl LocalApi {
    #[must_use]
    pub(crate) fn new(
        node: SharedNode,
        cluster: SharedLocalNode,
        editor: Editor,
        clock: Clock,
        revisions: Revisions,
        options: ApiOptions,
        (accounts, roles): (Option<Rc<Accounts>>, Rc<Roles>),
    ) -> Rc<Self> {
        let retained = Retained::default();
        let versions = RefCell::new(Versions::new(revisions, retained.clone()));
        let watchers = Watchers::new(retained);
        let catalog = RefCell::new((Vec::new(), Catalog::new(options.is_alone, &[])));
        let roles = Box::new(move || roles.current());
        let client_events = ClientEvents::new();
        Rc::new(Self {
            node,
            cluster,
            editor,
            clock,
            client_events,
            accounts,
            roles,
            versions,
            watchers,
            options,
            catalog,
        })
    }

    /// Whether there is a stored object with this key, from any source.
    fn is_stored(&self, key: &ObjectKey) -> bool {
        self.cluster.object(key).is_some()
    }

    fn access<'a>(&'a self, policy: Policy, user: &'a User) -> Access<'a> {
        Access { policy, user, roles: &*self.roles }
    }

    /// The resources that are served now.
    pub(crate) fn catalog(&self) -> Catalog {
        if !self.options.is_alone {
            return self.catalog.borrow().1.clone();
        }
        let found = self.cluster.objects_of(ObjectKind::CustomResourceDefinition);
        let versions: Vec<u64> = found.iter().map(|known| known.version).collect();
        let (known, catalog) = &mut *self.catalog.borrow_mut();
        if *known != versions {
            let custom: Vec<_> =
                found.iter().flat_map(|known| definitions::resources(&known.object.content.body())).collect();
            (*known, *catalog) = (versions, Catalog::new(true, &custom));
        }
        catalog.clone()
    }

    /// What a definition says of a resource: the members of its version. `None` of a resource of Kubernetes.
    pub(crate) fn definition(&self, resource: &Resource) -> Option<Value> {
        let Store::Objects(kind @ ObjectKind::Custom(_)) = resource.store else { return None };
        let key = definition_key(kind);
        definitions::version(self.cluster.object(&key)?.object.content.body(), resource.version)
    }

    /// All objects of a store as they are now, with their versions. Watches are notified of what has changed.
    pub(crate) fn refresh(&self, store: Store) -> Vec<Value> {
        let mut objects = objects::all(self, store);
        let changes = self.versions.borrow_mut().refresh(store, &mut objects, self.keep(store));
        self.watchers.mark_read(store, || self.changes(store));
        for change in changes {
            self.watchers.notify(store, change);
        }
        objects
    }

    /// As [`Self::refresh`], for watches alone: of objects that are stamped only those that have changed are rendered.
    pub(crate) fn look(&self, store: Store) {
        let Store::Objects(kind) = store else { return drop(self.refresh(store)) };
        let known = self.cluster.objects_of(kind);
        let observed = |known: &VersionedObject| Observed {
            name: (known.object.key.namespace.clone(), known.object.key.name.clone()),
            uid: known.object.uid.clone(),
            version: Some(known.version),
            object: None,
        };
        let mut heads: Vec<Observed> = known.iter().map(observed).collect();
        heads.extend(implied::beside(self, kind, &known).into_iter().map(Observed::whole));
        let render = |at: usize| {
            let key = &known[at].object.key;
            objects::one(self, store, (&key.namespace, &key.name)).unwrap_or_default()
        };
        let changes = self.versions.borrow_mut().observe(store, &mut heads, self.keep(store), &render);
        self.watchers.mark_read(store, || self.changes(store));
        for change in changes {
            self.watchers.notify(store, change);
        }
    }

    /// One object as it is now, with its version. The namespace is empty for cluster-scoped kinds.
    pub(crate) fn find(&self, store: Store, namespace: &str, name: &str) -> Option<Value> {
        if !store.is_stamped() {
            return self.refresh(store).into_iter().find(|object| {
                text(object, "/metadata/namespace") == namespace && text(object, "/metadata/name") == name
            });
        }
        let found = objects::one(self, store, (namespace, name))?;
        if text(&found, "/metadata/resourceVersion").is_empty() {
            // It has no version of its own: it gets one with all others.
            return self.refresh(store).into_iter().find(|object| {
                text(object, "/metadata/namespace") == namespace && text(object, "/metadata/name") == name
            });
        }
        self.versions.borrow_mut().remember(store, &found);
        Some(found)
    }

    /// Wakes when objects of this store may have changed.
    fn changes(&self, store: Store) -> Changes {
        let mut changes = self.cluster.changes(store);
        if store == Store::Events {
            changes.0.push(self.client_events.watch());
        }
        changes
    }

    /// The schemas of all resources of definitions.
    fn custom_schemas(&self) -> Vec<(&'static Resource, Value)> {
        let catalog = self.catalog();
        let custom = catalog.all().filter(|resource| resource.is_custom());
        custom
            .filter_map(|resource| Some((resource, definitions::schema(&self.definition(resource)?))))
            .collect()
    }

    fn keep(&self, store: Store) -> Keep {
        if self.watchers.has(store) { Keep::Whole } else { Keep::Shadow }
    }

    /// The version up to which watches of this store know all changes.
    fn looked(&self, store: Store) -> u64 {
        self.versions.borrow().looked(store)
    }

    /// The versions: the first, the newest, and the newest of this store.
    fn versions_of(&self, store: Store) -> (u64, u64, u64) {
        let versions = self.versions.borrow();
        (versions.base(), versions.current(), versions.changed(store))
    }

    fn all(&self, store: Store) -> Vec<Change> {
        self.versions.borrow().all(store)
    }

    fn since(&self, store: Store, version: u64) -> Result<Vec<Change>, Failure> {
        self.versions.borrow().since(store, version)
    }

    fn forget_states(&self, store: Store) {
        self.versions.borrow_mut().forget_states(store);
    }

    async fn respond(self: Rc<Self>, mut visit: DelegatedRequest) -> Result<Response<Body>, Failure> {
        let access = self.access(visit.policy, &visit.user);
        if let Some(user) = impersonate::requested(visit.request.headers(), &access)? {
            log::debug!(user = visit.user.name, as_user = user.name; "Impersonation");
            visit.user = user;
        }
        let uri = visit.request.uri();
        let catalog = self.catalog();
        let method = visit.request.method().as_str();
        let asked = path::read(&catalog, method, uri.path(), uri.query().unwrap_or_default());
        if !matches!(asked, Ok(ApiCall::Object(_))) {
            // Authorization comes first: only an authorized client learns whether the path exists.
            let verb = visit.request.method().as_str().to_lowercase();
            let verb = if verb == "head" { "get" } else { &verb };
            if !self.access(visit.policy, &visit.user).may_path(uri.path(), verb) {
                return Err(access::path_refusal(&visit.user, uri.path(), verb));
            }
        }
        let accept = accept(&visit.request);
        let (core, tells) = match asked? {
            ApiCall::Object(wanted) => return self.object(*wanted, visit).await,
            ApiCall::Health(check) if check.is_empty() || HEALTH_CHECKS.contains(&check.as_str()) => {
                let what = uri.path().trim_start_matches('/').split('/').next().unwrap_or_default();
                return Ok(health(&self.node, what, &check, uri.query().unwrap_or_default()));
            }
            ApiCall::Health(_) => return Err(status::no_such_path()),
            ApiCall::Root => return Ok(found(&discovery::paths(&catalog))),
            ApiCall::Core => (true, discovery::core()),
            ApiCall::Groups => (false, discovery::group_list(&catalog)),
            ApiCall::Group(group) => return Ok(found(&discovery::group(&catalog, group))),
            ApiCall::Resources(group, version) => {
                return Ok(found(&discovery::resources(&catalog, group, version)));
            }
            ApiCall::Version => return Ok(found(&discovery::version())),
            ApiCall::Issuer(part) => return self.issuer(part),
            ApiCall::OpenApi(path) => {
                let of = openapi::Described { catalog: &catalog, schemas: &self.custom_schemas() };
                if path.starts_with("v3") && !openapi::takes_json(&accept) {
                    return Err(status::not_acceptable());
                }
                let answer = openapi::answer(&of, &path, openapi::wants_binary(&accept));
                let query = visit.request.uri().query().unwrap_or_default();
                let may_be_kept = openapi::names_hash(&of, query);
                return answer.map(|answer| described(answer, may_be_kept)).ok_or_else(status::no_such_path);
            }
        };
        Ok(match shape::aggregated(&accept) {
            Some((version, kind)) => {
                body::json(StatusCode::OK, kind, discovery::aggregated(&catalog, core, version).to_string())
            }
            None => found(&tells),
        })
    }

    /// What verifies tokens of service accounts elsewhere (OpenID Connect discovery).
    fn issuer(&self, part: IssuerDocument) -> Result<Response<Body>, Failure> {
        let accounts = self.accounts.as_ref().ok_or_else(status::no_such_path)?;
        Ok(match part {
            IssuerDocument::Configuration => found(&accounts.openid_configuration()),
            IssuerDocument::Keys => {
                let keys = accounts.jwks().map_err(|why| status::internal(&why))?;
                body::json(StatusCode::OK, "application/jwk-set+json", keys.to_string())
            }
        })
    }

    async fn object(
        self: Rc<Self>,
        wanted: RequestInfo,
        visit: DelegatedRequest,
    ) -> Result<Response<Body>, Failure> {
        let part = wanted.subresource.map_or("", |part| part.name);
        if part == "proxy" {
            return connect::node_proxy(&self, &wanted, visit).await;
        }
        let is_stream = matches!(part, "exec" | "attach" | "portforward");
        let mut asked = access::attributes_of(&wanted);
        let access = self.access(visit.policy, &visit.user);
        let mut is_allowed = access.may(&asked);
        if is_stream && is_allowed && wanted.verb == Verb::Get {
            // A stream over a WebSocket begins with a GET; reading a pod is not entering it (upstream, since 1.35).
            Verb::Create.as_str().clone_into(&mut asked.verb);
            is_allowed = access.may(&asked);
        }
        if !is_allowed {
            log::debug!(user = visit.user.name, verb = asked.verb, resource = asked.resource; "Forbidden");
            return Err(access::refusal(&visit.user, &asked));
        }
        if is_stream || part == "log" {
            return connect::pod(&self, &wanted, part, visit).await;
        }
        if wanted.resource.store == Store::Review {
            return review::create(&self, &wanted, visit).await;
        }
        if part == "token" {
            return token::create(&self, &wanted, visit).await;
        }
        if !wanted.verb.reads() {
            return write::change(&self, &wanted, visit.request, (&visit.user, visit.policy)).await;
        }
        let columns = self.definition(wanted.resource).map(|of| Rc::new(definitions::columns(&of)));
        let view = View {
            resource: wanted.resource,
            columns,
            form: shape::form(&accept(&visit.request))?,
            rows: Rows::parse(&wanted.options.include_object)?,
            now: self.clock.now(),
        };
        match wanted.verb {
            Verb::List => read::list(&self, &wanted, view).await,
            Verb::Watch => watch::watch(&self, wanted, view, &visit.user.name),
            _ => read::get(&self, &wanted, view).await,
        }
    }
}

impl Delegate for LocalApi {
    fn serves(&self, path: &str) -> bool {
        path::is_api_path(path)
    }

    fn answer(self: Rc<Self>, visit: DelegatedRequest) -> Pending<Response<Body>> {
        Box::pin(async move { self.respond(visit).await.unwrap_or_else(|failure| failure.response()) })
    }
}

/// A string in an object; empty if absent.
#[must_use]
pub(crate) fn text<'a>(object: &'a Value, pointer: &str) -> &'a str {
    object.pointer(pointer).and_then(Value::as_str).unwrap_or_default()
}

/// The client's `Accept` headers, joined.
fn accept<B>(request: &Request<B>) -> String {
    let headers = request.headers().get_all(ACCEPT);
    headers.iter().filter_map(|header| header.to_str().ok()).collect::<Vec<_>>().join(",")
}

fn found(object: &Value) -> Response<Body> {
    body::object(StatusCode::OK, object)
}

fn described(answer: openapi::OpenApiDocument, may_be_kept: bool) -> Response<Body> {
    let mut document = match answer {
        openapi::OpenApiDocument::Index(index) => return found(&index),
        openapi::OpenApiDocument::Document(document) => document,
    };
    let (pieces, body) = Body::in_pieces();
    let mut response = body::response(StatusCode::OK, document.content_type(), body);
    if may_be_kept {
        // Six hours, as long as kubectl caches discovery.
        response.headers_mut().insert(CACHE_CONTROL, HeaderValue::from_static("public, max-age=21600"));
    }
    crate::platform::rt::spawn("serving OpenAPI", async move {
        while let Some(piece) = document.next_piece() {
            // Ends when the client has disconnected.
            if pieces.send(Ok(piece.into())).await.is_err() {
                return;
            }
        }
    });
    response
}
