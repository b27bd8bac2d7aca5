//! Figure 1 and Table 1: what registering costs beside moving the bytes, on this machine.
//!
//! The paper measured an InfiniBand card. Here registrations are those of the registrar that [`calibrate`](crate::calibrate)
//! measures, and copying by the processor stands for the transfer, so only the shape can be compared, and the claims say so.

use super::claim::Claim;
use crate::calibrate::Calibration;
use crate::report::{bytes, percent};
use mrrc_core::PAGE;

/// The measurements, or why there are none.
#[derive(Clone, PartialEq, Debug)]
pub struct Machine {
    /// Registrations, or what kept them from being measured.
    pub calibration: Result<Calibration, String>,
    /// Message sizes in bytes with what copying them takes, in microseconds.
    pub copies: Vec<(usize, f64)>,
}

/// The paper's message sizes: 1 to 128 KB.
pub const MESSAGES: [usize; 8] = [1 << 10, 2 << 10, 4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10];

/// The paper's Table 1: KB, fast and ordinary registration, over the fast one of 4 KB.
pub const TABLE_1: [(u64, f64, f64); 6] = [
    (4, 1.000, 79.124),
    (8, 1.014, 79.588),
    (16, 1.108, 79.313),
    (32, 1.237, 79.599),
    (64, 1.550, 79.387),
    (128, 2.027, 79.822),
];

impl Machine {
    /// Microseconds to register a message of so many bytes.
    pub fn register_us(&self, message: usize) -> Option<f64> {
        let pages = (message as u64).div_ceil(PAGE);
        Some(self.calibration.as_ref().ok()?.of_pages(pages)?.register_us)
    }

    /// Microseconds to register it over those to copy it.
    fn over_copy(&self, message: usize) -> Option<f64> {
        let (_, copy) = self.copies.iter().find(|(bytes, _)| *bytes == message)?;
        (*copy > 0.0).then(|| self.register_us(message).map(|register| register / copy))?
    }
}

/// Returns the claims.
pub fn claims(machine: &Machine) -> Vec<Claim> {
    const SMALL: &str = "1 KB: registering over moving the bytes";
    const GROWTH: &str = "registering 128 KB over 4 KB";
    const MODEL: &str = "registering costs a·p + b";
    let calibration = match &machine.calibration {
        Ok(calibration) => calibration,
        Err(why) => {
            return vec![
                Claim::open("Fig. 1", SMALL, "much higher", why),
                Claim::open("Table 1", GROWTH, "1.01 × (fast: 2.03 ×)", why),
                Claim::open("Section 4", MODEL, "a straight line", why),
            ];
        }
    };
    let mut claims = Vec::new();
    if let (Some(small), Some(large)) = (machine.over_copy(MESSAGES[0]), machine.over_copy(MESSAGES[7])) {
        let claim =
            Claim::measured("Fig. 1", SMALL, "much higher", "twice or more", format!("{small:.1} ×"), small >= 2.0);
        claims.push(claim.with_note(format!(
            "{} registers, a copy stands for the RDMA write; 128 KB: {large:.2} ×",
            calibration.registrar
        )));
        let rule = "over 128 KB's";
        let claim = "the smaller the message, the more registering weighs";
        let here = format!("{small:.1} ×");
        let claim = Claim::measured("Fig. 1", claim, "especially small ones", rule, here, small > large);
        claims.push(claim.with_note(format!("1 KB; 128 KB: {large:.2} ×")));
    }
    if let (Some(page), Some(most)) = (calibration.of_pages(1), calibration.of_pages(32)) {
        let growth = most.register_us / page.register_us;
        let note = format!(
            "{}: {:.2} µs for {}, {:.2} µs for {}; no card is written to, so pages are what costs",
            calibration.registrar,
            page.register_us,
            bytes(1),
            most.register_us,
            bytes(32)
        );
        let (paper, rule) = ("1.01 × (fast: 2.03 ×)", "1 to 2.03 ×");
        claims.push(
            Claim::measured("Table 1", GROWTH, paper, rule, format!("{growth:.2} ×"), (1.0..=2.03).contains(&growth))
                .with_note(note),
        );
    }
    let error = calibration.register.error.max(calibration.deregister.error);
    let note = format!("a, b, a', b' here: {} (--cost takes them)", calibration.as_option());
    let here = format!("{} off", percent(error));
    claims.push(
        Claim::measured("Section 4", MODEL, "a straight line", "within 10 %", here, error <= 0.1).with_note(note),
    );
    claims
}
