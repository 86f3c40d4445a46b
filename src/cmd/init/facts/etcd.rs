//! The versions that the endpoints of an external etcd say.
//!
//! Owns the requests: kubeadm's limits and retries.

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
            client: client_files.clone().map(|(certificate, key)| ClientFiles { certificate, key: Some(key) }),
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
