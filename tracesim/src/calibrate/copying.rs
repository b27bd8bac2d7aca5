//! The cost of moving bytes by the processor alone: a stand-in for the transfer, where there is no card to make one.

use super::median;
use super::pages::Pages;
use std::hint::black_box;
use std::io;
use std::time::Instant;

/// Returns the median of copying so many bytes between two pieces of memory, in microseconds, for each size.
///
/// # Errors
/// The system's error when it is asked for memory.
pub fn copy_us(sizes: &[usize], rounds: u32) -> io::Result<Vec<f64>> {
    let largest = sizes.iter().copied().max().unwrap_or(0).max(1) as u64;
    let pages = largest.div_ceil(mrrc_core::PAGE);
    let (mut from, mut to) = (Pages::new(pages)?, Pages::new(pages)?);
    let (from, to) = (from.bytes_mut(), to.bytes_mut());
    let mut times = vec![Vec::new(); sizes.len()];
    for round in 0..=rounds {
        for (&bytes, times) in sizes.iter().zip(&mut times) {
            let begun = Instant::now();
            black_box(&mut *to)[..bytes].copy_from_slice(&black_box(&*from)[..bytes]);
            black_box(&mut *to);
            let taken = begun.elapsed();
            if round > 0 {
                times.push(taken.as_nanos() as f64 / 1e3);
            }
        }
    }
    Ok(times.iter_mut().map(|times| median(times)).collect())
}
