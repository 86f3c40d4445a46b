//! Parsing of requests to the Kubernetes API.
//!
//! Owns paths and the parameters of reading. Pure: a method, a path and a query in, a call or a failure out.

use super::resource::{Catalog, Resource, Subresource, Verb};
use super::status::{self, Failure};
use crate::serve::server::route;

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum ApiCall {
    /// `/`.
    Root,
    /// `/api`.
    Core,
    /// `/apis`.
    Groups,
    /// `/apis/GROUP`.
    Group(&'static str),
    /// `/api/v1`, `/apis/GROUP/VERSION`.
    Resources(&'static str, &'static str),
    /// `/version`.
    Version,
    /// `/.well-known/openid-configuration`, `/openid/v1/jwks`.
    Issuer(IssuerDocument),
    /// `/livez`, `/readyz` and the check they name.
    Health(String),
    /// `/openapi/...`.
    OpenApi(String),
    Object(Box<RequestInfo>),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum IssuerDocument {
    Configuration,
    Keys,
}

/// A request for an object or a collection.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct RequestInfo {
    pub resource: &'static Resource,
    pub verb: Verb,
    /// `None`: all namespaces, or a cluster-scoped kind.
    pub namespace: Option<String>,
    /// `None`: a collection, or an object to be created.
    pub name: Option<String>,
    pub subresource: Option<&'static Subresource>,
    /// The path behind a subresource that forwards requests, with its leading slash.
    pub rest: String,
    pub options: QueryOptions,
}

/// Parameters of a request. Those that are not used here stay in the request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct QueryOptions {
    pub label_selector: String,
    pub field_selector: String,
    /// `limit`; zero for none.
    pub limit: usize,
    pub continue_token: String,
    /// `resourceVersion`, as given.
    pub resource_version: String,
    /// `resourceVersionMatch`, as given.
    pub resource_version_match: String,
    /// `allowWatchBookmarks`.
    pub bookmarks: bool,
    /// `sendInitialEvents`.
    pub initial_events: Option<bool>,
    pub timeout_seconds: Option<u64>,
    /// `dryRun`, each value.
    pub dry_run: Vec<String>,
    pub field_manager: String,
    pub field_validation: String,
    pub force: bool,
    /// `includeObject`, of a table's rows.
    pub include_object: String,
    pub pretty: bool,
    pub grace_period_seconds: Option<i64>,
    pub propagation_policy: String,
}

/// Whether a path belongs to this API. The others belong to the kubelet's.
#[must_use]
pub(crate) fn is_api_path(path: &str) -> bool {
    let first = path.trim_start_matches('/').split('/').next().unwrap_or_default();
    path == "/"
        || matches!(
            first,
            "api" | "apis" | "version" | "openapi" | "livez" | "readyz" | "openid" | ".well-known"
        )
}

pub(crate) fn read(catalog: &Catalog, method: &str, path: &str, query: &str) -> Result<ApiCall, Failure> {
    let parts = route::segments(path);
    let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
    let get = |asked: ApiCall| match method {
        "GET" | "HEAD" => Ok(asked),
        _ => Err(status::method_not_allowed()),
    };
    match parts.as_slice() {
        [""] => get(ApiCall::Root),
        ["version"] => get(ApiCall::Version),
        ["livez" | "readyz", rest @ ..] => get(ApiCall::Health(rest.join("/"))),
        [".well-known", "openid-configuration"] => get(ApiCall::Issuer(IssuerDocument::Configuration)),
        ["openid", "v1", "jwks"] => get(ApiCall::Issuer(IssuerDocument::Keys)),
        ["openapi", rest @ ..] => get(ApiCall::OpenApi(rest.join("/"))),
        ["api"] => get(ApiCall::Core),
        ["api", "v1"] => get(ApiCall::Resources("", "v1")),
        ["api", "v1", rest @ ..] => object(catalog, method, ("", "v1"), rest, query),
        ["apis"] => get(ApiCall::Groups),
        ["apis", group, rest @ ..] => {
            let known = catalog.groups().into_iter().find(|(known, _)| known == group);
            let (group, versions) = known.ok_or_else(status::no_such_path)?;
            let [version, rest @ ..] = rest else { return get(ApiCall::Group(group)) };
            let known = versions.into_iter().find(|known| known == version);
            let version = known.ok_or_else(status::no_such_path)?;
            match rest {
                [] => get(ApiCall::Resources(group, version)),
                rest => object(catalog, method, (group, version), rest, query),
            }
        }
        _ => Err(status::no_such_path()),
    }
}

fn object(
    catalog: &Catalog,
    method: &str,
    (group, version): (&str, &str),
    parts: &[&str],
    query: &str,
) -> Result<ApiCall, Failure> {
    let (namespace, parts) = match parts {
        // A namespace itself, and its own subresources.
        ["namespaces"] | ["namespaces", _] | ["namespaces", _, "status" | "finalize"] => (None, parts),
        ["namespaces", namespace, rest @ ..] => (Some((*namespace).to_owned()), rest),
        _ => (None, parts),
    };
    let (plural, rest) = parts.split_first().ok_or_else(status::no_such_path)?;
    let resource = catalog.find(group, version, plural).ok_or_else(status::no_such_path)?;
    if namespace.is_some() && !resource.namespaced {
        return Err(status::no_such_path());
    }
    let (name, rest) = match rest.split_first() {
        Some((name, rest)) => (Some((*name).to_owned()), rest),
        None => (None, rest),
    };
    if name.is_some() && resource.namespaced && namespace.is_none() {
        return Err(status::no_such_path());
    }
    let (subresource, rest) = match rest.split_first() {
        Some((part, rest)) => (Some(resource.subresource(part).ok_or_else(status::no_such_path)?), rest),
        None => (None, rest),
    };
    if !rest.is_empty() && subresource.is_none_or(|part| part.name != "proxy") {
        return Err(status::no_such_path());
    }
    let parameters = Parameters(route::parameters(query));
    let verb = match (method, name.is_some()) {
        ("GET" | "HEAD", true) => Verb::Get,
        ("GET" | "HEAD", false) if parameters.flag("watch")? == Some(true) => Verb::Watch,
        ("GET" | "HEAD", false) => Verb::List,
        ("POST", _) => Verb::Create,
        ("PUT", true) => Verb::Update,
        ("PATCH", true) => Verb::Patch,
        ("DELETE", true) => Verb::Delete,
        ("DELETE", false) => Verb::DeleteCollection,
        _ => return Err(status::method_not_allowed()),
    };
    let verbs = subresource.map_or(resource.verbs, |part| part.verbs);
    let named = verb == Verb::Create && name.is_some() && subresource.is_none();
    let nowhere = verb == Verb::Create && resource.namespaced && namespace.is_none();
    if named || nowhere || !verbs.contains(&verb) {
        return Err(status::method_not_allowed());
    }
    let options = options(&parameters)?;
    let rest = rest.iter().flat_map(|part| ["/", part]).collect();
    Ok(ApiCall::Object(Box::new(RequestInfo { resource, verb, namespace, name, subresource, rest, options })))
}

fn options(parameters: &Parameters) -> Result<QueryOptions, Failure> {
    Ok(QueryOptions {
        label_selector: parameters.text("labelSelector"),
        field_selector: parameters.text("fieldSelector"),
        limit: parameters.number("limit")?.and_then(|limit| usize::try_from(limit).ok()).unwrap_or_default(),
        continue_token: parameters.text("continue"),
        resource_version: parameters.text("resourceVersion"),
        resource_version_match: parameters.text("resourceVersionMatch"),
        bookmarks: parameters.flag("allowWatchBookmarks")?.unwrap_or_default(),
        initial_events: parameters.flag("sendInitialEvents")?,
        timeout_seconds: parameters.number("timeoutSeconds")?.and_then(|seconds| u64::try_from(seconds).ok()),
        dry_run: parameters
            .0
            .iter()
            .filter(|(name, _)| name == "dryRun")
            .map(|(_, value)| value.clone())
            .collect(),
        field_manager: parameters.text("fieldManager"),
        field_validation: parameters.text("fieldValidation"),
        force: parameters.flag("force")?.unwrap_or_default(),
        include_object: parameters.text("includeObject"),
        pretty: parameters.flag("pretty").ok().flatten().unwrap_or_default(),
        grace_period_seconds: parameters.number("gracePeriodSeconds")?,
        propagation_policy: parameters.text("propagationPolicy"),
    })
}

struct Parameters(route::Parameters);

impl Parameters {
    fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().find(|(found, _)| found == name).map(|(_, value)| value.as_str())
    }

    fn text(&self, name: &str) -> String {
        self.get(name).unwrap_or_default().to_owned()
    }

    /// Upstream's rule: a parameter without a value is true.
    fn flag(&self, name: &str) -> Result<Option<bool>, Failure> {
        match self.get(name) {
            None => Ok(None),
            Some("" | "true" | "True" | "TRUE" | "t" | "T" | "1") => Ok(Some(true)),
            Some("false" | "False" | "FALSE" | "f" | "F" | "0") => Ok(Some(false)),
            Some(other) => Err(status::bad_request(format!("{name}: {other:?} must be true or false"))),
        }
    }

    fn number(&self, name: &str) -> Result<Option<i64>, Failure> {
        match self.get(name) {
            None | Some("") => Ok(None),
            Some(text) => text
                .parse()
                .map(Some)
                .map_err(|_| status::bad_request(format!("{name}: {text:?} must be an integer"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(method: &str, path: &str, query: &str) -> Result<ApiCall, Failure> {
        super::read(&Catalog::default(), method, path, query)
    }

    fn wanted(method: &str, path: &str) -> RequestInfo {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        match read(method, path, query).unwrap() {
            ApiCall::Object(wanted) => *wanted,
            other => panic!("{other:?}"),
        }
    }

    fn short(method: &str, path: &str) -> String {
        let wanted = wanted(method, path);
        let none = || "-".to_owned();
        format!(
            "{} {} {} {} {}{}",
            wanted.verb.as_str(),
            wanted.resource.qualified(),
            wanted.namespace.unwrap_or_else(none),
            wanted.name.unwrap_or_else(none),
            wanted.subresource.map_or("-", |part| part.name),
            wanted.rest,
        )
    }

    #[test]
    fn paths_name_objects_as_upstreams_do() {
        for (method, path, meaning) in [
            ("GET", "/api/v1/pods", "list pods - - -"),
            ("GET", "/api/v1/pods?watch=1", "watch pods - - -"),
            ("GET", "/api/v1/pods?watch=false", "list pods - - -"),
            ("GET", "/api/v1/namespaces/a/pods", "list pods a - -"),
            ("GET", "/api/v1/namespaces/a/pods/", "list pods a - -"),
            ("GET", "/api/v1/namespaces/a/pods/b", "get pods a b -"),
            ("HEAD", "/api/v1/namespaces/a/pods/b", "get pods a b -"),
            ("GET", "/api/v1/namespaces/a/pods/b/log", "get pods a b log"),
            ("POST", "/api/v1/namespaces/a/pods/b/exec?command=x", "create pods a b exec"),
            ("POST", "/api/v1/namespaces/a/pods", "create pods a - -"),
            ("PUT", "/api/v1/namespaces/a/pods/b", "update pods a b -"),
            ("PATCH", "/api/v1/namespaces/a/configmaps/b", "patch configmaps a b -"),
            ("DELETE", "/api/v1/namespaces/a/pods/b", "delete pods a b -"),
            ("DELETE", "/api/v1/namespaces/a/pods", "deletecollection pods a - -"),
            ("GET", "/api/v1/namespaces", "list namespaces - - -"),
            ("GET", "/api/v1/namespaces/a", "get namespaces - a -"),
            ("GET", "/api/v1/namespaces/a/status", "get namespaces - a status"),
            ("GET", "/api/v1/nodes/n/proxy/stats/summary", "get nodes - n proxy/stats/summary"),
            ("GET", "/apis/metrics.k8s.io/v1beta1/nodes", "list nodes.metrics.k8s.io - - -"),
            ("GET", "/apis/events.k8s.io/v1/namespaces/a/events", "list events.events.k8s.io a - -"),
            ("GET", "/api/v1/namespaces/%61/pods/b%2ec", "get pods a b.c -"),
            ("PUT", "/apis/apps/v1/namespaces/a/deployments/b/scale", "update deployments.apps a b scale"),
            ("PATCH", "/apis/batch/v1/namespaces/a/jobs/b/status", "patch jobs.batch a b status"),
            (
                "GET",
                "/apis/autoscaling/v1/horizontalpodautoscalers",
                "list horizontalpodautoscalers.autoscaling - - -",
            ),
        ] {
            assert_eq!(short(method, path), meaning, "{method} {path}");
        }
    }

    #[test]
    fn root_and_all_its_listed_paths_are_served() {
        assert!(is_api_path("/") && !is_api_path("/pods"));
        assert_eq!(read("GET", "/", ""), Ok(ApiCall::Root));
        let paths = crate::serve::localapi::discovery::paths(&Catalog::default());
        let paths: Vec<&str> =
            paths["paths"].as_array().into_iter().flatten().filter_map(|path| path.as_str()).collect();
        assert!(paths.is_sorted() && paths.contains(&"/apis/metrics.k8s.io/v1beta1"), "{paths:?}");
        for path in paths.iter().filter(|path| !["/healthz", "/metrics"].contains(path)) {
            assert!(read("GET", path, "").is_ok() && is_api_path(path), "{path}");
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_upstreams_codes() {
        for (method, path, code) in [
            ("GET", "/api/v2", 404),
            ("GET", "/api/v1/deployments", 404),
            ("GET", "/apis/apps/v2", 404),
            ("GET", "/apis/apps/v2/deployments", 404),
            ("GET", "/apis/example.com", 404),
            ("GET", "/apis/metrics.k8s.io/v1", 404),
            ("GET", "/api/v1/pods/a", 404),
            ("GET", "/api/v1/namespaces/a/nodes", 404),
            ("GET", "/api/v1/namespaces/a/pods/b/c", 404),
            ("GET", "/api/v1/namespaces/a/pods/b/log/c", 404),
            ("POST", "/api/v1/pods", 405),
            ("POST", "/api/v1/events", 405),
            ("POST", "/api/v1/namespaces/a/pods/b", 405),
            ("PUT", "/api/v1/namespaces/a/pods", 405),
            ("DELETE", "/api/v1/nodes/n", 405),
            ("DELETE", "/api/v1/namespaces", 405),
            ("TRACE", "/api/v1/pods", 405),
            ("POST", "/version", 405),
            ("GET", "/apis/metrics.k8s.io/v1beta1/pods?watch=true", 405),
        ] {
            let (bare, query) = path.split_once('?').unwrap_or((path, ""));
            assert_eq!(read(method, bare, query).unwrap_err().code, code, "{method} {path}");
        }
        let bad = read("GET", "/api/v1/pods", "limit=many").unwrap_err();
        assert_eq!((bad.code, bad.message.as_str()), (400, "limit: \"many\" must be an integer"));
        assert_eq!(read("GET", "/api/v1/pods", "watch=perhaps").unwrap_err().code, 400);
    }

    #[test]
    fn parameters_are_read() {
        let options = wanted(
            "GET",
            "/api/v1/pods?labelSelector=a%3Db%2Cc+in+%28d%29&limit=5&continue=x&timeoutSeconds=7&allowWatchBookmarks&sendInitialEvents=false&dryRun=All&pretty=what",
        )
        .options;
        assert_eq!(options.label_selector, "a=b,c in (d)");
        assert_eq!(
            (options.limit, options.continue_token.as_str(), options.timeout_seconds),
            (5, "x", Some(7))
        );
        assert_eq!((options.bookmarks, options.initial_events, options.pretty), (true, Some(false), false));
        assert_eq!(options.dry_run, ["All"]);
    }

    #[test]
    fn what_the_kubelet_serves_stays_its_own() {
        for path in ["/api", "/api/v1/pods", "/apis/x", "/version", "/openapi/v3", "/livez/ping", "/readyz"] {
            assert!(is_api_path(path), "{path}");
        }
        for path in ["/pods", "/healthz", "/apiary", "/versions", "/exec/a/b/c", "/metrics"] {
            assert!(!is_api_path(path), "{path}");
        }
    }
}
