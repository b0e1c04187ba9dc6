//! The host's preparations for the attempts: words that can get here only through a leak, and their locations.

use std::collections::BTreeMap;

use crate::sys;

/// Keys of the command line; `doctor/battery/bait.rs` writes them.
pub struct Scene {
    bait: BTreeMap<String, String>,
    inherited: Vec<i32>,
}

impl Scene {
    /// Also records the initial descriptors of this program, before it opens any.
    pub fn new(arguments: &[&str]) -> Self {
        let inherited = sys::open_descriptors().into_iter().filter(|fd| *fd > 2).collect();
        let pairs = arguments.iter().filter_map(|argument| argument.split_once('='));
        let bait = pairs.map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
        Self { bait, inherited }
    }

    pub fn get(&self, key: &str) -> Option<&str> {
        self.bait.get(key).map(String::as_str)
    }

    /// The values of a repeatable key.
    pub fn all(&self, key: &str) -> Vec<&str> {
        self.get(key)
            .into_iter()
            .flat_map(|list| list.split(':'))
            .filter(|v| !v.is_empty())
            .collect()
    }

    pub fn inherited_descriptors(&self) -> &[i32] {
        &self.inherited
    }

    /// Nothing inside a container can change uname's description of the kernel.
    pub fn has_kernel_of_its_own(&self) -> bool {
        self.get("kernel").is_some_and(|hosts| hosts != sys::kernel())
    }
}
