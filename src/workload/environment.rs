//! What the steps ask of their node.
//!
//! Pure: what it returns depends on its arguments alone.

use std::rc::Rc;
use std::time::Duration;

use serde_json::Value;

use crate::model::api::pod::Pod;
use crate::model::cron::Zone;
use crate::model::objects::LocalObject;
use crate::model::types::{PodUid, Timestamp};

/// The clock was never set if it shows an earlier time: 1 January 2026.
pub(super) const FLOOR: Timestamp = Timestamp::from_secs(1_767_225_600);

/// What the node is like.
pub(super) trait NodeEnvironment {
    /// The pod as this node would run it.
    ///
    /// # Errors
    /// Why it may not be created, in the API's words.
    fn admit(&self, pod: Pod, uid: PodUid) -> Result<Pod, String>;

    /// What only one pod of this kind can have on this node: `host port 80/TCP`.
    fn exclusive(&self, pod: &Pod) -> Option<String>;

    /// Whether a daemon may be started on this node, and whether one that runs may stay.
    fn daemon_fits(&self, pod: &Pod) -> (bool, bool);

    /// A claim from its JSON.
    ///
    /// # Errors
    /// Why it may not be created.
    fn claim(&self, claim: Value) -> Result<LocalObject, String>;

    /// A pod that has not ended names the claim, whether that is there or not; with `before`, one that was not created
    /// later. After a restart times are whole seconds.
    fn is_claim_used(&self, namespace: &str, name: &str, before: Option<Timestamp>) -> bool;

    /// A claim has its directory already.
    fn has_directory(&self, claim: &LocalObject) -> bool;

    /// A time zone; `None` until it has been read, which begins another pass.
    fn zone(&self, name: &str) -> Option<Result<Rc<Zone>, String>>;

    fn node_name(&self) -> &str;

    /// How long the machine has been up.
    fn up(&self) -> Duration;

    /// Since when the clock of this node is believed; `None` while it is not.
    fn clock_since(&self) -> Option<Timestamp>;

    /// Whether the clock is known to be right, or has had its time to become so.
    fn clock_is_settled(&self) -> bool;
}
