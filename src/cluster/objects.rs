//! The objects of the cluster that the pods of this node refer to.
//!
//! Owns what is watched for which pod. A node without the watches needs nothing and misses nothing.

pub(crate) mod references;
pub(crate) mod services;
pub(crate) mod volumes;

use std::collections::BTreeMap;

use tokio::sync::watch;

use crate::cluster::objects::references::Needs;
use crate::model::source::SourceObject;
use crate::model::types::PodUid;

pub(crate) struct Objects {
    version: watch::Sender<u64>,
}

impl Objects {
    pub(crate) fn new() -> Self {
        Self { version: watch::Sender::new(0) }
    }

    /// What the pods of the set need, by pod; anything else is no longer watched.
    #[expect(clippy::unused_self, reason = "the watches are the next slice")]
    pub(crate) fn retain(&self, _needs: BTreeMap<PodUid, Needs>) {}

    /// All objects that are known, for the set of the source.
    #[expect(clippy::unused_self, reason = "the watches are the next slice")]
    pub(crate) fn current(&self) -> Vec<SourceObject> {
        Vec::new()
    }

    /// An answer about some of these objects is still to come.
    #[expect(clippy::unused_self, reason = "the watches are the next slice")]
    pub(crate) fn missing(&self, _of: &Needs) -> bool {
        false
    }

    /// Changes whenever an object changes.
    pub(crate) fn changed(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }
}
