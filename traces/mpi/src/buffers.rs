//! Which bytes a call of MPI uses, and how: decided from its arguments, without effects.
//!
//! Counts and displacements of `v` and `w` collectives are arrays of the program; [`List`] reads them.

use crate::list::List;

/// The recording's value for local rights.
pub(crate) const READ: u8 = 1;
pub(crate) const WRITE: u8 = 2;

/// Bytes that a call uses.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Buffer {
    pub(crate) address: u64,
    /// None, for no buffer.
    pub(crate) length: u64,
    /// [`READ`], [`WRITE`] or both.
    pub(crate) access: u8,
}

/// The buffers of a call: the one it sends from and the one it receives into.
pub(crate) type Used = [Buffer; 2];

/// No buffer.
pub(crate) const NOTHING: Buffer = Buffer { address: 0, length: 0, access: 0 };

/// The layout of a type.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Shape {
    /// From one item to the next.
    pub(crate) extent: i64,
    /// The first byte of an item that has data, from where the item is.
    pub(crate) lower: i64,
    /// From there to its last byte that has data.
    pub(crate) bytes: i64,
}

/// The participants.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Group {
    /// Ranks that are sent to and received from.
    pub(crate) size: i64,
    /// This one.
    pub(crate) rank: i64,
    /// Between two groups: how the root calls itself.
    pub(crate) inter: Option<i64>,
}

/// Queries to MPI.
pub(crate) trait Query {
    fn shape(&self, kind: usize) -> Option<Shape>;
    fn group(&self, comm: usize) -> Option<Group>;
}

/// Addresses below this are none: null, `MPI_BOTTOM` without displacement, and Open MPI's `MPI_IN_PLACE`.
const LOWEST: i128 = 4096;

/// `MPI_IN_PLACE` of MPICH, and of Open MPI. The other arguments of such a buffer, its type too, mean nothing and may be nothing.
fn is_in_place(base: usize) -> bool {
    base == usize::MAX || base == 1
}

/// Items at an address; `None` of them is no buffer.
pub(crate) fn items(base: usize, count: i64, shape: Shape, access: u8) -> Buffer {
    blocks(base, std::iter::once((0, count)), shape, access)
}

/// Blocks of items at distances in bytes, from the first byte to the last.
fn blocks(base: usize, blocks: impl Iterator<Item = (i128, i64)>, shape: Shape, access: u8) -> Buffer {
    if is_in_place(base) || shape.bytes <= 0 {
        return NOTHING;
    }
    let [extent, lower, bytes] = [shape.extent, shape.lower, shape.bytes].map(i128::from);
    let hull = blocks.filter(|&(_, count)| count > 0).fold(None, |hull: Option<(i128, i128)>, (distance, count)| {
        let first = base as i128 + distance + lower;
        let last = first + (i128::from(count) - 1) * extent;
        let (low, high) = (first.min(last), first.max(last) + bytes);
        Some(hull.map_or((low, high), |(l, h)| (l.min(low), h.max(high))))
    });
    match hull {
        Some((low, high)) if low >= LOWEST && high <= i128::from(i64::MAX) => {
            Buffer { address: low as u64, length: (high - low) as u64, access }
        }
        _ => NOTHING,
    }
}

/// The part that this rank has in a collective with a root.
struct Part {
    /// It has the root's buffer.
    is_root: bool,
    /// It has the buffer that all others have.
    is_other: bool,
}

fn part(group: Group, root: i64) -> Part {
    match group.inter {
        None => Part { is_root: group.rank == root, is_other: true },
        // `MPI_PROC_NULL` is below 0 as well, and has no part.
        Some(is_root) => Part { is_root: root == is_root, is_other: root >= 0 },
    }
}

/// The buffers of one call, by what is asked of MPI on the way.
pub(crate) struct Look<'a, A> {
    pub(crate) ask: &'a A,
}

impl<A: Query> Look<'_, A> {
    /// Returns a message.
    pub(crate) fn message(&self, base: usize, count: i64, kind: usize, access: u8) -> Buffer {
        if count <= 0 || is_in_place(base) {
            return NOTHING;
        }
        self.ask.shape(kind).map_or(NOTHING, |shape| items(base, count, shape, access))
    }

    /// As many items for each of the ranks.
    fn each(&self, base: usize, count: i64, kind: usize, group: Group, access: u8) -> Buffer {
        self.message(base, count.saturating_mul(group.size), kind, access)
    }

    /// Counts and displacements for each of the ranks.
    fn vector(&self, base: usize, counts: List, displacements: List, kind: usize, group: Group, access: u8) -> Buffer {
        if is_in_place(base) {
            return NOTHING;
        }
        let Some(shape) = self.ask.shape(kind) else { return NOTHING };
        let block = |at: usize| (i128::from(displacements.get(at)) * i128::from(shape.extent), counts.get(at));
        blocks(base, (0..group.size.max(0) as usize).map(block), shape, access)
    }

    /// Counts, displacements in bytes and types for each of the ranks.
    fn types(&self, base: usize, counts: List, displacements: List, kinds: List, group: Group, access: u8) -> Buffer {
        if is_in_place(base) {
            return NOTHING;
        }
        let each = (0..group.size.max(0) as usize).map(|at| {
            let shape = if counts.get(at) > 0 { self.ask.shape(kinds.get(at) as usize) } else { None };
            shape.map_or(NOTHING, |shape| {
                blocks(base, std::iter::once((i128::from(displacements.get(at)), counts.get(at))), shape, access)
            })
        });
        each.reduce(hull).unwrap_or(NOTHING)
    }

    pub(crate) fn bcast(&self, base: usize, count: i64, kind: usize, root: i64, comm: usize) -> Used {
        let Some(group) = self.ask.group(comm) else { return [NOTHING; 2] };
        let Part { is_root, is_other } = part(group, root);
        match (is_root, is_other) {
            (true, _) => [self.message(base, count, kind, READ), NOTHING],
            (_, true) => [NOTHING, self.message(base, count, kind, WRITE)],
            _ => [NOTHING; 2],
        }
    }

    /// Gathering: `all` is sent by every rank, `roots` received by the root.
    pub(crate) fn gathering(
        &self,
        comm: usize,
        root: i64,
        all: impl FnOnce(&Self) -> Buffer,
        roots: impl FnOnce(&Self, Group) -> Buffer,
    ) -> Used {
        let Some(group) = self.ask.group(comm) else { return [NOTHING; 2] };
        let Part { is_root, is_other } = part(group, root);
        [if is_other { all(self) } else { NOTHING }, if is_root { roots(self, group) } else { NOTHING }]
    }

    /// Scattering: `roots` is sent by the root, `all` received by every rank.
    pub(crate) fn scattering(
        &self,
        comm: usize,
        root: i64,
        roots: impl FnOnce(&Self, Group) -> Buffer,
        all: impl FnOnce(&Self) -> Buffer,
    ) -> Used {
        let [all, roots] = self.gathering(comm, root, all, roots);
        [roots, all]
    }

    /// A collective without a root.
    pub(crate) fn among(
        &self,
        comm: usize,
        sent: impl FnOnce(&Self, Group) -> Buffer,
        received: impl FnOnce(&Self, Group) -> Buffer,
    ) -> Used {
        let Some(group) = self.ask.group(comm) else { return [NOTHING; 2] };
        [sent(self, group), received(self, group)]
    }

    pub(crate) fn gathered(&self, base: usize, count: i64, kind: usize, group: Group, access: u8) -> Buffer {
        self.each(base, count, kind, group, access)
    }

    pub(crate) fn gathered_v(&self, base: usize, lists: [List; 2], kind: usize, group: Group, access: u8) -> Buffer {
        self.vector(base, lists[0], lists[1], kind, group, access)
    }

    pub(crate) fn gathered_w(&self, base: usize, lists: [List; 3], group: Group, access: u8) -> Buffer {
        self.types(base, lists[0], lists[1], lists[2], group, access)
    }

    /// Returns the buffer that `MPI_Reduce_scatter` reads: the items of all ranks.
    pub(crate) fn summed(&self, base: usize, counts: List, kind: usize, group: Group, access: u8) -> Buffer {
        let all = (0..group.size.max(0) as usize).fold(0_i64, |all, at| all.saturating_add(counts.get(at).max(0)));
        self.message(base, all, kind, access)
    }
}

fn hull(one: Buffer, other: Buffer) -> Buffer {
    match (one.length, other.length) {
        (0, _) => other,
        (_, 0) => one,
        _ => {
            let address = one.address.min(other.address);
            let end = (one.address + one.length).max(other.address + other.length);
            Buffer { address, length: end - address, access: one.access | other.access }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Types are bytes per item, communicators the rank here of four; 10 is more between two groups.
    struct Model;

    impl Query for Model {
        fn shape(&self, kind: usize) -> Option<Shape> {
            let bytes = kind as i64;
            (kind > 0).then_some(Shape { extent: bytes, lower: 0, bytes })
        }

        fn group(&self, comm: usize) -> Option<Group> {
            Some(Group { size: 4, rank: (comm % 10) as i64, inter: (comm >= 10).then_some(-4) })
        }
    }

    const LOOK: Look<'_, Model> = Look { ask: &Model };

    fn buffer(address: u64, length: u64, access: u8) -> Buffer {
        Buffer { address, length, access }
    }

    #[test]
    fn a_message_has_the_bytes_of_its_items() {
        assert_eq!(LOOK.message(0x10000, 10, 8, READ), buffer(0x10000, 80, READ));
        for (base, count, kind) in
            [(0x10000, 0, 8), (0x10000, -1, 8), (0x10000, 1, 0), (0, 1, 8), (1, 9, 8), (usize::MAX, 9, 8)]
        {
            assert_eq!(LOOK.message(base, count, kind, READ), NOTHING, "{base:#x} {count} {kind}");
        }
        assert_eq!(LOOK.message(0x10000, i64::MAX, 8, READ), NOTHING, "past the end of the address space");
    }

    #[test]
    fn nothing_is_asked_about_what_is_sent_in_place() {
        /// MPI ends a program that queries no type.
        struct Fatal;

        impl Query for Fatal {
            fn shape(&self, kind: usize) -> Option<Shape> {
                panic!("asked about type {kind}")
            }

            fn group(&self, comm: usize) -> Option<Group> {
                Model.group(comm)
            }
        }

        let (look, group) = (Look { ask: &Fatal }, Model.group(0).unwrap());
        let list = List::of_ints(&[1; 4]);
        for base in [1, usize::MAX] {
            assert_eq!(look.message(base, 1, 0, READ), NOTHING);
            assert_eq!(look.gathered(base, 1, 0, group, READ), NOTHING);
            assert_eq!(look.gathered_v(base, [list; 2], 0, group, READ), NOTHING);
            assert_eq!(look.gathered_w(base, [list; 3], group, READ), NOTHING);
        }
    }

    #[test]
    fn type_with_gaps_spans_first_to_last_byte() {
        let column = Shape { extent: 100, lower: 4, bytes: 8 };
        assert_eq!(items(0x10000, 3, column, WRITE), buffer(0x10004, 208, WRITE));
        let backwards = Shape { extent: -100, ..column };
        assert_eq!(items(0x10000, 3, backwards, WRITE), buffer(0x10004 - 200, 208, WRITE));
        let absolute = Shape { extent: 8, lower: 0x20000, bytes: 8 };
        assert_eq!(items(0, 1, absolute, READ), buffer(0x20000, 8, READ), "MPI_BOTTOM");
    }

    #[test]
    fn the_root_alone_has_the_buffer_of_all() {
        let gather = |root, comm| {
            let all = |look: &Look<'_, Model>| look.message(0x10000, 5, 1, READ);
            LOOK.gathering(comm, root, all, |look, group| look.gathered(0x20000, 5, 1, group, WRITE))
        };
        let (mine, all) = (buffer(0x10000, 5, READ), buffer(0x20000, 20, WRITE));
        assert_eq!(gather(2, 2), [mine, all]);
        assert_eq!(gather(2, 1), [mine, NOTHING]);
        assert_eq!(gather(-4, 10), [NOTHING, all], "the root between two groups sends nothing");
        assert_eq!(gather(0, 10), [mine, NOTHING]);
        assert_eq!(gather(-2, 10), [NOTHING; 2], "MPI_PROC_NULL");
        let bcast = |root, comm| LOOK.bcast(0x10000, 5, 1, root, comm);
        assert_eq!(bcast(1, 1), [mine, NOTHING]);
        assert_eq!(bcast(1, 0), [NOTHING, buffer(0x10000, 5, WRITE)]);
        assert_eq!(bcast(-2, 10), [NOTHING; 2]);
    }

    #[test]
    fn per_rank_counts_span_all_ranks() {
        let (counts, displacements) = ([1_i32, 0, 3, 2], [40_i32, -900, 0, 10]);
        let lists = [List::of_ints(&counts), List::of_ints(&displacements)];
        let group = Model.group(0).unwrap();
        let found = LOOK.gathered_v(0x10000, lists, 8, group, READ);
        assert_eq!(found, buffer(0x10000, 41 * 8, READ), "an empty block is nowhere");
        let kinds = [8_i32, 8, 16, 1];
        let lists = [List::of_ints(&counts), List::of_ints(&displacements), List::of_ints(&kinds)];
        let found = LOOK.gathered_w(0x10000, lists, group, READ);
        assert_eq!(found, buffer(0x10000, 48, READ), "displacements are bytes");
        assert_eq!(LOOK.summed(0x10000, List::of_ints(&counts), 8, group, READ), buffer(0x10000, 48, READ));
    }
}
