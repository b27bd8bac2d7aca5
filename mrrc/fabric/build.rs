//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // It has threads, and functions that libfabric holds pointers to: it is never unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
