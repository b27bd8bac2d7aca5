//! Errors name the fault and the remedy.

use super::ends::{WITHIN, alone, listening, options, refused};
use super::held::Held;
use crate::device::Device;
use frrwp::fabric::verbs::{self, VerbsDomain, VerbsError, VerbsListener, VerbsOptions};
use std::time::{Duration, Instant};

#[test]
fn bad_verbs_address_names_the_remedy() {
    let (Some(device), _alone) = (Device::get(), alone()) else { return };
    let short = VerbsOptions { set_up: Duration::from_secs(2), ..options() };
    let domain = VerbsDomain::reaching(&device.at(0), short).unwrap();
    let held = Held::now(Some(&domain));
    for text in ["verbs", "verbs:", "verbs:host", "verbs::7", "verbs:fe80::1:7", "iwarp:host:7", "verbs:host:70000"] {
        assert!(matches!(refused(verbs::connect(&domain, text, 16)), VerbsError::Address { .. }), "{text}");
        assert!(matches!(refused(VerbsListener::bind(&domain, text)), VerbsError::Address { .. }), "{text}");
        assert!(matches!(refused(VerbsDomain::reaching(text, short)), VerbsError::Address { .. }), "{text}");
    }
    let unknown = refused(VerbsDomain::open(Some("nobody"), short));
    assert!(unknown.to_string().contains(domain.device()), "it lists those that there are: {unknown}");
    let (left, address) = listening(&domain, &device);
    drop(left);
    let nobody = refused(verbs::connect(&domain, &address, 16));
    assert!(matches!(nobody, VerbsError::Refused { .. }), "{nobody:?}");
    // An address that no interface of this machine has, and none of its devices leads to in time.
    let not_here = refused(VerbsListener::bind(&domain, "verbs:192.0.2.1:0"));
    assert!(matches!(not_here, VerbsError::NotHere { .. } | VerbsError::NoWay { .. }), "{not_here:?}");
    // The loopback has no device.
    let no_way = refused(VerbsListener::bind(&domain, "verbs:127.0.0.1:0"));
    assert!(
        matches!(no_way, VerbsError::NoWay { .. } | VerbsError::NotHere { .. } | VerbsError::System { .. }),
        "{no_way:?}"
    );
    let (listener, address) = listening(&domain, &device);
    let taken = refused(VerbsListener::bind(&domain, &address));
    assert!(matches!(taken, VerbsError::PortInUse { .. }), "{taken:?}");
    // A server that never looks.
    let begun = Instant::now();
    let silent = verbs::connect(&domain, &address, 16);
    assert!(begun.elapsed() < WITHIN, "given up in time");
    assert!(matches!(refused(silent), VerbsError::TimedOut { .. } | VerbsError::Hung { .. }));
    drop(listener);
    held.comes_back(Some(&domain));
}

#[test]
#[ignore = "for the lab: takes as long as the network does to know that nobody is there"]
fn a_host_that_is_not_there_is_given_up_in_time() {
    let Ok(address) = std::env::var("FRRWP_VERBS_NOBODY") else { return };
    let Some(device) = Device::get() else { return };
    let short = VerbsOptions { set_up: Duration::from_secs(6), ..options() };
    let domain = VerbsDomain::reaching(&device.at(0), short).unwrap();
    let begun = Instant::now();
    let nobody = refused(verbs::connect(&domain, &address, 16));
    assert!(matches!(nobody, VerbsError::TimedOut { .. } | VerbsError::Unreachable { .. }), "{nobody:?}");
    assert!(begun.elapsed() < WITHIN);
}

/// `FRRWP_VERBS_EXPECT` is the name of the error, `FRRWP_VERBS_AS` the user to be.
#[test]
#[ignore = "for the lab: something is wrong with the system"]
fn opening_fails_as_expected() {
    let Ok(expected) = std::env::var("FRRWP_VERBS_EXPECT") else { return };
    if let Ok(user) = std::env::var("FRRWP_VERBS_AS") {
        // SAFETY: `setuid` takes a number and no memory.
        assert_eq!(unsafe { libc::setuid(user.parse().unwrap()) }, 0);
    }
    let address = format!("verbs:{}:0", std::env::var("MRRC_VERBS_ADDRESS").unwrap());
    let opened = VerbsDomain::open(None, options()).and_then(|domain| VerbsListener::bind(&domain, &address).map(drop));
    let reached =
        VerbsDomain::reaching(&address, options()).and_then(|domain| VerbsListener::bind(&domain, &address).map(drop));
    for error in [refused(opened), refused(reached)] {
        assert!(format!("{error:?}").contains(&expected), "{error:?}");
    }
}
