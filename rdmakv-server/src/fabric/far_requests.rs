//! The requests for far memory of one connection.

use std::sync::Arc;
use std::time::Duration;

use frrwp::wire::Segment;
use mrrc::Access;
use rdmakv_proto::far::messages::{Answer, Entries, Refusal, Reply, Request, Token, Verb};
use rdmakv_proto::far::modules::{Modules, Stored};
use rdmakv_proto::messages::{Malformed, RemoteSegment, Segments};

use super::far::offers::{Caller, Refused, Take};
use super::far::{Far, NotDone, Part, now};
use super::origin::Origin;
use super::providers::{Fabric, FarOpened};
use super::state::FabricState;
use crate::metrics::count;

/// The rights of a region's owner.
const OWNER: Access = Access::REMOTE_READ.union(Access::REMOTE_WRITE);

/// The part of a connection that asks for far memory. It is dropped after the connection's engine, which is flushed then.
pub(super) struct FarRequests<'f, F: Fabric> {
    state: &'f FabricState<F>,
    /// The connection's number, once it has asked for something.
    joined: Option<(Arc<Far>, u64)>,
    /// Whether the client was told that the server stops.
    was_told: bool,
}

impl<'f, F: Fabric> FarRequests<'f, F> {
    pub(super) fn new(state: &'f FabricState<F>) -> Self {
        Self { state, joined: None, was_told: false }
    }

    /// Returns the notice that the server stops, once, for a client of far memory.
    pub(super) fn take_notice(&mut self) -> Option<Vec<u8>> {
        let within = self.joined.as_ref().filter(|_| !self.was_told)?.0.stops_within()?;
        self.was_told = true;
        let mut notice = Vec::new();
        let answer = Answer::Notice { millis: within.as_millis() as u64 };
        Reply { memory: 0, region: 0, epoch: 0, answer }.encode(&mut notice);
        Some(notice)
    }

    /// Returns whether a client that has not logged in may ask for this: a token is enough.
    pub(super) fn needs_no_login(request: &[u8]) -> bool {
        matches!(Request::decode(request), Ok(Request { verb: Verb::TagsByToken { .. }, .. }))
    }

    /// Carries a request out, for a client that logged in by this name, and writes the reply.
    ///
    /// # Errors
    ///
    /// The request makes no sense.
    pub(super) fn answer(
        &mut self,
        endpoint: &F::Endpoint,
        login: Option<&[u8]>,
        request: &[u8],
        into: &mut Vec<u8>,
    ) -> Result<(), Malformed> {
        let request = Request::decode(request)?;
        let Request { memory, region, epoch, verb } = request;
        let reply = |answer| Reply { memory, region, epoch, answer };
        let Some(far) = self.state.far.clone() else {
            refusal(verb.number(), Refusal::Unable.into(), reply).encode(into);
            return Ok(());
        };
        far.count_request(verb.number());
        let connection = self.joined.get_or_insert_with(|| (far.clone(), far.connection())).1;
        let caller = Caller { now: now(), login: far.login(login), connection };
        // Reads of the client are answered meanwhile.
        let is_long = || endpoint.expect_message(false);
        let done = match verb {
            Verb::Batch { batch } => far.batch(&caller, (memory, region), batch, &is_long).map(|replies| {
                Reply { memory, region, epoch, answer: Answer::Batch { replies: &replies } }.encode(into);
            }),
            Verb::Run(run) => far.run(&caller, (memory, region), &run, &is_long).map(|ended| {
                Reply { memory, region, epoch, answer: Answer::Run(ended.answer()) }.encode(into);
            }),
            _ => {
                Call { state: self.state, endpoint, far: &far, caller, request }.carry_out(into).map_err(NotDone::from)
            }
        };
        match done {
            Err(NotDone::Malformed(malformed)) => return Err(malformed),
            Err(NotDone::Refused(refused)) => {
                count(&far.counts().refused);
                into.clear();
                refusal(verb.number(), refused, reply).encode(into);
            }
            Ok(()) => {}
        }
        Ok(())
    }
}

fn refusal<'a>(verb: u8, Refused { why, room }: Refused, reply: impl Fn(Answer<'a>) -> Reply<'a>) -> Reply<'a> {
    reply(Answer::Refused { verb, why, room })
}

impl<F: Fabric> Drop for FarRequests<'_, F> {
    fn drop(&mut self) {
        if let Some((far, connection)) = self.joined.take() {
            far.leave(connection);
        }
    }
}

/// One request.
struct Call<'c, F: Fabric> {
    state: &'c FabricState<F>,
    endpoint: &'c F::Endpoint,
    far: &'c Far,
    caller: Caller,
    request: Request<'c>,
}

impl<F: Fabric> Call<'_, F> {
    /// Carries it out, and writes its reply.
    fn carry_out(&mut self, into: &mut Vec<u8>) -> Result<(), Refused> {
        let Self { far, caller, request: Request { memory, region, epoch, verb }, .. } = *self;
        let mut reply = |memory, answer| Reply { memory, region, epoch, answer }.encode(into);
        match verb {
            Verb::Offer => {
                let plan = far.plan();
                let regions = if F::HAS_FAR { far.room(caller.login) } else { 0 };
                reply(
                    memory,
                    Answer::Offer {
                        server: far.server(),
                        region_bytes: plan.region_bytes,
                        longest_millis: plan.longest.as_millis() as u64,
                        regions,
                        workers: plan.workers,
                    },
                );
            }
            Verb::Take { .. } if !F::HAS_FAR => return Err(Refusal::Unable.into()),
            Verb::Take { regions, of: total, millis, owner, secret, name, source } => {
                let (duration, from) = (Duration::from_millis(millis), source.map(|source| source.server));
                let take =
                    Take { memory, first: region, regions, total, epoch, duration, owner, secret, name, source: from };
                reply(memory, Answer::Take { secret: far.take(&caller, &take, source)? });
            }
            Verb::Tags { moves: false } => {
                let mut written = Vec::new();
                let segments = Segments::write(&[self.tag()?], &mut written);
                reply(memory, Answer::Tags { token: [0; 16], read: segments, write: segments });
            }
            Verb::Tags { moves: true } => {
                let token = far.begin_move(&caller, memory, region, epoch)?;
                let mut written = Vec::new();
                let none = Segments::write(&[], &mut written);
                reply(memory, Answer::Tags { token, read: none, write: none });
            }
            Verb::TagsByToken { token } => {
                let (mut written, mut none) = (Vec::new(), Vec::new());
                let read = Segments::write(&[self.tag_by_token(&token)?], &mut written);
                reply(memory, Answer::Tags { token, read, write: Segments::write(&[], &mut none) });
            }
            Verb::Freeze { to } => {
                let marks = far.freeze(&caller, (memory, region, epoch), to)?;
                reply(memory, Answer::Freeze { marks: &marks });
            }
            Verb::Pull { is_last, marks } => {
                let sum = far.pull(&caller, (memory, region, epoch), is_last, marks)?;
                reply(memory, Answer::Pull { sum });
            }
            Verb::Commit => {
                far.commit(&caller, (memory, region, epoch))?;
                // Each lane asks for a tag of its own.
                let mut written = Vec::new();
                let none = Segments::write(&[], &mut written);
                reply(memory, Answer::Commit { read: none, write: none });
            }
            Verb::Thaw => {
                far.thaw(&caller, (memory, region, epoch))?;
                reply(memory, Answer::Thaw);
            }
            Verb::Map { runs, .. } => {
                let here = runs.iter().filter(|run| run.server == far.server());
                let regions = here.map(|run| (run.first..run.first.saturating_add(run.regions), run.epoch));
                far.map(&caller, memory, regions)?;
                reply(memory, Answer::Map);
            }
            Verb::Renew { millis } => {
                let left = far.renew(&caller, memory, Duration::from_millis(millis))?;
                reply(memory, Answer::Renew { left_millis: left.as_millis() as u64 });
            }
            Verb::List { owner, secret, name } => {
                let list = far.list(&caller, (memory, name), (owner, &secret), region)?;
                let mut written = Vec::new();
                let entries = Entries::write(&list.entries, &mut written);
                let (server, left_millis) = (far.server(), list.left.as_millis() as u64);
                let (more, total) = (list.more, list.total);
                reply(list.memory, Answer::List { server, left_millis, more, total, entries });
            }
            Verb::Drop { to } => {
                let sum = far.drop_region(&caller, memory, (region, epoch), to)?;
                reply(memory, Answer::Drop { sum });
            }
            Verb::End => {
                far.end(&caller, memory)?;
                reply(memory, Answer::End);
            }
            Verb::Code { length, at, name, part } => {
                let length = far.store_module(caller.login, (length, at, name, part))?;
                reply(memory, Answer::Code { length });
            }
            Verb::Modules => {
                let (list, mut written) = (far.list_modules(caller.login)?, Vec::new());
                let stored = list.iter().map(|(name, length)| Stored { name, length: *length });
                reply(memory, Answer::Modules { modules: Modules::write(stored, &mut written) });
            }
            Verb::Forget { name } => {
                far.forget_module(caller.login, name)?;
                reply(memory, Answer::Forget);
            }
            Verb::Batch { .. } | Verb::Run(_) => return Err(Refusal::Unable.into()),
        }
        Ok(())
    }

    /// Returns the segment by which the connection accesses the region. It is made when it is first asked for.
    fn tag(&self) -> Result<RemoteSegment, Refused> {
        let Request { memory, region, epoch, .. } = self.request;
        let (place, part) = self.far.reach(&self.caller, memory, region, epoch)?;
        self.tag_of(place, &part, OWNER)
    }

    /// Returns the segment by which another server reads the region.
    fn tag_by_token(&self, token: &Token) -> Result<RemoteSegment, Refused> {
        let Request { memory, region, epoch, .. } = self.request;
        let (place, part) = self.far.reach_by_token((memory, region, epoch), token)?;
        self.tag_of(place, &part, Access::REMOTE_READ)
    }

    fn tag_of(&self, place: u32, part: &Part, access: Access) -> Result<RemoteSegment, Refused> {
        let Self { state, far, caller, request: Request { memory, region, .. }, .. } = *self;
        let segment = match state.far_tags.find(caller.connection, place) {
            Some(segment) => segment,
            None => self.open(place, part, access)?,
        };
        // The memory may have ended meanwhile, and its tags been closed before this one was there.
        if !far.has_place(memory, region, place) {
            state.close_far(|connection, of| (connection, of) == (caller.connection, place));
            return Err(Refusal::Unknown.into());
        }
        let Segment { address, length, key } = segment;
        Ok(RemoteSegment { address, length, key })
    }

    fn open(&self, place: u32, part: &Part, access: Access) -> Result<Segment, Refused> {
        let unable = |error: &dyn std::fmt::Display| {
            let name = F::NAME;
            self.state.shared.log.warn(format_args!("{name}: registering a region of far memory: {error}"));
            Refused::from(Refusal::Unable)
        };
        #[expect(unsafe_code, reason = "the region is lent to the fabric by its address")]
        // SAFETY: `acquire` requires that the memory stays as long as the lease; the tag keeps the lease, and the region's memory goes
        // after all tags of its place. Its bytes are the owner's: this process makes no reference of them.
        let leased = unsafe { self.state.cache.acquire(part.address(), part.bytes(), F::RIGHTS) };
        let leased = leased.map_err(|error| unable(&error))?;
        let opened = self.state.fabric.open_far(self.endpoint, leased, part, access);
        let FarOpened { tag, segment } = opened.map_err(|error| unable(&error))?;
        self.state.far_tags.add(self.caller.connection, place, tag, segment);
        Ok(segment)
    }
}
