//! What owners have used.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::Owner;

#[derive(Clone, Debug, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ReadUsage {
    /// The start of the period; it is rounded down to a whole hour. Default: 30 days before its end.
    #[param(value_type = Option<String>, format = DateTime)]
    pub from: Option<Timestamp>,
    /// The end of the period; it is rounded up to a whole hour. Default: now.
    #[param(value_type = Option<String>, format = DateTime)]
    pub to: Option<Timestamp>,
}

/// What each owner used in a period.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = Usage)]
pub struct Usage {
    #[schema(value_type = String, format = DateTime)]
    pub from: Timestamp,
    #[schema(value_type = String, format = DateTime)]
    pub to: Timestamp,
    /// The owners that the caller may see and that used something, in the order of their names; at most 10,000.
    pub items: Vec<OwnerUsage>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, ToSchema)]
#[schema(as = OwnerUsage)]
pub struct OwnerUsage {
    pub owner: Owner,
    /// Processor time, of all processors together.
    pub cpu_secs: f64,
    /// Memory in MiB, times the hours for which it was used.
    pub memory_mb_hours: f64,
    /// Disk space in MiB, without templates and snapshots, times the hours for which it was used.
    pub disk_mb_hours: f64,
    /// Bytes that the network carried from and to the sandboxes.
    pub network_bytes: u64,
}
