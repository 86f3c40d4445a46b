//! A whole pull, blocking: what the reference means, then its layers, a few at a time, then its name.
//!
//! Owns the order. Must not know who asked.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;

use super::blob::BlobReader;
use super::error::invalid;
use super::hosts::{Host, hosts_of};
use super::manifest::{self, ACCEPT, Descriptor, Document, MAX_CONFIG_BYTES, MAX_MANIFEST_BYTES};
use super::session::{Ask, Session};
use super::{LayerState, Progress, PullError, PullRequest, Pulled};
use crate::http::stream::Method;
use crate::runtime::embedded::images::compression::Decompress;
use crate::runtime::embedded::images::platform::Platform;
use crate::runtime::embedded::images::reference::{Reference, normalise_reference};
use crate::runtime::embedded::images::{ImageError, ImageStore, NewImage, UnpackLimits, digest_of};

/// Only touched pages cost; TLS and decoders are deep in unoptimised builds.
const STACK_BYTES: usize = 1024 * 1024;

/// A document as it came.
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

/// Pulls an image into the store. Layers that are there are not asked for; nothing gets a name before all is there.
///
/// # Errors
/// What went wrong first. Layers that came in full stay for the next try.
pub fn pull(
    store: &ImageStore,
    request: &PullRequest,
    progress: &mut dyn FnMut(Progress),
) -> Result<Pulled, PullError> {
    let reference = normalise_reference(&request.image).map_err(|error| PullError::Reference {
        image: request.image.clone(),
        problem: crate::logging::chain(&error),
    })?;
    let platform = wanted_platform(&request.platform)?;
    let name = reference.to_string();
    let hosts = hosts_of(&reference.registry, &request.hosts_dirs, request.stall_timeout())?;
    let mut session = Session::new(hosts, &reference.repository, request.auth.clone());
    let resolve = |source| PullError::Resolve { reference: name.clone(), source: Box::new(source) };
    let unpack = |source| PullError::Unpack { reference: name.clone(), source: Box::new(source) };

    let first = resolve_reference(&mut session, &reference).map_err(resolve)?;
    progress(Progress::Resolved { reference: name.clone(), digest: first.digest.clone() });
    let (manifest, config, layers) =
        find_image(&mut session, &reference, &first, &platform).map_err(unpack)?;
    let config_bytes = fetch_config(&mut session, &config).map_err(unpack)?;
    let diff_ids = manifest::diff_ids(&config_bytes, layers.len(), &config.digest).map_err(unpack)?;
    let layers: Vec<Layer> =
        layers.into_iter().zip(diff_ids).map(|(blob, diff_id)| Layer { blob, diff_id }).collect();
    // From here on nobody collects layers that have no image yet.
    let _bringing = store.bring().map_err(PullError::Store).map_err(unpack)?;
    fetch_layers(store, &session, &layers, request.parallel_layers(), progress).map_err(unpack)?;
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
        // Collected between our look and our lock: once more, and now nobody may.
        Err(ImageError::LayerMissing(_)) => {
            fetch_layers(store, &session, &layers, request.parallel_layers(), progress).map_err(unpack)?;
            store.commit(new())
        }
        other => other,
    };
    let image = image.map_err(PullError::Store).map_err(unpack)?;
    progress(Progress::Done {
        image_id: image.id.clone(),
        reference: name.clone(),
        repo_digest: repo_digest.clone(),
    });
    Ok(Pulled { image_id: image.id, reference: name, repo_digest })
}

fn wanted_platform(text: &str) -> Result<Platform, PullError> {
    if text.is_empty() {
        return Ok(Platform::current());
    }
    let parts: Vec<&str> = text.split('/').collect();
    let (os, architecture, variant) = match parts[..] {
        [os, architecture] => (os, architecture, ""),
        [os, architecture, variant] => (os, architecture, variant),
        _ => {
            let problem = format!("platform {text:?}: write it as linux/arm64 or linux/arm/v7");
            return Err(PullError::Reference { image: text.to_owned(), problem });
        }
    };
    Ok(Platform { os: os.to_owned(), architecture: architecture.to_owned(), variant: variant.to_owned() })
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
    let ask = Ask { method: Method::Get, path: &path, headers: &headers, what };
    session.ask_any(&servers, |session, index| {
        let mut answer = session.ask(index, ask)?;
        let server = session.server_name(index).to_owned();
        let bytes =
            answer.read_all(MAX_MANIFEST_BYTES).map_err(|error| PullError::from_http(error, &server))?;
        let digest = digest_of(&bytes);
        let promised =
            if name.contains(':') { Some(name.to_owned()) } else { answer.header("docker-content-digest") };
        // Another algorithm of the header is no promise about ours.
        if let Some(promised) =
            promised.filter(|promised| promised.starts_with("sha256:") && *promised != digest)
        {
            return Err(invalid(promised, format!("the content has another digest, {digest}")));
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
    Err(invalid(&fetched.digest, "an index of indexes of indexes"))
}

fn fetch_config(session: &mut Session, config: &Descriptor) -> Result<Vec<u8>, PullError> {
    let mut nobody = |_: u64, _: LayerState| {};
    let mut reader = BlobReader::new(session, config, &mut nobody);
    reader.read_document(MAX_CONFIG_BYTES)
}

/// What a worker has to say.
enum Said {
    Moved(usize, u64, LayerState),
    Failed(PullError),
}

fn fetch_layers(
    store: &ImageStore,
    session: &Session,
    layers: &[Layer],
    parallel: usize,
    progress: &mut dyn FnMut(Progress),
) -> Result<(), PullError> {
    let next = AtomicUsize::new(0);
    let (said, heard) = mpsc::channel();
    let mut failure = None;
    for layer in layers {
        let state = if store.has_layer(&layer.diff_id) { LayerState::Exists } else { LayerState::Waiting };
        progress(moved(layer, 0, state));
    }
    std::thread::scope(|scope| {
        for _ in 0..parallel.min(layers.len()) {
            let (said, mut session, next) = (said.clone(), session.clone(), &next);
            let cancel = session.cancel.clone();
            let work = move || {
                while let Some((index, layer)) = take_next(layers, next) {
                    let mut tell = |done, state| drop(said.send(Said::Moved(index, done, state)));
                    if let Err(error) = fetch_layer(store, &mut session, layer, &mut tell) {
                        session.cancel.set();
                        let _ = said.send(Said::Failed(error));
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
                Said::Moved(index, done, state) => progress(moved(&layers[index], done, state)),
                // The others only say that they were cancelled.
                Said::Failed(error) => failure = Some(failure.take().unwrap_or(error)),
            }
        }
    });
    failure.map_or(Ok(()), Err)
}

fn take_next<'a>(layers: &'a [Layer], next: &AtomicUsize) -> Option<(usize, &'a Layer)> {
    let index = next.fetch_add(1, Ordering::Relaxed);
    layers.get(index).map(|layer| (index, layer))
}

fn moved(layer: &Layer, done: u64, state: LayerState) -> Progress {
    Progress::Layer { digest: layer.blob.digest.clone(), done, total: layer.blob.size, state }
}

fn fetch_layer(
    store: &ImageStore,
    session: &mut Session,
    layer: &Layer,
    tell: &mut dyn FnMut(u64, LayerState),
) -> Result<(), PullError> {
    if store.has_layer(&layer.diff_id) {
        tell(layer.blob.size, LayerState::Exists);
        return Ok(());
    }
    let mut reader = BlobReader::new(session, &layer.blob, tell);
    let fault = reader.fault();
    let unpacked = Decompress::new(&mut reader)
        .map_err(|error| invalid(&layer.blob.digest, format!("cannot be decompressed: {error}")))
        .and_then(|mut tar| {
            let limits = UnpackLimits::default();
            store.unpack_layer(&layer.diff_id, &mut tar, &limits).map_err(PullError::Store)
        });
    // The reader's own trouble is the cause, what the decoder made of it is not.
    if let Some(error) = fault.take() {
        return Err(error);
    }
    unpacked?;
    reader.finish()?;
    drop(reader);
    tell(layer.blob.size, LayerState::Done);
    Ok(())
}
