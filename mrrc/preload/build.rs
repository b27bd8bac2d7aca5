//! How the library is linked.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    // It has threads, and functions that programs hold pointers to: it is never unloaded.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    // Its own functions are meant where it names them, and not those of the same name in a library that was loaded before it.
    println!("cargo::rustc-cdylib-link-arg=-Wl,-Bsymbolic");
}
