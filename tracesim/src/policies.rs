//! The policies that a simulation runs, by name.
//!
//! [`builtin`] lists those of this crate. A policy of another crate takes part in the same way: implement [`Policy`], make a
//! [`PolicyEntry`] of it, and give it to [`main_with`](crate::main_with), which is the command with more policies, or to
//! [`simulate::replay`](crate::simulate::replay). `examples/own-policy` is such a program.

use crate::replayer::{Recency, ReplayError, Replayed, Watch, replay_with};
use mrrc_core::policy::{Policy, PolicyKind, PolicyParams, Scheme};
use mrrc_core::{Config, ConfigError, Core};
use std::fmt;
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::str::FromStr;
use std::sync::Arc;
use traces::Process;
use tracesim_policies::AnyPolicy;
use tracesim_policies::fifo::Fifo;

/// A policy by name: how it is made, and the replay loop for it.
#[derive(Clone)]
pub struct PolicyEntry {
    name: &'static str,
    help: &'static str,
    replays: Arc<dyn Replays>,
}

/// A policy whose type is hidden behind one call for a whole replay.
trait Replays: Send + Sync {
    fn build(&self, params: &PolicyParams) -> Box<dyn Policy + Send>;

    fn replay(
        &self,
        process: &Process,
        config: &Config,
        recency: Recency,
        watch: Option<&Watch<'_>>,
    ) -> Result<Replayed, ReplayError>;
}

/// A function that makes policies of the type `P`.
struct Of<P, F>(F, PhantomData<fn() -> P>);

impl<P: Policy + Send + 'static, F: Fn(&PolicyParams) -> P + Send + Sync> Replays for Of<P, F> {
    fn build(&self, params: &PolicyParams) -> Box<dyn Policy + Send> {
        Box::new((self.0)(params))
    }

    fn replay(
        &self,
        process: &Process,
        config: &Config,
        recency: Recency,
        watch: Option<&Watch<'_>>,
    ) -> Result<Replayed, ReplayError> {
        replay_with((self.0)(&config.params()), process, config, recency, watch)
    }
}

impl PolicyEntry {
    /// Returns an entry whose replay loop is compiled for `P`: no call in it is indirect.
    ///
    /// The name is what `--policy` takes, and `help` the line that `replay --help` prints. A name of [`builtin`] is replaced.
    ///
    /// ```
    /// use mrrc_core::policy::sieve::Sieve;
    /// use tracesim::policies::PolicyEntry;
    ///
    /// let entry = PolicyEntry::of("mine", "SIEVE, by another name.", |_params| Sieve::new());
    /// assert_eq!(entry.name(), "mine");
    /// ```
    pub fn of<P: Policy + Send + 'static>(
        name: &'static str,
        help: &'static str,
        new: impl Fn(&PolicyParams) -> P + Send + Sync + 'static,
    ) -> Self {
        Self { name, help, replays: Arc::new(Of(new, PhantomData)) }
    }

    /// Returns an entry whose policy is behind a box. It shares one replay loop with all others of this kind, which costs a few
    /// percent where most requests hit, and nothing measurable where most miss.
    pub fn boxed(
        name: &'static str,
        help: &'static str,
        new: impl Fn(&PolicyParams) -> Box<dyn Policy + Send> + Send + Sync + 'static,
    ) -> Self {
        Self::of(name, help, new)
    }

    /// Returns the name that `--policy` takes.
    pub fn name(&self) -> &'static str {
        self.name
    }

    /// Returns one line on what the policy does.
    pub fn help(&self) -> &'static str {
        self.help
    }

    /// Returns a new policy.
    pub fn build(&self, params: &PolicyParams) -> Box<dyn Policy + Send> {
        self.replays.build(params)
    }

    /// Returns what the policy's caching scheme does besides choosing victims.
    pub fn scheme(&self, params: &PolicyParams) -> Scheme {
        self.build(params).scheme()
    }

    /// Returns whether a cache with this policy widens requests.
    pub fn widens(&self, config: &Config) -> bool {
        config.widen.unwrap_or_else(|| {
            let policy = self.build(&config.params());
            policy.scheme().widens && config.can_widen(&policy)
        })
    }

    /// Returns the name in results: with `+widen` where the configuration makes the policy widen, which by itself does not.
    pub(crate) fn label(&self, config: &Config) -> String {
        let is_made_to = config.widen == Some(true) && !self.scheme(&config.params()).widens;
        format!("{}{}", self.name, if is_made_to { "+widen" } else { "" })
    }

    /// Returns a core with a new policy.
    ///
    /// # Errors
    /// [`ConfigError`] if the policy cannot be configured so.
    pub fn core(&self, config: &Config) -> Result<Core<Box<dyn Policy + Send>>, ConfigError> {
        Core::with_policy(config, self.build(&config.params()))
    }

    /// Replays a process through a cache with a new policy.
    ///
    /// # Errors
    /// Those of the replay; [`ReplayError::Policy`] with the policy's name if it broke its contract, or panicked itself.
    pub(crate) fn replay_process(
        &self,
        process: &Process,
        config: &Config,
        recency: Recency,
        watch: Option<&Watch<'_>>,
    ) -> Result<Replayed, ReplayError> {
        let replay = || self.replays.replay(process, config, recency, watch);
        // All that a panic may leave half changed is dropped with the replay.
        catch_unwind(AssertUnwindSafe(replay)).unwrap_or_else(|panic| {
            let texts = [panic.downcast_ref::<String>().map(String::as_str), panic.downcast_ref::<&str>().copied()];
            let message = texts.into_iter().flatten().next().unwrap_or("it panicked").to_owned();
            Err(ReplayError::Policy { name: self.name, message })
        })
    }
}

impl fmt::Debug for PolicyEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("PolicyEntry").field(&self.name).finish()
    }
}

impl fmt::Display for PolicyEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name)
    }
}

/// Entries of one name are taken for one policy.
impl PartialEq for PolicyEntry {
    fn eq(&self, other: &Self) -> bool {
        self.name == other.name
    }
}

impl Eq for PolicyEntry {}

impl From<PolicyKind> for PolicyEntry {
    /// The policies that are replayed over long traces have a loop of their own.
    fn from(kind: PolicyKind) -> Self {
        use mrrc_core::policy::{fmrd, gdsf, mrrc, pindown, s3fifo, sieve};
        let (name, help) = (kind.name(), kind.about());
        match kind {
            PolicyKind::PinDown => Self::of(name, help, |_| pindown::policy()),
            PolicyKind::Fmrd => Self::of(name, help, fmrd::policy),
            PolicyKind::Mrrc => Self::of(name, help, mrrc::Mrrc::new),
            PolicyKind::Sieve => Self::of(name, help, |_| sieve::Sieve::new()),
            PolicyKind::S3Fifo => Self::of(name, help, s3fifo::S3Fifo::new),
            PolicyKind::Gdsf => Self::of(name, help, gdsf::Gdsf::new),
            other => Self::boxed(name, help, move |params| other.build(params)),
        }
    }
}

impl From<AnyPolicy> for PolicyEntry {
    fn from(policy: AnyPolicy) -> Self {
        let (name, help) = (policy.name(), policy.about());
        match (policy.of_the_cache(), policy) {
            (Some(kind), _) => kind.into(),
            (None, AnyPolicy::Fifo) => Self::of(name, help, |_| Fifo::new()),
            (None, _) => Self::boxed(name, help, move |params| policy.build(params)),
        }
    }
}

impl FromStr for PolicyEntry {
    type Err = UnknownPolicy;

    /// Finds a policy of [`builtin`].
    fn from_str(name: &str) -> Result<Self, UnknownPolicy> {
        find(&builtin(), name)
    }
}

/// No policy has that name.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("unknown policy `{name}`: choose from {}", known.join(", "))]
pub struct UnknownPolicy {
    name: String,
    known: Vec<&'static str>,
}

/// Returns the policies of this crate: those that the cache has, and those for research.
pub fn builtin() -> Vec<PolicyEntry> {
    AnyPolicy::ALL.iter().map(|&policy| policy.into()).collect()
}

/// Returns the policies of this crate and more; one with the name of another takes its place.
pub(crate) fn builtin_and(more: &[PolicyEntry]) -> Vec<PolicyEntry> {
    let mut all = builtin();
    for entry in more {
        match all.iter_mut().find(|known| *known == entry) {
            Some(known) => *known = entry.clone(),
            None => all.push(entry.clone()),
        }
    }
    all
}

/// Returns the policy of that name.
///
/// # Errors
/// [`UnknownPolicy`] if there is none.
pub fn find(policies: &[PolicyEntry], name: &str) -> Result<PolicyEntry, UnknownPolicy> {
    let found = policies.iter().find(|entry| entry.name == name).cloned();
    found.ok_or_else(|| UnknownPolicy {
        name: name.to_owned(),
        known: policies.iter().map(|entry| entry.name).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use mrrc_core::{Access, PageRange, RegionId, Regions};
    use traces::{Kind, Step};

    #[test]
    fn every_name_is_found() {
        for entry in builtin() {
            assert_eq!(entry.name().parse(), Ok(entry.clone()));
            assert_eq!(entry.scheme(&PolicyParams::new(8)), *entry.core(&Config::new(8)).unwrap().scheme());
        }
        let error = "mine".parse::<PolicyEntry>().unwrap_err().to_string();
        assert!(error.contains("`mine`") && error.contains("mrrc, none, pindown"), "{error}");
    }

    /// Proposes the first region always, whatever became of it; or one that never was.
    #[derive(Default)]
    struct Wrong {
        first: Option<RegionId>,
        is_unknown: bool,
    }

    impl Policy for Wrong {
        fn insert(&mut self, _: &mut Regions, id: RegionId) {
            self.first.get_or_insert(id);
        }

        fn touch(&mut self, _: &mut Regions, _: RegionId) {}

        fn remove(&mut self, _: &mut Regions, _: RegionId) {}

        fn victim(&mut self, _: &mut Regions) -> Option<RegionId> {
            if self.is_unknown { Some(RegionId::of_index(1 << 20)) } else { self.first }
        }

        fn put_back(&mut self, _: &mut Regions, _: RegionId) {}
    }

    #[test]
    fn policy_that_breaks_its_contract_is_named() {
        // The third needs the room of the two before it.
        let steps = [(0, 4), (100, 4), (200, 8)].map(|(start, pages)| {
            Step::new(Kind::Request, PageRange::new(start, pages).unwrap(), Access::LOCAL_READ, false)
        });
        let process = Process { steps: steps.into() };
        for is_unknown in [false, true] {
            let entry = PolicyEntry::of("mine", "wrong", move |_| Wrong { first: None, is_unknown });
            let failed = entry.replay_process(&process, &Config::new(8), Recency::Exact, None).unwrap_err();
            assert!(matches!(failed, ReplayError::Policy { name: "mine", .. }), "{failed:?}");
            assert!(failed.to_string().starts_with("policy `mine`: "), "{failed}");
        }
    }

    #[test]
    fn policy_joins_or_replaces_its_namesake() {
        let new = |name| PolicyEntry::of(name, "new", mrrc_core::policy::mrrc::Mrrc::new);
        let all = builtin_and(&[new("mine"), new("sieve")]);
        assert_eq!(all.len(), builtin().len() + 1);
        assert_eq!(find(&all, "mine").map(|entry| entry.help()), Ok("new"));
        assert_eq!(find(&all, "sieve").map(|entry| entry.help()), Ok("new"));
    }
}
