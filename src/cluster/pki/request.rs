//! Requests for certificates: what is asked of which signer, under which name, and what an answer means.
//!
//! Pure: a key, a node and an object of the server in, bodies and verdicts out.

use std::collections::BTreeSet;
use std::net::IpAddr;

use rcgen::{CertificateParams, DistinguishedName, DnType, KeyPair, PublicKeyData, SanType};
use ring::digest;
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::deadline::{Usability, usable, validity};
use crate::codec::base64;
use crate::model::types::Timestamp;
use crate::platform::x509::{self, CERTIFICATE, Subject, pem_blocks};

/// The signers of a node's certificates.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CertificateSigner {
    /// The node's identity at the API server.
    Client,
    /// The certificate of the kubelet's API; nothing approves it by default.
    Serving,
}

impl CertificateSigner {
    /// The value of `spec.signerName`.
    #[must_use]
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Client => "kubernetes.io/kube-apiserver-client-kubelet",
            Self::Serving => "kubernetes.io/kubelet-serving",
        }
    }

    /// The prefix of its files in the certificate directory.
    #[must_use]
    pub(crate) fn file_prefix(self) -> &'static str {
        match self {
            Self::Client => "kubelet-client",
            Self::Serving => "kubelet-server",
        }
    }

    /// The value of `spec.usages` for a key of elliptic curves.
    fn usages(self) -> [&'static str; 2] {
        match self {
            Self::Client => ["digital signature", "client auth"],
            Self::Serving => ["digital signature", "server auth"],
        }
    }
}

/// What a certificate is to say.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestTemplate {
    pub signer: CertificateSigner,
    pub subject: Subject,
    /// Sorted; of a serving certificate only.
    pub names: Vec<String>,
    /// In the order of their texts, as upstream; of a serving certificate only.
    pub addresses: Vec<IpAddr>,
}

/// The identity of a node. Without alternative names: a request with any is not approved.
#[must_use]
pub(crate) fn client_template(node_name: &str) -> RequestTemplate {
    RequestTemplate {
        signer: CertificateSigner::Client,
        subject: Subject {
            common_name: format!("system:node:{node_name}"),
            organizations: vec!["system:nodes".to_owned()],
        },
        names: Vec::new(),
        addresses: Vec::new(),
    }
}

/// A serving certificate for the node's addresses, given as type and value of `status.addresses`; `None` while
/// there is no IP address, as upstream.
#[must_use]
pub(crate) fn serving_template(node_name: &str, addresses: &[(String, String)]) -> Option<RequestTemplate> {
    let (mut names, mut ips) = (BTreeSet::new(), BTreeSet::new());
    for (kind, value) in addresses.iter().filter(|(_, value)| !value.is_empty()) {
        let ip = value.parse::<IpAddr>().ok();
        match (kind.as_str(), ip) {
            ("Hostname" | "ExternalIP" | "InternalIP", Some(ip)) => drop(ips.insert(ip.to_string())),
            ("Hostname" | "ExternalDNS" | "InternalDNS", _) => drop(names.insert(value.clone())),
            _ => {}
        }
    }
    let addresses: Vec<IpAddr> = ips.iter().filter_map(|ip| ip.parse().ok()).collect();
    let signer = CertificateSigner::Serving;
    let names = names.into_iter().collect();
    (!addresses.is_empty()).then(|| RequestTemplate {
        signer,
        names,
        addresses,
        ..client_template(node_name)
    })
}

/// Whether a certificate (PEM) says all that the template asks for; more is no reason for another one.
#[must_use]
pub(crate) fn satisfies(certificate: &str, template: &RequestTemplate) -> bool {
    let blocks = pem_blocks(certificate, CERTIFICATE);
    let Some((der, subject)) = blocks.first().and_then(|der| Some((der, x509::subject(der)?))) else {
        return false;
    };
    let (names, addresses) = x509::alternative_names(der);
    subject.common_name == template.subject.common_name
        && template.subject.organizations.iter().all(|group| subject.organizations.contains(group))
        && template.names.iter().all(|name| names.contains(name))
        && template.addresses.iter().all(|address| addresses.contains(address))
}

/// Whether a certificate (PEM) is of this key: an issuer that mixes them up must not cost a working pair.
#[must_use]
pub(crate) fn is_of_key(certificate: &str, key: &KeyPair) -> bool {
    let wanted: [u8; 32] = Sha256::digest(key.subject_public_key_info()).into();
    pem_blocks(certificate, CERTIFICATE).first().and_then(|der| x509::spki_sha256(der)) == Some(wanted)
}

/// The request (PEM).
///
/// # Errors
/// The library's; none that a caller could cause.
pub(crate) fn request_pem(template: &RequestTemplate, key: &KeyPair) -> Result<String, rcgen::Error> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    for group in &template.subject.organizations {
        params.distinguished_name.push(DnType::OrganizationName, group);
    }
    params.distinguished_name.push(DnType::CommonName, &template.subject.common_name);
    // A host name may be invalid in DNS.
    let names = template.names.iter().filter_map(|name| name.as_str().try_into().ok().map(SanType::DnsName));
    params.subject_alt_names =
        names.chain(template.addresses.iter().copied().map(SanType::IpAddress)).collect();
    params.serialize_request(key)?.pem()
}

/// The name of the object: `node-csr-` and a digest of what is asked, by which key. A request that was interrupted
/// is found again under it. Upstream's `digestedName`; a serving request has its names and addresses in it, too.
#[must_use]
pub(crate) fn request_name(template: &RequestTemplate, public_key: &[u8]) -> String {
    let mut text = String::new();
    let mut add = |part: &[u8]| {
        text += &base64::encode_url(part);
        text.push('|');
    };
    add(public_key);
    add(template.subject.common_name.as_bytes());
    template.subject.organizations.iter().for_each(|group| add(group.as_bytes()));
    template.signer.usages().iter().for_each(|usage| add(usage.as_bytes()));
    template.names.iter().for_each(|name| add(name.as_bytes()));
    template.addresses.iter().for_each(|address| add(address.to_string().as_bytes()));
    let digest = digest::digest(&digest::SHA512_256, text.as_bytes());
    format!("node-csr-{}", base64::encode_url(digest.as_ref()))
}

/// The body of the CertificateSigningRequest.
#[must_use]
pub(crate) fn body(name: &str, signer: CertificateSigner, request: &str) -> Value {
    json!({
        "apiVersion": "certificates.k8s.io/v1",
        "kind": "CertificateSigningRequest",
        "metadata": { "name": name },
        "spec": {
            "request": base64::encode(request.as_bytes()),
            "signerName": signer.name(),
            "usages": signer.usages(),
        },
    })
}

fn decoded(value: &Value) -> String {
    let bytes = value.as_str().and_then(base64::decode).unwrap_or_default();
    String::from_utf8(bytes).unwrap_or_default()
}

/// Checks that an object that exists under our name asks for the same, by the same key.
///
/// # Errors
/// What differs, as upstream's `ensureCompatible`.
pub(crate) fn check_found(
    found: &Value,
    template: &RequestTemplate,
    public_key: &[u8],
    now: Timestamp,
) -> Result<(), String> {
    let requests = pem_blocks(&decoded(&found["spec"]["request"]), "CERTIFICATE REQUEST");
    let Some((subject, key)) = requests.first().and_then(|der| x509::of_request(der)) else {
        return Err("retrieved csr is not compatible: unable to parse it".to_owned());
    };
    if subject != template.subject {
        return Err("retrieved csr is not compatible: csr subjects differ".to_owned());
    }
    if found["spec"]["signerName"] != template.signer.name() {
        return Err("retrieved csr is not compatible: csr signerNames differ".to_owned());
    }
    if key != public_key {
        return Err("retrieved csr is not compatible: it is of another key".to_owned());
    }
    match validity(&decoded(&found["status"]["certificate"])) {
        Some(validity) if usable(validity, now) == Usability::Expired => {
            Err(format!("one of the certificates for the CSR has expired: {}", validity.not_after))
        }
        _ => Ok(()),
    }
}

/// What has become of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum RequestOutcome {
    /// For an approval, or for the signer.
    Waiting,
    /// The certificate, PEM.
    Issued(String),
    /// Denied, failed, or another object: no certificate will come.
    Ended(String),
}

/// Reads the object, which was created with this uid.
#[must_use]
pub(crate) fn outcome(object: &Value, uid: &str) -> RequestOutcome {
    if object["metadata"]["uid"] != uid {
        let name = object["metadata"]["name"].as_str().unwrap_or_default();
        return RequestOutcome::Ended(format!("csr {name:?} changed UIDs"));
    }
    let mut is_approved = false;
    for condition in object["status"]["conditions"].as_array().into_iter().flatten() {
        let text = |key: &str| condition[key].as_str().unwrap_or_default();
        let ended = match text("type") {
            "Denied" => "is denied",
            "Failed" => "failed",
            other => {
                is_approved |= other == "Approved";
                continue;
            }
        };
        let (reason, message) = (text("reason"), text("message"));
        let said = format!("certificate signing request {ended}, reason: {reason}, message: {message}");
        return RequestOutcome::Ended(said);
    }
    let certificate = decoded(&object["status"]["certificate"]);
    if is_approved && !certificate.is_empty() {
        RequestOutcome::Issued(certificate)
    } else {
        RequestOutcome::Waiting
    }
}

#[cfg(test)]
mod tests;
