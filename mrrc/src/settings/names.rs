//! Names that are no setting: what was meant.

use super::table::{Setting, all};

/// Names that settings had before: the old, the new.
const RENAMED: &[(&str, &str)] =
    &[("patience", "wait_timeout"), ("wait_for_room", "capacity_timeout"), ("discard_bar", "discard_grace")];

/// Returns the setting of this name, in any case.
pub(super) fn find(name: &str) -> Option<&'static Setting> {
    all().iter().find(|setting| setting.name().eq_ignore_ascii_case(name))
}

/// Returns the remedy for a name that is no setting, if it was one or resembles one. `show` writes the right name.
pub(super) fn remedy(typed: &str, show: impl Fn(&Setting) -> String) -> Option<String> {
    let typed = typed.to_ascii_lowercase();
    if let Some(&(_, new)) = RENAMED.iter().find(|&&(old, _)| old == typed) {
        return find(new).map(|setting| format!("it was renamed: use {}", show(setting)));
    }
    meant(&typed).map(|setting| format!("there is no such setting: did you mean {}?", show(setting)))
}

/// Returns the setting that a name without its prefix was meant for. It may have a slip of one or two letters,
/// another case, words left out or added (`REGIONS`, `CAPACITY_BYTES`), or be a beginning (`CAP`).
fn meant(typed: &str) -> Option<&'static Setting> {
    let within = |some: &str, all: &str| some.split('_').all(|word| all.split('_').any(|other| other == word));
    let is_part = |name: &str| name.starts_with(typed) || within(typed, name) || within(name, typed);
    let slip = all().iter().find(|setting| is_slip(setting.name(), typed));
    slip.or_else(|| all().iter().find(|setting| typed.len() >= 3 && is_part(setting.name())))
}

fn is_slip(name: &str, typed: &str) -> bool {
    let (a, b) = (name.as_bytes(), typed.as_bytes());
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.iter().enumerate() {
        let mut corner = row[0];
        row[0] = i + 1;
        for (j, y) in b.iter().enumerate() {
            let change = corner + usize::from(x != y);
            corner = row[j + 1];
            row[j + 1] = change.min(row[j] + 1).min(corner + 1);
        }
    }
    row[b.len()] <= 2.min(name.len() / 4)
}
