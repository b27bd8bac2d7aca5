//! Errors before the first registration, with their remedies.

use std::io;
use std::path::PathBuf;

/// Why there is no protection domain to register in, or no longer.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum VerbsError {
    /// libibverbs could not be opened.
    #[error(
        "open a device with verbs: no libibverbs.so.1 on this system: install it and the drivers of its devices (Debian: \
         libibverbs1, ibverbs-providers)"
    )]
    NoLibrary,
    /// No device at all.
    #[error(
        "open a device with verbs: this system has none: a card needs its driver and `ib_uverbs` (`modprobe ib_uverbs`); \
         without a card, any network interface can carry one in software: `modprobe rdma_rxe && rdma link add rxe0 type rxe \
         netdev eth0`"
    )]
    NoDevice,
    /// Devices, but none of this name.
    #[error(
        "open the device {asked:?}: there is none of this name, but {}: `rdma link show` lists them, and `rdma link add \
         {asked} type rxe netdev eth0` makes one in software", .found.join(", ")
    )]
    Unknown {
        /// The name.
        asked: String,
        /// Those that there are.
        found: Vec<String>,
    },
    /// The kernel has a device for which libibverbs has no driver.
    #[error(
        "open the device {device:?}: the kernel has it, and libibverbs does not: install the driver (Debian: \
         ibverbs-providers) and load `ib_uverbs`"
    )]
    NoDriver {
        /// Its name.
        device: String,
    },
    /// The device's file may not be opened by this process.
    #[error(
        "open the device {device:?}: {}: {source}: let this process read and write it: udev's rules do \
         (Debian: rdma-core), and a container needs `--device /dev/infiniband`", .file.display()
    )]
    Permission {
        /// Its name.
        device: String,
        /// The file.
        file: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// No port of the device is up.
    #[error(
        "open the device {device:?}: none of its ports is up ({}): plug the cable in, or bring its network interface up \
         (`rdma link show` names it, `ip link set dev NAME up`), or open it all the same by `DomainBuilder::port_may_be_down`",
         .states.join(", ")
    )]
    PortDown {
        /// Its name.
        device: String,
        /// The state of each port.
        states: Vec<String>,
    },
    /// The device went while it was in use.
    #[error(
        "the device {device:?} is gone (its driver was unloaded, or `rdma link delete`): what was registered with it is no \
         more, and nothing can be: open a device again, and make a new cache over it"
    )]
    Gone {
        /// Its name.
        device: String,
    },
    /// The device fails, and the system has it still: what is seen between its going and its being gone.
    #[error(
        "the device {device:?} fails: {source}: it is going away, or in trouble of which the kernel's log may tell (`dmesg`): \
         try again in a moment; if it is gone by then, the error says so"
    )]
    Failing {
        /// Its name.
        device: String,
        /// The system's error.
        source: io::Error,
    },
    /// Forks are not safe.
    #[error(
        "open the device {device:?}: pinned pages would not survive a fork of this process: {source}: this kernel (before \
         Linux 5.12) needs `ibv_fork_init` before the first registration of the process; open the domain earlier, or set \
         RDMAV_FORK_SAFE=1"
    )]
    Fork {
        /// Its name.
        device: String,
        /// libibverbs' error.
        source: io::Error,
    },
    /// Another call failed.
    #[error("{operation} of the device {device:?}: {source}{}", remedy(source))]
    Refused {
        /// The operation that failed.
        operation: &'static str,
        /// The device's name.
        device: String,
        /// The system's error.
        source: io::Error,
    },
}

fn remedy(error: &io::Error) -> &'static str {
    match error.raw_os_error() {
        Some(libc::ENOMEM) => {
            ": out of memory, out of the device's table, or over the limit of locked memory (`ulimit -l`, RLIMIT_MEMLOCK)"
        }
        Some(libc::EMFILE | libc::ENFILE) => ": too many open files (`ulimit -n`)",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_says_what_to_do() {
        let (device, refused) = (|| "rxe0".to_owned(), || io::Error::from_raw_os_error(libc::EACCES));
        for (error, remedy) in [
            (VerbsError::NoLibrary, "libibverbs1"),
            (VerbsError::NoDevice, "rdma link add"),
            (VerbsError::Unknown { asked: device(), found: vec!["siw0".into(), "mlx5_0".into()] }, "siw0, mlx5_0"),
            (VerbsError::NoDriver { device: device() }, "ibverbs-providers"),
            (
                VerbsError::Permission { device: device(), file: "/dev/infiniband/uverbs3".into(), source: refused() },
                "uverbs3",
            ),
            (VerbsError::PortDown { device: device(), states: vec!["port 1 is down".into()] }, "ip link set"),
            (VerbsError::Gone { device: device() }, "make a new cache"),
            (VerbsError::Failing { device: device(), source: io::Error::from_raw_os_error(libc::EIO) }, "dmesg"),
            (VerbsError::Fork { device: device(), source: refused() }, "RDMAV_FORK_SAFE"),
            (
                VerbsError::Refused {
                    operation: "allocate a protection domain",
                    device: device(),
                    source: io::Error::from_raw_os_error(libc::ENOMEM),
                },
                "ulimit -l",
            ),
        ] {
            assert!(error.to_string().contains(remedy), "{error}");
        }
    }
}
