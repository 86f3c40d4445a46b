//! The versions that the endpoints of an external etcd say.
//!
//! Owns the requests: kubeadm's limits and retries.

use std::fs::File;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::platform::http::{ClientFiles, HttpClient, Request};
use crate::platform::logging::chain;
use crate::platform::rt;

/// kubeadm's: after an answer of 5xx or none.
const RETRIES: u32 = 3;
const PAUSE: Duration = Duration::from_secs(5);
const MAX_BODY: usize = 64 * 1024;

/// How an external etcd is reached. Empty names of files: none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::cmd) struct ExternalEtcdAccess {
    pub endpoints: Vec<String>,
    pub ca_file: String,
    pub cert_file: String,
    pub key_file: String,
}

impl ExternalEtcdAccess {
    pub(in crate::cmd) fn files(&self) -> impl Iterator<Item = &str> {
        let all = [self.ca_file.as_str(), &self.cert_file, &self.key_file];
        all.into_iter().filter(|file| !file.is_empty())
    }
}

/// Each endpoint's URL with the version, or with what is wrong.
pub(super) fn versions(access: &ExternalEtcdAccess) -> Vec<(String, Result<String, String>)> {
    // Another try does not help.
    let unread =
        |file: &str| File::open(file).err().map(|error| (file.to_owned(), Err(load_error(file, &error))));
    if let Some(answer) = access.files().find_map(unread) {
        return vec![answer];
    }
    let asked = rt::run(async {
        let client = HttpClient::start().map_err(|error| chain(&error));
        let mut found = Vec::new();
        for endpoint in &access.endpoints {
            let url = format!("{}/version", endpoint.trim_end_matches('/'));
            let answer = match &client {
                Ok(client) => Box::pin(version(client, access, &url, PAUSE)).await,
                Err(error) => Err(error.clone()),
            };
            found.push((url, answer));
        }
        found
    });
    asked.unwrap_or_else(|error| vec![(String::new(), Err(error.to_string()))])
}

fn load_error(file: &str, error: &io::Error) -> String {
    format!("couldn't load external etcd's certificate {file}: {error}")
}

async fn version(
    client: &HttpClient,
    access: &ExternalEtcdAccess,
    url: &str,
    pause: Duration,
) -> Result<String, String> {
    let file = |name: &String| (!name.is_empty()).then(|| PathBuf::from(name));
    let client_files = file(&access.cert_file).zip(file(&access.key_file));
    let mut tries = 0;
    loop {
        let request = Request {
            max_body: MAX_BODY,
            ca_file: file(&access.ca_file),
            client: client_files
                .clone()
                .map(|(certificate, key)| ClientFiles { certificate, key: Some(key) }),
            ..Request::get(url)
        };
        let failed = match client.get(request).await {
            Ok(response) if response.status < 500 => {
                let answer: Value = serde_json::from_slice(&response.body).unwrap_or_default();
                let version = answer["etcdserver"].as_str().map(str::to_owned);
                return version.ok_or_else(|| format!("couldn't parse external etcd version of {url}"));
            }
            Ok(response) => {
                format!("{url}: server responded with non-successful status: {}", response.status_line)
            }
            Err(error) => chain(&error),
        };
        if tries == RETRIES {
            return Err(failed);
        }
        tries += 1;
        tokio::time::sleep(pause).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::platform::http::testing::Server;

    fn answer(status: &str, body: &str) -> String {
        format!("HTTP/1.1 {status}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}", body.len())
    }

    #[tokio::test]
    async fn an_etcd_is_asked_again_after_an_error_of_its_own() {
        let client = HttpClient::start().unwrap();
        let plain = ExternalEtcdAccess::default();
        let ask = async |answers: &[String]| {
            let server = Server::answers(answers.to_vec());
            version(&client, &plain, &server.url("/version"), Duration::ZERO).await
        };
        let good = answer("200 OK", r#"{"etcdserver":"3.6.8","etcdcluster":"3.6.0"}"#);
        let bad = answer("503 Service Unavailable", "");
        assert_eq!(ask(&[bad.clone(), bad.clone(), bad.clone(), good]).await, Ok("3.6.8".to_owned()));
        let failed = ask(&[bad]).await.unwrap_err();
        assert!(failed.ends_with("non-successful status: 503 Service Unavailable"), "{failed}");
        for body in ["", "{}", "etcd"] {
            let failed = ask(&[answer("200 OK", body)]).await.unwrap_err();
            assert!(failed.contains("couldn't parse external etcd version"), "{failed}");
        }
    }

    #[test]
    fn a_file_of_etcd_that_is_not_there_is_named_at_once() {
        let endpoints = vec!["https://127.0.0.1:1".to_owned(), "https://127.0.0.1:2".to_owned()];
        let access = ExternalEtcdAccess { endpoints, key_file: "/no/c.key".to_owned(), ..Default::default() };
        let [(_, Err(why))] = &versions(&access)[..] else { panic!("one complaint") };
        assert!(why.starts_with("couldn't load external etcd's certificate /no/c.key: "), "{why}");
    }
}
