//! How far a budget of registered memory goes: the share of GETs that clients serve themselves.
//!
//! A real store, filled; the real table of tags; a real registration cache, with the policy as an option; clients that ask
//! by Zipf's law and keep their tags for a lease's time. Only the time is simulated, so that rates need no fast machine.
//! Beside it stands the bound that no policy can beat with as many leases: Belady's rule over the same pages.
//!
//! A GET by a tag counts as one-sided. The first GET of a key by a client in every lease's time always goes to the server,
//! and does not count for the bound either.

mod bound;
mod clients;
mod served;

use std::process::ExitCode;

use clap::Parser;
use mrrc::policy::PolicyKind;

/// Compare the share of one-sided GETs with the best possible one, at several rates and skews, under every policy.
#[derive(Debug, Parser)]
#[command(after_help = "Examples:
  pin-budget                                              the study: 1 GB of values, 64 MB registered
  pin-budget --policies mrrc,gdsf --zipf 0.99 --rates 50000
  pin-budget --pin                                        the registrations are real: the kernel pins, and VmPin is watched")]
struct Options {
    /// MB of values.
    #[arg(long, default_value_t = 1000)]
    values: usize,
    /// MB that may be registered; half of it may be leased.
    #[arg(long, default_value_t = 64)]
    registered: u64,
    /// Bytes of a value, or `mix`: small ones mostly, up to 16 KiB.
    #[arg(long, default_value = "1024")]
    value: String,
    /// Skews of the choice of keys.
    #[arg(long, value_delimiter = ',', num_args = 1.., default_values_t = [0.9, 0.99, 1.1])]
    zipf: Vec<f64>,
    /// GETs a second, of all clients.
    #[arg(long, value_delimiter = ',', num_args = 1.., default_values_t = [10_000, 20_000, 50_000, 100_000, 200_000])]
    rates: Vec<u64>,
    /// Clients, each with tags of its own.
    #[arg(long, default_value_t = 1)]
    clients: usize,
    /// Milliseconds of a lease.
    #[arg(long, default_value_t = 1000)]
    lease: u64,
    /// Leases' times that are simulated; the first half is not counted.
    #[arg(long, default_value_t = 24)]
    leases: u64,
    /// Policies of the registration cache; all, unless named.
    #[arg(long, value_delimiter = ',', num_args = 1..)]
    policies: Vec<PolicyKind>,
    /// Pin for real, by io_uring.
    #[arg(long)]
    pin: bool,
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> ExitCode {
    match study(&Options::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("pin-budget: {error}");
            ExitCode::FAILURE
        }
    }
}

fn study(options: &Options) -> Result<(), Box<dyn std::error::Error>> {
    let mut policies = options.policies.clone();
    if policies.is_empty() {
        policies = PolicyKind::ALL.iter().copied().filter(|&kind| kind != PolicyKind::None).collect();
    }
    let sizes = clients::Sizes::named(&options.value)?;
    let budget = options.registered << 20 >> 12;
    println!(
        "{} MB of values of {}, {} MB registered ({budget} pages), half of it leased at most; leases of {} ms; {} client(s)",
        options.values, options.value, options.registered, options.lease, options.clients
    );
    if !options.pin {
        println!("Registrations are counted, not made: --pin makes them.");
    }
    println!(
        "\n{:>5} {:>9}  {:<10} {:>9} {:>9} {:>7}  {:>8} {:>7} {:>9} {:>8}",
        "zipf", "GETs/s", "policy", "one-sided", "bound", "of it", "repeated", "seldom", "regs/1000", "pinned"
    );
    for &skew in &options.zipf {
        for &rate in &options.rates {
            let asked = clients::Asked::generate(options, &sizes, skew, rate);
            let mut most = None;
            for &policy in &policies {
                let served = served::run(options, &sizes, &asked, rate, policy)?;
                let most = *most.get_or_insert_with(|| served::most(options, &asked, &served, rate));
                println!(
                    "{skew:>5} {rate:>9}  {:<10} {:>8.1}% {:>8.1}% {:>6.1}%  {:>7.1}% {:>6.1}% {:>9.1} {:>8}",
                    policy.name(),
                    100.0 * served.one_sided,
                    100.0 * most.one_sided,
                    100.0 * served.one_sided / most.one_sided,
                    100.0 * most.repeated,
                    100.0 * served.seldom,
                    1000.0 * served.registrations,
                    served.pinned.map_or("-".into(), |kib| format!("{} MB", kib >> 10)),
                );
            }
        }
    }
    println!(
        "\none-sided: of all GETs; bound: Belady's rule over the pages that may be leased, firsts not counted; repeated: GETs that are no\n\
         first; seldom: GETs refused a tag as others are read more often; regs/1000: registrations for a thousand GETs; pinned: VmPin,\n\
         the most that was seen, above what it was without."
    );
    Ok(())
}
