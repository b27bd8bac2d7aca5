//! From a policy's name to its type, where that makes the inner loop faster.
//!
//! Behind `Box<dyn Policy>` every hit makes an indirect call, and none of it is inlined. The policies that are replayed over
//! long traces get a loop compiled for their own type; all others share the one for the box. It gains a few percent where most
//! requests hit, and nothing that can be measured where most of them miss.

use mrrc::Config;
use mrrc::policy::{self, Policy, PolicyKind};

/// What is done with a policy, whatever its type.
pub(crate) trait WithPolicy {
    /// What comes of it.
    type Out;

    /// Does it.
    fn run<P: Policy>(self, policy: P) -> Self::Out;
}

/// Does it with the policy that the configuration names.
pub(crate) fn with_policy<W: WithPolicy>(config: &Config, what: W) -> W::Out {
    match config.policy {
        PolicyKind::PinDown => what.run(policy::pindown::policy()),
        PolicyKind::Fmrd => what.run(policy::fmrd::policy(config)),
        PolicyKind::Mrrc => what.run(policy::mrrc::Mrrc::new(config)),
        PolicyKind::Sieve => what.run(policy::sieve::Sieve::new()),
        PolicyKind::S3Fifo => what.run(policy::s3fifo::S3Fifo::new(config)),
        PolicyKind::Gdsf => what.run(policy::gdsf::Gdsf::new(config)),
        other => what.run(other.build(config)),
    }
}
