//! A server's membership of its cluster: joins, adopts epochs, renews its right, and removes servers that failed.
//!
//! The driver does what [`Membership::next`] returns, and tells what came of it. Nothing here waits. All knowledge of the cluster is a
//! [`View`]: of a read, or of the watch that follows it. Only a read renews a right. A view of the watch is adopted as soon as it comes, and
//! that may be before a right for its epoch: until then the server answers nothing.
//!
//! A run joins when it reaches itself at the address that the others will ping. If it does not, it joins after long: it may be at an address
//! that only others reach.
//!
//! A run that the configuration lacks answers nothing any more. One that was removed returns as another run, without its values. One that
//! has drained leaves.

use crate::config::{ChangeError, Config, Epoch, Incarnation, Server, ServerId, State};
use crate::detector::{Clocks, Detector, Rights};
use crate::facts::{Fact, View};
use crate::faults::is_planted;
use crate::member::{Role, Standing};
use crate::placement::Placement;
use crate::rights::{Fences, Renewal, Right, fence_time};

/// Nanoseconds between reads of a server that has no right to renew.
const READ_EVERY: u64 = 500_000_000;

/// Nanoseconds until a run that was removed joins again: at first, and at most. They double.
const REJOIN: (u64, u64) = (1_000_000_000, 60_000_000_000);

/// Nanoseconds that a run waits which does not reach itself, before it joins all the same: at first, and at most. They double.
const UNREACHED: (u64, u64) = (60_000_000_000, 3_600_000_000_000);

/// A server as it joins its cluster.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Identity {
    /// Its name on the ring.
    pub name: String,
    /// The addresses that clients use, best first.
    pub addresses: Vec<String>,
    /// Its share of the keys.
    pub weight: u16,
    /// How far its clock may be from the others', in nanoseconds.
    pub clock_skew: u64,
}

/// Work for the driver.
#[derive(Clone, PartialEq, Eq, Debug)]
#[must_use]
pub enum Action {
    /// Read all keys of the cluster, and call [`Membership::read`] or [`Membership::read_failed`].
    Read(Renewal),
    /// Send a ping to each of these runs: [`Membership::answered`], [`Membership::refused`].
    Ping(Vec<(ServerId, Incarnation)>),
    /// Ping this server at its own address, and call [`Membership::reached`] with the run that answers.
    PingSelf,
    /// Write and delete facts, and call [`Membership::written`].
    Write {
        /// Facts that go with this run's lease in etcd.
        leased: Vec<Fact>,
        /// Facts that stay.
        lasting: Vec<Fact>,
        /// Facts to delete.
        removed: Vec<Fact>,
    },
    /// Write this configuration if the one of [`Membership::view`] is still there, and call [`Membership::proposed`].
    Propose(Config),
    /// Take all keys into the epoch of [`Membership::config`], and call [`Membership::adopted`]. Until then no key has a standing, and other
    /// work goes on: reads, pings, facts and proposals, but no further epoch.
    ///
    /// Values of keys that this run is not the primary of are held before that: tags that were granted read them no more.
    Adopt,
    /// Make all values held, so that tags that were granted read none, and call [`Membership::held`]. Others may answer after that.
    Hold,
    /// Drop all values, draw another run and call [`Membership::restart`].
    Empty,
    /// Drop all values, and end: other servers have the keys.
    Leave,
}

/// The part of a run in its cluster.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Part {
    /// No view has come yet, or the cluster does not exist.
    Unknown,
    /// The run is no server of the cluster yet.
    Outside,
    /// The run is a server.
    Member(State),
    /// The run was a server, and was removed.
    Over,
    /// The run was a server, and its keys are on others.
    Drained,
}

/// A difference of etcd from what this run knows of it, which no time mends.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Mismatch {
    /// The cluster that this run belongs to is not there.
    Gone,
    /// Another cluster has its name: the number of that.
    Other(u128),
    /// The cluster is there as of an earlier revision than this run has seen: etcd lost writes.
    Earlier,
}

/// The membership of one run after another.
#[derive(Debug)]
pub struct Membership {
    identity: Identity,
    run: Incarnation,
    view: View,
    /// The configuration that this run adopted, and its rings.
    adopted: Option<(Config, Placement)>,
    /// When this run adopted an epoch: these fences may still run.
    adoptions: Vec<(Epoch, u64)>,
    right: Option<Right>,
    fences: Option<Fences>,
    detector: Option<Detector>,
    /// The epoch for which the keys of this run are repaired.
    repaired: Option<Epoch>,
    was_member: bool,
    /// It was draining in the configuration before.
    drained: bool,
    has_left: bool,
    /// The store of configurations shows another configuration of the epoch that this run adopted: it went back, and on from there.
    is_forked: bool,
    /// All values are held: it is no server any more.
    is_held: bool,
    under_way: UnderWay,
    /// Something was written, or could not be, and no read has shown what came of it.
    is_stale: bool,
    /// When the next read may begin, but for one that renews a right.
    read_at: u64,
    /// When the next proposal may be made.
    propose_at: u64,
    /// The epoch that this run has few versions left of.
    exhausted: Option<Epoch>,
    /// When this run may ask to join, and how long the next one waits.
    join_at: u64,
    rejoin: u64,
    /// When this run adopted its first epoch.
    since: Option<u64>,
    /// This run reached itself at the address that the others ping.
    is_reached: bool,
    /// When it pinged itself first, when it may again, and how long it waits for an answer before it joins without.
    pinged_self: Option<u64>,
    ping_self_at: u64,
    unreached: u64,
    /// The difference that the last read showed.
    mismatch: Option<Mismatch>,
}

/// The work that the driver has not reported the end of.
#[derive(Debug, Default)]
struct UnderWay {
    /// The revision that was shown when the read began.
    read: Option<i64>,
    proposal: bool,
    write: bool,
    adoption: bool,
    holding: bool,
    emptying: bool,
    /// The view that shows the last write has at least this revision.
    written: i64,
}

impl Membership {
    /// Returns the membership of a run that has no view of its cluster.
    pub fn new(identity: Identity, run: Incarnation) -> Self {
        Self {
            identity,
            run,
            view: View::default(),
            adopted: None,
            adoptions: Vec::new(),
            right: None,
            fences: None,
            detector: None,
            repaired: None,
            was_member: false,
            drained: false,
            has_left: false,
            is_forked: false,
            is_held: false,
            under_way: UnderWay::default(),
            is_stale: false,
            read_at: 0,
            propose_at: 0,
            exhausted: None,
            join_at: 0,
            rejoin: REJOIN.0,
            since: None,
            is_reached: false,
            pinged_self: None,
            ping_self_at: 0,
            unreached: UNREACHED.0,
            mismatch: None,
        }
    }

    /// Returns this run.
    pub fn run(&self) -> Incarnation {
        self.run
    }

    /// Returns the latest knowledge of the cluster.
    pub fn view(&self) -> &View {
        &self.view
    }

    /// Returns the configuration that this run adopted.
    pub fn config(&self) -> Option<&Config> {
        self.adopted.as_ref().map(|(config, _)| config)
    }

    /// Returns the part that this run has.
    pub fn part(&self) -> Part {
        match self.view.config() {
            None => Part::Unknown,
            Some(config) => match config.incarnation(self.run) {
                Some(server) => Part::Member(server.state),
                None if !self.was_member => Part::Outside,
                None if self.drained && config.is_whole() => Part::Drained,
                None => Part::Over,
            },
        }
    }

    /// Returns whether this run may answer for any key now.
    pub fn has_right(&self, now: u64) -> bool {
        self.may_answer() && self.right.as_ref().is_some_and(|right| right.is_in_force(now))
    }

    /// Returns whether the right of this run is in force now, whatever keys it may answer for.
    pub fn is_in_force(&self, now: u64) -> bool {
        self.right.as_ref().is_some_and(|right| right.is_in_force(now))
    }

    /// Returns whether a tag may be granted now that clients may use for `duration` nanoseconds.
    pub fn allows_tag(&self, now: u64, duration: u64) -> bool {
        self.may_answer() && self.right.as_ref().is_some_and(|right| right.allows_tag(now, duration))
    }

    /// Returns whether all keys are in the latest epoch that this run knows, and the run is in it.
    fn may_answer(&self) -> bool {
        let epoch = |config: &Config| (config.uuid(), config.epoch());
        let is_latest = self.config().map(epoch) == self.view.config().map(epoch);
        is_latest && !self.is_forked && !self.under_way.adoption && matches!(self.part(), Part::Member(_))
    }

    /// Returns the standing of this run for a key; None before it adopted an epoch, and while its keys are taken into one.
    pub fn standing(&self, key: &[u8], now: u64) -> Option<Standing> {
        // A key that was not taken into the epoch yet may have a value that it has to drop, or to complete first.
        let (config, placement) = self.adopted.as_ref().filter(|_| !self.under_way.adoption)?;
        let group = placement.group(key, config.policy(key).group_size());
        let me = config.incarnation(self.run).map(|server| server.id);
        let role = match me {
            Some(me) if group.primary() == Some(me) => Role::Primary,
            Some(me) if group.has(me) => Role::Backup,
            _ => Role::Outside,
        };
        let has_adopted = |run, epoch| self.view.facts().has_adopted(run, epoch);
        let is_fenced = role == Role::Primary
            && self.fences.as_ref().is_some_and(|fences| fences.until(key, now, has_adopted).is_some());
        Some(Standing {
            epoch: config.epoch(),
            role,
            has_right: self.has_right(now),
            is_fenced,
            is_whole: config.is_whole(),
            flushed: config.flushed(),
        })
    }

    /// Returns the next work, if there is some at this time.
    pub fn next(&mut self, now: u64) -> Option<Action> {
        if self.under_way.holding || self.under_way.emptying {
            return None;
        }
        if let Some(action) = self.next_of_keys(now) {
            return Some(action);
        }
        if self.under_way.read.is_none() && self.is_read_due(now) {
            self.under_way.read = Some(self.view.revision());
            self.read_at = now + READ_EVERY;
            // A run that is in no configuration yet has no lease: its first read is none that could renew a right.
            let unknown = &mut Right::new(0, self.run);
            return Some(Action::Read(self.right.as_mut().unwrap_or(unknown).renew(now)));
        }
        if self.part() == Part::Outside && !self.is_reached && now >= self.ping_self_at {
            self.ping_self_at = now + READ_EVERY;
            self.pinged_self.get_or_insert(now);
            return Some(Action::PingSelf);
        }
        let pings = self.detector.as_mut().map(|detector| detector.ping(now)).unwrap_or_default();
        if !pings.is_empty() {
            return Some(Action::Ping(pings));
        }
        if !self.under_way.write
            && !self.is_stale
            && self.view.revision() >= self.under_way.written
            && let Some(write) = self.to_write(now)
        {
            self.under_way.write = true;
            return Some(write);
        }
        if !self.under_way.proposal
            && !self.is_stale
            && now >= self.propose_at
            && let Some(config) = self.to_propose(now)
        {
            self.under_way.proposal = true;
            return Some(Action::Propose(config));
        }
        None
    }

    /// Returns the next work on all keys. It follows the one before: an epoch that comes while keys are taken into one waits.
    fn next_of_keys(&mut self, now: u64) -> Option<Action> {
        if self.under_way.adoption {
            return None;
        }
        if let Some(config) = self.to_adopt() {
            self.adopt(config, now);
            return Some(Action::Adopt);
        }
        let has_ended = matches!(self.part(), Part::Over | Part::Drained);
        if has_ended && !self.is_held && !is_planted("adopted-before-held") {
            self.under_way.holding = true;
            return Some(Action::Hold);
        }
        match self.part() {
            Part::Over if self.has_handed_over(now) => {
                self.under_way.emptying = true;
                Some(Action::Empty)
            }
            Part::Drained if !self.has_left && self.has_handed_over(now) => {
                self.has_left = true;
                Some(Action::Leave)
            }
            _ => None,
        }
    }

    /// Takes the view of a read.
    ///
    /// One that shows less than was known at its begin was not linearizable. It changes and renews nothing, as one of another cluster.
    pub fn read(&mut self, renewal: Renewal, view: View) {
        let known = self.under_way.read.take();
        self.mismatch = known.and_then(|known| self.differs(&view, known));
        if known.is_none_or(|known| view.revision() < known) || self.is_of_another(&view) {
            return;
        }
        self.is_stale = false;
        // A watch may have shown a later view meanwhile, and the right holds for that, too: it is over before others answer.
        self.changed(view);
        let Some(config) = self.view.config() else { return };
        let lease = u64::from(config.lease_ms()) * 1_000_000;
        if self.adopted.is_none() {
            // Until an epoch is adopted, the cluster may be made anew, with another lease.
            (self.right, self.fences) = (None, None);
        }
        let right = self.right.get_or_insert_with(|| Right::new(lease, self.run));
        right.answered(renewal, config);
        self.fences.get_or_insert_with(|| Fences::new(lease, self.run));
    }

    /// Takes the failure of a read. The next one follows when it is due.
    pub fn read_failed(&mut self) {
        self.under_way.read = None;
    }

    /// Takes a later view, of the watch. One of another cluster, or of an earlier revision, changes nothing.
    pub fn changed(&mut self, view: View) {
        if view.revision() < self.view.revision() || self.is_of_another(&view) {
            return;
        }
        self.view = view;
        let Some(config) = self.view.config() else { return };
        self.is_forked = self.config().is_some_and(|own| own.epoch() == config.epoch() && own != config);
        if let Some(server) = config.incarnation(self.run) {
            (self.was_member, self.drained) = (true, server.state == State::Draining);
            self.detector.get_or_insert_with(|| Detector::new(server.id, self.run)).follow(config);
        }
    }

    /// Returns how the last read differed from what this run knows.
    pub fn mismatch(&self) -> Option<Mismatch> {
        self.mismatch
    }

    /// Returns how a view differs that was read after revision `known` of etcd was shown.
    fn differs(&self, view: &View, known: i64) -> Option<Mismatch> {
        match (self.config(), view.config()) {
            (Some(_), None) => Some(Mismatch::Gone),
            (Some(own), Some(config)) if own.uuid() != config.uuid() => Some(Mismatch::Other(config.uuid())),
            _ => (view.revision() < known).then_some(Mismatch::Earlier),
        }
    }

    /// Returns whether a view shows another cluster than that of this run.
    fn is_of_another(&self, view: &View) -> bool {
        let is_other = |config: &Config| self.config().is_some_and(|own| own.uuid() != config.uuid());
        view.config().is_some_and(is_other)
    }

    /// Takes the end of a write of facts: the revision of etcd, or None if it failed.
    pub fn written(&mut self, revision: Option<i64>) {
        self.under_way.write = false;
        match revision {
            Some(revision) => self.under_way.written = revision,
            None => self.is_stale = true,
        }
    }

    /// Takes the end of a proposal. Whatever came of it, a read shows.
    ///
    /// `is_answered` tells that etcd wrote it, or that another came first. If it refused or did not answer, the next one waits.
    pub fn proposed(&mut self, now: u64, is_answered: bool) {
        self.under_way.proposal = false;
        (self.is_stale, self.read_at) = (true, now);
        self.propose_at = if is_answered { now } else { now + READ_EVERY };
    }

    /// Notes that this run has ordered half of the writes that an epoch has versions for: it proposes another.
    pub fn needs_epoch(&mut self, epoch: Epoch) {
        self.exhausted = Some(epoch);
    }

    /// Returns why this run cannot join the cluster that it sees; None if it can, or is in it.
    pub fn obstacle(&self) -> Option<ChangeError> {
        let config = self.view.config().filter(|_| self.part() == Part::Outside)?;
        self.joined(config).err()
    }

    /// Returns the next configuration, with this run.
    fn joined(&self, config: &Config) -> Result<Config, ChangeError> {
        let Identity { name, addresses, weight, .. } = &self.identity;
        // A run of the same name that lives may be a second server by mistake: they would displace each other for ever.
        let lives = |server: &Server| self.view.facts().is_alive(server.id, server.incarnation);
        if config.servers().iter().any(|server| server.name == *name && lives(server)) {
            return Err(ChangeError::NameTaken);
        }
        config.with_server(name, addresses.clone(), *weight, self.run)
    }

    /// Notes that all keys are in the epoch that was adopted.
    pub fn adopted(&mut self) {
        self.under_way.adoption = false;
    }

    /// Notes that all values are held.
    pub fn held(&mut self) {
        (self.under_way.holding, self.is_held) = (false, true);
    }

    /// Notes that the keys of this run are where this epoch wants them.
    pub fn repaired(&mut self, epoch: Epoch) {
        self.repaired = Some(epoch);
    }

    /// Begins another run, without values.
    pub fn restart(&mut self, run: Incarnation, now: u64) {
        let identity = self.identity.clone();
        // One that was a member for long begins with the shortest wait.
        let lasted = self.lasted(now).is_some_and(|lasted| lasted >= REJOIN.1);
        let rejoin = if lasted { REJOIN.0 } else { (self.rejoin * 2).min(REJOIN.1) };
        let may_be_reached = lasted || self.is_reached;
        let unreached = if may_be_reached { UNREACHED.0 } else { (self.unreached * 2).min(UNREACHED.1) };
        *self = Self { join_at: now + self.rejoin, rejoin, unreached, ..Self::new(identity, run) };
    }

    /// Takes the run that answered at this server's own address.
    pub fn reached(&mut self, run: Incarnation) {
        self.is_reached |= run == self.run;
    }

    /// Returns how long this run has been a server, in nanoseconds; None before it adopted an epoch.
    pub fn lasted(&self, now: u64) -> Option<u64> {
        self.since.map(|since| now.saturating_sub(since))
    }

    /// Returns how long this run waits yet before it joins, in nanoseconds: if it reaches itself, and if it does not.
    pub fn joins_in(&self, now: u64) -> (u64, u64) {
        let unreached = self.pinged_self.unwrap_or(now).saturating_add(self.unreached);
        (self.join_at.saturating_sub(now), self.join_at.max(unreached).saturating_sub(now))
    }

    /// Takes the answer of a run to a ping, and whether that has a right.
    pub fn answered(&mut self, id: ServerId, run: Incarnation, (clocks, has_right): (Clocks, bool), now: u64) {
        let own = self.is_in_force(now);
        if let Some(detector) = &mut self.detector {
            detector.answered(id, run, clocks, Rights { own, other: has_right });
        }
    }

    /// Takes a refused connection to a run.
    pub fn refused(&mut self, id: ServerId, run: Incarnation) {
        if let Some(detector) = &mut self.detector {
            detector.refused(id, run);
        }
    }

    fn is_read_due(&self, now: u64) -> bool {
        match &self.right {
            Some(right) if matches!(self.part(), Part::Member(_)) => {
                right.is_due(now) || self.is_stale && now >= self.read_at
            }
            _ => now >= self.read_at,
        }
    }

    /// Returns the configuration to be adopted. A run that is not in it adopts none: it answers nothing any more.
    fn to_adopt(&self) -> Option<Config> {
        let config = self.view.config().filter(|config| config.incarnation(self.run).is_some())?;
        let is_later = self.adopted.as_ref().is_none_or(|(own, _)| config.supersedes(own));
        (is_later && self.fences.is_some()).then(|| config.clone())
    }

    fn adopt(&mut self, config: Config, now: u64) {
        if let Some(fences) = &mut self.fences {
            fences.adopt(&config, now);
        }
        self.since.get_or_insert(now);
        let fence = self.fence(&config);
        self.adoptions.retain(|&(_, at)| now < at.saturating_add(fence));
        self.adoptions.push((config.epoch(), now));
        let placement = Placement::of(&config);
        self.adopted = Some((config, placement));
        (self.under_way.adoption, self.is_held) = (true, false);
    }

    fn fence(&self, config: &Config) -> u64 {
        fence_time(u64::from(config.lease_ms()) * 1_000_000)
    }

    /// Returns the latest epoch that this run adopted, all fences of which are over.
    ///
    /// An epoch in which it does not serve fences nothing by itself, and neither does one without it, when all values are held.
    fn unfenced(&self, now: u64) -> Option<Epoch> {
        let shown = self.view.config()?;
        if is_planted("adopted-told-early") {
            return Some(shown.epoch());
        }
        let fence = self.fence(shown);
        let is_removed = shown.incarnation(self.run).is_none();
        let is_over = |&&(_, at): &&(Epoch, u64)| now >= at.saturating_add(fence);
        let serves =
            |config: &Config| config.incarnation(self.run).is_some_and(|server| server.state != State::Joining);
        let may_be_read = is_removed && !self.is_held && !is_planted("adopted-before-held");
        if self.adoptions.iter().all(|adoption| is_over(&adoption)) && !serves(shown) && !may_be_read {
            return Some(shown.epoch());
        }
        match self.adoptions.split_last() {
            Some((&(epoch, _), before))
                if !serves(&self.adopted.as_ref()?.0) && before.iter().all(|one| is_over(&one)) =>
            {
                Some(epoch)
            }
            _ => self.adoptions.iter().filter(is_over).map(|&(epoch, _)| epoch).max(),
        }
    }

    /// Returns whether the successors of a run that is over wait for it no longer: it has written what they wait for, or need not.
    fn has_handed_over(&self, now: u64) -> bool {
        let Some(config) = self.view.config() else { return true };
        let end = self.right.as_ref().and_then(Right::end);
        self.view.facts().has_adopted(self.run, config.epoch())
            || self.detector.is_none()
            || end.is_none_or(|end| now >= end.saturating_add(self.fence(config)))
    }

    /// Returns the facts to be written and deleted, so that etcd has those that are true.
    fn to_write(&self, now: u64) -> Option<Action> {
        let (config, facts) = (self.view.config()?, self.view.facts());
        let detector = self.detector.as_ref()?;
        let id = detector.id();
        let is_member = config.incarnation(self.run).is_some();
        let (mut leased, removed) = if is_member { detector.changes(facts) } else { (Vec::new(), Vec::new()) };
        if is_member {
            leased.insert(0, Fact::Alive(id, self.run));
        }
        // While keys are taken into an epoch, some that it drops or hands over may be there yet.
        let unfenced = self.unfenced(now).filter(|_| !self.under_way.adoption);
        let adopted = unfenced.filter(|&epoch| !facts.has_adopted(self.run, epoch));
        let repaired = self.repaired.filter(|&epoch| is_member && epoch == config.epoch());
        let lasting = [
            adopted.map(|epoch| Fact::Adopted(id, self.run, epoch)),
            repaired.map(|epoch| Fact::Repaired(id, self.run, epoch)),
        ];
        leased.retain(|fact| !facts.has(fact));
        let lasting: Vec<Fact> = lasting.into_iter().flatten().filter(|fact| !facts.has(fact)).collect();
        let is_needed = !(leased.is_empty() && lasting.is_empty() && removed.is_empty());
        is_needed.then_some(Action::Write { leased, lasting, removed })
    }

    /// Returns the next configuration, if this run has to change the one that it sees.
    fn to_propose(&self, now: u64) -> Option<Config> {
        let (config, facts) = (self.view.config()?, self.view.facts());
        match self.part() {
            Part::Unknown | Part::Over | Part::Drained => None,
            // The driver tells users of an obstacle. One that no other reaches would be removed, and would join, without an end.
            Part::Outside => {
                let (reached, unreached) = self.joins_in(now);
                let wait = if self.is_reached { reached } else { unreached };
                (wait == 0).then(|| self.joined(config).ok()).flatten()
            }
            Part::Member(state) => {
                let detector = self.detector.as_ref()?;
                if let Some(dead) = detector.to_remove(config, facts) {
                    return config.without_server(dead).ok();
                }
                if state == State::Up && detector.is_clock_off(self.identity.clock_skew) {
                    return config.draining(detector.id()).ok();
                }
                if self.exhausted == Some(config.epoch()) {
                    return config.renewed().ok();
                }
                let is_repaired = |server: &Server| facts.has_repaired(server.incarnation, config.epoch());
                let may_be_whole = !config.is_whole() && config.servers().iter().all(is_repaired);
                may_be_whole.then(|| config.whole().ok()).flatten()
            }
        }
    }
}
