//! The library has threads, and functions that programs hold pointers to: it is never unloaded, whoever closes it.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
