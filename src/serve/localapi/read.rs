//! `get` and `list`.
//!
//! Owns pagination and the meaning of `resourceVersion` in both.

use std::rc::Rc;

use hyper::{Response, StatusCode};
use serde_json::{Value, json};

use super::path::{QueryOptions, RequestInfo};
use super::resource::Store;
use super::scale::ScalePlaces;
use super::selector::Selector;
use super::shape::View;
use super::status::{self, Failure};
use super::versions::parse_version;
use super::{LocalApi, metrics, text};
use crate::codec::base64;
use crate::serve::server::body::{self, Body};

/// Answers `get` of an object or of a subresource that returns the same object.
pub(super) async fn get(api: &LocalApi, wanted: &RequestInfo, view: View) -> Result<Response<Body>, Failure> {
    let name = wanted.name.as_deref().unwrap_or_default();
    let object = match wanted.resource.store {
        store @ (Store::PodMetrics | Store::NodeMetrics) => {
            let objects = metrics::all(api, store).await?;
            objects.into_iter().find(|object| is_at(object, wanted.namespace.as_deref(), name))
        }
        store => api.find(store, wanted.namespace.as_deref().unwrap_or_default(), name),
    };
    let object = object.ok_or_else(|| status::not_found(wanted.resource, name))?;
    if wanted.subresource.is_some_and(|part| part.name == "scale") {
        let places = ScalePlaces::of(api.definition(wanted.resource).as_ref());
        return Ok(answer(&places.show(&object), &wanted.options));
    }
    Ok(answer(&view.one(&object, true), &wanted.options))
}

fn is_at(object: &Value, namespace: Option<&str>, name: &str) -> bool {
    text(object, "/metadata/namespace") == namespace.unwrap_or_default()
        && text(object, "/metadata/name") == name
}

pub(super) async fn list(
    api: &Rc<LocalApi>,
    wanted: &RequestInfo,
    view: View,
) -> Result<Response<Body>, Failure> {
    let options = &wanted.options;
    let selector = selector(wanted)?;
    let store = wanted.resource.store;
    if matches!(store, Store::PodMetrics | Store::NodeMetrics) {
        let objects = metrics::all(api, store).await?;
        let chosen: Vec<&Value> =
            objects.iter().filter(|object| is_chosen(object, wanted, &selector)).collect();
        return Ok(answer(&view.many(&json!({}), &chosen), options));
    }
    let objects = api.refresh(store);
    let (base, current, changed) = api.versions_of(store);
    let page = Page::of(options, (base, current), changed)?;
    let chosen: Vec<&Value> = objects
        .iter()
        .filter(|object| is_chosen(object, wanted, &selector) && page.begins_before(&place(object)))
        .collect();
    let shown = if options.limit == 0 { chosen.len() } else { chosen.len().min(options.limit) };
    let mut metadata = json!({"resourceVersion": page.version.to_string()});
    if let Some(last) = chosen.get(shown.wrapping_sub(1)).filter(|_| shown < chosen.len()) {
        metadata["continue"] = json!(continue_token(page.version, &place(last)));
        if selector.is_empty() {
            metadata["remainingItemCount"] = json!(chosen.len() - shown);
        }
    }
    Ok(answer(&view.many(&metadata, &chosen[..shown]), options))
}

pub(super) fn selector(wanted: &RequestInfo) -> Result<Selector, Failure> {
    // Upstream ignores selectors in a GET of one object.
    let options = &wanted.options;
    Selector::parse(wanted.resource, &options.label_selector, &options.field_selector)
}

pub(super) fn is_chosen(object: &Value, wanted: &RequestInfo, selector: &Selector) -> bool {
    is_here(object, wanted)
        && (selector.is_empty() || selector.matches(&super::shape::own(wanted.resource, object)))
}

/// Whether an object is in the requested namespace.
fn is_here(object: &Value, wanted: &RequestInfo) -> bool {
    wanted.namespace.as_deref().is_none_or(|namespace| text(object, "/metadata/namespace") == namespace)
}

type Place = (String, String);

fn place(object: &Value) -> Place {
    (text(object, "/metadata/namespace").to_owned(), text(object, "/metadata/name").to_owned())
}

/// The page of a list, and the version of the list.
struct Page {
    /// The page begins after this object.
    after: Option<Place>,
    version: u64,
}

impl Page {
    fn of(options: &QueryOptions, (base, current): (u64, u64), changed: u64) -> Result<Self, Failure> {
        let asked = parse_version(&options.resource_version)?;
        let matching = options.resource_version_match.as_str();
        let forbidden =
            |why: &str| Err(status::bad_request(format!("resourceVersionMatch: Forbidden: {why}")));
        match (matching, asked) {
            ("" | "NotOlderThan" | "Exact", _)
                if !options.continue_token.is_empty() && !matching.is_empty() =>
            {
                return forbidden("resourceVersionMatch is forbidden when continue is provided");
            }
            ("NotOlderThan" | "Exact", None) => {
                return forbidden("resourceVersionMatch is forbidden unless resourceVersion is provided");
            }
            ("Exact", Some(0)) => {
                return forbidden("resourceVersionMatch \"exact\" is forbidden for resourceVersion \"0\"");
            }
            ("Exact", Some(version)) if version < changed => {
                return Err(status::expired(format!(
                    "The resourceVersion for the provided list is too old: {version} ({changed})"
                )));
            }
            ("Exact", Some(version)) if version <= current => return Ok(Self { after: None, version }),
            ("", _) | ("NotOlderThan" | "Exact", Some(_)) => {}
            (other, _) => {
                let message = format!(
                    "resourceVersionMatch: Unsupported value: {other:?}: supported values: \"Exact\", \"NotOlderThan\""
                );
                return Err(status::bad_request(message));
            }
        }
        if let Some(version) = asked.filter(|version| *version > current) {
            return Err(status::too_large_version(version, current));
        }
        if options.continue_token.is_empty() {
            return Ok(Self { after: None, version: current });
        }
        let (version, after) = parse_continue_token(&options.continue_token).ok_or_else(|| {
            status::bad_request("continue key is not valid: it was not issued by this server")
        })?;
        // A list that was begun before this process started has a version that cannot be watched.
        if version > current || version < base {
            return Err(status::expired(
                "The provided continue parameter is too old to display a consistent list result. You can start a new list without the continue parameter.",
            ));
        }
        Ok(Self { after: Some(after), version })
    }

    fn begins_before(&self, place: &Place) -> bool {
        self.after.as_ref().is_none_or(|after| after < place)
    }
}

fn continue_token(version: u64, (namespace, name): &Place) -> String {
    let token = json!({"v": "meta.k8s.io/v1", "rv": version, "start": format!("{namespace}/{name}")});
    base64::encode(token.to_string().as_bytes())
}

fn parse_continue_token(token: &str) -> Option<(u64, Place)> {
    let token: Value = serde_json::from_slice(&base64::decode(token)?).ok()?;
    let (namespace, name) = token["start"].as_str()?.split_once('/')?;
    Some((token["rv"].as_u64()?, (namespace.to_owned(), name.to_owned())))
}

/// An object as a response, indented with `pretty`.
pub(super) fn answer(object: &Value, options: &QueryOptions) -> Response<Body> {
    if !options.pretty {
        return body::object(StatusCode::OK, object);
    }
    let text = serde_json::to_string_pretty(object).unwrap_or_default();
    body::json(StatusCode::OK, "application/json", text + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn page(version: &str, matching: &str, continue_token: &str) -> Result<(u64, Option<Place>), u16> {
        let options = QueryOptions {
            resource_version: version.to_owned(),
            resource_version_match: matching.to_owned(),
            continue_token: continue_token.to_owned(),
            ..QueryOptions::default()
        };
        Page::of(&options, (1000, 2000), 1900)
            .map(|page| (page.version, page.after))
            .map_err(|failure| failure.code)
    }

    #[test]
    fn versions_of_lists_mean_what_they_mean_upstream() {
        for (version, matching, answer) in [
            ("", "", Ok(2000)),
            ("0", "", Ok(2000)),
            ("1800", "", Ok(2000)),
            ("2001", "", Err(504)),
            ("x", "", Err(400)),
            ("1800", "NotOlderThan", Ok(2000)),
            ("", "NotOlderThan", Err(400)),
            ("1950", "Exact", Ok(1950)),
            ("1800", "Exact", Err(410)),
            ("2001", "Exact", Err(504)),
            ("0", "Exact", Err(400)),
            ("5", "Newer", Err(400)),
        ] {
            assert_eq!(page(version, matching, "").map(|page| page.0), answer, "{version} {matching}");
        }
    }

    #[test]
    fn a_list_goes_on_behind_its_last_object() {
        let last = ("a".to_owned(), "web".to_owned());
        let token = continue_token(1950, &last);
        assert_eq!(page("", "", &token), Ok((1950, Some(last))));
        assert_eq!(page("", "", "rubbish"), Err(400));
        assert_eq!(page("", "Exact", &token), Err(400));
        let later = continue_token(2001, &("a".to_owned(), "b".to_owned()));
        assert_eq!(page("", "", &later), Err(410));
        let earlier = continue_token(999, &("a".to_owned(), "b".to_owned()));
        assert_eq!(page("", "", &earlier), Err(410), "of another process");
    }
}
