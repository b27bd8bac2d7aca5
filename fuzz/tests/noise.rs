//! Every target, on stable Rust: its corpus, mutations of it, and random bytes.
//!
//! `NOISE=1000 cargo test --release -p fuzz --test noise` runs a thousand times as many inputs; `NOISE_SEED` starts elsewhere.

use fuzz::mutate::{mutate, noise, scratch};
use fuzz::{ABSENT, TARGETS, Target};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{RngExt, SeedableRng};
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::path::Path;

/// Inputs of a target, times `NOISE`.
const INPUTS: u64 = 4_000;

fn variable(name: &str, otherwise: u64) -> u64 {
    std::env::var(name).map_or(otherwise, |value| value.parse().expect("a number"))
}

/// Decodes an input; what panics is shown first.
fn decode(target: &Target, input: &[u8]) -> bool {
    let decoded = catch_unwind(AssertUnwindSafe(|| target.decode(input)));
    decoded.unwrap_or_else(|panic| {
        eprintln!("{} fails with {}", target.name, input.escape_ascii());
        resume_unwind(panic)
    })
}

/// Returns how many of the inputs were understood, and how many were not.
fn fuzz(target: &Target, inputs: u64, seed: u64) -> [u64; 2] {
    let corpus: Vec<Vec<u8>> = target.corpus().into_iter().map(|(_, input)| input).collect();
    let others: Vec<&[u8]> = corpus.iter().map(Vec::as_slice).collect();
    let mut random = StdRng::seed_from_u64(seed);
    let mut counts = [0, 0];
    for _ in 0..inputs {
        let mut input = corpus.choose(&mut random).expect("a corpus").clone();
        match random.random_range(0..16) {
            0 => input = noise(&mut random, &input, 200),
            1..8 => scratch(&mut random, &mut input),
            _ => mutate(&mut random, &mut input, &others),
        }
        counts[usize::from(!decode(target, &input))] += 1;
    }
    counts
}

#[test]
fn noise_breaks_no_decoder() {
    let (times, seed) = (variable("NOISE", 1), variable("NOISE_SEED", 1));
    for target in TARGETS {
        let inputs = INPUTS * times;
        let [understood, refused] = fuzz(target, inputs, seed);
        println!("{}: {understood} of {inputs} inputs understood", target.name);
        let some = inputs / 100;
        assert!(understood > some && refused > some, "{}: {understood} understood, {refused} refused", target.name);
    }
}

#[test]
fn every_input_of_a_corpus_is_understood() {
    for target in TARGETS {
        let corpus = target.corpus();
        assert!(!corpus.is_empty(), "{} has a corpus", target.name);
        for (file, input) in corpus {
            assert!(decode(target, &input), "{}/{file}", target.name);
        }
    }
}

/// Folders in `corpus`, programs in `fuzz_targets` and those in `Cargo.toml` are those of the table.
#[test]
fn every_target_has_a_program_and_a_corpus() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let names = |folder: &str| -> BTreeSet<String> {
        let files = std::fs::read_dir(root.join(folder)).unwrap();
        files.map(|file| file.unwrap().file_name().to_string_lossy().trim_end_matches(".rs").to_owned()).collect()
    };
    let names_of_all = TARGETS.iter().map(|target| target.name).chain(ABSENT.iter().copied());
    let targets: BTreeSet<String> = names_of_all.map(str::to_owned).collect();
    assert_eq!(targets.len(), TARGETS.len() + ABSENT.len());
    assert_eq!(names("corpus"), targets);
    assert_eq!(names("fuzz_targets"), targets);
    let manifest = std::fs::read_to_string(root.join("Cargo.toml")).unwrap();
    let paths = manifest.lines().filter_map(|line| line.strip_prefix("path = \"fuzz_targets/"));
    assert_eq!(paths.map(|path| path.trim_end_matches(".rs\"").to_owned()).collect::<BTreeSet<_>>(), targets);
    for name in targets {
        let program = std::fs::read_to_string(root.join("fuzz_targets").join(format!("{name}.rs"))).unwrap();
        assert!(program.contains(&format!("target(\"{name}\")")), "{name}.rs runs {name}");
    }
}
