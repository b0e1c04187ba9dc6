//! What the sandboxes of one organization have together, so that many of them get no more than one would.

use std::collections::HashMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Semaphore;

use sandkeep_core::limits::EGRESS_LOOKUPS_TENANT_MAX;

use crate::sandbox::lock;

pub(crate) struct Tenant {
    /// Its open connections.
    pub(crate) open: AtomicU64,
    pub(crate) lookups: Arc<Semaphore>,
}

/// Those that have a sandbox here.
#[derive(Default)]
pub(crate) struct Tenants(Mutex<HashMap<String, Weak<Tenant>>>);

impl Tenants {
    pub(crate) fn of(&self, organization: &str) -> Arc<Tenant> {
        let mut all = lock(&self.0);
        if let Some(tenant) = all.get(organization).and_then(Weak::upgrade) {
            return tenant;
        }
        all.retain(|_, tenant| tenant.strong_count() > 0);
        let lookups = Arc::new(Semaphore::new(EGRESS_LOOKUPS_TENANT_MAX));
        let tenant = Arc::new(Tenant { open: AtomicU64::new(0), lookups });
        all.insert(organization.to_owned(), Arc::downgrade(&tenant));
        tenant
    }
}
