//! Arrays that grow by an eighth: what a cache keeps for each region is sized by the regions, and
//! doubling would leave half of it empty at the worst moment.

/// Appends to an array that grows by an eighth when it is full.
#[inline]
pub(crate) fn push<T>(array: &mut Vec<T>, value: T) {
    if array.len() == array.capacity() {
        array.reserve_exact(array.len() / 8 + 64);
    }
    array.push(value);
}
