//! The user that a container runs as: from the CRI request, the image's user and the image's own
//! `/etc/passwd` and `/etc/group`.
//!
//! Pure; texts arrive as arguments and are not trusted: malformed entries are ignored.

use crate::model::ordered::Sortable as _;
use crate::model::runtime_config::{ContainerSecurity, SupplementalGroupsPolicy};

/// The user of a container, in numbers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResolvedUser {
    /// User id, as the container sees it.
    pub uid: u32,
    pub gid: u32,
    /// All groups, the primary one included, in order.
    pub additional_gids: Vec<u32>,
    /// Home directory from `/etc/passwd`; empty when it has none.
    pub home: String,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum UserError {
    #[error("no users found: unable to find user {0}: no matching entries in passwd file")]
    NoUser(String),
    #[error("no groups found: unable to find group {0}: no matching entries in group file")]
    NoGroup(String),
    /// `runAsGroup` alone.
    #[error("user group {0:?} is specified without user")]
    GroupWithoutUser(i64),
    /// Neither `user` nor `user:group`.
    #[error("invalid USER value {0}")]
    Form(String),
    #[error("{what} {id} is not between 0 and {}", i32::MAX)]
    Range { what: &'static str, id: i64 },
}

/// The kernel's limit for a process.
const MAX_GROUPS: usize = 65_536;

struct Passwd<'a> {
    name: &'a str,
    uid: u32,
    gid: u32,
    home: &'a str,
}

fn passwd(text: &str) -> impl Iterator<Item = Passwd<'_>> {
    entries(text).filter_map(|mut fields| {
        let name = fields.next()?;
        let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
        Some(Passwd { name, uid, gid, home: fields.nth(1).unwrap_or_default() })
    })
}

struct Group<'a> {
    name: &'a str,
    gid: u32,
    members: &'a str,
}

fn groups(text: &str) -> impl Iterator<Item = Group<'_>> {
    entries(text).filter_map(|mut fields| {
        let name = fields.next()?;
        let gid = fields.nth(1)?.parse().ok()?;
        Some(Group { name, gid, members: fields.next().unwrap_or_default() })
    })
}

/// Lines, split into fields. Entries with an empty name are left out, because no request can name them.
fn entries(text: &str) -> impl Iterator<Item = std::str::Split<'_, char>> {
    let lines = text.lines().map(str::trim);
    lines.filter(|line| !matches!(line.bytes().next(), None | Some(b'#' | b':'))).map(|line| line.split(':'))
}

/// The user: from the pod, else from the image, else root. `passwd_file` and `group_file` are the image's,
/// empty when it has none.
pub fn resolve(
    security: &ContainerSecurity,
    image_user: &str,
    passwd_file: &str,
    group_file: &str,
) -> Result<ResolvedUser, UserError> {
    let (user, group) = requested_user(security, image_user)?;
    let entry = match number("user", &user)? {
        Some(uid) => passwd(passwd_file).find(|entry| entry.uid == uid).ok_or(uid),
        None => Ok(passwd(passwd_file)
            .find(|entry| entry.name == user)
            .ok_or_else(|| UserError::NoUser(user.clone()))?),
    };
    let (uid, mut gid, name, home) = match &entry {
        Ok(entry) => (entry.uid, entry.gid, entry.name, entry.home),
        // A number without an entry is valid, with root's group.
        Err(uid) => (*uid, 0, "", ""),
    };
    if let Some(group) = &group {
        gid = match number("group", group)? {
            Some(gid) => gid,
            None => groups(group_file)
                .find(|entry| entry.name == group)
                .map(|entry| entry.gid)
                .ok_or_else(|| UserError::NoGroup(group.clone()))?,
        };
    }
    let mut all = vec![gid];
    for id in &security.supplemental_groups {
        all.push(in_range("supplemental group", *id)?);
    }
    if security.supplemental_groups_policy == SupplementalGroupsPolicy::Merge && !name.is_empty() {
        let is_member = |entry: &Group<'_>| {
            entry.name != name && entry.members.split(',').any(|member| member.trim() == name)
        };
        all.extend(groups(group_file).filter(is_member).map(|entry| entry.gid).take(MAX_GROUPS));
    }
    all.order_by(Ord::cmp);
    all.dedup();
    all.truncate(MAX_GROUPS);
    // The home becomes an environment variable.
    let home = if home.contains('\0') { String::new() } else { home.to_owned() };
    Ok(ResolvedUser { uid, gid, additional_gids: all, home })
}

/// User and group, each a name or a number.
fn requested_user(
    security: &ContainerSecurity,
    image_user: &str,
) -> Result<(String, Option<String>), UserError> {
    let group = security.run_as_group.map(|id| id.to_string());
    if !security.run_as_username.is_empty() {
        return Ok((security.run_as_username.clone(), group));
    }
    if let Some(uid) = security.run_as_user {
        return Ok((in_range("runAsUser", uid)?.to_string(), group));
    }
    if let Some(gid) = security.run_as_group {
        return Err(UserError::GroupWithoutUser(gid));
    }
    let parts: Vec<&str> = image_user.split(':').collect();
    match parts[..] {
        [""] => Ok(("0".to_owned(), None)),
        [user] => Ok((user.to_owned(), None)),
        [user, group] if !user.is_empty() && !group.is_empty() => {
            Ok((user.to_owned(), Some(group.to_owned())))
        }
        _ => Err(UserError::Form(image_user.to_owned())),
    }
}

/// A number, when it is written as one.
fn number(what: &'static str, text: &str) -> Result<Option<u32>, UserError> {
    match text.parse::<i64>() {
        Ok(id) => in_range(what, id).map(Some),
        Err(_) => Ok(None),
    }
}

fn in_range(what: &'static str, id: i64) -> Result<u32, UserError> {
    i32::try_from(id).ok().and_then(|id| u32::try_from(id).ok()).ok_or(UserError::Range { what, id })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const PASSWD: &str =
        "# users\nroot:x:0:0:root:/r:/bin/sh\n\nweb:x:33:34:web:/var/www:/bin/false\nbad:x:y:z\n:x:5:5::/:\n";
    const GROUP: &str = "root:x:0:\nweb:x:34:web\nvideo:x:44:other,web\naudio:x:29:web\nodd:x:q:web\n";

    fn run(security: &ContainerSecurity, image: &str) -> Result<(u32, u32, Vec<u32>), UserError> {
        resolve(security, image, PASSWD, GROUP).map(|user| (user.uid, user.gid, user.additional_gids))
    }

    #[test]
    fn the_images_user_in_all_its_forms() {
        let security = ContainerSecurity::default();
        for (image, expected) in [
            ("", (0, 0, vec![0])),
            ("0", (0, 0, vec![0])),
            ("web", (33, 34, vec![29, 34, 44])),
            ("33", (33, 34, vec![29, 34, 44])),
            ("web:video", (33, 44, vec![29, 44])),
            ("web:7", (33, 7, vec![7, 29, 44])),
            ("33:web", (33, 34, vec![29, 34, 44])),
            ("1000", (1000, 0, vec![0])),
            ("1000:1001", (1000, 1001, vec![1001])),
        ] {
            assert_eq!(run(&security, image), Ok(expected), "{image:?}");
        }
        let error = run(&security, "nobody").unwrap_err().to_string();
        assert!(error.contains("no users found"), "{error}");
        assert!(error.contains("unable to find user nobody: no matching entries in passwd file"), "{error}");
        assert_eq!(run(&security, "web:none"), Err(UserError::NoGroup("none".into())));
        for form in ["a:b:c", ":", "web:", ":34"] {
            assert_eq!(run(&security, form), Err(UserError::Form(form.into())));
        }
        assert_eq!(run(&security, "-1"), Err(UserError::Range { what: "user", id: -1 }));
        assert_eq!(run(&security, "bad"), Err(UserError::NoUser("bad".into())), "its numbers are none");
    }

    #[test]
    fn pod_user_and_groups_override_the_image_user() {
        let user = ContainerSecurity { run_as_user: Some(33), ..ContainerSecurity::default() };
        assert_eq!(run(&user, "root"), Ok((33, 34, vec![29, 34, 44])));
        let both = ContainerSecurity { run_as_group: Some(9), ..user.clone() };
        assert_eq!(run(&both, "root:root"), Ok((33, 9, vec![9, 29, 44])));
        let strict = ContainerSecurity {
            supplemental_groups: vec![7, 9, 7],
            supplemental_groups_policy: SupplementalGroupsPolicy::Strict,
            ..both.clone()
        };
        assert_eq!(run(&strict, ""), Ok((33, 9, vec![7, 9])));
        let merged = ContainerSecurity { supplemental_groups: vec![7], ..both };
        assert_eq!(run(&merged, ""), Ok((33, 9, vec![7, 9, 29, 44])));
        let named = ContainerSecurity { run_as_username: "web".into(), ..ContainerSecurity::default() };
        assert_eq!(run(&named, ""), Ok((33, 34, vec![29, 34, 44])));
        let alone = ContainerSecurity { run_as_group: Some(1), ..ContainerSecurity::default() };
        assert_eq!(run(&alone, "web"), Err(UserError::GroupWithoutUser(1)));
        let large = ContainerSecurity { run_as_user: Some(1 << 40), ..ContainerSecurity::default() };
        assert!(matches!(run(&large, ""), Err(UserError::Range { .. })));
        assert_eq!(resolve(&user, "", PASSWD, GROUP).unwrap().home, "/var/www");
    }

    proptest! {
        #[test]
        fn no_file_is_too_strange(passwd in "([a-z:0-9\\-#,]{0,30}\n){0,9}", group in "\\PC{0,200}", user in "[a-z0-9:\\-]{0,12}") {
            let _ = resolve(&ContainerSecurity::default(), &user, &passwd, &group);
        }
    }
}
