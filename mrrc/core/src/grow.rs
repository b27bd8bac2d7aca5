//! Arrays that grow by an eighth: what a cache keeps for each region is sized by the regions, and
//! doubling would leave half of it empty at the worst moment.

/// Appends to an array that grows by an eighth when it is full.
#[inline]
pub(crate) fn push<T>(array: &mut Vec<T>, value: T) {
    push_within(array, value, usize::MAX);
}

/// The same, of an array that is mostly no longer than `limit`: room beyond is made only when it is needed.
#[inline]
pub(crate) fn push_within<T>(array: &mut Vec<T>, value: T, limit: usize) {
    if array.len() == array.capacity() {
        let more = array.len() / 8 + 64;
        let left = limit.saturating_sub(array.len());
        array.reserve_exact(if left > 0 { more.min(left) } else { more });
    }
    array.push(value);
}
