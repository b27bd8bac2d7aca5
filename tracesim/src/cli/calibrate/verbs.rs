//! Calibrates the memory regions of an RDMA device. A tracesim that was built without says how to build one that can.

use super::{Calibration, Failure};

#[cfg(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux"))]
pub(super) fn measure(device: Option<&str>, rounds: u32) -> Result<Calibration, Failure> {
    use mrrc::registrar::verbs::{Domain, Verbs, VerbsError};

    // Registering takes no port that is up, but without a named device the user means a usable one.
    let builder = Domain::builder().port_may_be_down(device.is_some());
    let builder = match device {
        Some(name) => builder.device(name),
        None => builder,
    };
    let domain = builder.open().map_err(|error| match error {
        VerbsError::PortDown { device, states } => Failure::work(format_args!(
            "calibrate: no port of the device {device} is up ({}): bring it up, or measure it as it is: --device {device}",
            states.join(", ")
        )),
        error => Failure::work(format_args!("calibrate: {error}")),
    })?;
    let table = Verbs::new(&domain).map_err(|error| Failure::work(format_args!("calibrate: {error}")))?;
    let calibration = super::measure_one(&table, rounds)?;
    Ok(Calibration { device: Some(domain.device().to_owned()), ..calibration })
}

#[cfg(not(all(any(feature = "verbs", feature = "verbs-linked"), target_os = "linux")))]
pub(super) fn measure(_: Option<&str>, _: u32) -> Result<Calibration, Failure> {
    Err(Failure::work(
        "calibrate: this tracesim was built without verbs: on Linux, `cargo install --path tracesim --features verbs` builds it \
         with them (which takes cmake and libclang; Debian: cmake, libclang-dev)",
    ))
}
