//! What a NATS micro service says about itself, as `nats micro ls`, `info` and `stats` read it.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use serde_json::{Value, json};

use super::QUEUE;

/// The service's name.
pub const NAME: &str = "sandkeep";
const VERSION: &str = env!("CARGO_PKG_VERSION");
const VERBS: [&str; 3] = ["PING", "INFO", "STATS"];

pub struct Micro {
    id: String,
    started: Timestamp,
    /// The subjects before `.v1.`, and the verbs.
    roots: Vec<String>,
    endpoints: Mutex<BTreeMap<String, Counts>>,
}

#[derive(Clone, Debug, Default)]
struct Counts {
    requests: u64,
    errors: u64,
    last_error: String,
    took: Duration,
}

impl Micro {
    pub fn new<'a>(
        roots: impl Iterator<Item = &'a str>,
        verbs: impl Iterator<Item = &'a str>,
    ) -> Self {
        let mut bytes = [0; 11];
        getrandom::fill(&mut bytes).expect("the kernel's random source always answers once booted");
        Self {
            id: hex::encode_upper(bytes),
            started: Timestamp::now(),
            roots: roots.map(str::to_owned).collect(),
            endpoints: Mutex::new(verbs.map(|verb| (verb.to_owned(), Counts::default())).collect()),
        }
    }

    /// The subjects at which it is asked.
    pub fn asked_at(&self) -> Vec<String> {
        let of = |verb: &&str| {
            let all = format!("$SRV.{verb}");
            [all.clone(), format!("{all}.{NAME}"), format!("{all}.{NAME}.{}", self.id)]
        };
        VERBS.iter().flat_map(of).collect()
    }

    /// Notes that a command was answered. Commands that there are not count for nothing.
    pub fn count(&self, verb: &str, took: Duration, problem: Option<String>) {
        if let Some(counts) = self.endpoints().get_mut(verb) {
            counts.requests += 1;
            counts.took += took;
            if let Some(problem) = problem {
                counts.errors += 1;
                counts.last_error = problem;
            }
        }
    }

    /// The answer to a question at one of [`Micro::asked_at`].
    pub fn answer(&self, subject: &str) -> Option<String> {
        let about = match subject.split('.').nth(1)? {
            "PING" => json!({ "type": "io.nats.micro.v1.ping_response" }),
            "INFO" => json!({
                "type": "io.nats.micro.v1.info_response",
                "description": "Isolated computers for AI agents: the Sandkeep API over NATS",
                "endpoints": self.listed(|_| json!({})),
            }),
            "STATS" => json!({
                "type": "io.nats.micro.v1.stats_response",
                "started": self.started.to_string(),
                "endpoints": self.listed(stats),
            }),
            _ => return None,
        };
        let own = json!({ "name": NAME, "id": self.id, "version": VERSION, "metadata": {} });
        Some(merged(own, about).to_string())
    }

    /// All endpoints. Requests are counted by verb, for all callers together, so the counts are shown once.
    fn listed(&self, more: impl Fn(&Counts) -> Value) -> Vec<Value> {
        let endpoints = self.endpoints();
        let nothing = Counts::default();
        let of_root = |(at, root): (usize, &String)| {
            let prefix = if at == 0 { String::new() } else { root.replace('.', "-") + "-" };
            let rows = endpoints.iter().map(|(verb, counts)| {
                let row = json!({
                    "name": format!("{prefix}{verb}"),
                    "subject": format!("{root}.v1.{verb}"),
                    "queue_group": QUEUE,
                    "metadata": {},
                });
                merged(row, more(if at == 0 { counts } else { &nothing }))
            });
            rows.collect::<Vec<_>>()
        };
        self.roots.iter().enumerate().flat_map(of_root).collect()
    }

    fn endpoints(&self) -> MutexGuard<'_, BTreeMap<String, Counts>> {
        // Nothing panics while it holds the lock.
        self.endpoints.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn stats(counts: &Counts) -> Value {
    let took = u64::try_from(counts.took.as_nanos()).unwrap_or(u64::MAX);
    json!({
        "num_requests": counts.requests,
        "num_errors": counts.errors,
        "last_error": counts.last_error,
        "processing_time": took,
        "average_processing_time": took.checked_div(counts.requests).unwrap_or(0),
    })
}

fn merged(mut one: Value, other: Value) -> Value {
    if let (Value::Object(one), Value::Object(other)) = (&mut one, other) {
        one.extend(other);
    }
    one
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_who_it_is_and_counts_by_verb() {
        let micro =
            Micro::new(["sandkeep", "sandkeep.accounts.a"].into_iter(), ["get"].into_iter());
        let asked = micro.asked_at();
        assert_eq!(asked.len(), 9);
        assert!(asked.contains(&"$SRV.PING".to_owned()), "{asked:?}");
        micro.count("get", Duration::from_nanos(4), None);
        micro.count("get", Duration::from_nanos(2), Some("no".to_owned()));
        micro.count("gett", Duration::from_nanos(2), None);
        let read = |subject: &str| -> Value {
            serde_json::from_str(&micro.answer(subject).expect("an answer")).expect("JSON")
        };
        let ping = read("$SRV.PING.sandkeep");
        assert_eq!(ping["type"], "io.nats.micro.v1.ping_response");
        assert_eq!((&ping["name"], &ping["id"]), (&json!("sandkeep"), &json!(micro.id)));
        let info = read("$SRV.INFO");
        let subjects: Vec<&str> = info["endpoints"]
            .as_array()
            .expect("endpoints")
            .iter()
            .filter_map(|endpoint| endpoint["subject"].as_str())
            .collect();
        assert_eq!(subjects, ["sandkeep.v1.get", "sandkeep.accounts.a.v1.get"]);
        let stats = &read("$SRV.STATS")["endpoints"][0];
        assert_eq!((&stats["num_requests"], &stats["num_errors"]), (&json!(2), &json!(1)));
        assert_eq!(
            (&stats["average_processing_time"], &stats["last_error"]),
            (&json!(3), &json!("no"))
        );
        assert!(micro.answer("$SRV.SCHEMA").is_none());
    }
}
