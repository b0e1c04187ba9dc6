//! Many tenants, all verbs, and a daemon that is killed in between: nobody sees another's data, nothing acknowledged is
//! lost, nothing is left over, and memory stays constant.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};

use serde_json::{Value, json};

use crate::crash::kill_9;
use crate::keys::{create_key, key_of, with_admin};
use crate::skip_if;
use crate::support::{Daemon, Patience, Setup, obstacle, until};

const TENANTS: usize = 8;
/// Allowed growth of a daemon's memory between two measurements of the same load: allocators keep freed memory.
const GROWTH_MAX_KB: u64 = 48 * 1024;

#[test]
fn tenants_under_load_keep_what_is_theirs_through_kill_9() {
    load(3, 60);
}

#[test]
#[ignore = "slow: ./test --full runs it"]
fn soak_tenants_under_load_keep_what_is_theirs_through_kill_9() {
    load(40, 300);
}

fn load(rounds: usize, requests: usize) {
    skip_if!(obstacle());
    let mut daemon = with_admin(&Setup::default());
    let street = Arc::new(Mutex::new(Vec::new()));
    let tenants: Vec<Tenant> =
        (0..TENANTS).map(|number| Tenant::new(&daemon, number, &street)).collect();
    for round in 0..rounds {
        let before = rss_after(&daemon, &tenants, requests);
        let after = rss_after(&daemon, &tenants, 2 * requests);
        assert!(after < before + GROWTH_MAX_KB, "round {round}: {before} kB became {after} kB");
        killed_after(&mut daemon, &tenants, requests / 2);
        daemon.start_again(&Setup::default());
        for tenant in &tenants {
            tenant.finds_all_that_is_its_own(&daemon);
        }
        daemon.assert_no_leaks();
    }
}

/// The daemon's memory after so many more requests of everybody.
fn rss_after(daemon: &Daemon, tenants: &[Tenant], requests: usize) -> u64 {
    let done = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for tenant in tenants {
            let done = &done;
            scope.spawn(move || {
                while done.fetch_add(1, Ordering::Relaxed) < requests {
                    tenant.works(daemon).expect("the daemon answers");
                }
            });
        }
    });
    let status = fs::read_to_string(format!("/proc/{}/status", daemon.pid())).expect("it lives");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a size");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

fn killed_after(daemon: &mut Daemon, tenants: &[Tenant], requests: usize) {
    let (done, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        let (done, over, daemon) = (&done, &over, &*daemon);
        for tenant in tenants {
            scope.spawn(move || {
                while !over.load(Ordering::Relaxed) && tenant.works(daemon).is_ok() {
                    done.fetch_add(1, Ordering::Relaxed);
                }
            });
        }
        until("enough was asked", Patience::Long, || done.load(Ordering::Relaxed) >= requests);
        kill_9(daemon.pid());
        over.store(true, Ordering::Relaxed);
    });
    daemon.wait_for_end();
}

/// A tenant's knowledge of one of its sandboxes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Known {
    /// It is there, and its file holds at least this number: that write was acknowledged.
    Wrote(u64),
    /// Its end was asked for and not acknowledged: it may be there.
    Doomed,
    /// It is gone for good.
    Gone,
}

/// Sandboxes by owner: where a tenant finds ids that are not its own.
type Street = Arc<Mutex<Vec<(String, String)>>>;

/// An owner of sandboxes, who remembers the acknowledgements.
struct Tenant {
    name: String,
    /// What it says to be let in.
    credential: String,
    street: Street,
    turn: AtomicUsize,
    book: Mutex<BTreeMap<String, Known>>,
}

impl Tenant {
    /// Two users of every organization, because those must not find each other either.
    fn new(daemon: &Daemon, number: usize, street: &Street) -> Self {
        let name = format!("tenant-{number}");
        let made = create_key(&daemon.data_dir(), &format!("org-{}", number / 2), &name, &[]);
        let credential = format!("Bearer {}", key_of(&made));
        let street = Arc::clone(street);
        Self { name, credential, street, turn: AtomicUsize::new(number), book: Mutex::default() }
    }

    /// An error once the daemon does not answer any more.
    fn ask(
        &self,
        daemon: &Daemon,
        method: &str,
        target: &str,
        body: &Value,
    ) -> io::Result<(u16, Value)> {
        let headers = [("authorization", self.credential.as_str())];
        daemon.request_with(&headers, method, target, body)
    }

    fn note(&self, id: &str, known: Known) {
        self.book.lock().expect("no panic").insert(id.to_owned(), known);
    }

    fn living(&self) -> Vec<(String, u64)> {
        let book = self.book.lock().expect("no panic");
        let wrote = |(id, known): (&String, &Known)| match known {
            Known::Wrote(number) => Some((id.clone(), *number)),
            Known::Doomed | Known::Gone => None,
        };
        book.iter().filter_map(wrote).collect()
    }

    /// The next thing it does; an error once the daemon does not answer any more.
    fn works(&self, daemon: &Daemon) -> io::Result<()> {
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let living = self.living();
        let Some((id, number)) =
            living.get(turn % living.len().max(1)).filter(|_| !turn.is_multiple_of(7))
        else {
            return if living.len() < 3 {
                self.creates(daemon)
            } else {
                self.destroys(daemon, &living[0].0)
            };
        };
        match turn % 7 {
            1 | 2 => self.writes(daemon, id, number + 1),
            3 => self.reads(daemon, id, *number),
            4 => self.restarts(daemon, id),
            5 => self.lists(daemon),
            _ => {
                self.looks(daemon, id)?;
                self.tries_another(daemon, turn)
            }
        }
    }

    fn creates(&self, daemon: &Daemon) -> io::Result<()> {
        let body = json!({ "labels": { "tenant": self.name } });
        let (status, view) = self.ask(daemon, "POST", "/api/v1/sandboxes", &body)?;
        assert_eq!((status, &view["owner"]["user"]), (201, &json!(self.name)), "{view}");
        let id = view["id"].as_str().expect("an id").to_owned();
        self.note(&id, Known::Wrote(0));
        self.street.lock().expect("no panic").push((self.name.clone(), id));
        Ok(())
    }

    fn destroys(&self, daemon: &Daemon, id: &str) -> io::Result<()> {
        self.note(id, Known::Doomed);
        let target = format!("/api/v1/sandboxes/{id}");
        let (status, answer) = self.ask(daemon, "DELETE", &target, &Value::Null)?;
        assert_eq!(status, 204, "{answer}");
        self.note(id, Known::Gone);
        Ok(())
    }

    fn writes(&self, daemon: &Daemon, id: &str, number: u64) -> io::Result<()> {
        let command = format!("echo {} {number} > ~/own", self.name);
        let said = self.sh(daemon, id, &command)?;
        assert_eq!(said["exit_code"], 0, "{said}");
        self.note(id, Known::Wrote(number));
        Ok(())
    }

    /// The file has the sandbox's own text, and none older than the acknowledged one.
    fn reads(&self, daemon: &Daemon, id: &str, acknowledged: u64) -> io::Result<()> {
        let said = self.sh(daemon, id, "cat ~/own 2>/dev/null || echo none")?;
        let text = said["stdout"].as_str().unwrap_or_else(|| panic!("{said}")).trim();
        match text.split_once(' ') {
            Some((name, number)) => {
                assert_eq!(name, self.name, "{id} holds what is another's");
                let number: u64 = number.parse().expect("a number");
                assert!(
                    number >= acknowledged,
                    "{id}: {acknowledged} was acknowledged, {number} is there"
                );
            }
            None => assert_eq!((text, acknowledged), ("none", 0), "{id}"),
        }
        Ok(())
    }

    fn sh(&self, daemon: &Daemon, id: &str, command: &str) -> io::Result<Value> {
        let target = format!("/api/v1/sandboxes/{id}/execs");
        let body = json!({ "command": command });
        let (status, answer) = self.ask(daemon, "POST", &target, &body)?;
        assert_eq!(status, 200, "{answer}");
        // The daemon may go away in the middle of a command; then nobody knows how it ended.
        if answer["outcome"] == "lost" {
            Err(io::Error::other(format!("{answer}")))
        } else {
            Ok(answer)
        }
    }

    fn restarts(&self, daemon: &Daemon, id: &str) -> io::Result<()> {
        for verb in ["stop", "start"] {
            let target = format!("/api/v1/sandboxes/{id}/{verb}");
            let (status, answer) = self.ask(daemon, "POST", &target, &Value::Null)?;
            assert_eq!(status, 200, "{verb}: {answer}");
        }
        Ok(())
    }

    fn looks(&self, daemon: &Daemon, id: &str) -> io::Result<()> {
        let target = format!("/api/v1/sandboxes/{id}");
        let (status, view) = self.ask(daemon, "GET", &target, &Value::Null)?;
        assert_eq!((status, &view["labels"]["tenant"]), (200, &json!(self.name)), "{view}");
        Ok(())
    }

    fn others(&self) -> Vec<String> {
        let street = self.street.lock().expect("no panic");
        let others = street.iter().filter(|(name, _)| *name != self.name);
        others.map(|(_, id)| id.clone()).collect()
    }

    /// Another's sandbox is not there, for whatever is asked of it.
    fn tries_another(&self, daemon: &Daemon, turn: usize) -> io::Result<()> {
        // At first there may be none.
        let Some(other) = self.others().into_iter().cycle().nth(turn) else { return Ok(()) };
        let target = format!("/api/v1/sandboxes/{other}");
        let exec = (format!("{target}/execs"), json!({ "command": "cat ~/own" }));
        let requests = [
            ("GET", target.clone(), Value::Null),
            ("POST", format!("{target}/stop"), Value::Null),
            ("POST", exec.0, exec.1),
            ("DELETE", target, Value::Null),
        ];
        for (method, target, body) in requests {
            let (status, answer) = self.ask(daemon, method, &target, &body)?;
            assert_eq!(status, 404, "{} got {method} {target}: {answer}", self.name);
        }
        Ok(())
    }

    /// Everything of its own is listed, and nothing else.
    fn lists(&self, daemon: &Daemon) -> io::Result<()> {
        let mine = self.living();
        let target = "/api/v1/sandboxes?limit=1000";
        let (status, listing) = self.ask(daemon, "GET", target, &Value::Null)?;
        assert_eq!(status, 200, "{listing}");
        let items = listing["items"].as_array().expect("items");
        for view in items {
            assert_eq!(view["labels"]["tenant"], json!(self.name), "{view}");
        }
        for (id, _) in mine {
            assert!(items.iter().any(|view| view["id"] == json!(id)), "{id} is not listed");
        }
        Ok(())
    }

    /// After a crash, by all that it was told before.
    fn finds_all_that_is_its_own(&self, daemon: &Daemon) {
        let told = self.book.lock().expect("no panic").clone();
        for (id, known) in told {
            let target = format!("/api/v1/sandboxes/{id}");
            let answer = self.ask(daemon, "GET", &target, &Value::Null);
            let (status, view) = answer.expect("the daemon answers");
            match known {
                Known::Gone => assert_eq!(status, 404, "{id} is back: {view}"),
                Known::Doomed => match status {
                    404 => self.note(&id, Known::Gone),
                    _ => self.destroys(daemon, &id).expect("the daemon answers"),
                },
                Known::Wrote(number) => {
                    assert_eq!(status, 200, "{id} was acknowledged and is lost");
                    assert_eq!(view["labels"]["tenant"], json!(self.name), "{view}");
                    if view["state"] != "running" {
                        daemon.verb(&id, "start");
                    }
                    self.reads(daemon, &id, number).expect("the daemon answers");
                }
            }
        }
    }
}
