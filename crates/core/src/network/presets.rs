//! Presets: names for the hosts that one kind of package manager needs. Those that come with the program are in one
//! data file, `crates/core/data/network-presets.json`; an admin can add presets and replace them.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use super::entry::{Entry, Target};
use crate::limits;

const BUILT_IN: &str = include_str!("../../data/network-presets.json");

/// Entries by the name of their preset. No preset names another one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Presets(BTreeMap<String, Vec<Entry>>);

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("network preset {name:?}: {problem}")]
pub struct InvalidPreset {
    pub name: String,
    pub problem: String,
}

impl Presets {
    /// Those that come with the program.
    pub fn built_in() -> Self {
        serde_json::from_str(BUILT_IN).expect("a test reads the file")
    }

    /// Adds a preset, or replaces it.
    pub fn set(&mut self, name: &str, entries: Vec<Entry>) -> Result<(), InvalidPreset> {
        let invalid = |problem: String| InvalidPreset { name: name.to_owned(), problem };
        if !is_preset_name(name) {
            let problem = "a name has lower case letters, digits and hyphens, and no dot";
            return Err(invalid(problem.to_owned()));
        }
        if entries.is_empty() {
            return Err(invalid("it has no entries".to_owned()));
        }
        if entries.len() > limits::NETWORK_PRESET_ENTRIES_MAX {
            let max = limits::NETWORK_PRESET_ENTRIES_MAX;
            return Err(invalid(format!("{} entries are more than {max}", entries.len())));
        }
        if let Some(entry) = entries.iter().find(|entry| matches!(entry.target, Target::Preset(_)))
        {
            return Err(invalid(format!("{entry} is a preset itself; write its hosts")));
        }
        if self.0.len() == limits::NETWORK_PRESETS_MAX && !self.0.contains_key(name) {
            let max = limits::NETWORK_PRESETS_MAX;
            return Err(invalid(format!("there are {max} presets already, the maximum")));
        }
        self.0.insert(name.to_owned(), entries);
        Ok(())
    }

    pub fn get(&self, name: &str) -> Option<&[Entry]> {
        self.0.get(name).map(Vec::as_slice)
    }

    pub fn iter(&self) -> impl Iterator<Item = (&str, &[Entry])> {
        self.0.iter().map(|(name, entries)| (name.as_str(), entries.as_slice()))
    }

    /// The entry itself, or the entries of the preset that it names; nothing if there is no such preset.
    pub fn expanded<'a>(&'a self, entry: &'a Entry) -> &'a [Entry] {
        match &entry.target {
            Target::Preset(name) => self.get(name).unwrap_or_default(),
            _ => std::slice::from_ref(entry),
        }
    }

    /// Says that there is no such preset, and which there are.
    pub(super) fn unknown(&self, name: &str) -> String {
        let names: Vec<_> = self.0.keys().map(String::as_str).collect();
        format!(
            "{name:?} has no dot, so it is a preset, and there is none of this name; presets are {}",
            names.join(", ")
        )
    }
}

pub(super) fn is_preset_name(text: &str) -> bool {
    (1..=limits::NETWORK_PRESET_NAME_MAX_BYTES).contains(&text.len())
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-')
}
