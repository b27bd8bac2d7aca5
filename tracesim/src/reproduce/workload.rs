//! The two workloads of the paper and the cache sizes they are studied at.

use crate::sizes::Capacity;
use traces::TraceError;
use traces::generate::Workload;

/// How much of the study.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Scale {
    /// As the paper has it.
    Whole,
    /// A sixteenth of everything: files, bytes, requests and caches. It shows that the study works, not what it finds.
    Sixteenth,
}

/// One of the two.
#[derive(Clone, PartialEq, Debug)]
pub struct Subject {
    /// As the paper calls it.
    pub name: &'static str,
    /// The workload.
    pub workload: Workload,
    /// Pages of the cache sizes, rising.
    pub capacities: Vec<u64>,
    /// The place of the paper's 32 MB among them.
    pub reference: usize,
}

/// The sizes of the whole study in pages: 4 to 128 MiB. The paper names 32 MB; the others are ours around it.
const CAPACITIES: [u64; 6] = [1024, 2048, 4096, 8192, 16_384, 32_768];
const REFERENCE: usize = 3;

/// Both.
///
/// # Errors
/// None that the tests have not seen: the options are ours.
pub fn subjects(scale: Scale) -> Result<[Subject; 2], TraceError> {
    let (specs, by) = match scale {
        Scale::Whole => (["httpd:", "cello92:"], 1),
        Scale::Sixteenth => (
            [
                "httpd:files=841,bytes=32750000,requests=68750",
                "cello92:requests=31250,a-day=31250,disks=650000000,client-cache=1875000",
            ],
            16,
        ),
    };
    let capacities: Vec<u64> = CAPACITIES.iter().map(|pages| pages / by).collect();
    let [httpd, cello] = specs.map(str::parse::<Workload>);
    Ok([("HTTPD", httpd?), ("Cello92", cello?)].map(|(name, workload)| Subject {
        name,
        workload,
        capacities: capacities.clone(),
        reference: REFERENCE,
    }))
}

impl Subject {
    /// Returns the sizes as a study takes them.
    pub fn sizes(&self) -> Vec<Capacity> {
        self.capacities.iter().map(|&pages| Capacity::of_pages(pages)).collect()
    }
}
