//! What `create` and `run` can ask of a new sandbox. Both go through the JSON of the API, so that the
//! two cannot differ.

use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::cli::argument::pair;

#[derive(Debug, clap::Args)]
pub struct SpecArgs {
    /// What the sandbox starts from [default: host, a safe part of this machine's own system]
    #[arg(long, value_name = "NAME")]
    template: Option<String>,
    /// The isolation technology [default: native]
    #[arg(long, value_name = "NAME")]
    runtime: Option<String>,
    /// A label; may be given several times
    #[arg(long = "label", value_name = "NAME=VALUE", value_parser = pair)]
    labels: Vec<(String, String)>,
    /// A variable for all commands of the sandbox; may be given several times
    #[arg(long = "env", short = 'e', value_name = "NAME=VALUE", value_parser = pair)]
    env: Vec<(String, String)>,
    /// The most memory, in MiB
    #[arg(long, value_name = "MIB")]
    memory_mb: Option<u64>,
    /// How many processors' worth of time, such as 0.5
    #[arg(long, value_name = "N")]
    cpus: Option<f64>,
    /// The most processes and threads at once
    #[arg(long, value_name = "N")]
    pids: Option<u64>,
    /// The most disk space, in MiB; needs btrfs storage
    #[arg(long, value_name = "MIB")]
    disk_mb: Option<u64>,
    /// `root`: what package managers and sudo need, inside the sandbox only
    #[arg(long, value_name = "none|root", value_parser = ["none", "root"])]
    privilege: Option<String>,
}

impl SpecArgs {
    /// The body of `POST /api/v1/sandboxes`; what was not asked for is left to the daemon.
    pub fn into_json(self) -> Value {
        let mut spec = Map::new();
        let mut put = |name: &str, value: Option<Value>| {
            spec.extend(value.map(|value| (name.to_owned(), value)));
        };
        put("template", self.template.map(Value::from));
        put("runtime", self.runtime.map(Value::from));
        put("labels", object(self.labels));
        put("env", object(self.env));
        put("privilege", self.privilege.map(Value::from));
        let limits = json!({
            "memory_mb": self.memory_mb,
            "cpus": self.cpus,
            "pids": self.pids,
            "disk_mb": self.disk_mb,
        });
        let asked =
            limits.as_object().is_some_and(|map| map.values().any(|limit| !limit.is_null()));
        put("resources", asked.then_some(limits));
        Value::Object(spec)
    }
}

fn object(pairs: Vec<(String, String)>) -> Option<Value> {
    let map: BTreeMap<String, String> = pairs.into_iter().collect();
    (!map.is_empty()).then(|| json!(map))
}
