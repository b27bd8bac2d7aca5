//! The name that programs find the shared library by when they run: `libmrrc.so.0`, for as long as its interface is compatible.

fn main() {
    println!("cargo::rerun-if-changed=build.rs");
    if std::env::var("CARGO_CFG_TARGET_OS").as_deref() == Ok("linux") {
        println!("cargo::rustc-cdylib-link-arg=-Wl,-soname,libmrrc.so.0");
        // Threads of a cache run its code: it is never unloaded.
        println!("cargo::rustc-cdylib-link-arg=-Wl,-z,nodelete");
    }
}
