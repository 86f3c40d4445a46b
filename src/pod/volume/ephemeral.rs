//! The data of claims that were made for ephemeral volumes: it goes when its claim is gone and nothing shows it.
//!
//! Owns their removal, also of those that an earlier run left.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use super::{VolumeError, tear_down_dir};
use crate::platform::sys::mount;

/// The directories that are there, by uid of the claim. List them before the claims are looked up: one that is created
/// later has a claim.
pub(super) fn list(directory: &Path) -> Result<Vec<String>, VolumeError> {
    let failed = |source| VolumeError::TearDown {
        action: "list data of ephemeral volumes in",
        path: directory.to_owned(),
        source,
    };
    let entries = match std::fs::read_dir(directory) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        other => other.map_err(failed)?,
    };
    let names = entries.map(|entry| Ok(entry?.file_name().to_string_lossy().into_owned()));
    names.collect::<std::io::Result<_>>().map_err(failed)
}

/// Removes those without a claim. Returns how many are left because a pod still shows them.
pub(super) fn remove(
    directory: &Path,
    found: &[String],
    claims: &BTreeSet<String>,
) -> (usize, Vec<VolumeError>) {
    let (mut shown, mut errors) = (0, Vec::new());
    let gone: Vec<PathBuf> =
        found.iter().filter(|uid| !claims.contains(*uid)).map(|uid| directory.join(uid)).collect();
    if gone.is_empty() {
        return (0, errors);
    }
    let roots = match mount::mount_roots() {
        Ok(roots) => roots,
        Err(source) => {
            let (action, path) = ("list mounts of", directory.to_owned());
            return (0, vec![VolumeError::TearDown { action, path, source }]);
        }
    };
    for path in gone {
        // The root of a bind mount is a path in its file system: what the end of both names is the same directory.
        let place: PathBuf = path.components().rev().take(2).collect::<Vec<_>>().into_iter().rev().collect();
        if roots.iter().any(|root| root.ancestors().any(|part| part.ends_with(&place))) {
            shown += 1;
        } else if let Err(error) = tear_down_dir(&path) {
            errors.push(error);
        }
    }
    (shown, errors)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::testing::TempDir;

    #[test]
    fn data_without_a_claim_goes_once_no_pod_shows_it() {
        let scratch = TempDir::new();
        let directory = scratch.0.join(".ephemeral");
        assert!(list(&directory).unwrap().is_empty());
        let shown = scratch.0.join("pod");
        for name in ["claimed", "used-7f1c", "gone"] {
            std::fs::create_dir_all(directory.join(name).join("sub")).unwrap();
        }
        std::fs::create_dir_all(&shown).unwrap();
        mount::bind(&directory.join("used-7f1c/sub"), &shown).unwrap();
        let claims = BTreeSet::from(["claimed".to_owned()]);
        let sweep = || remove(&directory, &list(&directory).unwrap(), &claims);
        let (left, errors) = sweep();
        let kept = directory.join("used-7f1c").exists();
        mount::unmount(&shown).unwrap();
        assert!(left == 1 && errors.is_empty() && kept, "{errors:?}");
        assert_eq!(sweep().0, 0);
        assert_eq!(list(&directory).unwrap(), ["claimed"]);
    }
}
