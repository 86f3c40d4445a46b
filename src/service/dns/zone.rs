//! The names of Services: what a question about the cluster's domain is answered.
//!
//! Owns the records of Kubernetes' DNS specification 1.1: Services, headless Services with their endpoints, named ports,
//! addresses back to names, and external names.
//!
//! Pure: what it returns depends on its arguments alone.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::rc::Rc;

use super::message::{A, AAAA, Answer, PTR, Query, Rcode, Record, RecordData, SRV, TXT};
use crate::model::cidr::Cidr;
use crate::service::spec::{Endpoint, ServicePort, ServiceSpec, ServiceType, Slice};
use crate::service::table::Entry;

/// Seconds for which records may be remembered (`CoreDNS`'s default for Kubernetes).
const TTL: u32 = 5;
const SPECIFICATION: &str = "1.1.0";
/// Records of one answer: more do not fit into a message.
const MAX_ANSWERS: usize = 1_000;

/// What the server knows.
pub(crate) struct Zone<'z> {
    /// `cluster.local`: lower case.
    pub domain: &'z str,
    pub entries: &'z [Rc<Entry>],
    /// Addresses of Services.
    pub ranges: &'z [Cidr],
}

/// What to do with a question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Decision {
    Answer(Answer),
    /// Another name has the answer; the record says so.
    Follow(Record),
    /// It is none of the cluster's names.
    Forward,
}

/// What is known of a name: nothing, or its records of the type asked for, which may be none.
type Known = Option<Vec<RecordData>>;

impl Zone<'_> {
    #[must_use]
    pub(crate) fn decide(&self, query: &Query) -> Decision {
        if !query.is_internet() {
            return Decision::Answer(Answer::failure(Rcode::NotImplemented));
        }
        if let Some(ip) = reversed(&query.name) {
            return self.pointer(query, ip);
        }
        let name = query.name.as_str();
        let Some(rest) = name.strip_suffix(self.domain) else { return Decision::Forward };
        if !(rest.is_empty() || rest.ends_with('.')) {
            return Decision::Forward;
        }
        let labels: Vec<&str> = rest.split('.').filter(|label| !label.is_empty()).collect();
        let known = match labels[..] {
            [] | ["svc"] => Some(Vec::new()),
            ["dns-version"] => {
                Some(if query.kind == TXT { vec![RecordData::Text(SPECIFICATION)] } else { Vec::new() })
            }
            [namespace, "svc"] => {
                self.entries.iter().any(|entry| entry.service.namespace == namespace).then(Vec::new)
            }
            [ref within @ .., service, namespace, "svc"] => {
                let Some(entry) = self.find(namespace, service) else { return self.answer(query, None) };
                if entry.service.kind == ServiceType::ExternalName {
                    return self.external(query, within, &entry.service);
                }
                self.records(query, within, entry)
            }
            _ => None,
        };
        self.answer(query, known)
    }

    fn find(&self, namespace: &str, name: &str) -> Option<&Entry> {
        let is_it = |entry: &&Rc<Entry>| entry.service.name == name && entry.service.namespace == namespace;
        self.entries.iter().find(is_it).map(|entry| &**entry)
    }

    fn answer(&self, query: &Query, known: Known) -> Decision {
        let rcode = if known.is_some() { Rcode::NoError } else { Rcode::NameError };
        let record = |data| Record { name: query.name.clone(), ttl: TTL, data };
        Decision::Answer(Answer {
            rcode,
            is_authoritative: true,
            records: known.into_iter().flatten().take(MAX_ANSWERS).map(record).collect(),
            zone: Some((self.domain.to_owned(), TTL)),
        })
    }

    fn external(&self, query: &Query, within: &[&str], service: &ServiceSpec) -> Decision {
        if !within.is_empty() {
            return self.answer(query, None);
        }
        let target = service.external_name.trim_end_matches('.').to_ascii_lowercase();
        let alias = RecordData::Alias(target);
        Decision::Follow(Record { name: query.name.clone(), ttl: TTL, data: alias })
    }

    /// The records of a Service, or of a name within it.
    fn records(&self, query: &Query, within: &[&str], entry: &Entry) -> Known {
        let service = &*entry.service;
        match within {
            [] if query.kind == SRV => {
                Some(service.ports.iter().flat_map(|port| self.ports(entry, port)).collect())
            }
            [] if service.is_headless() => {
                Some(addresses(query, ready(entry).map(|(endpoint, _)| endpoint.address)))
            }
            [] => Some(addresses(query, service.cluster_ips.iter().copied())),
            [port, protocol] if port.starts_with('_') && protocol.starts_with('_') => {
                let is_it = |it: &&ServicePort| {
                    it.name.eq_ignore_ascii_case(&port[1..])
                        && it.protocol.as_str().eq_ignore_ascii_case(&protocol[1..])
                };
                let found = service.ports.iter().find(is_it)?;
                Some(if query.kind == SRV { self.ports(entry, found) } else { Vec::new() })
            }
            [protocol] if protocol.starts_with('_') => {
                let is_it = |it: &ServicePort| it.protocol.as_str().eq_ignore_ascii_case(&protocol[1..]);
                service.ports.iter().any(is_it).then(Vec::new)
            }
            [host] if service.is_headless() => {
                let mut found = ready(entry).filter(|(endpoint, _)| host_of(endpoint) == *host).peekable();
                found.peek()?;
                Some(addresses(query, found.map(|(endpoint, _)| endpoint.address)))
            }
            _ => None,
        }
    }

    /// The hosts and numbers of a port: the Service's own, or those of its endpoints.
    fn ports(&self, entry: &Entry, port: &ServicePort) -> Vec<RecordData> {
        let ServiceSpec { namespace, name, .. } = &*entry.service;
        let host = format!("{name}.{namespace}.svc.{}", self.domain);
        if !entry.service.is_headless() {
            return vec![RecordData::Service(port.port, host)];
        }
        let mut hosts: BTreeSet<(u16, String)> = BTreeSet::new();
        for (endpoint, slice) in ready(entry) {
            let found = slice.ports.iter().find(|it| it.name == port.name && it.protocol == port.protocol);
            hosts.extend(found.map(|it| (it.port, format!("{}.{host}", host_of(endpoint)))));
        }
        hosts.into_iter().map(|(number, host)| RecordData::Service(number, host)).collect()
    }

    fn pointer(&self, query: &Query, ip: IpAddr) -> Decision {
        let mut names: Vec<RecordData> = Vec::new();
        for entry in self.entries {
            let ServiceSpec { namespace, name, .. } = &*entry.service;
            let service = format!("{name}.{namespace}.svc.{}", self.domain);
            if entry.service.cluster_ips.contains(&ip) {
                names.push(RecordData::Pointer(service));
            } else if entry.service.is_headless() {
                let found = ready(entry).find(|(endpoint, _)| endpoint.address == ip);
                names
                    .extend(found.map(|(endpoint, _)| {
                        RecordData::Pointer(format!("{}.{service}", host_of(endpoint)))
                    }));
            }
        }
        if names.is_empty() && !self.ranges.iter().any(|range| range.contains(ip)) {
            return Decision::Forward;
        }
        if query.kind != PTR {
            names.clear();
            return self.answer(query, Some(names));
        }
        self.answer(query, (!names.is_empty()).then_some(names))
    }
}

/// The endpoints of a headless Service that have names.
fn ready(entry: &Entry) -> impl Iterator<Item = (&Endpoint, &Slice)> {
    let endpoints = entry.slices.iter().flat_map(|slice| slice.endpoints.iter().map(move |it| (it, slice)));
    endpoints.filter(|(endpoint, _)| endpoint.ready)
}

/// The first label of an endpoint's name: its host name, or its address with dashes.
fn host_of(endpoint: &Endpoint) -> String {
    match &endpoint.hostname {
        Some(hostname) => hostname.to_ascii_lowercase(),
        None => endpoint.address.to_string().replace(['.', ':'], "-"),
    }
}

fn addresses(query: &Query, ips: impl Iterator<Item = IpAddr>) -> Vec<RecordData> {
    let wanted = |ip: &IpAddr| if ip.is_ipv4() { query.kind == A } else { query.kind == AAAA };
    let mut seen: BTreeSet<IpAddr> = BTreeSet::new();
    ips.filter(|ip| wanted(ip) && seen.insert(*ip)).map(RecordData::Address).collect()
}

/// The address that a name below `in-addr.arpa` or `ip6.arpa` means.
fn reversed(name: &str) -> Option<IpAddr> {
    if let Some(labels) = name.strip_suffix(".in-addr.arpa") {
        let octets: Vec<&str> = labels.split('.').rev().collect();
        return octets.join(".").parse::<std::net::Ipv4Addr>().ok().map(IpAddr::V4);
    }
    let nibbles: Vec<&str> = name.strip_suffix(".ip6.arpa")?.split('.').rev().collect();
    if nibbles.len() != 32 || nibbles.iter().any(|nibble| nibble.len() != 1) {
        return None;
    }
    u128::from_str_radix(&nibbles.concat(), 16).ok().map(|bits| IpAddr::from(bits.to_be_bytes()))
}

#[cfg(test)]
mod tests;
