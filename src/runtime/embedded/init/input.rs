//! What a child of the monitor gets: specifications, and the users of its pod.
//!
//! Owns reading.

use std::fs::File;
use std::io::{Read, Seek};
use std::os::fd::AsFd;
use std::path::Path;

use super::PodHandles;
use super::error::{Doing, InitError};
use super::rootfs::Users;
use crate::model::api::decode::decode;
use crate::model::api::record::Member;
use crate::runtime::embedded::spec::{IdMapping, Namespace};

/// No specification is longer; real ones, with environment and mounts, are far shorter.
const MAX_SPEC: u64 = 16 << 20;

pub(in crate::runtime) fn read_spec<T: Member + Default>(
    mut file: File,
    path: &Path,
) -> Result<T, InitError> {
    let mut bytes = Vec::new();
    file.rewind().doing("read", path.display())?;
    file.take(MAX_SPEC).read_to_end(&mut bytes).doing("read", path.display())?;
    let value = serde_json::from_slice(&bytes);
    let value = value.map_err(|source| InitError::Syntax { path: path.to_owned(), source })?;
    let decoded = decode(value).map_err(|source| InitError::Fields { path: path.to_owned(), source })?;
    Ok(decoded.object)
}

/// The pod's user namespace and its root's id on the node, when the container is to be in it.
pub(in crate::runtime) fn pods_users<'a>(
    pod: &'a PodHandles,
    namespaces: &[Namespace],
    uids: &[IdMapping],
    gids: &[IdMapping],
) -> Result<Option<Users<'a>>, InitError> {
    let is_listed = namespaces.iter().any(|namespace| namespace.kind == "user");
    let root = |mappings: &[IdMapping]| {
        mappings
            .iter()
            .find(|mapping| mapping.container_id == 0 && mapping.size > 0)
            .map(|mapping| mapping.host_id)
    };
    match (&pod.users, is_listed) {
        (_, false) => Ok(None),
        (Some(users), true) => {
            let (Some(user), Some(group)) = (root(uids), root(gids)) else {
                return Err(InitError::Invalid {
                    field: "linux.uidMappings, linux.gidMappings".to_owned(),
                    problem: "root of the pod must be mapped to a user of the host",
                });
            };
            Ok(Some(Users { namespace: users.as_fd(), root_uid: user, root_gid: group }))
        }
        (None, true) => Err(InitError::Invalid {
            field: "linux.namespaces: user".to_owned(),
            problem: "the pod has no user namespace",
        }),
    }
}
