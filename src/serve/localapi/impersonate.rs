//! Acting as another user: `Impersonate-User` and its companions, `kubectl --as` (upstream: the filter `impersonation`).
//!
//! Owns the headers. Each part of the other user needs the verb `impersonate`.

use hyper::HeaderMap;
use hyper::header::HeaderValue;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};

use super::access::{Access, refusal};
use super::status::{self, Failure};
use crate::serve::accounts::account_groups;
use crate::serve::rbac::ObjectAttributes;
use crate::serve::server::access::User;

const USER: &str = "impersonate-user";
const GROUP: &str = "impersonate-group";
const UID: &str = "impersonate-uid";
const EXTRA: &str = "impersonate-extra-";
const AUTHENTICATION: &str = "authentication.k8s.io";

/// Without one of its values a request would act with other rights.
fn text_of(value: &HeaderValue) -> Result<&str, Failure> {
    str::from_utf8(value.as_bytes()).map_err(|_| status::bad_request("an impersonation header is not UTF-8"))
}

/// A key of `extra`: percent-encoded, as header names have few letters. What is not stays as it is.
fn decoded(key: &str) -> String {
    String::from_utf8(percent_decode_str(key).collect()).unwrap_or_else(|_| key.to_owned())
}

/// The user that the request is to be answered for; `None`: its own.
pub(super) fn requested(headers: &HeaderMap, access: &Access<'_>) -> Result<Option<User>, Failure> {
    let texts = |name: &str| {
        let values = headers.get_all(name).into_iter();
        values.map(|value| text_of(value).map(str::to_owned)).collect::<Result<Vec<_>, Failure>>()
    };
    let (name, mut groups) = (texts(USER)?.concat(), texts(GROUP)?);
    let uid = texts(UID)?.concat();
    let mut extra = json!({});
    for (header, value) in headers {
        let Some(key) = header.as_str().strip_prefix(EXTRA) else { continue };
        let (key, value) = (decoded(key), text_of(value)?);
        let values: &mut Value = &mut extra[key];
        match values {
            Value::Array(values) => values.push(json!(value)),
            values => *values = json!([value]),
        }
    }
    let has_extra = extra.as_object().is_some_and(|extra| !extra.is_empty());
    if name.is_empty() {
        if groups.is_empty() && uid.is_empty() && !has_extra {
            return Ok(None);
        }
        return Err(status::bad_request("requested groups, uid or extra without impersonating a user"));
    }
    let of_account = name.strip_prefix("system:serviceaccount:").and_then(|account| account.split_once(':'));
    let may = |group: &str, resource: &str, (namespace, name): (&str, &str), subresource: &str| {
        let asked = ObjectAttributes {
            verb: "impersonate".to_owned(),
            group: group.to_owned(),
            resource: resource.to_owned(),
            subresource: subresource.to_owned(),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
        };
        if access.may(&asked) { Ok(()) } else { Err(refusal(access.user, &asked)) }
    };
    match of_account {
        Some(place) => may("", "serviceaccounts", place, "")?,
        None => may("", "users", ("", &name), "")?,
    }
    groups.iter().try_for_each(|group| may("", "groups", ("", group), ""))?;
    if !uid.is_empty() {
        may(AUTHENTICATION, "uids", ("", &uid), "")?;
    }
    for (key, values) in extra.as_object().into_iter().flatten() {
        let mut values = values.as_array().into_iter().flatten().filter_map(Value::as_str);
        values.try_for_each(|value| may(AUTHENTICATION, "userextras", ("", value), key))?;
    }
    if let (Some((namespace, _)), true) = (of_account, groups.is_empty()) {
        groups.extend(account_groups(namespace));
    }
    let extra = if has_extra { extra } else { Value::Null };
    Ok(Some(User { uid, extra, ..User::of_node(name, groups) }))
}

#[cfg(test)]
mod tests {
    use std::rc::Rc;

    use super::*;
    use crate::serve::rbac::{Binding, Rbac, RbacRole};
    use crate::serve::server::access::{MASTERS, Policy};

    fn asked(user: &User, lines: &[(&'static str, &str)]) -> Result<Option<User>, String> {
        let lines: Vec<_> = lines.iter().map(|(name, value)| (*name, value.as_bytes())).collect();
        asked_in_bytes(user, &lines).map_err(|failure| failure.message)
    }

    fn asked_in_bytes(user: &User, lines: &[(&'static str, &[u8])]) -> Result<Option<User>, Failure> {
        let rule = json!({"rules": [
            {"apiGroups": [""], "resources": ["users"], "resourceNames": ["jane"], "verbs": ["impersonate"]},
            {"apiGroups": [""], "resources": ["serviceaccounts"], "verbs": ["impersonate"]},
        ]});
        let deputy = RbacRole::of(("", "deputy"), &std::collections::BTreeMap::new(), &rule);
        let body = json!({"roleRef": {"kind": "ClusterRole", "name": "deputy"},
            "subjects": [{"kind": "User", "name": "joe"}]});
        let rbac = Rc::new(Rbac::new([deputy], vec![Binding::of("", &body).unwrap()]));
        let mut headers = HeaderMap::new();
        for (name, value) in lines {
            headers.append(*name, HeaderValue::from_bytes(value).unwrap());
        }
        let roles = move || Rc::clone(&rbac);
        let access = Access { policy: Policy::Local, user, roles: &roles };
        requested(&headers, &access)
    }

    #[test]
    fn no_value_of_another_user_is_skipped() {
        let joe = User::of_node("joe".to_owned(), Vec::new());
        let root = User::of_node("root".to_owned(), vec![MASTERS.to_owned()]);
        let second = asked(&root, &[(USER, "j\u{fc}rgen"), (GROUP, "m\u{e4}nner")]).unwrap().unwrap();
        assert_eq!((second.name.as_str(), second.groups), ("j\u{fc}rgen", vec!["m\u{e4}nner".to_owned()]));
        assert!(asked(&joe, &[(USER, "j\u{fc}rgen")]).unwrap_err().contains("cannot impersonate"));
        let odd: &[u8] = b"j\xfcrgen";
        for name in [USER, GROUP, UID, "impersonate-extra-x"] {
            let failure = asked_in_bytes(&root, &[(name, odd)]).unwrap_err();
            assert_eq!(failure.code, 400, "{name}");
        }
        for (header, key) in [
            ("impersonate-extra-example.com%2fscope", "example.com/scope"),
            ("impersonate-extra-100%", "100%"),
            ("impersonate-extra-%ff", "%ff"),
        ] {
            let second = asked(&root, &[(USER, "jim"), (header, "y")]).unwrap().unwrap();
            assert_eq!(second.extra, json!({key: ["y"]}));
        }
    }

    #[test]
    fn each_part_of_another_user_must_be_permitted() {
        let joe = User::of_node("joe".to_owned(), Vec::new());
        let root = User::of_node("root".to_owned(), vec![MASTERS.to_owned()]);
        assert_eq!(asked(&joe, &[]), Ok(None));
        let first = asked(&joe, &[(USER, "jane")]).unwrap().unwrap();
        assert_eq!((first.name.as_str(), first.groups.len()), ("jane", 0));
        assert_eq!(
            asked(&joe, &[(USER, "jim")]),
            Err("users \"jim\" is forbidden: User \"joe\" cannot impersonate resource \"users\" in API group \"\" at the cluster scope".to_owned())
        );
        let as_group = asked(&joe, &[(USER, "jane"), (GROUP, MASTERS)]);
        assert!(as_group.unwrap_err().starts_with("groups \"system:masters\" is forbidden: "));
        let machine = asked(&joe, &[(USER, "system:serviceaccount:a:robot")]).unwrap().unwrap();
        assert_eq!(machine.groups, account_groups("a"));
        let lines = [(USER, "jim"), (GROUP, "a"), (GROUP, "b"), (UID, "7"), ("impersonate-extra-x", "y")];
        let second = asked(&root, &lines).unwrap().unwrap();
        assert_eq!(
            (second.groups, second.uid.as_str(), second.extra),
            (vec!["a".into(), "b".into()], "7", json!({"x": ["y"]}))
        );
        assert!(asked(&joe, &lines[..1]).is_err());
        assert!(asked(&root, &[(GROUP, "a")]).is_err(), "of no user");
    }
}
