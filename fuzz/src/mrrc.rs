//! Texts from command lines and the environment.

use ::mrrc::cost::Linear;
use ::mrrc::policy::PolicyKind;
use ::mrrc::settings::Settings;
use tracesim::sizes::Capacity;

/// A cost model that is understood is valid; so is the name of a policy.
pub(crate) fn cost_model(input: &[u8]) -> bool {
    crate::text(input, |text| {
        if let Ok(kind) = text.parse::<PolicyKind>() {
            assert_eq!(kind.name(), text);
            return true;
        }
        text.parse::<Linear>().is_ok_and(|model| {
            assert!(model.is_valid(), "{model}");
            true
        })
    })
}

/// Sizes are read alike by the cache and by the recorder; a capacity has a page at least.
pub(crate) fn size(input: &[u8]) -> bool {
    crate::text(input, |text| {
        let bytes = ::mrrc::bytes(text);
        assert_eq!(traces_record::bytes(text), bytes, "{text:?}");
        let capacity = text.parse::<Capacity>();
        if let Ok(capacity) = &capacity {
            assert!(capacity.pages(1000) > 0, "{text:?}");
        }
        bytes.is_some() || capacity.is_ok()
    })
}

/// Settings, `name=value` a line. One that is refused changes nothing, and one that is set twice is as if it were set once.
pub(crate) fn setting(input: &[u8]) -> bool {
    crate::text(input, |text| {
        let mut settings = Settings::default();
        for line in text.lines() {
            let Some((name, value)) = line.split_once('=') else { return false };
            let before = settings.clone();
            if let Err(error) = settings.set(name, value) {
                assert_eq!(settings, before, "{line:?}");
                assert!(error.to_string().contains("expected") || error.to_string().contains("no such"), "{error}");
                return false;
            }
            let once = settings.clone();
            settings.set(name, value).expect("it was set before");
            assert_eq!(settings, once, "{line:?}");
        }
        settings.check().is_ok()
    })
}
