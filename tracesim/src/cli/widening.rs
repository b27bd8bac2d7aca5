//! Notes on requests that a cache which widens registers as they are.

use super::failure::note;
use super::table::many;
use crate::replayer::remote_requests;
use crate::sweep::Sweep;
use traces::Trace;

/// Reports which requests of a trace are not widened, where policies of the sweep do so. `is_asked`: by the user, not because all
/// policies take part.
pub(super) fn tell(sweep: &Sweep, is_asked: bool, trace: &Trace) {
    if let Some(line) = line(sweep, is_asked, trace) {
        note(&format!("{}: {line}", trace.name));
    }
}

fn line(sweep: &Sweep, is_asked: bool, trace: &Trace) -> Option<String> {
    if !sweep.policies.iter().any(|policy| policy.widens(&sweep.base)) {
        return None;
    }
    if trace.summary.is_laid_out {
        return is_asked.then(|| "nothing is widened: the objects of this trace have no addresses".into());
    }
    let remote = trace.processes.iter().map(remote_requests).sum();
    (remote > 0).then(|| {
        let give = if remote == 1 { "gives" } else { "give" };
        format!(
            "{} {give} rights to peers: results with widening do not widen these, and register them apart from requests for local \
             use, as the cache does",
            many(remote, "request")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::row::DeregCost;
    use crate::simulate::Recency;
    use mrrc_core::{Access, Config, PageRange};
    use traces::{Kind, Process, Step, Summary};

    #[test]
    fn exact_requests_of_widening_are_told() {
        let steps = [Access::LOCAL, Access::REMOTE_READ]
            .map(|access| Step::new(Kind::Request, PageRange::new(1, 1).unwrap(), access, false));
        let trace = |steps: &[Step], is_laid_out| Trace {
            processes: vec![Process { steps: steps.to_vec().into() }],
            summary: Summary { is_laid_out, ..Summary::default() },
            ..Trace::default()
        };
        let sweep = |policy: &str, widen| Sweep {
            policies: vec![policy.parse().unwrap()],
            capacities: Vec::new(),
            lines: false,
            base: Config { widen, ..Config::new(8) },
            dereg: DeregCost::Batch,
            recency: Recency::Exact,
            bound: false,
        };
        for (policy, widen) in [("widening", None), ("probation", Some(true))] {
            let sweep = sweep(policy, widen);
            let remote = line(&sweep, false, &trace(&steps, false)).expect("told");
            assert!(remote.starts_with("1 request gives rights to peers"), "{remote}");
            assert_eq!(line(&sweep, true, &trace(&steps[..1], false)), None);
            assert_eq!(line(&sweep, false, &trace(&steps, true)), None);
            assert!(line(&sweep, true, &trace(&steps, true)).expect("told").contains("no addresses"));
        }
        for (policy, widen) in [("widening", Some(false)), ("probation", None)] {
            assert_eq!(line(&sweep(policy, widen), true, &trace(&steps, false)), None);
        }
    }
}
