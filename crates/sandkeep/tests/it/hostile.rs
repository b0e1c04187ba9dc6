//! What one tenant, or code in one sandbox, does to the daemon of all.

mod accounts;
