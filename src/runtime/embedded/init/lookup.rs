//! Finds a program and a home directory in the container; errors have the wording of other runtimes.
//!
//! Owns nothing. Runs with the container's root and user.

use std::io;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use super::error::InitError;
use crate::platform::sys::container_root::{ContainerRoot, facts};
use crate::platform::sys::credentials::may_execute;
use crate::platform::sys::open::is_symlink_loop;

/// No more of a container's `/etc/passwd` is read.
const MAX_PASSWD: u64 = 1 << 20;

/// The file to execute for `program`: the first executable one in `path_variable` (the container's `PATH`),
/// unless `program` already names a file.
///
/// # Errors
/// `executable file not found in $PATH` and its kin.
pub(in crate::runtime) fn program(
    program: &str,
    path_variable: &str,
    directory: &Path,
) -> Result<PathBuf, InitError> {
    let error =
        |problem: &str| InitError::Program { program: program.to_owned(), problem: problem.to_owned() };
    let root = ContainerRoot::open(Path::new("/")).map_err(|source| error(&reason(&source)))?;
    if program.contains('/') {
        let path = PathBuf::from(program);
        return match executable(&root, &directory.join(&path)) {
            Ok(()) => Ok(path),
            Err(source) if source.kind() == io::ErrorKind::NotFound => {
                Err(error(&format!("stat {program}: no such file or directory")))
            }
            Err(source) => Err(error(&reason(&source))),
        };
    }
    let candidates = path_variable.split(':').filter(|_| !program.is_empty()).map(|entry| match entry {
        "" => PathBuf::from(".").join(program),
        entry => Path::new(entry).join(program),
    });
    for candidate in candidates {
        if executable(&root, &directory.join(&candidate)).is_ok() {
            return Ok(candidate);
        }
    }
    Err(error("executable file not found in $PATH"))
}

/// Magic links of procfs lead to files outside the container, such as the program of this very process.
fn executable(root: &ContainerRoot, path: &Path) -> io::Result<()> {
    let file = root.point(path)?;
    if facts(file.as_fd())?.is_directory {
        return Err(io::ErrorKind::IsADirectory.into());
    }
    may_execute(path)
}

/// Short words for the kernel's answer, as Go has them.
#[must_use]
pub(in crate::runtime) fn reason(error: &io::Error) -> String {
    match error.kind() {
        io::ErrorKind::NotFound => "no such file or directory".to_owned(),
        io::ErrorKind::PermissionDenied => "permission denied".to_owned(),
        _ if is_symlink_loop(error) => "permission denied".to_owned(),
        io::ErrorKind::IsADirectory => "is a directory".to_owned(),
        io::ErrorKind::NotADirectory => "not a directory".to_owned(),
        io::ErrorKind::ArgumentListTooLong => "argument list too long".to_owned(),
        // ENOEXEC has no kind of its own; 8 on every architecture.
        _ if error.raw_os_error() == Some(8) => "exec format error".to_owned(),
        _ => error.to_string(),
    }
}

/// The user's home directory by the container's `/etc/passwd`; `/` when there is none.
#[must_use]
pub(in crate::runtime) fn home(uid: u32) -> String {
    let passwd = ContainerRoot::open(Path::new("/"))
        .and_then(|root| root.read(Path::new("/etc/passwd"), MAX_PASSWD))
        .unwrap_or_default();
    home_in(&String::from_utf8_lossy(&passwd), uid).unwrap_or("/").to_owned()
}

fn home_in(passwd: &str, uid: u32) -> Option<&str> {
    let line =
        passwd.lines().find(|line| line.split(':').nth(2).and_then(|id| id.parse().ok()) == Some(uid))?;
    line.split(':').nth(5).filter(|home| home.starts_with('/') && !home.contains('\0'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_home_is_that_of_the_first_line_with_the_id() {
        let passwd = "bad\nroot:x:0:0:root:/r:/bin/sh\nweb:x:33:33::/var/www:/bin/sh\nagain:x:33:33::/other:/x\nno:x:7:7\n";
        assert_eq!(home_in(passwd, 33), Some("/var/www"));
        assert_eq!(home_in(passwd, 7), None);
        assert_eq!(home_in(passwd, 1), None);
    }
}
