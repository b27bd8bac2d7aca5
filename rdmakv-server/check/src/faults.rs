//! Faults put in on purpose: the product is built with them, each is run, and the checker has to find it; and where
//! nothing is wrong it has to find nothing.

use std::io;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

const EXAMPLES: &str = "\
Examples:
  rdmakv-check faults                         all of them, some minutes
  rdmakv-check faults --debug -n 100000       sooner, and with less to find them in

Exit status: 0 each was found and nothing else, 1 not, 2 wrong usage.";

/// The options of the injected faults.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub(crate) struct Faults {
    /// Operations of each run; those with large values have a third
    #[arg(short = 'n', long, default_value_t = 300_000, value_name = "N")]
    operations: u64,
    /// Target directory of the build with faults
    #[arg(long, default_value = "target/faults", value_name = "DIRECTORY")]
    target_dir: PathBuf,
    /// Build without optimisation
    #[arg(long)]
    debug: bool,
    /// A build with faults that is there already
    #[arg(long, value_name = "FILE")]
    program: Option<PathBuf>,
    /// Runs of these faults only; "kernel" is all of GETs in the kernel
    #[arg(long, value_name = "NAME")]
    only: Vec<String>,
    /// Print the whole report of each run
    #[arg(short, long)]
    verbose: bool,
}

/// A run with faults.
struct Case {
    server: Option<&'static str>,
    client: Option<&'static str>,
    /// The rule that the kernel's programs break, by the number of `GETS_FAULT`. They wait amid each copy; 0 breaks none.
    rule: Option<u32>,
    /// The expected finding: one of these; nothing if there are none.
    finds: &'static [&'static str],
    arguments: &'static [&'static str],
}

const ORDER: &[&str] = &["came back", "out of turn", "no order"];
/// An ADD that was carried out twice reports that there is a value: its own.
const REPEATED: &[&str] = &["came back", "out of turn", "no order", "never written"];
/// The client refuses an item whose sum is not that of its bytes.
const NONSENSE: &str = "answers without sense";
/// Every way, on the same keys.
const FABRICS: &[&str] = &["--transports=shm,tcp,iwarp,shm", "--kill-server-every=0", "--kill-client-every=0"];
/// Large values that change often, so that what is read is being written.
const CHURN: &[&str] = &[
    "--transports=shm",
    "--large",
    "--gets=20",
    "--cold=50",
    "--memory=64",
    "--warm=24",
    "--readers=2",
    "--warm-changes=60",
    "--tag-lease=100ms",
    "--kill-server-every=0",
    "--kill-client-every=0",
];
/// Leases that are longer than a server takes to start, of a few keys, so that readers need no server for a while.
const RESTARTS: &[&str] = &[
    "--transports=shm,shm,tcp",
    "--readers=2",
    "--warm=4",
    "--warm-changes=1",
    "--tag-lease=2s",
    "--kill-server-every=0.7",
    "--kill-client-every=0",
];

/// Datagrams of which some are lost, late or doubled.
const DATAGRAMS: &[&str] = &[
    "--transports=datagrams",
    "--loss=10",
    "--small",
    "--gets=20",
    "--counters=8",
    "--kill-server-every=0",
    "--kill-client-every=0",
];
/// Values of several parts, which are lost while they change. Only parts of values of one length make a reply together.
const PARTS: &[&str] = &[
    "--transports=datagrams",
    "--loss=10",
    "--equal",
    "--hot=1",
    "--warm=4",
    "--warm-changes=300",
    "--kill-server-every=0",
    "--kill-client-every=0",
];

/// Busy clients that move to connections and back. With more loss few of them are busy enough.
const HYBRID: &[&str] = &[
    "--transports=hybrid",
    "--loss=2",
    "--small",
    "--gets=20",
    "--counters=8",
    "--readers=0",
    "--kill-server-every=0",
    "--kill-client-every=0",
];

/// More than memory holds. Half of the values are too small for flash.
const FLASH: &[&str] = &[
    "--transports=tcp,shm",
    "--large",
    "--memory=8",
    "--flash=64",
    "--cold=150",
    "--warm-changes=300",
    "--readers=0",
    "--gets=50",
    "--server-argument=-o",
    "--server-argument=ext_item_size=75000",
    "--flush-every=0",
    "--kill-server-every=0",
    "--kill-client-every=0",
];

/// The kernel answers, on few keys that change often.
const KERNEL: &[&str] = &[
    "--kernel",
    "--transports=udp,tcp,udp,tcp",
    "--processes=1",
    "--small",
    "--hot=1",
    "--counters=1",
    "--warm=1",
    "--cold=1",
    "--readers=0",
    "--gets=40",
    "--warm-changes=600",
    "--flush-every=1000",
    "--kill-server-every=0",
    "--kill-client-every=0",
];

/// Cases of builds with GETs in the kernel.
const IN_KERNEL: &[Case] = &[
    Case { server: None, client: None, rule: None, finds: &[], arguments: KERNEL },
    Case { server: None, client: None, rule: Some(0), finds: &[], arguments: KERNEL },
    Case {
        server: None,
        client: None,
        rule: Some(1),
        finds: &["torn value", "came back", "out of turn", "no order", "never written"],
        arguments: KERNEL,
    },
    Case { server: Some("flushed-late"), client: None, rule: None, finds: ORDER, arguments: KERNEL },
];

const CASES: &[Case] = &[
    Case { server: None, client: None, rule: None, finds: &[], arguments: FABRICS },
    Case { server: None, client: None, rule: None, finds: &[], arguments: RESTARTS },
    Case { server: None, client: Some("no-crc"), rule: None, finds: &[], arguments: CHURN },
    Case { server: Some("index-before-dead"), client: None, rule: None, finds: ORDER, arguments: FABRICS },
    Case { server: Some("dead-after-reply"), client: None, rule: None, finds: ORDER, arguments: FABRICS },
    Case { server: None, client: Some("believes-the-dead"), rule: None, finds: ORDER, arguments: RESTARTS },
    Case { server: Some("reuse-early"), client: None, rule: None, finds: &[], arguments: CHURN },
    Case { server: Some("reuse-early"), client: Some("no-crc"), rule: None, finds: &["torn value"], arguments: CHURN },
    Case { server: None, client: None, rule: None, finds: &[], arguments: FLASH },
    Case { server: Some("flash-damage"), client: None, rule: None, finds: &[], arguments: FLASH },
    Case { server: Some("flash-no-crc"), client: None, rule: None, finds: &["torn value"], arguments: FLASH },
    Case { server: Some("flash-kept-at-overwrite"), client: None, rule: None, finds: ORDER, arguments: FLASH },
    Case { server: Some("flash-kept-at-end"), client: None, rule: None, finds: ORDER, arguments: FLASH },
    Case { server: Some("flash-load-not-orphaned"), client: None, rule: None, finds: ORDER, arguments: FLASH },
    Case { server: None, client: None, rule: None, finds: &[], arguments: DATAGRAMS },
    Case { server: None, client: None, rule: None, finds: &[], arguments: PARTS },
    Case { server: None, client: None, rule: None, finds: &[], arguments: HYBRID },
    Case { server: None, client: Some("resend-on-switch"), rule: None, finds: REPEATED, arguments: HYBRID },
    Case { server: Some("no-replies"), client: None, rule: None, finds: REPEATED, arguments: DATAGRAMS },
    Case { server: Some("floor-back"), client: None, rule: None, finds: REPEATED, arguments: DATAGRAMS },
    Case { server: Some("no-executing"), client: None, rule: None, finds: REPEATED, arguments: DATAGRAMS },
    Case {
        server: None,
        client: Some("mixed-executions"),
        rule: None,
        finds: &["torn value", NONSENSE],
        arguments: PARTS,
    },
];

impl Case {
    fn name(&self) -> String {
        let rule = self.rule.map(|rule| match rule {
            0 => "kernel-waits",
            1 => "kernel-believes",
            _ => "kernel-breaks-a-rule",
        });
        let parts: Vec<&str> = self.server.into_iter().chain(self.client).chain(rule).collect();
        if parts.is_empty() { "no fault".into() } else { parts.join(" and ") }
    }
}

/// Builds and runs; returns whether every run found what it had to, and nothing where there was nothing.
pub(crate) fn run(faults: &Faults) -> io::Result<bool> {
    let program = faults.program.clone().map_or_else(|| build(faults), Ok)?;
    let mut good = true;
    let chosen = |case: &&Case| {
        let own = case.name();
        let is_named = |name: &String| {
            own.split(" and ").any(|part| part == name) || (name == "kernel" && case.arguments == KERNEL)
        };
        faults.only.is_empty() || faults.only.iter().any(is_named)
    };
    let in_kernel = if cfg!(feature = "bpf") { IN_KERNEL } else { &[] };
    for case in CASES.iter().chain(in_kernel).filter(chosen) {
        let began = Instant::now();
        let mut command = Command::new(&program);
        let is_large = case.arguments.contains(&"--large");
        let operations = (faults.operations / if is_large { 3 } else { 1 }).max(1);
        command.arg("--quiet").arg("--operations").arg(operations.to_string()).args(case.arguments);
        command.args(case.server.map(|fault| format!("--server-fault={fault}")));
        command.args(case.client.map(|fault| format!("--client-fault={fault}")));
        let object = case.rule.map(compile).transpose()?;
        command.envs(object.as_ref().map(|object| ("RDMAKV_GETS_OBJECT", object.path())));
        let output = command.stdin(Stdio::null()).stderr(Stdio::inherit()).output()?;
        let text = String::from_utf8_lossy(&output.stdout);
        let found: Vec<&str> = text.lines().filter(|line| line.starts_with("VIOLATION")).collect();
        let is_as_it_should_be = match (case.finds, output.status.code()) {
            ([], code) => code == Some(0),
            (kinds, Some(1)) => {
                let has_nonsense = text.contains(NONSENSE) && !text.contains(&format!(" 0 {NONSENSE}"));
                let is_found = |kind: &&str| found.iter().any(|line| line.contains(kind));
                kinds.iter().any(|kind| is_found(kind) || *kind == NONSENSE && has_nonsense)
            }
            _ => false,
        };
        good &= is_as_it_should_be;
        let verdict = match (is_as_it_should_be, case.finds) {
            (true, []) => "nothing found, as it should be",
            (true, _) => "found",
            (false, []) => "FOUND SOMETHING WHERE NOTHING IS",
            (false, _) => "NOT FOUND",
        };
        println!(
            "{:<30} {verdict} ({:.0} s, {})",
            case.name(),
            began.elapsed().as_secs_f64(),
            case.arguments.join(" ")
        );
        if faults.verbose || !is_as_it_should_be {
            println!("{text}");
        } else if let Some(first) = text.split_once("\nVIOLATION").map(|(_, first)| first) {
            let first = first.split("\n\n").next().unwrap_or(first);
            println!("VIOLATION{first}\n");
        }
    }
    Ok(good)
}

/// Compiles the kernel's programs with a broken rule, and with a wait amid each copy.
fn compile(rule: u32) -> io::Result<tempfile::NamedTempFile> {
    let object = tempfile::NamedTempFile::new()?;
    let mut command = Command::new(std::env::var("CLANG").unwrap_or_else(|_| "clang".into()));
    command.args(["-g", "-O2", "-mcpu=v3", "-target", "bpfel", "-Wno-unused-function", "-DGETS_WAIT=60000"]);
    command.arg(format!("-DGETS_FAULT={rule}")).args(["-c", "rdmakv-server/bpf/src/gets.bpf.c", "-o"]);
    if !command.arg(object.path()).status()?.success() {
        return Err(io::Error::other("clang does not compile gets.bpf.c; run this in the repository"));
    }
    Ok(object)
}

/// This program with its server and clients, with the faults in them.
fn build(faults: &Faults) -> io::Result<PathBuf> {
    let mut command = Command::new("cargo");
    command.args(["build", "-p", "rdmakv-check", "--target-dir"]).arg(&faults.target_dir);
    command.args((!faults.debug).then_some("--release"));
    command.args(cfg!(feature = "bpf").then_some("--features=bpf"));
    // Those of the caller stay: they may say how to link.
    let flags = std::env::var("RUSTFLAGS").unwrap_or_default();
    let status = command.env("RUSTFLAGS", format!("{flags} --cfg rdmakv_fault_injection")).status()?;
    if !status.success() {
        return Err(io::Error::other("the build with faults failed; run this in the repository"));
    }
    let profile = if faults.debug { "debug" } else { "release" };
    std::path::absolute(faults.target_dir.join(Path::new(profile)).join("rdmakv-check"))
}
