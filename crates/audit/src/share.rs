//! How much of one file the refusals and reads of one organization may take. The bound holds for each file, so it holds
//! for the whole log, and a flood by one organization does not push out the records of others.

use std::collections::HashMap;

use crate::record::{Entry, Request};
use sandkeep_core::limits::AUDIT_SHARE;

/// `None` is everybody without valid credentials.
type Organization = Option<String>;

/// What was taken of one file.
#[derive(Debug, Default)]
pub struct Shares {
    taken: HashMap<Organization, u64>,
}

/// Of one organization, and since when they are only counted.
#[derive(Debug, Default)]
pub struct Suppressed(HashMap<Organization, u64>);

fn organization(request: &Request) -> Organization {
    request.actor.as_ref().map(|actor| actor.organization.clone())
}

impl Shares {
    pub fn has_room(&self, request: &Request, segment_bytes: u64) -> bool {
        let taken = self.taken.get(&organization(request)).copied().unwrap_or_default();
        taken < segment_bytes / AUDIT_SHARE
    }

    /// Counts a record that was written.
    pub fn take(&mut self, entry: &Entry, bytes: u64) {
        let Entry::Request(request) = entry else { return };
        // Every change that was made has its record, so changes have no share.
        if !request.is_single() {
            *self.taken.entry(organization(request)).or_default() += bytes;
        }
    }
}

impl Suppressed {
    pub fn add(&mut self, request: &Request) {
        *self.0.entry(organization(request)).or_default() += request.count;
    }

    pub fn take_all(&mut self) -> Vec<Entry> {
        let told = |(organization, count)| Entry::Suppressed { organization, count };
        self.0.drain().map(told).collect()
    }
}
