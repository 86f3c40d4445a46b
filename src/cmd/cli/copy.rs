//! `agent cp`: files to and from a container, as `kubectl cp`: over an exec of the container's own `tar`.
//!
//! Owns the local side of the archive. Archives from a container are not trusted: only regular files and
//! directories below the destination are written, and no link is ever created.

use crate::cmd::help;
use crate::model::ordered::Sortable as _;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

use tokio::sync::mpsc;

use super::args::{Common, Has, Own, UsageError, text, value};
use super::exec;
use super::table::printable;
use super::target::{self, FoundPod};
use super::{CliError, EXIT_OK, Environment, print};
use crate::platform::rt;
use crate::runtime::embedded::images::tar::{EntryKind, TarEntry, TarReader};
use crate::serve::streaming::client::{Ended, OutputStream};

/// Bytes of one block of an archive.
const BLOCK: usize = 512;
const PIECE: usize = 32 * 1024;
/// The most chunks queued between the threads.
const WAITING: usize = 4;
/// The longest error output of a program in the container, in bytes.
const MAX_WORDS: usize = 4096;

#[derive(Clone, Debug, PartialEq, Eq)]
enum CopyEnd {
    Local(PathBuf),
    Inside { namespace: Option<String>, pod: String, path: String },
}

impl CopyEnd {
    /// `[NAMESPACE/]POD:PATH`; everything else is a local path.
    fn parse(given: &str) -> Result<Self, UsageError> {
        let Some((pod, path)) = given.split_once(':').filter(|(pod, _)| !pod.starts_with(['.', '/'])) else {
            return Ok(Self::Local(given.into()));
        };
        let (namespace, pod) = match pod.split_once('/') {
            Some((namespace, pod)) => (Some(namespace.to_owned()), pod),
            None => (None, pod),
        };
        if pod.is_empty() || path.is_empty() {
            return Err(wrong(&format!("{given:?}: must be POD:PATH")));
        }
        Ok(Self::Inside { namespace, pod: pod.to_owned(), path: path.to_owned() })
    }
}

#[derive(Debug)]
struct CopyArgs {
    common: Common,
    container: Option<String>,
    ends: Vec<CopyEnd>,
}

fn wrong(message: &str) -> UsageError {
    UsageError::Option { message: message.to_owned() }
}

fn parse(arguments: &[String]) -> Result<CopyArgs, UsageError> {
    let mut wanted = CopyArgs { common: Common::default(), container: None, ends: Vec::new() };
    wanted.common = Common::parse(arguments, Has::Namespace, &mut |own, parser| {
        match own {
            Own::Option("-c" | "--container") => wanted.container = Some(text(value(parser)?)),
            Own::Word(word) if wanted.ends.len() < 2 => wanted.ends.push(CopyEnd::parse(word)?),
            _ => return Ok(false),
        }
        Ok(true)
    })?;
    if wanted.common.help {
        return Ok(wanted);
    }
    match wanted.ends[..] {
        [CopyEnd::Local(_), CopyEnd::Inside { .. }] | [CopyEnd::Inside { .. }, CopyEnd::Local(_)] => {
            Ok(wanted)
        }
        [_, _] => Err(wrong("exactly one of source and destination must be in a container, as POD:PATH")),
        _ => Err(wrong("source and destination are required: agent cp POD:PATH LOCAL")),
    }
}

pub(super) fn run(arguments: &[String], environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let wanted = parse(arguments).map_err(CliError::Usage)?;
    if wanted.common.help {
        print(environment, &help::text("cp"))?;
        return Ok(EXIT_OK);
    }
    rt::run(copy(&wanted, environment)).map_err(CliError::Runtime)?
}

async fn copy(wanted: &CopyArgs, environment: &mut Environment<'_>) -> Result<u8, CliError> {
    let inside = wanted.ends.iter().find_map(|end| match end {
        CopyEnd::Inside { namespace, pod, path } => Some((namespace, pod, path)),
        CopyEnd::Local(_) => None,
    });
    let local = wanted.ends.iter().find_map(|end| match end {
        CopyEnd::Local(path) => Some(path),
        CopyEnd::Inside { .. } => None,
    });
    let (Some((namespace, pod, path)), Some(local)) = (inside, local) else { return Ok(EXIT_OK) };
    let namespace = namespace.as_deref().unwrap_or(wanted.common.one_namespace());
    let found = target::find(&wanted.common.socket, namespace, pod).await?;
    let container = found.container(wanted.container.as_deref(), environment);
    let place = Inside { socket: &wanted.common.socket, found: &found, container: &container };
    if matches!(wanted.ends[0], CopyEnd::Local(_)) {
        place.upload(local, path, environment).await
    } else {
        place.download(path, local, environment).await
    }
}

struct Inside<'a> {
    socket: &'a Path,
    found: &'a FoundPod,
    container: &'a str,
}

fn failed(action: &str, path: &Path, error: &io::Error) -> CliError {
    CliError::Answer(format!("{action} {}: {error}", path.display()))
}

/// Directory and name of a path in a container. `/` and `.` have no name.
fn split(path: &str) -> (String, Option<String>) {
    let trimmed = path.trim_end_matches('/');
    let (directory, name) = match trimmed.rsplit_once('/') {
        Some(("", name)) => ("/", name),
        Some((directory, name)) => (directory, name),
        None if path.starts_with('/') => ("/", ""),
        None => (".", trimmed),
    };
    match name {
        "" | "." | ".." => (path.to_owned(), None),
        name => (directory.to_owned(), Some(name.to_owned())),
    }
}

impl Inside<'_> {
    /// Runs a command; its standard error is the error message when it fails.
    async fn exec(
        &self,
        command: &[&str],
        input: Option<mpsc::Receiver<Vec<u8>>>,
        mut take: impl FnMut(&[u8]) -> io::Result<()>,
    ) -> Result<(), CliError> {
        let mut words = Vec::new();
        let write = |output, piece: &[u8]| match output {
            OutputStream::Stdout => take(piece),
            OutputStream::Stderr => {
                words.extend_from_slice(piece);
                words.truncate(MAX_WORDS);
                Ok(())
            }
        };
        let all: Vec<String> = command.iter().map(|word| (*word).to_owned()).collect();
        let ended = exec::exec(self.socket, (self.found, self.container), &all, input, write).await?;
        let said = String::from_utf8_lossy(&words);
        match ended {
            Ended::Code(0) => Ok(()),
            Ended::Code(code) => {
                let said = printable(&said.trim().replace('\n', "; "));
                Err(CliError::Answer(format!(
                    "{} in the container exited with code {code}: {said}",
                    command[0]
                )))
            }
            Ended::Failed(words) if words.contains("tar") => {
                Err(CliError::Answer(format!("{words}: agent cp needs a tar program in the container")))
            }
            Ended::Failed(words) => Err(CliError::Answer(words)),
            Ended::Lost => Err(CliError::Answer("the connection was lost".to_owned())),
        }
    }

    async fn download(
        &self,
        path: &str,
        local: &Path,
        environment: &mut Environment<'_>,
    ) -> Result<u8, CliError> {
        let (directory, name) = split(path);
        let name = name.unwrap_or_else(|| ".".to_owned());
        let destination = if local.is_dir() && name != "." { local.join(&name) } else { local.to_owned() };
        let (pieces, source) = std::sync::mpsc::sync_channel::<Vec<u8>>(WAITING);
        let top = name.clone();
        let (done, unpacked) = std::sync::mpsc::channel();
        rt::spawn_thread("unpack", move || {
            let pieces = Pieces { source, current: Vec::new(), at: 0 };
            // The receiver waits for the result below.
            let _ = done.send(unpack(pieces, &top, &destination));
        })
        .map_err(CliError::Runtime)?;
        let member = format!("./{name}");
        let take = |piece: &[u8]| pieces.send(piece.to_vec()).map_err(|_| io::ErrorKind::BrokenPipe.into());
        let sent = self.exec(&["tar", "cf", "-", "-C", &directory, &member], None, take).await;
        drop(pieces);
        let unpacked =
            unpacked.recv().unwrap_or_else(|_| Err("the archive could not be unpacked".to_owned()));
        // The local error explains the remote broken pipe.
        let skipped = match (unpacked, sent) {
            (Err(words), Err(CliError::CommandOutput(_)) | Ok(())) => return Err(CliError::Answer(words)),
            (_, Err(error)) => return Err(error),
            (Ok(skipped), Ok(())) => skipped,
        };
        for line in skipped {
            let _ = writeln!(environment.err, "warning: {}", printable(&line));
        }
        Ok(EXIT_OK)
    }

    async fn upload(
        &self,
        local: &Path,
        path: &str,
        environment: &mut Environment<'_>,
    ) -> Result<u8, CliError> {
        let local = local.to_owned();
        fs::metadata(&local).map_err(|error| failed("read", &local, &error))?;
        let is_directory = self.exec(&["test", "-d", path], None, |_| Ok(())).await.is_ok();
        let own_name = fs::canonicalize(&local).ok().and_then(|path| path.file_name().map(ToOwned::to_owned));
        let own_name = own_name.map_or_else(|| "root".to_owned(), |name| name.to_string_lossy().into_owned());
        let (directory, name) = match split(path) {
            (directory, Some(name)) if !is_directory => (directory, name),
            _ => (path.to_owned(), own_name),
        };
        let (sender, input) = mpsc::channel(WAITING);
        let (done, packed) = std::sync::mpsc::channel();
        rt::spawn_thread("pack", move || {
            let mut archive = Archive { sender, skipped: Vec::new() };
            let added = archive.add(&local, Path::new(&name)).and_then(|()| archive.finish());
            // The receiver waits for the result below. The input has to be read to its end first.
            let Archive { sender, skipped } = archive;
            drop(sender);
            let _ = done.send(added.map(|()| skipped));
        })
        .map_err(CliError::Runtime)?;
        let sent = self.exec(&["tar", "xmf", "-", "-C", &directory], Some(input), |_| Ok(())).await;
        let packed = packed.recv().unwrap_or_else(|_| Err(io::Error::other("the archive could not be made")));
        let skipped = match (packed, sent) {
            // The remote error explains the local broken pipe.
            (Err(error), _) if error.kind() != io::ErrorKind::BrokenPipe => {
                return Err(CliError::Answer(error.to_string()));
            }
            (_, Err(error)) => return Err(error),
            (Err(error), Ok(())) => return Err(CliError::Answer(error.to_string())),
            (Ok(skipped), Ok(())) => skipped,
        };
        for line in skipped {
            let _ = writeln!(environment.err, "warning: {}", printable(&line));
        }
        Ok(EXIT_OK)
    }
}

/// Reads the chunks of another thread.
struct Pieces {
    source: std::sync::mpsc::Receiver<Vec<u8>>,
    current: Vec<u8>,
    at: usize,
}

impl Read for Pieces {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.at == self.current.len() {
            let Ok(next) = self.source.recv() else { return Ok(0) };
            (self.current, self.at) = (next, 0);
        }
        let count = buffer.len().min(self.current.len() - self.at);
        buffer[..count].copy_from_slice(&self.current[self.at..self.at + count]);
        self.at += count;
        Ok(count)
    }
}

/// Extracts the regular files and directories of an archive, whose entries are `top` and what is below it, as
/// `destination`. Returns the names that were skipped.
fn unpack(source: impl Read, top: &str, destination: &Path) -> Result<Vec<String>, String> {
    let mut archive = TarReader::new(source);
    let mut skipped = Vec::new();
    let mut is_empty = true;
    while let Some(entry) = archive.next_entry().map_err(|error| error.to_string())? {
        is_empty = false;
        let shown = entry.path.to_string_lossy().into_owned();
        let clean =
            TarEntry::below_root(&entry.path).ok_or_else(|| format!("{shown:?}: the path contains .."))?;
        let below = if top == "." { Some(clean.as_path()) } else { clean.strip_prefix(top).ok() };
        let below = below.ok_or_else(|| format!("{shown:?} was not requested"))?;
        let path =
            if below.as_os_str().is_empty() { destination.to_owned() } else { destination.join(below) };
        let failed = |error: io::Error| format!("write {}: {error}", path.display());
        let mode = fs::Permissions::from_mode(entry.mode & 0o777);
        match entry.kind {
            EntryKind::Directory => match fs::create_dir(&path) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && path.is_dir() => {}
                result => result.map_err(failed)?,
            },
            EntryKind::File => {
                let mut file = File::create(&path).map_err(failed)?;
                io::copy(&mut archive, &mut file).map_err(failed)?;
                file.set_permissions(mode).map_err(failed)?;
            }
            EntryKind::SymbolicLink | EntryKind::HardLink => {
                let kind = if entry.kind == EntryKind::HardLink { "hard" } else { "symbolic" };
                skipped.push(format!("skipping {kind} link: {shown} -> {}", entry.link.to_string_lossy()));
            }
            _ => skipped.push(format!("skipping {shown}: not a regular file")),
        }
    }
    if is_empty {
        return Err("the container sent no data: check that the path exists".to_owned());
    }
    // Blocks of zeros follow the end. Their sender must not fail, or the result of the whole copy would be its error.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(|error| error.to_string())?;
    Ok(skipped)
}

/// An archive that is sent into a container.
struct Archive {
    sender: mpsc::Sender<Vec<u8>>,
    skipped: Vec<String>,
}

impl Archive {
    fn send(&self, piece: Vec<u8>) -> io::Result<()> {
        self.sender.blocking_send(piece).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }

    /// Adds `path`, with everything below it, as `name`.
    fn add(&mut self, path: &Path, name: &Path) -> io::Result<()> {
        let named = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", path.display()));
        let about = fs::symlink_metadata(path).map_err(named)?;
        let kind = about.file_type();
        if kind.is_dir() {
            self.send(header(name, b'5', &about, 0, Path::new("")))?;
            let mut entries: Vec<_> =
                fs::read_dir(path).map_err(named)?.collect::<Result<_, _>>().map_err(named)?;
            entries.order_by_key(fs::DirEntry::file_name);
            for entry in entries {
                self.add(&entry.path(), &name.join(entry.file_name()))?;
            }
        } else if kind.is_file() {
            let mut file = File::open(path).map_err(named)?;
            self.send(header(name, b'0', &about, about.len(), Path::new("")))?;
            self.content(&mut file, about.len()).map_err(named)?;
        } else if kind.is_symlink() {
            self.send(header(name, b'2', &about, 0, &fs::read_link(path).map_err(named)?))?;
        } else {
            self.skipped.push(format!("skipping {}: not a regular file", path.display()));
        }
        Ok(())
    }

    /// Exactly the length in the header, even if the file changes meanwhile.
    fn content(&self, file: &mut File, size: u64) -> io::Result<()> {
        let mut left = size;
        while left > 0 {
            let mut piece = vec![0; usize::try_from(left).unwrap_or(PIECE).min(PIECE)];
            let count = file.read(&mut piece)?;
            if count == 0 {
                return Err(io::Error::new(
                    io::ErrorKind::UnexpectedEof,
                    "the file shrank while it was being read",
                ));
            }
            piece.truncate(count);
            left -= count as u64;
            self.send(piece)?;
        }
        self.send(padding(size))
    }

    fn finish(&self) -> io::Result<()> {
        self.send(vec![0; 2 * BLOCK])
    }
}

fn padding(size: u64) -> Vec<u8> {
    let over = usize::try_from(size % BLOCK as u64).unwrap_or_default();
    vec![0; (BLOCK - over) % BLOCK]
}

/// A ustar header, preceded by GNU's entries for long names.
fn header(name: &Path, kind: u8, about: &fs::Metadata, size: u64, link: &Path) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mode = about.mode() & 0o7777;
    let mtime = u64::try_from(about.mtime()).unwrap_or_default();
    for (text, long) in [(name, b'L'), (link, b'K')] {
        let text = text.as_os_str().as_bytes();
        if text.len() > 100 {
            let length = text.len() as u64 + 1;
            bytes.extend(block(b"././@LongLink", long, 0o644, length, 0, b""));
            bytes.extend_from_slice(text);
            bytes.push(0);
            bytes.extend(padding(length));
        }
    }
    let cut = |text: &Path| text.as_os_str().as_bytes().iter().take(100).copied().collect::<Vec<u8>>();
    bytes.extend(block(&cut(name), kind, mode, size, mtime, &cut(link)));
    bytes
}

fn block(name: &[u8], kind: u8, mode: u32, size: u64, mtime: u64, link: &[u8]) -> Vec<u8> {
    let mut block = vec![0; BLOCK];
    let mut put = |at: usize, field: &[u8]| block[at..at + field.len()].copy_from_slice(field);
    put(0, name);
    put(100, format!("{mode:07o}").as_bytes());
    put(108, b"0000000");
    put(116, b"0000000");
    put(124, &number(size));
    put(136, format!("{mtime:011o}").as_bytes());
    put(148, b"        ");
    put(156, &[kind]);
    put(157, link);
    put(257, b"ustar\x0000");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
    block
}

/// Octal, or GNU's binary form from 8 GiB on.
fn number(size: u64) -> [u8; 12] {
    let mut field = [0; 12];
    if size < 1 << 33 {
        field[..11].copy_from_slice(format!("{size:011o}").as_bytes());
    } else {
        field[0] = 0x80;
        field[4..].copy_from_slice(&size.to_be_bytes());
    }
    field
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ends_and_paths_are_read_as_kubectl_reads_them() {
        let inside = |namespace: Option<&str>, pod: &str, path: &str| CopyEnd::Inside {
            namespace: namespace.map(str::to_owned),
            pod: pod.to_owned(),
            path: path.to_owned(),
        };
        assert_eq!(CopyEnd::parse("web:/etc/x").unwrap(), inside(None, "web", "/etc/x"));
        assert_eq!(CopyEnd::parse("kube-system/web:x").unwrap(), inside(Some("kube-system"), "web", "x"));
        for local in ["x", "./a:b", "/a:b", "-"] {
            assert_eq!(CopyEnd::parse(local).unwrap(), CopyEnd::Local(local.into()));
        }
        let named = |path: &str| split(path).1;
        assert_eq!(split("/etc/passwd"), ("/etc".to_owned(), Some("passwd".to_owned())));
        assert_eq!(split("/etc/"), ("/".to_owned(), Some("etc".to_owned())));
        assert_eq!(split("x"), (".".to_owned(), Some("x".to_owned())));
        assert_eq!((named("/"), named("."), named("a/..")), (None, None, None));
        let said = |line: &str| {
            let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
            parse(&words).map(drop).unwrap_err().to_string()
        };
        assert!(said("a b").contains("POD:PATH") && said("p:a q:b").contains("POD:PATH"));
        assert!(said("p: b").contains("must be POD:PATH") && said("p:a").contains("agent cp"));
    }

    fn packed(root: &Path, name: &str) -> Vec<u8> {
        let (sender, mut pieces) = mpsc::channel(1024);
        let mut archive = Archive { sender, skipped: Vec::new() };
        archive.add(root, Path::new(name)).unwrap();
        archive.finish().unwrap();
        drop(archive);
        std::iter::from_fn(|| pieces.blocking_recv()).flatten().collect()
    }

    #[test]
    fn tree_comes_back_as_it_was_and_links_stay_out() {
        let root = std::env::temp_dir().join(format!("edge-agent-copy-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        let long = "n".repeat(120);
        fs::create_dir_all(root.join("from/deep").join(&long)).unwrap();
        fs::write(root.join("from/deep").join(&long).join("file"), vec![7; 100_000]).unwrap();
        fs::write(root.join("from/empty"), "").unwrap();
        let about = fs::metadata(root.join("from/empty")).unwrap();
        std::os::unix::fs::symlink("/etc/passwd", root.join("from/link")).unwrap();
        let mut bytes =
            header(Path::new("from"), b'5', &fs::metadata(root.join("from")).unwrap(), 0, Path::new(""));
        bytes.extend(header(Path::new("from/second"), b'1', &about, 0, Path::new("from/empty")));
        bytes.extend(packed(&root.join("from"), "from"));
        let mut source = &bytes[..];
        let skipped = unpack(&mut source, "from", &root.join("to")).unwrap();
        assert!(source.is_empty(), "read to its end, which is after that of the archive");
        assert_eq!(
            skipped,
            [
                "skipping hard link: from/second -> from/empty",
                "skipping symbolic link: from/link -> /etc/passwd"
            ]
        );
        assert_eq!(fs::read(root.join("to/deep").join(&long).join("file")).unwrap(), vec![7; 100_000]);
        assert_eq!(fs::read(root.join("to/empty")).unwrap(), b"");
        assert!(!root.join("to/second").exists() && root.join("to/link").symlink_metadata().is_err());
        fs::remove_dir_all(&root).unwrap();
    }

    #[test]
    fn archive_that_leads_elsewhere_is_refused() {
        let root = std::env::temp_dir().join(format!("edge-agent-copy-bad-{}", std::process::id()));
        let _ = fs::remove_dir_all(&root);
        fs::create_dir_all(&root).unwrap();
        fs::write(root.join("file"), "x").unwrap();
        for name in ["../out", "asked/../../out", "other"] {
            let bytes = packed(&root.join("file"), name);
            let said = unpack(&bytes[..], "asked", &root.join("to")).unwrap_err();
            assert!(said.contains("..") || said.contains("not requested"), "{said}");
        }
        assert!(unpack(&b""[..], "asked", &root.join("to")).unwrap_err().contains("no data"));
        assert!(!root.join("out").exists() && !root.parent().unwrap().join("out").exists());
        fs::remove_dir_all(&root).unwrap();
    }
}
