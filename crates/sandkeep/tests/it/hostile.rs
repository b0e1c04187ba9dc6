//! What a tenant, or code in a sandbox, tries in order to take the daemon from the others.

mod files;
