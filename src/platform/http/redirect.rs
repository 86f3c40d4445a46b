//! Where a redirect may lead, and whether credentials configured for one origin may be sent there.
//!
//! Owns these two rules. Pure.

use super::HttpError;
use super::error::shown_url;
use super::url::Url;

/// One request on the way to an answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hop {
    url: Url,
    /// The configured URL, whose origin gets headers, client certificate, user and password.
    first: Url,
    /// `user:password` of the configured URL.
    user_info: Option<String>,
}

impl Hop {
    /// The configured URL itself.
    pub(super) fn first(text: &str) -> Result<Self, HttpError> {
        let (scheme, rest) = text.split_once("://").unwrap_or((text, ""));
        if !["http", "https"].iter().any(|known| scheme.eq_ignore_ascii_case(known)) {
            return Err(HttpError::Scheme { url: shown_url(text) });
        }
        let url = Url::parse(text).ok_or_else(|| HttpError::Invalid {
            url: shown_url(text),
            reason: "the host is missing or contains a space".to_owned(),
        })?;
        let authority = rest.split(['/', '?', '#']).next().unwrap_or_default();
        let user_info = authority.rsplit_once('@').map(|(user_info, _)| user_info.to_owned());
        Ok(Self { first: url.clone(), url, user_info })
    }

    /// The target of `Location` from here.
    ///
    /// # Errors
    /// It is not a URL, or it leads from https to http.
    pub(super) fn follow(&self, location: &str) -> Result<Self, HttpError> {
        let url = self.url.join(location).ok_or_else(|| HttpError::Protocol {
            url: self.url.shown(),
            reason: format!("redirect to {:?}, which is not an http or https URL", shown_url(location)),
        })?;
        if self.url.is_encrypted() && !url.is_encrypted() {
            return Err(HttpError::Downgrade { url: self.url.shown(), target: url.shown() });
        }
        Ok(Self { url, ..self.clone() })
    }

    pub(super) fn url(&self) -> &Url {
        &self.url
    }

    /// True at the origin of the configured URL. The same host is its own origin under https where http was
    /// configured and neither names a port: the request was intended for it, and is better protected.
    pub(super) fn is_own(&self) -> bool {
        let (here, first) = (origin(&self.url), origin(&self.first));
        let secured = (here.0, first.0) == ("https", "http")
            && here.1 == first.1
            && !has_port(here.1)
            && !has_port(first.1);
        here == first || secured
    }

    /// As it is requested.
    pub(super) fn text(&self) -> String {
        let text = self.url.text();
        match &self.user_info {
            Some(user_info) if self.is_own() => text.replacen("://", &format!("://{user_info}@"), 1),
            _ => text,
        }
    }
}

/// Scheme and host, with the port where it is not the scheme's own.
fn origin(url: &Url) -> (&str, &str) {
    let own = if url.is_encrypted() { ":443" } else { ":80" };
    (&url.scheme, url.authority.strip_suffix(own).unwrap_or(&url.authority))
}

fn has_port(authority: &str) -> bool {
    authority.rsplit(']').next().unwrap_or_default().contains(':')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(first: &str, location: &str) -> Result<(String, bool), HttpError> {
        let hop = Hop::first(first).unwrap().follow(location)?;
        Ok((hop.text(), hop.is_own()))
    }

    #[test]
    fn own_headers_stay_on_the_origin() {
        for (first, location, text, own) in [
            ("https://a.example/x", "/y", "https://a.example/y", true),
            ("https://a.example/x", "https://a.example:443/y", "https://a.example:443/y", true),
            ("https://u:p@a.example/x", "/y", "https://u:p@a.example/y", true),
            ("https://u:p@a.example/x", "https://b.example/y", "https://b.example/y", false),
            ("https://a.example/x", "https://a.example:8443/y", "https://a.example:8443/y", false),
            ("https://a.example/x", "https://b.a.example/y", "https://b.a.example/y", false),
            ("http://a.example/x", "https://a.example/x", "https://a.example/x", true),
            ("http://a.example:80/x", "https://a.example/x", "https://a.example/x", true),
            ("http://a.example:8080/x", "https://a.example:8080/x", "https://a.example:8080/x", false),
            ("http://a.example/x", "https://b.example/x", "https://b.example/x", false),
            ("http://[::1]/x", "https://[::1]/x", "https://[::1]/x", true),
            ("http://127.0.0.1:1/x", "http://127.0.0.1:2/x", "http://127.0.0.1:2/x", false),
        ] {
            assert_eq!(after(first, location).unwrap(), (text.to_owned(), own), "{first} -> {location}");
        }
    }

    #[test]
    fn a_redirect_from_https_to_http_is_refused_at_every_hop() {
        let error = after("https://a.example/x", "http://a.example/x").unwrap_err();
        assert!(matches!(error, HttpError::Downgrade { .. }), "{error}");
        let detour = Hop::first("http://a.example/x").unwrap().follow("https://b.example/").unwrap();
        let error = detour.follow("http://a.example/y").unwrap_err();
        assert_eq!(
            error.to_string(),
            "https://b.example/: redirect from https to unencrypted http://a.example/y not followed; serve \
             it over https"
        );
    }

    #[test]
    fn a_location_that_is_no_url_is_named() {
        let error = after("https://a.example/x", "ftp://b.example/").unwrap_err();
        assert!(error.to_string().contains("redirect to \"ftp://b.example/\""), "{error}");
    }
}
