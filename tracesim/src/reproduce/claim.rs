//! The paper's claims beside the figures found here.

use serde::Serialize;

/// A claim of the paper and what became of it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Claim {
    /// The place in the paper.
    pub place: String,
    /// The claim.
    pub claim: String,
    /// Its figure there.
    pub paper: String,
    /// Whether it is a finding or describes what the study is given.
    pub kind: Kind,
    /// The rule by which it holds.
    pub rule: String,
    /// The figure here.
    pub here: String,
    /// Whether it holds.
    pub verdict: Verdict,
    /// The explanation of the figure by other measurements; empty if there is none.
    pub note: String,
}

/// The kind of a claim.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// A finding of the paper.
    Finding,
    /// The workload that it used: that the generated one is like it says nothing about the cache.
    Input,
}

/// Whether a claim holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// It does.
    Holds,
    /// It does not.
    DoesNotHold,
    /// There was nothing to tell by.
    NotMeasured,
}

impl Verdict {
    /// In words.
    pub fn text(self) -> &'static str {
        match self {
            Self::Holds => "holds",
            Self::DoesNotHold => "does not hold",
            Self::NotMeasured => "not measured",
        }
    }
}

impl Claim {
    /// Returns a claim whose figure was measured here.
    pub fn measured(place: &str, claim: impl Into<String>, paper: &str, rule: &str, here: String, holds: bool) -> Self {
        let verdict = if holds { Verdict::Holds } else { Verdict::DoesNotHold };
        let (claim, paper, rule) = (claim.into(), paper.into(), rule.into());
        Self { place: place.into(), claim, paper, kind: Kind::Finding, rule, here, verdict, note: String::new() }
    }

    /// As a claim about the workload.
    #[must_use]
    pub fn of_input(self) -> Self {
        Self { kind: Kind::Input, ..self }
    }

    /// Returns a claim that could not be tested, and why.
    pub fn open(place: &str, claim: &str, paper: &str, why: &str) -> Self {
        let [place, claim, paper] = [place, claim, paper].map(str::to_owned);
        let (rule, here) = ("–".to_owned(), "–".to_owned());
        let kind = Kind::Finding;
        Self { place, claim, paper, kind, rule, here, verdict: Verdict::NotMeasured, note: why.to_owned() }
    }

    /// With what explains the figure.
    #[must_use]
    pub fn with_note(self, note: String) -> Self {
        Self { note, ..self }
    }
}

/// How many hold, do not, and were not measured, in words: first the findings, then what is said of the input.
pub fn summary(claims: &[Claim]) -> String {
    let count =
        |kind: Kind, verdict| claims.iter().filter(|claim| claim.kind == kind && claim.verdict == verdict).count();
    let of = |kind| [Verdict::Holds, Verdict::DoesNotHold, Verdict::NotMeasured].map(|verdict| count(kind, verdict));
    let [holds, fails, open] = of(Kind::Finding);
    let all = holds + fails + open;
    let open = if open == 0 { String::new() } else { format!(", {open} not measured here") };
    let [met, missed, _] = of(Kind::Input);
    format!(
        "{holds} of {all} claims hold, {fails} do not{open}; besides, the workloads are as described in {met} of {} points",
        met + missed
    )
}
