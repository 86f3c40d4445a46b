//! Who judges a request of a user that is known: the node's own policy, or the cluster.
//!
//! Owns the refusals. Without an answer of the cluster a user whom the cluster vouches for gets nothing: what the node
//! thinks of a group's name means nothing there.

use std::rc::Rc;

use hyper::StatusCode;

use super::access::{ANONYMOUS, NodeAttributes, Policy, UNAUTHENTICATED, User, attributes, forbidden};
use crate::cluster::review::Reviews;
use crate::cluster::review::rules::{Judge, ReviewedUser, judge};

/// The group of all users but anonymous ones.
const AUTHENTICATED: &str = "system:authenticated";

/// `authorization.mode`.
pub(crate) enum Authorizer {
    /// `AlwaysAllow` and `Local`: for all users.
    Policy(Policy),
    /// `Webhook`: the cluster for its users, [`Policy::Local`] for those of the node.
    Reviews(Rc<Reviews>),
}

/// Why a request is not carried out: the answer's status and text.
pub(super) type Forbidden = (StatusCode, String);

impl Authorizer {
    fn judge(&self, user: &User, is_kubelet_path: bool) -> Judge {
        judge(user.realm, matches!(self, Self::Reviews(_)), is_kubelet_path)
    }

    /// The policy for the API of the box itself; `None`: it is not for this user.
    #[must_use]
    pub(super) fn own_policy(&self, user: &User) -> Option<Policy> {
        match (self.judge(user, false), self) {
            (Judge::Groups, Self::Policy(policy)) => Some(*policy),
            (Judge::Groups, Self::Reviews(_)) => Some(Policy::Local),
            (Judge::Cluster | Judge::Refused, _) => None,
        }
    }

    /// Whether a user may send this request to the kubelet's API. A stream is judged when it begins.
    ///
    /// # Errors
    /// Why not, by upstream's status and words: 403, and 500 when the cluster did not say.
    pub(super) async fn allows(
        &self,
        user: &User,
        node_name: &str,
        method: &str,
        path: &str,
    ) -> Result<(), Forbidden> {
        let denied = || Err((StatusCode::FORBIDDEN, forbidden(user, node_name, method, path)));
        let reviews = match (self.judge(user, true), self) {
            (Judge::Groups, Self::Policy(policy)) if policy.allows(user, method, path) => return Ok(()),
            (Judge::Groups, Self::Reviews(_)) if Policy::Local.allows(user, method, path) => return Ok(()),
            (Judge::Cluster, Self::Reviews(reviews)) => reviews,
            _ => return denied(),
        };
        let asked = reviewed(user);
        let NodeAttributes { verb, subresources } = attributes(method, path);
        for subresource in subresources {
            match reviews.allows(&asked, verb, subresource).await {
                Ok(true) => return Ok(()),
                Ok(false) => {}
                Err(error) => {
                    log::debug!(user = user.name, verb = verb, path = path, err = error; "Authorization error");
                    let text = format!(
                        "Authorization error (user={}, verb={verb}, resource=nodes, subresource={subresource})",
                        user.name
                    );
                    return Err((StatusCode::INTERNAL_SERVER_ERROR, text));
                }
            }
        }
        denied()
    }
}

/// The user as the cluster is asked about: as upstream, in the group of all that are authenticated.
fn reviewed(user: &User) -> ReviewedUser {
    let mut groups = user.groups.clone();
    let is_one = |group: &String| group == AUTHENTICATED || group == UNAUTHENTICATED;
    if user.name != ANONYMOUS && !groups.iter().any(is_one) {
        groups.push(AUTHENTICATED.to_owned());
    }
    ReviewedUser { name: user.name.clone(), uid: user.uid.clone(), groups, extra: user.extra.clone() }
}
