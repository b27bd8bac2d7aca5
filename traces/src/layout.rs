//! Addresses for what has none: files, objects, disks and clients.

use crate::Span;
use hashbrown::{Equivalent, HashMap};
use std::hash::Hash;

/// Names to numbers, from 0, in order of first appearance.
#[derive(Debug)]
pub(crate) struct Names<K> {
    numbers: HashMap<K, u32>,
}

impl<K> Default for Names<K> {
    fn default() -> Self {
        Self { numbers: HashMap::new() }
    }
}

impl<K: Eq + Hash> Names<K> {
    /// Returns the number of this name; beyond four billion, that of the last.
    pub(crate) fn number<Q>(&mut self, name: &Q) -> u32
    where
        Q: Hash + Equivalent<K> + ?Sized,
        for<'a> &'a Q: Into<K>,
    {
        if let Some(&number) = self.numbers.get(name) {
            return number;
        }
        let next = u32::try_from(self.numbers.len()).unwrap_or(u32::MAX);
        self.numbers.insert(name.into(), next);
        next
    }
}

/// The number of an object, as a name.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Id(pub(crate) u64);

impl From<&Id> for Id {
    fn from(id: &Id) -> Self {
        *id
    }
}

/// Bytes of address space for each device: a quarter of a tebibyte of terabytes, more than any disk has.
const DEVICE: u64 = 1 << 48;

/// Disks that share one address space: each has 256 TiB of it to itself, in order of first appearance.
#[derive(Debug, Default)]
pub(crate) struct Devices {
    names: Names<Box<[u8]>>,
    /// The last one asked for, as most requests go where the one before went.
    last: Option<(Box<[u8]>, u32)>,
}

/// Said of a request that no device can hold.
pub(crate) const PAST_DEVICE: &str = "the request lies past the end of any device";
/// Said of a request for nothing.
pub(crate) const NO_BYTES: &str = "the request is for no bytes";

impl Devices {
    /// Returns the place of the bytes on this device.
    pub(crate) fn span(&mut self, device: &[u8], offset: u64, length: u64) -> Result<Span, &'static str> {
        let number = match &self.last {
            Some((name, number)) if **name == *device => *number,
            _ => {
                let number = self.names.number(device);
                self.last = Some((device.into(), number));
                number
            }
        };
        if length == 0 {
            return Err(NO_BYTES);
        }
        let end = offset.checked_add(length).filter(|&end| end <= DEVICE);
        if end.is_none() || u64::from(number) >= u64::MAX / DEVICE {
            return Err(PAST_DEVICE);
        }
        Ok(Span { address: u64::from(number) * DEVICE + offset, length })
    }
}

/// Objects in order of first appearance, each as large as it ever is: page aligned, one after the other.
///
/// First all are [noted](Self::note), then [laid out](Self::lay_out), then [found](Self::find).
#[derive(Debug)]
pub(crate) struct Layout<K> {
    names: Names<K>,
    /// Bytes of each while they are noted; where each begins afterwards, and the end of the last.
    places: Vec<u64>,
    sizes: Vec<u64>,
    is_laid_out: bool,
}

impl<K> Default for Layout<K> {
    fn default() -> Self {
        Self { names: Names::default(), places: Vec::new(), sizes: Vec::new(), is_laid_out: false }
    }
}

/// Said of an object for which there is no room.
pub(crate) const NO_ROOM: &str = "the object does not fit into the address space";

/// Returns the start of an object of this size, and moves `next` behind it; `u64::MAX` if there is no room.
pub(crate) fn place(next: &mut u64, size: u64) -> u64 {
    let end = next.checked_add(size).and_then(|end| end.checked_next_multiple_of(mrrc_core::PAGE));
    end.map_or(u64::MAX, |end| std::mem::replace(next, end))
}

impl<K: Eq + Hash> Layout<K> {
    pub(crate) fn is_laid_out(&self) -> bool {
        self.is_laid_out
    }

    pub(crate) fn objects(&self) -> usize {
        self.sizes.len()
    }

    /// An object, and how large it is here.
    pub(crate) fn note<Q>(&mut self, name: &Q, size: u64)
    where
        Q: Hash + Equivalent<K> + ?Sized,
        for<'a> &'a Q: Into<K>,
    {
        let number = self.names.number(name) as usize;
        if self.sizes.len() <= number {
            self.sizes.resize(number + 1, 0);
        }
        self.sizes[number] = self.sizes[number].max(size);
    }

    /// Gives every object its place. An object that does not fit gets none.
    pub(crate) fn lay_out(&mut self) {
        let mut next = 0;
        self.places.extend(self.sizes.iter().map(|&size| place(&mut next, size)));
        self.is_laid_out = true;
    }

    /// Returns the start of the object and its size.
    pub(crate) fn find<Q>(&self, name: &Q) -> Result<Span, &'static str>
    where
        Q: Hash + Equivalent<K> + ?Sized,
    {
        // A file that changes between two readings has objects that were not there.
        let number = *self.names.numbers.get(name).ok_or("the object was not there at the first reading")? as usize;
        match (self.places.get(number), self.sizes.get(number)) {
            (Some(&address), Some(&length)) if address != u64::MAX => Ok(Span { address, length }),
            _ => Err(NO_ROOM),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_lie_side_by_side_at_largest_size() {
        let mut layout = Layout::<Id>::default();
        for (id, size) in [(7, 1), (3, 4096), (7, 5000), (9, 0), (1, 1)] {
            layout.note(&Id(id), size);
        }
        layout.lay_out();
        let found: Vec<_> = [7, 3, 9, 1].map(|id| layout.find(&Id(id)).unwrap()).into();
        let expected = [(0, 5000), (8192, 4096), (12288, 0), (12288, 1)];
        assert_eq!(found, expected.map(|(address, length)| Span { address, length }));
        assert!(layout.find(&Id(2)).is_err());
    }

    #[test]
    fn what_does_not_fit_has_no_place_and_moves_nothing() {
        let mut layout = Layout::<Id>::default();
        for (id, size) in [(1, 1), (2, u64::MAX), (3, 1), (4, u64::MAX - 4095)] {
            layout.note(&Id(id), size);
        }
        layout.lay_out();
        assert_eq!(layout.find(&Id(2)), Err(NO_ROOM));
        assert_eq!(layout.find(&Id(4)), Err(NO_ROOM));
        assert_eq!(layout.find(&Id(3)).unwrap().address, 4096);
    }

    #[test]
    fn devices_do_not_overlap() {
        let mut devices = Devices::default();
        let last = devices.span(b"a", DEVICE - 1, 1).unwrap();
        let first = devices.span(b"b", 0, 1).unwrap();
        assert_eq!(last.address + 1, first.address);
        assert_eq!(devices.span(b"a", DEVICE - 1, 2), Err(PAST_DEVICE));
        assert_eq!(devices.span(b"a", u64::MAX, u64::MAX), Err(PAST_DEVICE));
        assert_eq!(devices.span(b"a", 0, 0), Err(NO_BYTES));
    }
}
