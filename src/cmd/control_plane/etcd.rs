//! The members of the cluster's etcd, which is asked over the JSON gateway of its client port.
//!
//! Owns which of its endpoints is asked, and how long. It knows nothing of the commands that use it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout};

use super::api::{self, AGAIN, Api, ApiPhaseError};
use crate::cluster::client::h2::H2Transport;
use crate::cluster::client::request::ResourcePath;
use crate::cluster::client::transport::{Accept, ApiRequest, Chunks, Content, Lane, Method, Transport};
use crate::cluster::kubeconfig::Kubeconfig;
use crate::codec::yaml::yaml_to_values;

/// Of one question to one endpoint.
const ANSWER: Duration = Duration::from_secs(10);
const LONGEST_ANSWER: usize = 1 << 20;
/// Where kubeadm writes the URL of an etcd for its clients.
const CLIENT_URLS: &str = "kubeadm.kubernetes.io/etcd.advertise-client-urls";

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct EtcdMember {
    /// A number in decimal digits.
    pub id: String,
    /// Empty until it has started.
    pub name: String,
    pub peer_urls: Vec<String>,
    pub client_urls: Vec<String>,
    /// It gets all data and has no vote.
    pub is_learner: bool,
}

/// What became of a member that was to be removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum EtcdRemoval {
    Done,
    /// It is no member.
    Absent,
    /// There is no other.
    Last,
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().into_iter().flatten().filter_map(|text| text.as_str().map(str::to_owned)).collect()
}

fn members(answer: &Value) -> Vec<EtcdMember> {
    let member = |value: &Value| EtcdMember {
        id: value["ID"].as_str().unwrap_or_default().to_owned(),
        name: value["name"].as_str().unwrap_or_default().to_owned(),
        peer_urls: texts(&value["peerURLs"]),
        client_urls: texts(&value["clientURLs"]),
        is_learner: value["isLearner"] == true,
    };
    answer["members"].as_array().into_iter().flatten().map(member).collect()
}

fn with_peer<'a>(members: &'a [EtcdMember], peer_url: &str) -> Option<&'a EtcdMember> {
    members.iter().find(|member| member.peer_urls.iter().any(|url| url == peer_url))
}

/// `--initial-cluster` of a new member: `name` is its own. One that has never started goes by its number, as with kubeadm.
pub(crate) fn initial_cluster(members: &[EtcdMember], name: &str, peer_url: &str) -> String {
    let entry = |member: &EtcdMember| {
        let url = member.peer_urls.first()?;
        let shown = match member.name.as_str() {
            _ if url == peer_url => name.to_owned(),
            "" => format!("{:x}", member.id.parse::<u64>().unwrap_or_default()),
            known => known.to_owned(),
        };
        Some([shown.as_str(), "=", url].concat())
    };
    members.iter().filter_map(entry).collect::<Vec<_>>().join(",")
}

/// What the manifest of an etcd of kubeadm says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LocalMember {
    /// Of the volume `etcd-data`.
    pub data_dir: Option<PathBuf>,
    pub peer_url: String,
    /// Its own first, then those of the members that it was made with.
    pub endpoints: Vec<String>,
}

impl LocalMember {
    pub(crate) fn of(pod: &Value) -> Self {
        let volumes = pod["spec"]["volumes"].as_array().into_iter().flatten();
        let data = volumes.filter(|volume| volume["name"] == "etcd-data");
        let mut data = data.filter_map(|volume| volume["hostPath"]["path"].as_str());
        let list = |name: &str| argument(pod, name).split(',').map(str::to_owned).collect::<Vec<_>>();
        let mut endpoints = list("advertise-client-urls");
        for entry in list("initial-cluster") {
            let url = entry.split_once('=').map(|(_, url)| url.replace(":2380", ":2379"));
            endpoints.extend(url.filter(|url| !endpoints.contains(url)));
        }
        endpoints.retain(|url| !url.is_empty());
        Self {
            data_dir: data.next().map(PathBuf::from),
            peer_url: list("initial-advertise-peer-urls").remove(0),
            endpoints,
        }
    }
}

/// The value of an argument of a static pod's container; empty if there is none. The last one counts.
pub(crate) fn argument<'a>(pod: &'a Value, name: &str) -> &'a str {
    let container = &pod["spec"]["containers"][0];
    let words =
        ["command", "args"].into_iter().flat_map(|list| container[list].as_array().into_iter().flatten());
    let value = |word: &'a Value| word.as_str()?.strip_prefix("--")?.strip_prefix(name)?.strip_prefix('=');
    words.filter_map(value).next_back().unwrap_or_default()
}

/// The static pod of a component of a control plane; `None` for another pod of that name, or none.
pub(crate) fn component_of(manifest: &Path, component: &str) -> Option<Value> {
    let text = fs::read_to_string(manifest).ok()?;
    let pod = yaml_to_values(&text, false).ok()?.into_iter().next()?;
    let labels = &pod["metadata"]["labels"];
    (labels["tier"] == "control-plane" && labels["component"] == component).then_some(pod)
}

/// The endpoints that the cluster's API shows.
pub(crate) async fn endpoints<T: Transport>(api: &Api<'_, T>) -> Result<Vec<String>, ApiPhaseError> {
    let pods = api.list(&ResourcePath::namespaced("", "pods", "kube-system", ""), "").await?;
    let is_etcd = |pod: &&Value| {
        let labels = &pod["metadata"]["labels"];
        labels["component"] == "etcd" && labels["tier"] == "control-plane"
    };
    let urls = pods.iter().filter(is_etcd).map(|pod| &pod["metadata"]["annotations"][CLIENT_URLS]);
    Ok(urls.filter_map(|urls| urls.as_str()?.split(',').next().map(str::to_owned)).collect())
}

/// The connection to one endpoint with the certificates in a directory.
pub(crate) fn dial(url: &str, cert_dir: &Path) -> Result<H2Transport, ApiPhaseError> {
    let file = |name: &str| cert_dir.join("etcd").join(name);
    let config = json!({
        "clusters": [{ "name": "e", "cluster": { "server": url, "certificate-authority": file("ca.crt") } }],
        "users": [{ "name": "e", "user": {
            "client-certificate": file("healthcheck-client.crt"), "client-key": file("healthcheck-client.key"),
        } }],
        "contexts": [{ "name": "e", "context": { "cluster": "e", "user": "e" } }],
        "current-context": "e",
    });
    let parsed = Kubeconfig::parse(&config, cert_dir);
    let failed = |source| ApiPhaseError::Kubeconfig { path: url.into(), source };
    parsed.map(api::transport).map_err(failed)
}

/// Asks the endpoints in their order until one answers, again and again until the deadline.
pub(crate) struct EtcdClient<T> {
    pub endpoints: Vec<(String, T)>,
    pub deadline: Instant,
}

impl EtcdClient<H2Transport> {
    pub(crate) fn dial(urls: &[String], cert_dir: &Path, deadline: Instant) -> Result<Self, ApiPhaseError> {
        let connect = |url: &String| Ok((url.clone(), dial(url, cert_dir)?));
        let endpoints = urls.iter().map(connect).collect::<Result<_, ApiPhaseError>>()?;
        Ok(Self { endpoints, deadline })
    }
}

impl<T: Transport> EtcdClient<T> {
    async fn once(&self, verb: &str, body: &Value) -> Result<Value, String> {
        let mut why = "no endpoint of etcd is known".to_owned();
        for (endpoint, transport) in &self.endpoints {
            match timeout(ANSWER, ask(transport, verb, body)).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => why = format!("{endpoint}: {error}"),
                Err(_) => why = format!("{endpoint}: no answer within {} s", ANSWER.as_secs()),
            }
        }
        Err(format!("member {verb}: {why}"))
    }

    /// Until the next attempt, if there is time for one.
    async fn pause(&self, why: String) -> Result<(), ApiPhaseError> {
        if Instant::now() + AGAIN > self.deadline {
            return Err(ApiPhaseError::Broken(format!("etcd: {why}")));
        }
        sleep(AGAIN).await;
        Ok(())
    }

    /// The members, as a majority of them knows them.
    pub(crate) async fn list(&self) -> Result<Vec<EtcdMember>, ApiPhaseError> {
        loop {
            match self.once("list", &json!({ "linearizable": true })).await {
                Ok(answer) => return Ok(members(&answer)),
                Err(why) => self.pause(why).await?,
            }
        }
    }

    /// Adds a learner, unless there is a member with this URL, and returns all.
    pub(crate) async fn add(&self, peer_url: &str) -> Result<Vec<EtcdMember>, ApiPhaseError> {
        loop {
            let there = self.list().await?;
            if with_peer(&there, peer_url).is_some() {
                return Ok(there);
            }
            match self.once("add", &json!({ "peerURLs": [peer_url], "isLearner": true })).await {
                Ok(answer) => return Ok(members(&answer)),
                Err(why) => self.pause(why).await?,
            }
        }
    }

    /// Makes a learner a voting member as soon as it has all data.
    pub(crate) async fn promote(&self, peer_url: &str) -> Result<(), ApiPhaseError> {
        loop {
            let there = self.list().await?;
            let Some(member) = with_peer(&there, peer_url) else {
                return Err(ApiPhaseError::Broken(format!("etcd has no member with the URL {peer_url}")));
            };
            if !member.is_learner {
                return Ok(());
            }
            match self.once("promote", &json!({ "ID": member.id })).await {
                Ok(_) => return Ok(()),
                Err(why) => self.pause(why).await?,
            }
        }
    }

    /// Removes a member; the last one stays.
    pub(crate) async fn remove(&self, peer_url: &str) -> Result<EtcdRemoval, ApiPhaseError> {
        loop {
            let there = self.list().await?;
            let Some(member) = with_peer(&there, peer_url) else { return Ok(EtcdRemoval::Absent) };
            if there.len() == 1 {
                return Ok(EtcdRemoval::Last);
            }
            match self.once("remove", &json!({ "ID": member.id })).await {
                Ok(_) => return Ok(EtcdRemoval::Done),
                Err(why) => self.pause(why).await?,
            }
        }
    }
}

async fn ask<T: Transport>(transport: &T, verb: &str, body: &Value) -> Result<Value, String> {
    let request = ApiRequest {
        method: Method::Post,
        path: format!("/v3/cluster/member/{verb}"),
        accept: Accept::Json,
        body: Some((Content::Json, body.to_string().into_bytes())),
        limit: None,
    };
    let mut answer = transport.send(Lane::Main, request).await.map_err(|error| error.to_string())?;
    let mut bytes = Vec::new();
    while let Some(part) = answer.body.next().await {
        bytes.extend_from_slice(&part.map_err(|error| error.to_string())?);
        if bytes.len() > LONGEST_ANSWER {
            return Err("its answer is too long".to_owned());
        }
    }
    let said: Value = serde_json::from_slice(&bytes).unwrap_or_default();
    match answer.status {
        200 => Ok(said),
        404 if said.is_null() => {
            Err("it has no JSON gateway: remove --enable-grpc-gateway=false from its arguments".to_owned())
        }
        status => {
            Err(said["message"].as_str().map_or_else(|| format!("HTTP status {status}"), str::to_owned))
        }
    }
}

/// Takes the member of a manifest out of the cluster, through another one if that answers.
pub(crate) async fn remove_local(
    local: &LocalMember,
    others: &[String],
    cert_dir: &Path,
    deadline: Instant,
) -> Result<EtcdRemoval, ApiPhaseError> {
    let mut urls = local.endpoints.clone();
    urls.extend(others.iter().filter(|url| !local.endpoints.contains(url)).cloned());
    let first = EtcdClient::dial(&urls, cert_dir, deadline)?.list().await?;
    let mut urls: Vec<String> = Vec::new();
    let (own, others): (Vec<_>, Vec<_>) =
        first.into_iter().partition(|member| member.peer_urls.contains(&local.peer_url));
    // Its own answer may be lost when it stops.
    for member in others.iter().chain(&own) {
        urls.extend(member.client_urls.iter().cloned());
    }
    EtcdClient::dial(&urls, cert_dir, deadline)?.remove(&local.peer_url).await
}

#[cfg(test)]
mod tests;
