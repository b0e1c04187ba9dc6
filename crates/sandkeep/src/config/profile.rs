//! The names of profiles.

use super::value::Invalid;
use sandkeep_core::limits::PROFILE_NAME_MAX_BYTES;

pub(super) fn check_name(name: &str) -> Result<(), Invalid> {
    let fine = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    let starts_well = name.starts_with(|c: char| c.is_ascii_alphanumeric());
    if starts_well && name.len() <= PROFILE_NAME_MAX_BYTES && name.chars().all(fine) {
        Ok(())
    } else {
        Err(Invalid::new(format!(
            "a profile's name has up to {PROFILE_NAME_MAX_BYTES} letters, digits, `.`, `_` and `-`, the first a letter or digit"
        )))
    }
}
