//! What code in a sandbox, a tenant or a stranger on the network tries against everybody else.

mod edges;
