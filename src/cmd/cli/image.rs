//! `agent image`: the store of the embedded runtime, with or without the agent running.
//!
//! Owns the command's arguments and output.

mod progress;
mod pull;

use std::fmt::Write;
use std::path::{Path, PathBuf};

use lexopt::Arg;
use serde_json::{Value, json};

use super::args::{DEFAULT_ROOT_DIR, OutputFormat, UsageError, bad_option, text, value};
use super::{CliError, EXIT_FAILED, EXIT_OK, Environment, print, table, to_json, to_yaml};
use crate::cmd::help;
use crate::platform::logging::chain;
use crate::runtime::embedded::images::{Image, ImageError, ImageStore, normalise_reference};
use crate::runtime::embedded::layout::Layout;
use crate::runtime::embedded::registry::PullError;

const DEFAULT_STATE_DIR: &str = "/run/agent/runtime";
/// The longest record of a container, in bytes.
const MAX_RECORD: usize = 4 * 1024 * 1024;

#[derive(Debug, thiserror::Error)]
pub(super) enum ImageCommandError {
    #[error("open the image store {path:?}")]
    Open {
        path: PathBuf,
        #[source]
        source: ImageError,
    },
    #[error(transparent)]
    Store(#[from] ImageError),
    #[error("image {image:?} is used by a container: remove its pod first, or use --force")]
    InUse { image: String },
    /// A damaged record: its container may use any image.
    #[error(
        "cannot determine which images are used: record {path:?} is unreadable: \
         start the agent, which removes damaged records{}",
        if *can_force { ", or use --force" } else { "" }
    )]
    Unreadable { path: PathBuf, can_force: bool },
    #[error("determine which images are used: read {path:?}")]
    Records {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    #[error(transparent)]
    Pull(#[from] PullError),
    #[error("read credentials from {path:?}")]
    Credentials {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// The event loop or a signal handler could not be created.
    #[error("start a pull")]
    Start(#[source] std::io::Error),
}

struct ImageOptions {
    root_dir: PathBuf,
    state_dir: PathBuf,
    output: OutputFormat,
    quiet: bool,
    whole: bool,
    force: bool,
    help: bool,
    pull: pull::PullOptions,
    words: Vec<String>,
}

impl ImageOptions {
    fn parse(arguments: &[String]) -> Result<Self, UsageError> {
        let mut options = Self {
            root_dir: DEFAULT_ROOT_DIR.into(),
            state_dir: DEFAULT_STATE_DIR.into(),
            output: OutputFormat::Text,
            quiet: false,
            whole: false,
            force: false,
            help: false,
            pull: pull::PullOptions::default(),
            words: Vec::new(),
        };
        let mut parser = lexopt::Parser::from_args(arguments);
        while let Some(argument) = parser.next().map_err(|error| bad_option(&error))? {
            match argument {
                Arg::Long("root-dir") => options.root_dir = value(&mut parser)?.into(),
                Arg::Long("runtime-state-dir") => options.state_dir = value(&mut parser)?.into(),
                Arg::Short('o') | Arg::Long("output") => {
                    let given = text(value(&mut parser)?);
                    options.output = match given.as_str() {
                        "json" => OutputFormat::Json,
                        "yaml" => OutputFormat::Yaml,
                        "wide" => OutputFormat::Wide,
                        _ => return Err(UsageError::Output { given, allowed: "json, yaml, wide" }),
                    };
                }
                Arg::Short('q') | Arg::Long("quiet") => options.quiet = true,
                Arg::Long("no-trunc") => options.whole = true,
                Arg::Short('f') | Arg::Long("force") => options.force = true,
                Arg::Short('h') | Arg::Long("help") => options.help = true,
                // An option of `docker` and `crictl`, which connect to a daemon. It is accepted and ignored:
                // no daemon is needed here.
                Arg::Long("socket") => drop(value(&mut parser)?),
                Arg::Value(word) => options.words.push(text(word)),
                Arg::Long(name) if pull::OPTIONS.contains(&name) => {
                    let name = name.to_owned();
                    options.pull.set(&name, &mut parser)?;
                }
                other => return Err(bad_option(&other.unexpected())),
            }
        }
        if options.words.first().is_some_and(|action| action != "pull") {
            options.pull.check_unused()?;
        }
        Ok(options)
    }

    fn layout(&self) -> Layout {
        Layout::new(&self.root_dir.join("runtime"), &self.state_dir)
    }

    fn open(&self) -> Result<ImageStore, CliError> {
        let path = self.layout().images();
        Ok(ImageStore::open(&path).map_err(|source| ImageCommandError::Open { path, source })?)
    }
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let mut options = ImageOptions::parse(arguments).map_err(CliError::Usage)?;
    if options.help || options.words.is_empty() {
        print(environment, &help::text("image"))?;
        return Ok(EXIT_OK);
    }
    let action = options.words.remove(0);
    let needs_names =
        matches!(action.as_str(), "import" | "load" | "pull" | "rm" | "rmi" | "remove" | "inspect");
    if needs_names && options.words.is_empty() {
        let message = format!("missing image name: agent image {action} NAME...");
        return Err(CliError::Usage(UsageError::Option { message }));
    }
    match action.as_str() {
        "ls" | "list" => list(&options, environment),
        "import" | "load" => import(&options, environment),
        "pull" => pull::run(&options, environment),
        "rm" | "rmi" | "remove" => each(&options, environment, remove),
        "prune" => prune(&options, environment),
        "inspect" => inspect(&options, environment),
        _ => Err(CliError::Usage(UsageError::UnknownCommand { name: format!("image {action}") })),
    }
}

fn list(options: &ImageOptions, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let mut images = options.open()?.list().map_err(ImageCommandError::Store)?;
    if !options.words.is_empty() {
        let wanted: Vec<_> = options.words.iter().filter_map(|word| normalise_reference(word).ok()).collect();
        images.retain(|image| {
            let named = |name: &String| {
                let is_whole = options.words.iter().any(|word| word == name);
                let repository = name.split('@').next().unwrap_or(name);
                let repository = repository.rsplit_once(':').map_or(repository, |(repository, _)| repository);
                is_whole
                    || wanted.iter().zip(&options.words).any(|(reference, word)| {
                        reference.stored_name() == *name
                            || (!word.contains('@')
                                && !word.rsplit('/').next().unwrap_or(word).contains(':')
                                && reference.name() == repository)
                    })
            };
            image.repo_tags.iter().chain(&image.repo_digests).any(named)
        });
    }
    let answer = match options.output {
        _ if options.quiet => images.iter().flat_map(|image| [id(image, options), "\n".to_owned()]).collect(),
        OutputFormat::Json => to_json(&json!({"images": images.iter().map(document).collect::<Vec<_>>()}))?,
        OutputFormat::Yaml => to_yaml(&json!({"images": images.iter().map(document).collect::<Vec<_>>()}))?,
        _ => table::render(&rows(&images, options)),
    };
    print(environment, &answer)?;
    Ok(EXIT_OK)
}

fn rows(images: &[Image], options: &ImageOptions) -> Vec<Vec<String>> {
    let is_wide = options.output == OutputFormat::Wide;
    let mut head = vec!["IMAGE", "TAG", "IMAGE ID", "SIZE"];
    if is_wide {
        head.extend(["PINNED", "DIGEST", "SOURCE"]);
    }
    let mut rows = vec![head.into_iter().map(str::to_owned).collect::<Vec<_>>()];
    for image in images {
        let none = || ("<none>".to_owned(), "<none>".to_owned());
        let mut names: Vec<(String, String)> = image
            .repo_tags
            .iter()
            .map(|name| {
                name.rsplit_once(':').map_or_else(none, |(name, tag)| (name.to_owned(), tag.to_owned()))
            })
            .collect();
        if names.is_empty() {
            let name = image.repo_digests.first().and_then(|name| name.split('@').next());
            names.push((name.map_or_else(|| none().0, str::to_owned), none().1));
        }
        for (name, tag) in names {
            let digest = image
                .repo_digests
                .iter()
                .find_map(|digest| digest.strip_prefix(&name)?.strip_prefix('@'))
                .unwrap_or("<none>");
            let mut row = vec![name, tag, id(image, options), size(image.size_bytes)];
            if is_wide {
                let pinned = if image.pinned { "yes" } else { "no" };
                row.extend([pinned.to_owned(), digest.to_owned(), image.source.clone()]);
            }
            rows.push(row);
        }
    }
    rows
}

/// Shortened as in `docker images` and `crictl images`.
fn id(image: &Image, options: &ImageOptions) -> String {
    let whole = options.whole || (options.quiet && options.output != OutputFormat::Text);
    if whole { image.id.clone() } else { image.id.get(7..20).unwrap_or(&image.id).to_owned() }
}

/// Decimal units with three digits, as in `crictl images`.
fn size(bytes: u64) -> String {
    let mut unit = 1_u64;
    let mut names = ["B", "kB", "MB", "GB", "TB"].into_iter();
    let mut name = names.next().unwrap_or_default();
    while bytes / unit >= 1000 {
        let Some(next) = names.next() else { break };
        (unit, name) = (unit * 1000, next);
    }
    // In hundredths; a value beyond 2^64 / 100 has the largest unit.
    let hundredths = u128::from(bytes) * 100 / u128::from(unit);
    match hundredths {
        _ if unit == 1 => format!("{bytes}{name}"),
        0..1000 => format!("{}.{:02}{name}", hundredths / 100, hundredths % 100),
        1000..10_000 => format!("{}.{}{name}", hundredths / 100, hundredths % 100 / 10),
        _ => format!("{}{name}", hundredths / 100),
    }
}

fn document(image: &Image) -> Value {
    let defaults = &image.defaults;
    json!({
        "id": image.id,
        "repoTags": image.repo_tags,
        "repoDigests": image.repo_digests,
        "size": image.size_bytes,
        "pinned": image.pinned,
        "source": image.source,
        "layers": image.layers,
        "config": {
            "user": defaults.user,
            "env": defaults.env,
            "entrypoint": defaults.entrypoint,
            "cmd": defaults.cmd,
            "workingDir": defaults.working_dir,
            "stopSignal": defaults.stop_signal,
            "labels": defaults.labels,
            "volumes": defaults.volumes,
        },
    })
}

fn import(options: &ImageOptions, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    each(options, environment, |store, _, path| {
        let mut said = String::new();
        for image in store.import(Path::new(path))? {
            // Writing to a String cannot fail.
            let _ = match &image.repo_tags[..] {
                _ if options.quiet => writeln!(said, "{}", image.id),
                [] => writeln!(said, "Imported {} (untagged)", image.id),
                names => writeln!(said, "Imported {}", names.join(", ")),
            };
        }
        Ok(said)
    })
}

/// Runs it for each argument; after a failure it continues with the next.
fn each(
    options: &ImageOptions,
    environment: &mut Environment<'_>,
    act: impl Fn(&ImageStore, &ImageOptions, &str) -> Result<String, ImageCommandError>,
) -> Result<u8, CliError> {
    let store = options.open()?;
    let mut code = EXIT_OK;
    for word in &options.words {
        match act(&store, options, word) {
            Ok(said) => print(environment, &said)?,
            Err(error) => {
                // The write may fail: standard error may be closed, too.
                let _ = writeln!(environment.err, "error: {}", chain(&error));
                code = EXIT_FAILED;
            }
        }
    }
    Ok(code)
}

fn remove(store: &ImageStore, options: &ImageOptions, word: &str) -> Result<String, ImageCommandError> {
    let image = store.resolve(word)?.ok_or_else(|| ImageError::NotFound(word.to_owned()))?;
    // One of several names: the image keeps the others.
    let name = normalise_reference(word).ok().and_then(|name| name.tagged());
    if let Some(name) = name.filter(|name| image.repo_tags.contains(name) && image.repo_tags.len() > 1) {
        store.untag(&name)?;
        return Ok(format!("Untagged {name}\n"));
    }
    if !options.force {
        let used = in_use(&options.layout())?;
        if used.ids.contains(&image.id) {
            return Err(ImageCommandError::InUse { image: word.to_owned() });
        }
        if let Some(path) = used.unreadable {
            return Err(ImageCommandError::Unreadable { path, can_force: true });
        }
    }
    store.remove(&image.id)?;
    Ok(format!("Removed {}\n", image.id))
}

fn prune(options: &ImageOptions, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    if let Some(given) = options.words.first() {
        return Err(CliError::Usage(UsageError::Unexpected { given: given.clone() }));
    }
    let used = in_use(&options.layout())?;
    if let Some(path) = used.unreadable {
        return Err(ImageCommandError::Unreadable { path, can_force: false }.into());
    }
    let pruned = options.open()?.prune(&used.ids).map_err(ImageCommandError::Store)?;
    let mut said: String = pruned.images.iter().flat_map(|id| ["Removed ", id, "\n"]).collect();
    let _ = writeln!(
        said,
        "{} images, {} layers, {} freed",
        pruned.images.len(),
        pruned.layers,
        size(pruned.bytes)
    );
    print(environment, &said)?;
    Ok(EXIT_OK)
}

fn inspect(options: &ImageOptions, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let store = options.open()?;
    let mut found = Vec::new();
    let mut code = EXIT_OK;
    for word in &options.words {
        if let Some(image) = store.resolve(word).map_err(ImageCommandError::Store)? {
            found.push(document(&image));
        } else {
            let _ = writeln!(environment.err, "error: {}", ImageError::NotFound(word.clone()));
            code = EXIT_FAILED;
        }
    }
    let answer = if options.output == OutputFormat::Yaml { to_yaml(&found)? } else { to_json(&found)? };
    print(environment, &answer)?;
    Ok(code)
}

#[derive(Debug, Default, PartialEq, Eq)]
struct Used {
    ids: Vec<String>,
    /// A record from which the image cannot be determined.
    unreadable: Option<PathBuf>,
}

/// The images of all containers, from the agent's records.
fn in_use(layout: &Layout) -> Result<Used, ImageCommandError> {
    let list = |path: &Path| match std::fs::read_dir(path) {
        Ok(entries) => Ok(entries.flatten().map(|entry| entry.path()).collect::<Vec<_>>()),
        // There are no pods, or the agent has not run since boot.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Vec::new()),
        Err(source) => Err(ImageCommandError::Records { path: path.to_owned(), source }),
    };
    let mut used = Used::default();
    for sandbox in list(&layout.sandboxes())? {
        for container in list(&sandbox.join("containers"))? {
            let path = container.join("container.json");
            let bytes = match std::fs::read(&path) {
                Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                other => other.map_err(|source| ImageCommandError::Records { path: path.clone(), source })?,
            };
            let record: Option<Value> =
                (bytes.len() <= MAX_RECORD).then(|| serde_json::from_slice(&bytes).ok()).flatten();
            let id = record.and_then(|record| Some(record.get("image_id")?.as_str()?.to_owned()));
            match id {
                Some(id) => used.ids.push(id),
                None => used.unreadable = Some(path),
            }
        }
    }
    Ok(used)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_have_three_digits() {
        for (bytes, expected) in [
            (0, "0B"),
            (999, "999B"),
            (1000, "1.00kB"),
            (4_267_000, "4.26MB"),
            (77_800_000, "77.8MB"),
            (1_500_000_000_000_000, "1500TB"),
        ] {
            assert_eq!(size(bytes), expected);
        }
    }

    #[test]
    fn container_images_are_in_use_and_bad_records_reported() {
        let root = std::env::temp_dir().join(format!("agent-cli-image-{}", std::process::id()));
        let layout = Layout::new(&root, &root.join("state"));
        assert_eq!(in_use(&layout).unwrap(), Used::default());
        let container = root.join("state/sandboxes/s/containers/c");
        std::fs::create_dir_all(&container).unwrap();
        assert_eq!(in_use(&layout).unwrap(), Used::default());
        std::fs::write(container.join("container.json"), "{\"image_id\": \"sha256:1\"}").unwrap();
        let known = Used { ids: vec!["sha256:1".to_owned()], unreadable: None };
        assert_eq!(in_use(&layout).unwrap(), known);
        for damaged in ["", "{", "{}", "[]", "{\"image_id\": 1}"] {
            let other = root.join("state/sandboxes/s/containers/d");
            std::fs::create_dir_all(&other).unwrap();
            std::fs::write(other.join("container.json"), damaged).unwrap();
            let used = in_use(&layout).unwrap();
            assert_eq!(used.unreadable, Some(other.join("container.json")), "{damaged}");
        }
        std::fs::remove_dir_all(&root).unwrap();
    }
}
