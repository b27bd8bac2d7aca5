//! The command line's options of far memory.

use std::time::Duration;

use clap::Args;

use super::FarPlan;

const MEBIBYTE: u64 = 1 << 20;
/// The shortest region, and the unit of all.
const UNIT: u64 = 2 * MEBIBYTE;
/// The longest region.
const LONGEST_REGION: u64 = 1 << 30;
/// The longest time for which an operator lets memory be reserved.
const LONGEST: Duration = Duration::from_secs(366 * 24 * 3600);
/// Workers at most.
const WORKERS: i64 = 256;

/// The flags.
#[derive(Args, Clone, Debug)]
#[command(next_help_heading = "Far memory")]
pub(in crate::fabric) struct FarFlags {
    /// Memory that clients own and read and write by themselves, over shm: and iwarp:, in MiB; k, m and g are understood.
    /// It is besides -m, and counts in --registered-memory (default: none)
    #[arg(long = "far", value_name = "SIZE", value_parser = size)]
    far: Option<u64>,
    /// Size of a region, the unit in which clients take it: 2m to 1g, a multiple of 2m
    #[arg(long = "far-region", requires = "far", value_name = "SIZE", default_value = "16m", value_parser = size)]
    region: u64,
    /// The longest time for which a client reserves far memory before it asks again: 30s, 10m, 24h
    #[arg(long = "far-longest", requires = "far", value_name = "TIME", default_value = "24h", value_parser = time)]
    longest: Duration,
    /// Batches of accesses that are carried out at a time, each by a thread of its connection. Without any, clients access far memory
    /// one-sidedly only
    #[arg(long = "far-threads", requires = "far", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(..=WORKERS))]
    workers: u32,
    /// Servers from which regions are moved here, by addresses that clients use: shm:@NAME, iwarp:HOST:PORT, or iwarp:HOST for any port.
    /// Put commas between several (default: none)
    #[arg(long = "far-peers", requires = "far", value_name = "ADDRESSES", value_delimiter = ',', value_parser = peer)]
    peers: Vec<String>,
    /// At SIGTERM, how long clients may take to move their regions to other servers before this one stops: 30s, 10m. A second SIGTERM
    /// stops it at once (default: it does not wait)
    #[arg(long = "far-notice", requires = "far", value_name = "TIME", value_parser = time)]
    notice: Option<Duration>,
    /// Run procedures that clients store as WebAssembly modules, each user's own, within limits of time and memory. It needs --far
    #[arg(long = "far-wasm", requires = "far")]
    #[cfg_attr(not(feature = "wasm"), arg(hide = true))]
    wasm: bool,
    /// Threads that run modules; workers run none
    #[arg(long = "far-wasm-threads", requires = "wasm", value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=WORKERS))]
    #[cfg_attr(not(feature = "wasm"), arg(hide = true))]
    wasm_threads: u32,
}

fn peer(text: &str) -> Result<String, String> {
    let is_one = ["shm:", "iwarp:"].iter().any(|start| text.strip_prefix(start).is_some_and(|rest| !rest.is_empty()));
    is_one
        .then(|| text.to_owned())
        .ok_or_else(|| "an address is needed: shm:@NAME, iwarp:HOST:PORT or iwarp:HOST".into())
}

fn size(text: &str) -> Result<u64, String> {
    let (number, unit) = match text.as_bytes().last() {
        Some(b'k' | b'K') => (&text[..text.len() - 1], 1 << 10),
        Some(b'm' | b'M') => (&text[..text.len() - 1], MEBIBYTE),
        Some(b'g' | b'G') => (&text[..text.len() - 1], 1 << 30),
        _ => (text, MEBIBYTE),
    };
    let bytes = number.parse::<u64>().ok().and_then(|number| number.checked_mul(unit)).filter(|&bytes| bytes > 0);
    bytes.ok_or_else(|| "a size is needed: megabytes, or a number with k, m or g".into())
}

fn time(text: &str) -> Result<Duration, String> {
    let (number, unit) = text.split_at(text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len()));
    let seconds = match unit {
        "s" | "" => Some(1),
        "m" => Some(60),
        "h" => Some(3600),
        _ => None,
    };
    let number = number.parse::<u64>().ok();
    let time = number.zip(seconds).and_then(|(number, seconds)| number.checked_mul(seconds)).map(Duration::from_secs);
    let within = time.filter(|time| !time.is_zero() && *time <= LONGEST);
    within.ok_or_else(|| "a time is needed, up to a year: 30s, 10m, 24h".into())
}

impl FarFlags {
    /// Returns the plan, if far memory is offered; `is_reachable` where a fabric has it.
    ///
    /// # Errors
    ///
    /// The fault and the right form.
    pub(in crate::fabric) fn plan(&self, is_reachable: bool) -> Result<Option<FarPlan>, String> {
        let Some(bytes) = self.far else { return Ok(None) };
        if !self.region.is_multiple_of(UNIT) || !(UNIT..=LONGEST_REGION).contains(&self.region) {
            return Err("--far-region: a region has 2m to 1g, a multiple of 2m".to_owned());
        }
        let regions = u32::try_from(bytes / self.region).ok().filter(|&regions| regions > 0);
        let Some(regions) = regions else {
            return Err(format!(
                "--far: {bytes} bytes are no whole region of {} (--far-region), or too many",
                self.region
            ));
        };
        if self.wasm && cfg!(not(feature = "wasm")) {
            return Err("--far-wasm: this server was built without modules; build it with --features wasm".to_owned());
        }
        if !is_reachable {
            return Err("--far: clients reach it over shm: or iwarp:, and no --fabric is one".to_owned());
        }
        Ok(Some(FarPlan {
            regions,
            region_bytes: self.region,
            longest: self.longest,
            workers: self.workers,
            peers: self.peers.clone(),
            notice: self.notice,
            module_threads: self.wasm.then_some(self.wasm_threads),
        }))
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        flags: FarFlags,
    }

    fn plan(arguments: &str, is_reachable: bool) -> Result<Option<FarPlan>, String> {
        let line = Line::try_parse_from(std::iter::once("x").chain(arguments.split_whitespace()));
        line.map_err(|error| error.to_string())?.flags.plan(is_reachable)
    }

    #[test]
    fn sizes_are_whole_regions() {
        assert_eq!(plan("", false), Ok(None));
        let day = Duration::from_secs(24 * 3600);
        let of = |regions, region_bytes, longest| {
            Ok(Some(FarPlan {
                regions,
                region_bytes,
                longest,
                workers: 1,
                peers: Vec::new(),
                notice: None,
                module_threads: None,
            }))
        };
        assert_eq!(plan("--far 100", true), of(6, 16 << 20, day));
        assert_eq!(plan("--far 1g --far-region 2m --far-longest 30s", true), of(512, 2 << 20, Duration::from_secs(30)));
        assert_eq!(
            plan("--far 2048k --far-region 2 --far-longest 10m", true),
            of(1, 2 << 20, Duration::from_secs(600))
        );
        assert_eq!(plan("--far 16m --far-threads 0", true).unwrap().unwrap().workers, 0);
        let plan = plan("--far 16m --far-peers shm:@other,iwarp:10.0.0.2,iwarp:10.0.0.3:7471", true).unwrap().unwrap();
        for (address, is_peer) in [
            ("shm:@other", true),
            ("shm:@other:1", false),
            ("iwarp:10.0.0.2:1", true),
            ("iwarp:10.0.0.21:1", false),
            ("iwarp:10.0.0.2:x", false),
            ("iwarp:10.0.0.3:7471", true),
            ("iwarp:10.0.0.3:7472", false),
        ] {
            assert_eq!(plan.has_peer(address), is_peer, "{address}");
        }
    }

    #[test]
    fn refused_flags_say_why() {
        for (arguments, words) in [
            ("--far 15m", "no whole region"),
            ("--far 1g --far-region 3m", "multiple of 2m"),
            ("--far 4g --far-region 2g", "2m to 1g"),
            ("--far x", "a size is needed"),
            ("--far 0", "a size is needed"),
            ("--far 1g --far-longest 3d", "a time is needed"),
            ("--far 1g --far-longest 0s", "a time is needed"),
            ("--far 1g --far-threads 257", "256"),
            ("--far 1g --far-peers 10.0.0.1", "an address is needed"),
        ] {
            let error = plan(arguments, true).unwrap_err();
            assert!(error.contains(words), "{arguments}: {error}");
        }
        let modules = plan("--far 1g --far-wasm --far-wasm-threads 2", true);
        if cfg!(feature = "wasm") {
            assert_eq!(modules.unwrap().unwrap().module_threads, Some(2));
        } else {
            assert!(modules.unwrap_err().contains("--features wasm"));
        }
        for alone in ["--far-wasm", "--far-region 2m", "--far-longest 1m", "--far-threads 2", "--far-notice 1m"] {
            assert!(plan(alone, true).unwrap_err().contains("--far <SIZE>"), "{alone}");
        }
        assert!(plan("--far-peers shm:@other", true).unwrap_err().contains("--far <SIZE>"));
        assert!(plan("--far 1g --far-wasm-threads 2", true).unwrap_err().contains("--far-wasm"));
        assert!(plan("--far 1g", false).unwrap_err().contains("shm: or iwarp:"));
    }
}
