//! `LD_PRELOAD=libmrrc_fabric.so program` gives libfabric's registration cache the memory monitor of [`mrrc`].
//!
//! libfabric keeps its cache, and asks this library whether memory is still the same. `README.md` is the manual: when to use it, and
//! when the shim (`libmrrc_preload.so`) is better.
//!
//! # The files
//!
//! | | |
//! | --- | --- |
//! | `import.rs` | the import into libfabric, and the calls that libfabric makes |
//! | `watch.rs` | the monitor at work: `mrrc`'s userfaultfd, and the thread that notifies libfabric |
//! | `ledger.rs` | what is valid, and what libfabric has to be told of: pure decisions |
//! | `abi.rs` | libfabric's structures |

mod abi;
mod import;
mod ledger;
mod watch;

use std::ffi::c_int;

/// Imports the monitor into the libfabric of the process: `include/mrrc_fabric.h` is its manual.
#[expect(unsafe_code, reason = "a function of C's")]
#[unsafe(no_mangle)]
pub extern "C" fn mrrc_fabric_import() -> c_int {
    import::import().map_or_else(|error| error.code(), |()| 0)
}

/// Run when the library is loaded. Where the process has no libfabric it does nothing.
#[expect(unsafe_code, reason = "run by the dynamic linker")]
#[used]
#[unsafe(link_section = ".init_array")]
static AT_LOAD: extern "C" fn() = {
    extern "C" fn at_load() {
        import::at_load();
    }
    at_load
};
