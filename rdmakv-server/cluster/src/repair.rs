//! An agent's part in the repair of a key: all members get what the primary has published.
//!
//! The agent of a primary does this for each of its keys in an epoch that is not whole. Then it sends the fates of writes, and then it
//! reports that the server is repaired. Fates come last: a member that knows a write is done has its value, or a later one.

use std::collections::BTreeSet;

use crate::helper::{Calls, Completion, Progress, Target};
use crate::ids::{ServerId, Version};
use crate::messages::{Answer, Call, Form, Piece, Reply, Stored};

/// The repair of one key in one epoch.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct Repair {
    target: Target,
    /// Servers of the key that may be lost, by its policy.
    may_lose: usize,
    /// The members are too few for the fragments that the value was written in.
    is_short: bool,
    step: Step,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Step {
    Surveying,
    /// A write of an earlier epoch is completed first.
    Completing(Completion),
    Listing {
        value: Option<Stored>,
        waiting: Vec<ServerId>,
        found: Vec<(ServerId, Option<u8>)>,
    },
    /// The driver rebuilds or reads these pieces.
    Fetching {
        value: Stored,
        lacking: Vec<(ServerId, Form)>,
    },
    Sending(Version, Vec<ServerId>),
    Done,
}

impl Repair {
    /// Begins, and returns the first calls. The policy of the key lets `may_lose` servers of it be lost.
    pub fn begin(target: Target, may_lose: usize) -> (Self, Calls) {
        let calls = target.primary(Call::Survey);
        (Self { target, may_lose, is_short: false, step: Step::Surveying }, calls)
    }

    /// Returns whether the value outlives as many servers as its policy wants, once all members have what they should.
    ///
    /// Each member has a copy. Fragments of k + m that are on fewer members survive fewer losses, until more servers join.
    pub fn is_whole(&self) -> bool {
        !self.is_short
    }

    /// Returns whether members were sent what they lack, and some have not answered.
    pub fn is_sending(&self) -> bool {
        matches!(self.step, Step::Sending(..))
    }

    /// Returns whether each member has what it should.
    pub fn is_done(&self) -> bool {
        self.step == Step::Done
    }

    /// Returns what the driver has to fetch: the value, and the servers that lack it, each with the form of the piece it gets.
    ///
    /// A copy is read from the primary. A fragment is rebuilt from k others, all of the value's version, by
    /// [`Code::widest`](crate::codec::Code::widest). A driver that finds fewer, because
    /// a later write took their place, begins again.
    pub fn wants(&self) -> Option<(&Stored, &[(ServerId, Form)])> {
        if let Step::Fetching { value, lacking } = &self.step { Some((value, lacking)) } else { None }
    }

    /// Takes the pieces that [`Self::wants`] named, in the same order.
    pub fn fetched(&mut self, pieces: &[Piece]) -> Calls {
        let Step::Fetching { value, lacking } = &self.step else { return Calls::new() };
        let (id, version) = (value.id, value.version);
        let send = |(&(server, _), &piece): (&(ServerId, Form), &Piece)| {
            self.target.each(&[server], &Call::Repair { id, version, piece })
        };
        let calls = lacking.iter().zip(pieces).flat_map(send).collect();
        self.step = Step::Sending(version, lacking.iter().map(|&(server, _)| server).collect());
        calls
    }

    /// Takes a reply. Those of other epochs change nothing.
    pub fn take(&mut self, from: ServerId, reply: &Reply) -> Calls {
        if reply.epoch != self.target.epoch {
            return Calls::new();
        }
        match (&mut self.step, &reply.answer) {
            (Step::Surveying, Answer::Value(value)) => {
                let (value, others) = (value.clone(), self.target.others().to_vec());
                let version = value.as_ref().map_or(Version::ABSENT, |value| value.version);
                let calls = self.target.each(&others, &Call::List { version });
                self.step = Step::Listing { value, waiting: others, found: Vec::new() };
                self.listed();
                calls
            }
            (Step::Surveying, Answer::Help(pending)) => {
                let completion = Completion::of(pending, &self.target);
                let calls = completion.start(&self.target);
                self.step = Step::Completing(completion);
                calls
            }
            (Step::Completing(completion), answer) if reply.id == Some(completion.id()) => {
                match completion.take(&self.target, from, answer) {
                    Progress::Waiting(calls) => calls,
                    Progress::Ended(_, mut notes) => {
                        notes.extend(self.lost());
                        notes
                    }
                    Progress::Unknown => self.lost(),
                }
            }
            (Step::Listing { waiting, found, .. }, Answer::Has(index)) if waiting.contains(&from) => {
                waiting.retain(|&server| server != from);
                found.push((from, *index));
                self.listed();
                Calls::new()
            }
            (Step::Sending(version, waiting), Answer::Repaired(stored)) if version == stored => {
                waiting.retain(|&server| server != from);
                if waiting.is_empty() {
                    self.step = Step::Done;
                }
                Calls::new()
            }
            _ => Calls::new(),
        }
    }

    /// Begins again after an answer was lost. Each step may be repeated.
    pub fn lost(&mut self) -> Calls {
        if self.is_done() {
            return Calls::new();
        }
        self.step = Step::Surveying;
        self.target.primary(Call::Survey)
    }

    /// Goes on when all members told what they have.
    fn listed(&mut self) {
        let Step::Listing { value, waiting, found } = &self.step else { return };
        if !waiting.is_empty() {
            return;
        }
        let lacking: Vec<ServerId> =
            self.target.others().iter().copied().filter(|server| found.contains(&(*server, None))).collect();
        self.is_short = value.as_ref().is_some_and(|value| is_short(value, found, lacking.len(), self.may_lose));
        self.step = match value {
            Some(value) if !lacking.is_empty() => {
                let forms = forms(value, found, lacking.len());
                Step::Fetching { value: value.clone(), lacking: lacking.into_iter().zip(forms).collect() }
            }
            _ => Step::Done,
        };
    }
}

/// Returns whether a value has fewer than k + `may_lose` distinct fragments, also when `lacking` more members have one.
fn is_short(value: &Stored, found: &[(ServerId, Option<u8>)], lacking: usize, may_lose: usize) -> bool {
    let Form::Fragment { k, index } = value.piece.form else { return false };
    let there: BTreeSet<u8> = found.iter().filter_map(|&(_, found)| found).chain([index]).collect();
    there.len() + lacking < usize::from(k) + may_lose
}

/// Returns the forms of the pieces that `count` members lack: copies, or the fragments that no member has.
fn forms(value: &Stored, found: &[(ServerId, Option<u8>)], count: usize) -> Vec<Form> {
    match value.piece.form {
        form @ (Form::Copy | Form::Tombstone) => vec![form; count],
        Form::Fragment { k, index: own } => {
            let has = |index: u8| index == own || found.iter().any(|&(_, found)| found == Some(index));
            (0..u8::MAX).filter(|&index| !has(index)).take(count).map(|index| Form::Fragment { k, index }).collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::codec::{Code, MAX_FRAGMENTS, data_fragments, fragment_length};
    use crate::ids::{Epoch, WriteId};
    use crate::messages::Chunk;

    #[test]
    fn a_value_needs_all_fragments_it_was_written_in() {
        let of = |form| {
            let piece = Piece { chunk: Chunk(0), form, length: 9, sum: 0 };
            let id = WriteId { client: 1, sequence: 1 };
            Stored { id, version: Version(1), confirmed: Epoch(1), piece, is_staged: true }
        };
        let fragment = of(Form::Fragment { k: 4, index: 0 });
        let found = |indices: &[u8]| indices.iter().map(|&index| (ServerId(index), Some(index))).collect::<Vec<_>>();
        assert!(!is_short(&fragment, &found(&[1, 2, 3, 4, 5]), 0, 2) && !is_short(&fragment, &found(&[7, 8]), 3, 2));
        assert!(is_short(&fragment, &found(&[1, 2, 3, 4]), 0, 2) && is_short(&fragment, &found(&[1, 2]), 2, 2));
        assert!(is_short(&fragment, &found(&[1, 2, 3, 0, 4]), 0, 2), "two members have the same one");
        // A value that was written with fewer servers has fewer of them, and a copy is whole with any.
        assert!(!is_short(&of(Form::Fragment { k: 3, index: 0 }), &found(&[1, 2, 3, 4]), 0, 2));
        assert!(!is_short(&of(Form::Copy), &[], 1, 2));
    }

    proptest! {
        /// Whichever fragments members have of larger groups before, those that are lacking can be made, and any k make the value.
        #[test]
        fn lacking_fragments_are_of_the_code(k in 2_u8..6, indices in prop::collection::btree_set(0_u8..64, 6..12), lacking in 1_usize..50, whole in prop::collection::vec(any::<u8>(), 1..500)) {
            let indices: Vec<u8> = indices.into_iter().collect();
            let piece = Piece { chunk: Chunk(0), form: Form::Fragment { k, index: indices[0] }, length: whole.len() as u64, sum: 0 };
            let id = WriteId { client: 1, sequence: 1 };
            let value = Stored { id, version: Version(1), confirmed: Epoch(1), piece, is_staged: true };
            let found: Vec<_> = indices[1..].iter().map(|&index| (ServerId(index), Some(index))).collect();
            let forms = forms(&value, &found, lacking);
            prop_assert_eq!(forms.len(), lacking);

            let code = Code::widest(usize::from(k)).unwrap();
            let length = fragment_length(whole.len(), usize::from(k));
            let mut data: Vec<Vec<u8>> = data_fragments(&whole, usize::from(k)).into_iter().map(<[u8]>::to_vec).collect();
            data.iter_mut().for_each(|fragment| fragment.resize(length, 0));
            let mut parity = vec![vec![0; length]; MAX_FRAGMENTS - usize::from(k)];
            let slices: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            code.encode(&slices, &mut parity.iter_mut().map(Vec::as_mut_slice).collect::<Vec<_>>()).unwrap();
            let all: Vec<&[u8]> = data.iter().chain(&parity).map(Vec::as_slice).collect();
            let present: Vec<(usize, &[u8])> =
                indices[..usize::from(k)].iter().map(|&index| (usize::from(index), all[usize::from(index)])).collect();
            for form in forms {
                let Form::Fragment { index, .. } = form else { panic!("{form:?}") };
                prop_assert!(!indices.contains(&index));
                let mut made = vec![0; length];
                code.rebuild(length, &present, &mut [(usize::from(index), &mut made)]).unwrap();
                prop_assert_eq!(&made[..], all[usize::from(index)]);
            }
        }
    }
}
