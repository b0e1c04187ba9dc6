//! Limits of one command within its sandbox's, for `exec` and `tool`.

use serde_json::{Map, Value};

#[derive(Debug, clap::Args)]
pub struct LimitArgs {
    /// Memory limit of this command, in MiB
    #[arg(long, visible_alias = "memory", value_name = "MIB")]
    memory_mb: Option<u64>,
    /// CPU limit of this command, such as 0.5
    #[arg(long, value_name = "N")]
    cpus: Option<f64>,
    /// Limit of processes and threads of this command
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
}

impl LimitArgs {
    /// The field `resources` of a request; `None` if there are no limits.
    pub fn into_json(self) -> Option<Map<String, Value>> {
        let limits = [
            ("memory_mb", self.memory_mb.map(Value::from)),
            ("cpus", self.cpus.map(Value::from)),
            ("pids", self.pids.map(Value::from)),
        ];
        let given = limits.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?)));
        Some(given.collect::<Map<_, _>>()).filter(|given| !given.is_empty())
    }
}
