//! A whole pull, blocking: resolves the reference, fetches the layers, a few in parallel, and then sets the
//! name.
//!
//! Owns the order.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::Duration;

use super::blob::BlobReader;
use super::error::invalid;
use super::hosts::{Host, hosts_of};
use super::manifest::{self, ACCEPT, Descriptor, Document, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES};
use super::policy::{self, Rule};
use super::session::{Ask, Session};
use super::signature::{self, Key};
use super::{LayerState, Progress, PullError, PullErrorKind, PullRequest, Pulled};
use crate::model::amount::Amount;
use crate::platform::http::stream::Method;
use crate::platform::logging::chain;
use crate::runtime::embedded::images::compression::Decompress;
use crate::runtime::embedded::images::documents::{self, ConfigDocument};
use crate::runtime::embedded::images::platform::{Platform, PlatformError};
use crate::runtime::embedded::images::reference::{Reference, normalise_reference};
use crate::runtime::embedded::images::{
    Image, ImageError, ImageStore, NewImage, Origin, UnpackLimits, digest_of,
};

/// Only touched pages use memory; TLS and decoders need deep stacks in unoptimised builds.
const STACK_BYTES: usize = 1024 * 1024;

/// How often to check for a layer that another process is fetching. A lock wakes only threads that block in
/// the kernel, and those could not be cancelled.
const CLAIM_EVERY: Duration = Duration::from_millis(250);

struct Fetched {
    bytes: Vec<u8>,
    digest: String,
    content_type: String,
}

/// A layer and where it belongs.
struct Layer {
    blob: Descriptor,
    diff_id: String,
}

/// Where layers are stored, and under which conditions.
struct LayerTarget<'a> {
    store: &'a ImageStore,
    /// The registry's name in references.
    registry: &'a str,
    parallel: usize,
    /// Free space to keep on the disk.
    keep: Option<Amount>,
}

impl LayerTarget<'_> {
    /// Whether the registry's permission is enough to use the stored layer.
    fn is_authorized(&self, layer: &Layer) -> bool {
        self.store.has_layer_from(&layer.diff_id, self.origin(layer))
    }

    fn origin<'a>(&'a self, layer: &'a Layer) -> Origin<'a> {
        Origin::Registry { name: self.registry, blob: &layer.blob.digest }
    }
}

/// Pulls an image into the store. For layers that this registry delivered before, it only checks whether
/// access is still allowed. Nothing gets a name before everything is stored.
///
/// # Errors
/// The first error. Complete layers stay for the next attempt.
pub fn pull(
    store: &ImageStore,
    request: &PullRequest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Pulled, PullError> {
    let reference = reference(request)?;
    let platform = requested_platform(&request.platform)?;
    let name = reference.to_string();
    let keys = required_keys(request.policy.as_deref(), &reference)?;
    let mut session = session(request, &reference)?;
    let resolve = |source| PullError::Resolve { reference: name.clone(), source: Box::new(source) };
    let unpack = |source| PullError::Unpack { reference: name.clone(), source: Box::new(source) };

    // The signature is checked on every pull: the policy may have changed since the image was stored.
    if keys.is_none()
        && let Some((image, digest)) =
            unchanged(store, &mut session, &reference, &platform).map_err(resolve)?
    {
        progress(Progress::Resolved { reference: name.clone(), digest: digest.clone() });
        return Ok(pulled(image.id, name, reference.with_digest(&digest), progress));
    }
    let first = resolve_reference(&mut session, &reference).map_err(resolve)?;
    progress(Progress::Resolved { reference: name.clone(), digest: first.digest.clone() });
    let (manifest, config, layers) =
        find_image(&mut session, &reference, &first, &platform).map_err(unpack)?;
    if let Some(keys) = keys {
        let digests: &[&str] = &[&first.digest, &manifest.digest];
        check_signature(&mut session, &keys, digests, &name).map_err(|error| match error {
            SignatureError::Absent(reason) => PullError::Signature { reference: name.clone(), reason },
            SignatureError::Unknown(error) => unpack(error),
        })?;
    }
    let config_bytes = fetch_config(&mut session, &config).map_err(unpack)?;
    let document = manifest::config(&config_bytes, layers.len(), &config.digest).map_err(unpack)?;
    if !platform.may_run(&document.platform) {
        let message =
            format!("its configuration is for {}, not for {platform}: it may not run", document.platform);
        progress(Progress::Warning { reference: name.clone(), message });
    }
    let layers: Vec<Layer> = layers
        .into_iter()
        .zip(document.rootfs.diff_ids)
        .map(|(blob, diff_id)| Layer { blob, diff_id })
        .collect();
    // From here on, layers without an image are not collected.
    let _bringing = store.bring().map_err(PullError::Store).map_err(unpack)?;
    let target = LayerTarget {
        store,
        registry: &reference.registry,
        parallel: request.parallel_layers(),
        keep: Amount::parse(&request.keep_free),
    };
    fetch_layers(&target, &session, &layers, progress).map_err(unpack)?;
    if first.digest != manifest.digest {
        store.write_document(&first.bytes).map_err(PullError::Store).map_err(unpack)?;
    }
    let repo_digest = reference.with_digest(&first.digest);
    let new = || NewImage {
        config: config_bytes.clone(),
        manifest: manifest.bytes.clone(),
        layer_sizes: layers.iter().map(|layer| layer.blob.size).collect(),
        names: reference.tagged().into_iter().collect(),
        digests: vec![repo_digest.clone()],
        pinned: false,
        source: reference.registry.clone(),
    };
    let image = match store.commit(new()) {
        // Collected between the check and the lock: once more, and now they cannot be collected.
        Err(ImageError::LayerMissing(_)) => {
            fetch_layers(&target, &session, &layers, progress).map_err(unpack)?;
            store.commit(new())
        }
        other => other,
    };
    let image = image.map_err(PullError::Store).map_err(unpack)?;
    Ok(pulled(image.id, name, repo_digest, progress))
}

fn reference(request: &PullRequest) -> Result<Reference, PullError> {
    normalise_reference(&request.image)
        .map_err(|error| PullError::Reference { image: request.image.clone(), problem: chain(&error) })
}

fn session(request: &PullRequest, reference: &Reference) -> Result<Session, PullError> {
    let mut hosts = hosts_of(&reference.registry, &request.hosts_dirs, request.stall_timeout())?;
    for host in &mut hosts {
        host.options.least_rate = Some(request.least_rate());
    }
    Ok(Session::new(hosts, &reference.repository, request.auth.clone()))
}

/// The digest of a reference at its registry, and nothing else.
pub(super) fn resolve(request: &PullRequest, progress: &mut dyn FnMut(Progress)) -> Result<(), PullError> {
    let reference = reference(request)?;
    let mut session = session(request, &reference)?;
    let offered = head_digest(&mut session, &reference)?;
    let digest = match offered.filter(|digest| manifest::check_digest(digest).is_ok()) {
        Some(digest) => digest,
        None => resolve_reference(&mut session, &reference)?.digest,
    };
    pulled(String::new(), reference.to_string(), reference.with_digest(&digest), progress);
    Ok(())
}

fn pulled(
    image_id: String,
    reference: String,
    repo_digest: String,
    progress: &mut dyn FnMut(Progress),
) -> Pulled {
    progress(Progress::Done {
        image_id: image_id.clone(),
        reference: reference.clone(),
        repo_digest: repo_digest.clone(),
    });
    Pulled { image_id, reference, repo_digest }
}

/// The keys one of which must have signed the image; `None` when no signature is required.
fn required_keys(policy: Option<&Path>, reference: &Reference) -> Result<Option<Vec<Key>>, PullError> {
    match policy.map(|file| policy::rule_for(file, reference)).transpose()? {
        None | Some(Rule::Accept) => Ok(None),
        Some(Rule::Reject(reason)) => Err(PullError::Signature { reference: reference.to_string(), reason }),
        Some(Rule::Keys(files)) => signature::read_keys(&files)
            .map(Some)
            .map_err(|(path, problem)| PullError::Policy { path, problem }),
    }
}

/// Why an image is not known to be signed.
enum SignatureError {
    Absent(String),
    /// It could not be checked.
    Unknown(PullError),
}

/// Looks for a good signature beside the index and beside the manifest. One is enough: what else is there, malformed or
/// by another key, matters only when none is good.
fn check_signature(
    session: &mut Session,
    keys: &[Key],
    digests: &[&str],
    name: &str,
) -> Result<(), SignatureError> {
    let mut problems: Vec<String> = Vec::new();
    // A registry that does not answer is no proof that there is no good one.
    let mut unknown = None;
    for (index, digest) in digests.iter().enumerate() {
        if digests[..index].contains(digest) {
            continue;
        }
        let found =
            fetch_document(session, &signature::tag_of(digest), name, |host| host.pulls && host.resolves);
        let claims = match found {
            Ok(found) => signature::claims(&found.bytes),
            Err(error) if error.kind() == PullErrorKind::NotFound => continue,
            Err(error) if error.kind() == PullErrorKind::Invalid => vec![Err(chain(&error))],
            Err(error) => {
                unknown = unknown.or(Some(error));
                continue;
            }
        };
        for claim in claims {
            let checked = claim.and_then(|claim| {
                let mut unseen = |_: u64, _: LayerState| {};
                let mut reader = BlobReader::new(session, &claim.payload, &mut unseen);
                match reader.read_document(signature::MAX_PAYLOAD_BYTES) {
                    Ok(payload) => signature::check(&claim, &payload, keys, digests),
                    Err(error) => {
                        let problem = chain(&error);
                        if !matches!(error.kind(), PullErrorKind::NotFound | PullErrorKind::Invalid) {
                            unknown = unknown.take().or(Some(error));
                        }
                        Err(problem)
                    }
                }
            });
            match checked {
                Ok(()) => return Ok(()),
                Err(problem) if problems.contains(&problem) => {}
                Err(problem) => problems.push(problem),
            }
        }
    }
    if let Some(error) = unknown {
        return Err(SignatureError::Unknown(error));
    }
    if problems.is_empty() {
        problems.push(format!(
            "{} is not signed (signature tag {} not found)",
            digests[0],
            signature::tag_of(digests[0])
        ));
    }
    Err(SignatureError::Absent(problems.join("; ")))
}

/// The stored image and its digest at the registry, if that has not changed. Checked by HEAD: registries that
/// count pulls do not count it, and the reply shows whether access is allowed.
fn unchanged(
    store: &ImageStore,
    session: &mut Session,
    reference: &Reference,
    platform: &Platform,
) -> Result<Option<(Image, String)>, PullError> {
    let image = store.resolve(&reference.to_string()).map_err(PullError::Store)?;
    let Some(image) = image.filter(|image| is_for(store, image, platform)) else { return Ok(None) };
    let digest = match (&reference.digest, head_digest(session, reference)?) {
        // The content of a digest never changes: only access has to be checked.
        (Some(digest), Some(_)) => digest.clone(),
        (None, Some(digest)) if image.repo_digests.contains(&reference.with_digest(&digest)) => digest,
        _ => return Ok(None),
    };
    Ok(Some((image, digest)))
}

/// The digest that a HEAD names; `None` when a GET has to find out.
fn head_digest(session: &mut Session, reference: &Reference) -> Result<Option<String>, PullError> {
    let name = reference.digest.clone().or_else(|| reference.tag.clone()).unwrap_or_default();
    let path = format!("manifests/{name}");
    let what = reference.to_string();
    let headers = [("Accept".to_owned(), ACCEPT.to_owned())];
    let ask = Ask { method: Method::Head, path: &path, headers: &headers, what: &what, follows: true };
    let servers = session.servers(|host| host.pulls && (host.resolves || reference.digest.is_some()));
    match session.try_servers(&servers, |session, index| session.ask(index, ask)) {
        Ok(answer) => Ok(answer.header("docker-content-digest")),
        // Some registries do not support HEAD; and a GET returns the reason.
        Err(error) if error.is_answer() => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether an image is what a pull for this platform would fetch, according to its own configuration.
fn is_for(store: &ImageStore, image: &Image, platform: &Platform) -> bool {
    let config = store.read_document(&image.id).ok();
    let config = config.and_then(|bytes| documents::decode::<ConfigDocument>(&image.id, &bytes).ok());
    config.is_some_and(|config| {
        config.platform.architecture == platform.architecture && platform.rank(&config.platform).is_some()
    })
}

fn requested_platform(text: &str) -> Result<Platform, PullError> {
    if text.is_empty() {
        return Ok(Platform::current());
    }
    let wrong = |problem: PlatformError| PullError::Reference {
        image: text.to_owned(),
        problem: problem.to_string(),
    };
    text.parse().map_err(wrong)
}

fn resolve_reference(session: &mut Session, reference: &Reference) -> Result<Fetched, PullError> {
    let what = reference.to_string();
    match (&reference.digest, &reference.tag) {
        (Some(digest), _) => {
            manifest::check_digest(digest)?;
            fetch_document(session, digest, &what, |host| host.pulls)
        }
        (None, tag) => {
            let tag = tag.as_deref().unwrap_or("latest");
            fetch_document(session, tag, &what, |host| host.pulls && host.resolves)
        }
    }
}

/// A manifest or index by tag or digest, verified.
fn fetch_document(
    session: &mut Session,
    name: &str,
    what: &str,
    suits: impl Fn(&Host) -> bool,
) -> Result<Fetched, PullError> {
    let servers = session.servers(suits);
    let headers = [("Accept".to_owned(), ACCEPT.to_owned())];
    let path = format!("manifests/{name}");
    let ask = Ask { method: Method::Get, path: &path, headers: &headers, what, follows: true };
    session.try_servers(&servers, |session, index| {
        let mut answer = session.ask(index, ask)?;
        let server = session.server_name(index).to_owned();
        let bytes =
            answer.read_all(MAX_MANIFEST_BYTES).map_err(|error| PullError::from_http(error, &server))?;
        let digest = digest_of(&bytes);
        let promised =
            if name.contains(':') { Some(name.to_owned()) } else { answer.header("docker-content-digest") };
        // A header with another algorithm does not apply to this digest.
        if let Some(promised) =
            promised.filter(|promised| promised.starts_with("sha256:") && *promised != digest)
        {
            return Err(invalid(promised, format!("digest mismatch: content has {digest}")));
        }
        Ok(Fetched { bytes, digest, content_type: answer.header("content-type").unwrap_or_default() })
    })
}

type Parts = (Fetched, Descriptor, Vec<Descriptor>);

/// From an index to the manifest of this platform.
fn find_image(
    session: &mut Session,
    reference: &Reference,
    first: &Fetched,
    platform: &Platform,
) -> Result<Parts, PullError> {
    let mut fetched = Fetched {
        bytes: first.bytes.clone(),
        digest: first.digest.clone(),
        content_type: first.content_type.clone(),
    };
    // An index of indexes is allowed, a chain of them is not.
    for _ in 0..3 {
        match manifest::parse(&fetched.bytes, &fetched.content_type, &fetched.digest)? {
            Document::Manifest { config, layers } => return Ok((fetched, config, layers)),
            Document::Index(offered) => {
                let chosen = manifest::choose(offered, platform)?;
                manifest::check_digest(&chosen.digest)?;
                let what = reference.with_digest(&chosen.digest);
                fetched = fetch_document(session, &chosen.digest, &what, |host| host.pulls)?;
            }
        }
    }
    Err(invalid(&fetched.digest, "indexes are nested too deeply"))
}

fn fetch_config(session: &mut Session, config: &Descriptor) -> Result<Vec<u8>, PullError> {
    let mut unseen = |_: u64, _: LayerState| {};
    let mut reader = BlobReader::new(session, config, &mut unseen);
    reader.read_document(MAX_CONFIG_BYTES)
}

enum WorkerReport {
    Moved(usize, u64, LayerState),
    Failed(PullError),
}

fn fetch_layers(
    target: &LayerTarget<'_>,
    session: &Session,
    layers: &[Layer],
    progress: &mut dyn FnMut(Progress),
) -> Result<(), PullError> {
    let next = AtomicUsize::new(0);
    let (said, heard) = mpsc::channel();
    let mut failure = None;
    for layer in layers {
        let state = if target.is_authorized(layer) { LayerState::Exists } else { LayerState::Waiting };
        progress(layer_progress(layer, 0, state));
    }
    std::thread::scope(|scope| {
        for _ in 0..target.parallel.min(layers.len()) {
            let (said, mut session, next) = (said.clone(), session.clone(), &next);
            let cancel = session.cancel.clone();
            let work = move || {
                while let Some((index, layer)) = take_next(layers, next) {
                    let mut tell = |done, state| drop(said.send(WorkerReport::Moved(index, done, state)));
                    if let Err(error) = fetch_layer(target, &mut session, layer, &mut tell) {
                        session.cancel.set();
                        let _ = said.send(WorkerReport::Failed(error));
                        return;
                    }
                }
            };
            let worker = std::thread::Builder::new().name("layer".to_owned()).stack_size(STACK_BYTES);
            if let Err(source) = worker.spawn_scoped(scope, work) {
                cancel.set();
                failure = Some(PullError::System { what: "start a thread for a layer", source });
                break;
            }
        }
        drop(said);
        for words in heard {
            match words {
                WorkerReport::Moved(index, done, state) => {
                    progress(layer_progress(&layers[index], done, state));
                }
                // The other workers only report that they were cancelled.
                WorkerReport::Failed(error) => failure = Some(failure.take().unwrap_or(error)),
            }
        }
    });
    failure.map_or(Ok(()), Err)
}

fn take_next<'a>(layers: &'a [Layer], next: &AtomicUsize) -> Option<(usize, &'a Layer)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    layers.get(index).map(|layer| (index, layer))
}

fn layer_progress(layer: &Layer, done: u64, state: LayerState) -> Progress {
    Progress::Layer { digest: layer.blob.digest.clone(), done, total: layer.blob.size, state }
}

fn fetch_layer(
    target: &LayerTarget<'_>,
    session: &mut Session,
    layer: &Layer,
    tell: &mut dyn FnMut(u64, LayerState),
) -> Result<(), PullError> {
    // Another pull may be fetching it at the same time, for another pod or by hand: once is enough.
    let _claim = loop {
        if let Some(claim) = target.store.claim_layer(&layer.diff_id).map_err(PullError::Store)? {
            break claim;
        }
        tell(0, LayerState::Waiting);
        session.cancel.pause(CLAIM_EVERY)?;
    };
    if target.is_authorized(layer) && session.has_blob(&layer.blob.digest)? {
        tell(layer.blob.size, LayerState::Exists);
        return Ok(());
    }
    let mut reader = BlobReader::new(session, &layer.blob, tell);
    let fault = reader.fault();
    let unpacked = Decompress::new(&mut reader)
        .map_err(|error| invalid(&layer.blob.digest, format!("cannot be decompressed: {error}")))
        .and_then(|mut tar| {
            let limits = UnpackLimits { keep: target.keep, ..UnpackLimits::for_compressed(layer.blob.size) };
            let origin = target.origin(layer);
            target.store.unpack_layer(&layer.diff_id, &mut tar, &limits, origin).map_err(PullError::Store)
        });
    // The reader's own error is the cause, not the decoder's error that resulted from it.
    if let Some(error) = fault.take() {
        return Err(error);
    }
    unpacked?;
    reader.finish()?;
    drop(reader);
    tell(layer.blob.size, LayerState::Done);
    Ok(())
}
