use super::*;

fn settings(variables: &[(&str, &str)]) -> Result<Settings, BuildError> {
    let mut settings = Settings::default();
    settings.read(variables.iter().map(|&(name, value)| (name.into(), value.into())))?;
    Ok(settings)
}

#[test]
fn every_variable_sets_what_it_says() {
    let set = settings(&[
        ("MRRC_CAPACITY", "64M"),
        ("MRRC_MAX_REGIONS", "1000"),
        ("MRRC_POLICY", "Sieve"),
        ("MRRC_RESORT", "0.25"),
        ("MRRC_EVICT", "0.2"),
        ("MRRC_COST", "fmr"),
        ("MRRC_MONITOR", "Explicit"),
        ("MRRC_CAPACITY_TIMEOUT", "20ms"),
        ("MRRC_WAIT_TIMEOUT", "3s"),
        ("MRRC_DISCARD_GRACE", "1 S"),
        ("MRRC_HEADROOM", "0.1"),
        ("MRRC_PRESSURE", "on"),
        ("MRRC_MAX_UNHELD", "1G, 60s"),
        ("MRRC_RETRIES", "2"),
        ("MRRC_MAX_SEGMENTS", "1"),
        ("MRRC_BACKGROUND", "off"),
        ("MRRC_HISTOGRAMS", "ON"),
        ("MRRC_FENCE", "1"),
        ("MRRC_CPUS", "0-3"),
        ("PATH", "/bin"),
    ])
    .unwrap();
    assert_eq!((set.capacity_pages, set.max_regions), (Some(16_384), Some(1000)));
    assert_eq!((set.policy, set.resort, set.evict), (Some(PolicyKind::Sieve), Some(0.25), Some(0.2)));
    assert_eq!((set.costs, set.monitor), (Some(Linear::FMR), Some(MonitorKind::Explicit)));
    assert_eq!(set.capacity_timeout, Duration::from_millis(20));
    assert_eq!((set.wait_timeout, set.grace), (Duration::from_secs(3), Some(Duration::from_secs(1))));
    assert_eq!((set.headroom, set.pressure), (0.1, true));
    assert_eq!(set.max_unheld, Some(UnheldLimit { pages: 1 << 18, time: Duration::from_secs(60) }));
    assert_eq!((set.retries, set.max_segments), (2, 1));
    assert_eq!((set.background, set.histograms, set.fence), (Some(false), true, true));
    #[cfg(target_os = "linux")]
    assert_eq!(set.cpus, crate::own_thread::Cpus::parse("0,1,2,3"));
}

#[test]
fn what_makes_no_sense_is_named_with_what_would() {
    for (name, value) in [
        ("MRRC_CAPACITY", "lots"),
        ("MRRC_CAPACITY", "4095"),
        ("MRRC_MAX_REGIONS", "0"),
        ("MRRC_POLICY", "best"),
        ("MRRC_EVICT", "1.5"),
        ("MRRC_RESORT", "NaN"),
        ("MRRC_COST", "free"),
        ("MRRC_MONITOR", "none"),
        ("MRRC_WAIT_TIMEOUT", "10"),
        ("MRRC_RETRIES", "-1"),
        ("MRRC_BACKGROUND", "maybe"),
        ("MRRC_HEADROOM", "7"),
        ("MRRC_MAX_UNHELD", "1G"),
        ("MRRC_MAX_UNHELD", "1G,"),
        ("MRRC_MAX_UNHELD", "much,60s"),
        ("MRRC_MAX_UNHELD", "0"),
        ("MRRC_MAX_UNHELD", "99ms"),
        ("MRRC_CPUS", "3-1"),
    ] {
        let error = settings(&[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name) && error.contains(value) && error.contains("expected"), "{error}");
    }
}

#[test]
fn a_limit_on_unheld_regions_can_be_off() {
    let of = |text| settings(&[("MRRC_MAX_UNHELD", text)]).unwrap().max_unheld;
    assert_eq!(of("off"), Some(UnheldLimit::NONE));
    assert_eq!(of("500ms"), Some(UnheldLimit { pages: u64::MAX, time: Duration::from_millis(500) }));
}

#[test]
fn a_capacity_is_read_as_a_size_is_everywhere() {
    for (text, pages) in [("32M", 8192), ("32MiB", 8192), ("32MB", 7812), ("32000000", 7812)] {
        assert_eq!(settings(&[("MRRC_CAPACITY", text)]).unwrap().capacity_pages, Some(pages), "{text}");
    }
}

#[test]
fn every_policy_is_offered() {
    let error = settings(&[("MRRC_POLICY", "best")]).unwrap_err().to_string();
    let offered = error.split("policy: ").nth(1).unwrap();
    let names: Vec<_> = PolicyKind::ALL.iter().map(|kind| kind.name()).collect();
    assert_eq!(offered.split(", ").collect::<Vec<_>>(), names, "{error}");
}

#[test]
fn a_setting_by_name_is_that_of_the_variable() {
    let mut settings = Settings::default();
    settings.set("capacity", "1 GiB").unwrap();
    settings.set("Max_Segments", "2").unwrap();
    assert_eq!((settings.capacity_pages, settings.max_segments), (Some(1 << 18), 2));
    for (name, value, said) in [
        ("capacity", "lots", "setting capacity=\"lots\": expected bytes"),
        ("capacity", "", "expected bytes"),
        ("capactiy", "1G", "did you mean capacity?"),
        ("colour", "red", "choose from capacity, max_regions, slice, policy"),
        ("", "1", "choose from"),
        ("MRRC_CAPACITY", "1G", "did you mean capacity?"),
    ] {
        let error = settings.set(name, value).unwrap_err().to_string();
        assert!(error.contains(said) && !error.contains("environment"), "{error}");
    }
}

#[test]
fn misspelled_variable_is_reported() {
    let error = settings(&[("MRRC_CAPACTIY", "64M")]).unwrap_err().to_string();
    assert!(error.contains("did you mean MRRC_CAPACITY"), "{error}");
    assert!(settings(&[("MRRC_policy", "mrrc")]).is_err());
    for (typed, meant) in [
        ("CAP", "CAPACITY"),
        ("CAPACITY_BYTES", "CAPACITY"),
        ("REGIONS", "MAX_REGIONS"),
        ("SEGMENTS", "MAX_SEGMENTS"),
        ("wait", "WAIT_TIMEOUT"),
        ("GRACE", "DISCARD_GRACE"),
    ] {
        let error = settings(&[(&format!("MRRC_{typed}"), "1")]).unwrap_err().to_string();
        assert!(error.contains(&format!("did you mean MRRC_{meant}?")), "{error}");
    }
    assert!(settings(&[("MRRC_CASES", "10"), ("MRRC_RECORD", "x"), ("MRRC_EVICT", " ")]).is_ok());
}

#[test]
fn defaults_are_those_of_the_table() {
    let plain = Settings::default();
    for setting in all() {
        let Some(default) = setting.default() else { continue };
        let mut set = Settings::default();
        set.set(setting.name(), default).unwrap();
        assert_eq!(set.config().unwrap(), plain.config().unwrap(), "{}", setting.name());
        let stated = Settings {
            policy: None,
            resort: None,
            evict: None,
            widen: None,
            widen_for_peers: false,
            costs: None,
            monitor: set.monitor.filter(|&monitor| monitor != MonitorKind::DEFAULT),
            shared: set.shared.filter(|&shared| shared != SharedMemory::default()),
            grace: set.grace.filter(|&grace| grace != GRACE),
            ..set
        };
        assert_eq!(stated, plain, "{}", setting.name());
        let shown = [format!("{default} (default)"), format!("default: {default}")];
        assert!(shown.iter().any(|shown| setting.help().contains(shown)), "{}: {}", setting.name(), setting.help());
    }
}

#[test]
fn a_slip_means_the_nearest_name() {
    for (typed, meant) in
        [("CAPACITY_TIMEOT", "CAPACITY_TIMEOUT"), ("WAIT_TIME", "WAIT_TIMEOUT"), ("MAX_SEGMENT", "MAX_SEGMENTS")]
    {
        let error = settings(&[(&format!("MRRC_{typed}"), "1")]).unwrap_err().to_string();
        assert!(error.contains(&format!("did you mean MRRC_{meant}?")), "{error}");
    }
}

#[test]
fn renamed_settings_are_reported() {
    for (old, new) in
        [("PATIENCE", "WAIT_TIMEOUT"), ("WAIT_FOR_ROOM", "CAPACITY_TIMEOUT"), ("DISCARD_BAR", "DISCARD_GRACE")]
    {
        let error = settings(&[(&format!("MRRC_{old}"), "1s")]).unwrap_err().to_string();
        assert_eq!(error, format!("environment variable MRRC_{old}=\"1s\": it was renamed: use MRRC_{new}"));
        let error = Settings::default().set(old, "1s").unwrap_err().to_string();
        assert!(error.ends_with(&format!("it was renamed: use {}", new.to_ascii_lowercase())), "{error}");
    }
}

#[test]
fn contradictions_are_found_without_a_cache() {
    assert!(Settings::default().check().is_ok());
    let of = |change: fn(&mut Settings)| {
        let mut settings = Settings::default();
        change(&mut settings);
        settings.check()
    };
    assert!(of(|settings| settings.capacity_pages = Some(0)).is_err());
    assert!(of(|settings| settings.headroom = f64::NAN).is_err());
    assert!(of(|settings| settings.max_segments = 0).is_err());
    assert!(of(|settings| settings.evict = Some(2.0)).is_err());
}

/// The table in the documentation of this module, which README.md repeats.
#[cfg(target_os = "linux")]
fn table() -> String {
    let row = |setting: &Setting| format!("| `{}` | {} |\n", setting.variable(), setting.help());
    format!("| variable | |\n| --- | --- |\n{}", all().iter().map(row).collect::<String>())
}

#[test]
#[cfg(target_os = "linux")]
fn the_documentation_has_the_table() {
    let place = concat!(env!("CARGO_MANIFEST_DIR"), "/src/settings.md");
    let made = format!("\n{}", table());
    if std::env::var("MRRC_SETTINGS").is_ok_and(|word| word == "write") {
        std::fs::write(place, &made).unwrap();
    }
    assert_eq!(std::fs::read_to_string(place).unwrap(), made, "MRRC_SETTINGS=write cargo test -p mrrc --lib writes it");
    assert!(
        include_str!("../../README.md").contains(&table()),
        "the table of mrrc/README.md is old: copy that of mrrc/src/settings.md"
    );
}

#[test]
fn a_limit_without_the_background_is_refused() {
    let check = |limit: &str| {
        let variables = [("MRRC_BACKGROUND", "off"), ("MRRC_MAX_UNHELD", limit)];
        Settings::of_variables(variables.map(|(name, value)| (name.into(), value.into()))).unwrap().check()
    };
    assert!(matches!(check("60s"), Err(BuildError::Setting { .. })));
    check("off").unwrap();
}
