//! Compiles `proto/` with protox, so that a build needs no protoc and no package of the system.
//!
//! Server code is generated too: it is generic, so what nobody instantiates never reaches the binary.

use std::error::Error;

/// Compiled together; their imports are looked up in `ROOT`.
const FILES: [&str; 4] = [
    "proto/runtime/v1/api.proto",
    "proto/containerd/events.proto",
    "proto/containerd/tasks.proto",
    "proto/grpc/health.proto",
];
const ROOT: &str = "proto";

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=build.rs");
    // At a fixed address: a second copy of the program (a pod's monitor) then has no relocations of its own to make, which
    // would be most of its memory (docs/adr/0017).
    if std::env::var("PROFILE").as_deref() == Ok("release") {
        println!("cargo:rustc-link-arg-bins=-no-pie");
        // It aborts when it panics: tables for unwinding would be an eighth of it (docs/adr/0018).
        let script =
            std::path::Path::new(&std::env::var("CARGO_MANIFEST_DIR")?).join("packaging/no-unwind.ld");
        println!("cargo:rerun-if-changed={}", script.display());
        println!("cargo:rustc-link-arg-bins=-Wl,--no-eh-frame-hdr");
        println!("cargo:rustc-link-arg-bins=-Wl,-T,{}", script.display());
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
    Ok(())
}
