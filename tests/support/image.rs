//! The images tests run: docker archives that `scripts/images/build` makes from static programs, kept between tests.

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A shell and everyday programs.
pub const BUSYBOX: &str = "docker.io/library/busybox:1.36";
/// Writes the time of its first instruction into the file its argument names, then waits.
pub const STAMP: &str = "localhost/agent/stamp:1";

/// What the archives are made of; a change makes new ones.
const SOURCES: [&str; 3] = ["build", "pause.c", "stamp.c"];

/// The archives of all images, built at most once per content.
pub fn archives() -> Vec<PathBuf> {
    let sources = Path::new(env!("CARGO_MANIFEST_DIR")).join("scripts/images");
    let mut hasher = DefaultHasher::new();
    for name in SOURCES {
        fs::read(sources.join(name)).expect("read what images are made of").hash(&mut hasher);
    }
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("images-{:016x}", hasher.finish()));
    if !directory.exists() {
        build(&sources.join("build"), &directory);
    }
    ["busybox.tar", "pause.tar", "stamp.tar"].iter().map(|name| directory.join(name)).collect()
}

/// Builds under a name of its own and renames: tests in other processes may be at it too, and the first one wins.
fn build(script: &Path, directory: &Path) {
    let unfinished = directory.with_extension(std::process::id().to_string());
    let output = Command::new(script).arg(&unfinished).output().expect("start scripts/images/build");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "scripts/images/build: {}: {said}", output.status);
    if fs::rename(&unfinished, directory).is_err() {
        assert!(directory.exists(), "{} could not be put in place", directory.display());
        fs::remove_dir_all(&unfinished).expect("remove the archives that another test made first");
    }
}
