//! The Kubernetes API of one node: what kubectl needs of an API server, answered from what this agent knows.
//!
//! Owns the way from a request to the part that answers it. Nothing is kept or computed while nobody looks, but for a number
//! per object that somebody has looked at. Must not know how pods run.

pub mod cluster;
pub mod node;
pub mod patch;
pub mod path;
pub mod resource;
pub mod status;
pub mod write;

use std::rc::Rc;

use hyper::Response;

use crate::clock::Clock;
use crate::pod_config::edit::Editor;
use crate::server::body::Body;
use crate::server::guest::{Guest, Visit};
use crate::server::node::SharedNode;
use crate::streaming::Pending;

use cluster::SharedCluster;
use path::{Asked, Wanted};
use status::Failure;

/// See the module.
pub struct LocalApi {
    /// Pods, logs and streams.
    pub(crate) node: SharedNode,
    /// The rest.
    pub(crate) cluster: SharedCluster,
    /// Changes what is wanted.
    pub(crate) editor: Editor,
    /// The time.
    pub(crate) clock: Clock,
}

impl LocalApi {
    /// The API of this node.
    #[must_use]
    pub fn new(node: SharedNode, cluster: SharedCluster, editor: Editor, clock: Clock) -> Rc<Self> {
        Rc::new(Self { node, cluster, editor, clock })
    }

    async fn respond(self: Rc<Self>, visit: Visit) -> Result<Response<Body>, Failure> {
        let uri = visit.request.uri();
        let query = uri.query().unwrap_or_default();
        match path::read(visit.request.method().as_str(), uri.path(), query)? {
            Asked::Object(wanted) => self.object(*wanted, visit).await,
            _ => Err(status::no_such_path()),
        }
    }

    async fn object(self: Rc<Self>, wanted: Wanted, visit: Visit) -> Result<Response<Body>, Failure> {
        if wanted.verb.reads() {
            return Err(status::no_such_path());
        }
        write::change(&self, &wanted, visit.request, &visit.user).await
    }
}

impl Guest for LocalApi {
    fn serves(&self, path: &str) -> bool {
        path::is_ours(path)
    }

    fn answer(self: Rc<Self>, visit: Visit) -> Pending<Response<Body>> {
        Box::pin(async move { self.respond(visit).await.unwrap_or_else(|failure| failure.response()) })
    }
}
