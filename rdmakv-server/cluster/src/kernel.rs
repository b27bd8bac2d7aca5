//! Sums of products in GF(2^8), the only loop of the code that touches bytes. The one file of this crate with `unsafe`.

#![cfg_attr(target_arch = "x86_64", expect(unsafe_code, reason = "vector instructions and their loads"))]

/// The polynomial of the field, x^8 + x^4 + x^3 + x^2 + 1, without its highest term.
const POLYNOMIAL: u8 = 0x1d;

/// Rows that one pass over the inputs makes.
const ROWS_AT_ONCE: usize = 4;

/// Returns the product of two elements of the field.
pub(crate) const fn product(a: u8, b: u8) -> u8 {
    let (mut a, mut b, mut sum) = (a, b, 0);
    while b != 0 {
        if b & 1 != 0 {
            sum ^= a;
        }
        a = (a << 1) ^ if a & 0x80 != 0 { POLYNOMIAL } else { 0 };
        b >>= 1;
    }
    sum
}

/// Returns the inverse of an element, and 0 for 0.
pub(crate) const fn inverse(a: u8) -> u8 {
    // The 255 elements other than 0 are a group, so a^254 is the inverse of a.
    let (mut power, mut square, mut left) = (1, a, 254);
    while left != 0 {
        if left & 1 != 0 {
            power = product(power, square);
        }
        square = product(square, square);
        left >>= 1;
    }
    power
}

/// The products of one coefficient with each low and each high half of a byte.
#[derive(Clone, Copy, Debug)]
#[repr(align(32))]
pub(crate) struct Products {
    low: [u8; 16],
    high: [u8; 16],
}

impl Products {
    pub(crate) fn of(coefficient: u8) -> Self {
        let (mut low, mut high) = ([0; 16], [0; 16]);
        for half in 0..16u8 {
            low[usize::from(half)] = product(coefficient, half);
            high[usize::from(half)] = product(coefficient, half << 4);
        }
        Self { low, high }
    }

    fn with(&self, byte: u8) -> u8 {
        self.low[usize::from(byte & 15)] ^ self.high[usize::from(byte >> 4)]
    }
}

/// Makes each output the sum of the inputs, each multiplied by its coefficient. `rows` has one row for each output, and a row has one
/// coefficient for each input. All inputs and outputs have the same length.
pub(crate) fn sum_products(rows: &[Vec<Products>], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
    with_kernel(fastest(), rows, inputs, outputs);
}

type Kernel = fn(&[Vec<Products>], &[&[u8]], &mut [&mut [u8]]) -> usize;

fn with_kernel(kernel: Kernel, rows: &[Vec<Products>], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) {
    assert_eq!(rows.len(), outputs.len());
    let length = outputs.first().map_or(0, |output| output.len());
    assert!(outputs.iter().all(|output| output.len() == length));
    assert!(inputs.iter().all(|input| input.len() == length));
    assert!(rows.iter().all(|row| row.len() == inputs.len()));
    for (rows, outputs) in rows.chunks(ROWS_AT_ONCE).zip(outputs.chunks_mut(ROWS_AT_ONCE)) {
        let done = kernel(rows, inputs, outputs);
        plain(rows, inputs, outputs, done);
    }
}

/// Does the bytes from `from` on, one at a time.
fn plain(rows: &[Vec<Products>], inputs: &[&[u8]], outputs: &mut [&mut [u8]], from: usize) {
    for (row, output) in rows.iter().zip(outputs) {
        let output = &mut output[from..];
        output.fill(0);
        for (products, input) in row.iter().zip(inputs) {
            for (out, &byte) in output.iter_mut().zip(&input[from..]) {
                *out ^= products.with(byte);
            }
        }
    }
}

/// The kernel for any processor: leaves every byte to [`plain`].
fn none(_: &[Vec<Products>], _: &[&[u8]], _: &mut [&mut [u8]]) -> usize {
    0
}

#[cfg(not(target_arch = "x86_64"))]
fn fastest() -> Kernel {
    none
}

#[cfg(target_arch = "x86_64")]
fn fastest() -> Kernel {
    if std::arch::is_x86_feature_detected!("avx2") { x86::checked } else { none }
}

#[cfg(target_arch = "x86_64")]
mod x86 {
    use std::arch::x86_64::{
        __m128i, __m256i, _mm_load_si128, _mm256_and_si256, _mm256_broadcastsi128_si256, _mm256_loadu_si256,
        _mm256_set1_epi8, _mm256_setzero_si256, _mm256_shuffle_epi8, _mm256_srli_epi16, _mm256_storeu_si256,
        _mm256_xor_si256,
    };

    use super::Products;

    /// Bytes of each input that one turn of the loop takes: two registers, so that two sums are under way for each row.
    const BLOCK: usize = 64;

    /// Does all whole blocks and returns their length. The caller has checked that all lengths are equal.
    pub(super) fn checked(rows: &[Vec<Products>], inputs: &[&[u8]], outputs: &mut [&mut [u8]]) -> usize {
        assert!(std::arch::is_x86_feature_detected!("avx2"));
        let whole = outputs.first().map_or(0, |output| output.len()) / BLOCK * BLOCK;
        assert!(inputs.iter().all(|input| input.len() >= whole) && outputs.iter().all(|output| output.len() >= whole));
        assert!(rows.iter().all(|row| row.len() == inputs.len()));
        // SAFETY: `blocks` requires AVX2, which was detected above, and at least `whole` bytes in each input and output, as asserted.
        unsafe {
            match (rows, outputs) {
                ([a], [oa]) => blocks([a], inputs, [oa], whole),
                ([a, b], [oa, ob]) => blocks([a, b], inputs, [oa, ob], whole),
                ([a, b, c], [oa, ob, oc]) => blocks([a, b, c], inputs, [oa, ob, oc], whole),
                ([a, b, c, d], [oa, ob, oc, od]) => blocks([a, b, c, d], inputs, [oa, ob, oc, od], whole),
                _ => return 0,
            }
        }
        whole
    }

    /// # Safety
    ///
    /// The processor has AVX2. Each input and output has at least `whole` bytes, a multiple of [`BLOCK`].
    #[target_feature(enable = "avx2")]
    unsafe fn blocks<const ROWS: usize>(
        rows: [&[Products]; ROWS],
        inputs: &[&[u8]],
        outputs: [&mut [u8]; ROWS],
        whole: usize,
    ) {
        let rows = rows.map(|row| &row[..inputs.len()]);
        let outputs = outputs.map(<[u8]>::as_mut_ptr);
        for at in (0..whole).step_by(BLOCK) {
            // SAFETY: AVX2 is there and `at + BLOCK` is at most `whole`, which no input or output is shorter than: the caller promises
            // both. `Products` is aligned to 32 bytes and has two fields of 16, so each of them is aligned for `_mm_load_si128`.
            unsafe {
                let half = _mm256_set1_epi8(15);
                let mut sums = [[_mm256_setzero_si256(); 2]; ROWS];
                for (column, input) in inputs.iter().enumerate() {
                    let input = input.as_ptr().add(at).cast::<__m256i>();
                    let bytes = [_mm256_loadu_si256(input), _mm256_loadu_si256(input.add(1))];
                    let low = bytes.map(|bytes| _mm256_and_si256(bytes, half));
                    let high = bytes.map(|bytes| _mm256_and_si256(_mm256_srli_epi16::<4>(bytes), half));
                    for (row, sums) in rows.iter().zip(&mut sums) {
                        let Products { low: of_low, high: of_high } = &row[column];
                        let of_low = _mm256_broadcastsi128_si256(_mm_load_si128(of_low.as_ptr().cast::<__m128i>()));
                        let of_high = _mm256_broadcastsi128_si256(_mm_load_si128(of_high.as_ptr().cast::<__m128i>()));
                        for (part, sum) in sums.iter_mut().enumerate() {
                            let products = _mm256_xor_si256(
                                _mm256_shuffle_epi8(of_low, low[part]),
                                _mm256_shuffle_epi8(of_high, high[part]),
                            );
                            *sum = _mm256_xor_si256(*sum, products);
                        }
                    }
                }
                for (output, sums) in outputs.iter().zip(sums) {
                    let output = output.add(at).cast::<__m256i>();
                    _mm256_storeu_si256(output, sums[0]);
                    _mm256_storeu_si256(output.add(1), sums[1]);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn products_follow_the_field() {
        assert_eq!(product(0x80, 2), 0x1d);
        assert_eq!(product(3, 7), 9);
        for a in 1..=255 {
            assert_eq!(product(a, inverse(a)), 1, "{a}");
            assert_eq!(product(a, 1), a);
            for b in 0..=255 {
                assert_eq!(Products::of(a).with(b), product(a, b), "{a} × {b}");
            }
        }
        assert_eq!(inverse(0), 0);
    }

    #[test]
    fn kernels_agree() {
        for (count, lengths) in [(1, 0..130), (4, 0..130), (9, 190..194), (4, 4095..4099)] {
            for length in lengths {
                let inputs: Vec<Vec<u8>> =
                    (0..count).map(|i| (0..length).map(|at| (at * 31 + i * 7 + (at >> 5)) as u8).collect()).collect();
                let inputs: Vec<&[u8]> = inputs.iter().map(Vec::as_slice).collect();
                for rows in 1..=6 {
                    let products: Vec<Vec<Products>> = (0..rows)
                        .map(|row| (0..count).map(|i| Products::of((row * 50 + i * 3 + 1) as u8)).collect())
                        .collect();
                    let made = [none as Kernel, fastest()].map(|kernel| {
                        let mut outputs = vec![vec![0xaa; length]; rows];
                        let mut slices: Vec<&mut [u8]> = outputs.iter_mut().map(Vec::as_mut_slice).collect();
                        with_kernel(kernel, &products, &inputs, &mut slices);
                        outputs
                    });
                    assert_eq!(made[0], made[1], "{count} inputs of {length} bytes, {rows} rows");
                }
            }
        }
    }
}
