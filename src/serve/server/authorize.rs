//! Who judges a request of a user that is known: the node's own policy and roles, or the cluster.
//!
//! Owns the refusals. Without an answer of the cluster a user whom the cluster vouches for gets nothing: what the node
//! thinks of a group's name means nothing there.

use std::rc::Rc;

use hyper::StatusCode;

use super::access::{NodeAttributes, Policy, User, attributes, forbidden};
use crate::cluster::review::Reviews;
use crate::cluster::review::rules::{Judge, ReviewedUser, judge};
use crate::serve::rbac::{ObjectAttributes, Subject};
use crate::serve::roles::Roles;

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
        (method, path): (&str, &str),
        roles: &Roles,
    ) -> Result<(), Forbidden> {
        let denied = || Err((StatusCode::FORBIDDEN, forbidden(user, node_name, method, path)));
        let wanted = attributes(method, path);
        let reviews = match (self.judge(user, true), self) {
            (Judge::Groups, Self::Policy(policy)) if policy.allows(user, method, path) => return Ok(()),
            (Judge::Groups, Self::Reviews(_)) if Policy::Local.allows(user, method, path) => return Ok(()),
            (Judge::Groups, _) if has_role(user, node_name, &wanted, roles) => return Ok(()),
            (Judge::Cluster, Self::Reviews(reviews)) => reviews,
            _ => return denied(),
        };
        let asked = reviewed(user);
        let NodeAttributes { verb, subresources } = wanted;
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

/// Whether a role allows one of the subresources of the node.
fn has_role(user: &User, node_name: &str, asked: &NodeAttributes, roles: &Roles) -> bool {
    let (groups, rbac) = (user.all_groups(), roles.current());
    asked.subresources.iter().any(|subresource| {
        let asked = ObjectAttributes {
            verb: asked.verb.to_owned(),
            resource: "nodes".to_owned(),
            subresource: (*subresource).to_owned(),
            name: node_name.to_owned(),
            ..ObjectAttributes::default()
        };
        rbac.allows(Subject { name: &user.name, groups: &groups }, &asked)
    })
}

/// The user as the cluster is asked about: as upstream, in the group of all that are authenticated.
fn reviewed(user: &User) -> ReviewedUser {
    let groups = user.all_groups();
    ReviewedUser { name: user.name.clone(), uid: user.uid.clone(), groups, extra: user.extra.clone() }
}
