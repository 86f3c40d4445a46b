//! Compiles `proto/` with protox, so that a build needs no protoc and no package of the system, and packs texts: the table of the
//! API's types, the objects of a control plane.
//!
//! Server code is generated too: it is generic, so what nobody instantiates never reaches the binary.

use std::error::Error;
use std::io::Write;
use std::path::{Path, PathBuf};

/// Compiled together; their imports are looked up in `ROOT`.
const FILES: [&str; 8] = [
    "proto/runtime/v1/api.proto",
    "proto/containerd/events.proto",
    "proto/containerd/tasks.proto",
    "proto/csi/csi.proto",
    "proto/grpc/health.proto",
    "proto/kubelet/deviceplugin.proto",
    "proto/kubelet/pluginregistration.proto",
    "proto/kubelet/podresources.proto",
];
const ROOT: &str = "proto";

/// Directories of texts, and the names under which `codec::packed` reads what becomes of them.
const TEXTS: [(&str, &str); 2] =
    [("src/model/api/schema", "schema.z"), ("src/cmd/control_plane/templates", "templates.z")];

/// The texts of `--help`.
const HELP: &str = "src/cmd/help";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    // At a fixed address: a second copy of the program (a pod's monitor) then has no relocations of its own to make, which
    // would be most of its memory (docs/adr/0017).
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
        // It aborts when it panics: tables for unwinding would be an eighth of it (docs/adr/0018).
        let script = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("packaging/no-unwind.ld");
        println!("cargo:rerun-if-changed={}", script.display());
        println!("cargo:rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{}", script.display());
        // Functions with equal code become one (docs/adr/0059).
        if links_with_lld()? {
            println!("cargo:rustc-link-arg-bins=-Wl,--icf=all");
        }
    }
    // ring's small curves need two more names (docs/adr/0057).
    if std::env::var("CARGO_CFG_TARGET_ARCH").as_deref() == Ok("x86_64") {
        let script = Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("packaging/ring.ld");
        println!("cargo:rerun-if-changed={}", script.display());
        println!("cargo:rustc-link-arg={}", script.display());
    }
    for file in FILES {
        println!("cargo:rerun-if-changed={file}");
    }
    let descriptors = protox::compile(FILES, [ROOT])?;
    tonic_prost_build::configure()
        .build_transport(false)
        .btree_map(".")
        .generate_default_stubs(true)
        .emit_rerun_if_changed(false)
        .compile_fds(descriptors)?;
    for (directory, name) in TEXTS {
        pack(&without_remarks(directory)?, name)?;
    }
    pack(&named(HELP)?, "help.z")
}

/// Whether the compiler links with the linker that it brings along, as it does for this target alone. GNU ld does not know the
/// option.
fn links_with_lld() -> Result<bool, Box<dyn Error>> {
    const TARGET: &str = "x86_64-unknown-linux-gnu";
    if std::env::var("TARGET")? != TARGET || std::env::var("HOST")? != TARGET {
        return Ok(false);
    }
    let output = std::process::Command::new(std::env::var("RUSTC")?).args(["--print", "sysroot"]).output()?;
    let sysroot = String::from_utf8(output.stdout)?;
    Ok(Path::new(sysroot.trim()).join("lib/rustlib").join(TARGET).join("bin/gcc-ld/ld.lld").exists())
}

/// The texts of a directory, in the order of their names.
fn texts_of(directory: &str) -> Result<Vec<PathBuf>, Box<dyn Error>> {
    println!("cargo:rerun-if-changed={directory}");
    let files = std::fs::read_dir(directory)?.collect::<Result<Vec<_>, _>>()?;
    let mut paths: Vec<_> = files.into_iter().map(|file| file.path()).collect();
    paths.retain(|path| path.extension().is_some_and(|extension| extension == "txt" || extension == "yaml"));
    paths.sort();
    Ok(paths)
}

/// Each text of a directory after its name, separated by NUL.
fn named(directory: &str) -> Result<String, Box<dyn Error>> {
    let mut texts = Vec::new();
    for path in texts_of(directory)? {
        let name = path.file_stem().and_then(|name| name.to_str()).ok_or("a name of a text is not UTF-8")?;
        texts.push(format!("{name}\n{}", std::fs::read_to_string(&path)?));
    }
    Ok(texts.join("\0"))
}

/// All texts of a directory without what is for their readers.
fn without_remarks(directory: &str) -> Result<String, Box<dyn Error>> {
    let mut texts = String::new();
    for path in texts_of(directory)? {
        for line in std::fs::read_to_string(path)?.lines() {
            if !line.is_empty() && !line.starts_with('#') {
                texts.push_str(line);
                texts.push('\n');
            }
        }
    }
    Ok(texts)
}

/// The length as four bytes, least significant first, then a zlib stream.
fn pack(texts: &str, name: &str) -> Result<(), Box<dyn Error>> {
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::best());
    packed.write_all(texts.as_bytes())?;
    let packed = packed.finish()?;
    let length = u32::try_from(texts.len())?.to_le_bytes();
    let out = std::env::var("OUT_DIR")?;
    // Renamed into place: target directories that are copies by hard links share the old file.
    let place = Path::new(&out).join(name);
    let new = place.with_extension("new");
    std::fs::write(&new, [&length[..], &packed[..]].concat())?;
    Ok(std::fs::rename(new, place)?)
}
