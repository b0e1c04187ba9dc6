//! Layering: which module may use which. Paths are read from `use` trees and from the code.

use crate::rules::{Violation, is_test};
use crate::source::{Source, Token};

/// Which of our crates a crate may depend on, besides `core`, which all may. A crate that is not listed may depend on
/// none.
const BELOW: &[(&str, &[&str])] = &[
    ("audit", &["home"]),
    ("egress", &["outgoing", "sys"]),
    ("rulefs", &["sys"]),
    ("sys", &["embedded"]),
    ("traces", &["outgoing"]),
    ("tree", &["sys"]),
    ("storage", &["sys", "tree"]),
    ("commands", &["broker", "doors", "guestlink", "nats"]),
    ("bench", &["storage"]),
    ("guestlink", &["embedded", "home", "sys"]),
    ("image", &["outgoing", "storage", "sys", "tree", "guestlink"]),
    ("runtime", &["embedded", "guestlink", "home", "sys", "tree"]),
    (
        "broker",
        &[
            "audit",
            "egress",
            "guestlink",
            "home",
            "image",
            "outgoing",
            "rulefs",
            "runtime",
            "storage",
            "store",
            "sys",
            "traces",
            "tree",
        ],
    ),
    ("nats", &["broker", "outgoing", "runtime"]),
    (
        "doors",
        &[
            "audit",
            "broker",
            "guestlink",
            "home",
            "image",
            "outgoing",
            "runtime",
            "storage",
            "store",
            "sys",
            "traces",
            "tree",
        ],
    ),
];

/// The crate that assembles all others.
const PROGRAM: &str = "sandkeep";

/// Holds the `[dependencies]` of each manifest to [`BELOW`]; those of tests are free.
pub fn crates_know_only_those_below_them(manifests: &[(String, String)]) -> Vec<String> {
    let mut found = Vec::new();
    for (name, manifest) in manifests.iter().filter(|(name, _)| name != PROGRAM) {
        let allowed = BELOW.iter().find(|(of, _)| of == name).map_or(&[][..], |(_, below)| *below);
        let section = manifest.split("[dependencies]").nth(1).unwrap_or_default();
        let section = section.split("\n[").next().unwrap_or_default();
        let known = section.lines().filter_map(|line| line.strip_prefix("sandkeep-"));
        for known in known.filter_map(|line| line.split(['.', ' ']).next()) {
            if known != "core" && !allowed.contains(&known) {
                found.push(format!("crates/{name}/Cargo.toml: {name} must not know {known}"));
            }
        }
    }
    found
}

/// A crate, or a module of one (whose rules then apply alone), the paths that it must not use although it may depend on
/// their crates, and exceptions.
struct Layer {
    room: &'static str,
    forbidden: &'static [&'static str],
    except: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer {
        room: "doors",
        forbidden: &["sandkeep_runtime", "sandkeep_storage", "sandkeep_store", "sandkeep_sys"],
        // What the list of runtimes must spell out, and what a client calls a dataset; plain data.
        except: &[
            "sandkeep_runtime::Usable",
            "sandkeep_runtime::Capabilities",
            "sandkeep_storage::DatasetSnapshot",
        ],
    },
    // The doors' shared code knows none of them.
    Layer {
        room: "doors/kit",
        forbidden: &[
            "crate::agentfense",
            "crate::connect",
            "crate::flex",
            "crate::front",
            "crate::grpc",
            "crate::mcp",
            "crate::ports",
            "crate::rest",
            "crate::urule",
            "sandkeep_runtime",
            "sandkeep_storage",
            "sandkeep_store",
            "sandkeep_sys",
        ],
        // Whose socket a client has: authentication, which is this crate's own work.
        except: &["sandkeep_sys::peer"],
    },
    // A protocol knows no service that is spoken over it.
    Layer { room: "doors/connect", forbidden: &["crate::flex", "crate::rest"], except: &[] },
    Layer {
        room: "doors/grpc",
        forbidden: &["crate::agentfense", "crate::connect", "crate::flex", "crate::rest"],
        except: &[],
    },
    Layer {
        room: "doors/rpc",
        forbidden: &[
            "crate::agentfense",
            "crate::connect",
            "crate::flex",
            "crate::grpc",
            "crate::rest",
        ],
        except: &[],
    },
    // Keys are rows of the store.
    Layer {
        room: "doors/auth",
        forbidden: &["axum", "crate::kit", "sandkeep_runtime", "sandkeep_storage", "sandkeep_sys"],
        except: &[],
    },
    Layer {
        room: "runtime",
        // A runtime may be the client of an engine; it serves nobody.
        forbidden: &["sandkeep_core::Principal", "axum", "hyper::server"],
        except: &[],
    },
    Layer { room: "broker", forbidden: &["sandkeep_sys::launcher", "axum", "hyper"], except: &[] },
    // Rooms that do not know each other share these errors.
    Layer {
        room: "broker/error",
        forbidden: &["crate", "sandkeep_core::Principal", "axum", "hyper"],
        except: &[],
    },
    Layer {
        room: "core",
        forbidden: &["std::fs", "std::net", "std::process", "tokio"],
        // An address that an answer names is plain data.
        // Addresses are data.
        except: &[
            "std::net::SocketAddr",
            "std::net::IpAddr",
            "std::net::Ipv4Addr",
            "std::net::Ipv6Addr",
        ],
    },
];

pub fn rooms_keep_their_doors(source: &Source) -> Vec<Violation> {
    let Some(layer) = layer_of(source) else { return Vec::new() };
    named_paths(source)
        .into_iter()
        .filter(|(path, _)| layer.forbidden.iter().any(|room| is_within(path, room)))
        .filter(|(path, _)| !layer.except.iter().any(|allowed| is_within(path, allowed)))
        .map(|(path, line)| {
            Violation::new(source, line, format!("{} must not know {path}", layer.room))
        })
        .collect()
}

/// The layer of the room that a file is in, or else of its crate.
fn layer_of(source: &Source) -> Option<&'static Layer> {
    let file = source.path.strip_prefix("crates/")?.replacen("/src/", "/", 1);
    let holds = |layer: &&Layer| {
        file.strip_prefix(layer.room).is_some_and(|rest| rest.starts_with(['/', '.']))
    };
    let layers = LAYERS.iter().filter(|_| !is_test(source)).filter(holds);
    layers.max_by_key(|layer| layer.room.len())
}

fn is_within(path: &str, room: &str) -> bool {
    path.strip_prefix(room).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

/// Every path of two or more parts that the file names, `use` trees spread out, with its line.
fn named_paths(source: &Source) -> Vec<(String, usize)> {
    let tokens = source.tokens();
    let mut found = Vec::new();
    let mut at = 0;
    while at < tokens.len() {
        let starts = is_word(&tokens[at]) && (at == 0 || tokens[at - 1].text != "::");
        if starts { at += spread(&tokens[at..], String::new(), &mut found).max(1) } else { at += 1 }
    }
    found.retain(|(path, _)| path.contains("::"));
    found
}

/// Reads one path or tree and returns how many tokens it took.
fn spread(tokens: &[Token<'_>], prefix: String, found: &mut Vec<(String, usize)>) -> usize {
    let mut path = prefix;
    let mut at = 0;
    while let Some(token) = tokens.get(at) {
        if token.text == "{" {
            return at + spread_group(&tokens[at..], &path, found);
        }
        if !is_word(token) {
            break;
        }
        path =
            if path.is_empty() { token.text.to_owned() } else { format!("{path}::{}", token.text) };
        at += 1;
        match tokens.get(at) {
            Some(next) if next.text == "::" => at += 1,
            _ => break,
        }
    }
    let line = tokens.get(at.saturating_sub(1)).map_or(1, |t| t.line);
    found.push((path, line));
    at
}

fn spread_group(tokens: &[Token<'_>], prefix: &str, found: &mut Vec<(String, usize)>) -> usize {
    let mut at = 1;
    while let Some(token) = tokens.get(at) {
        match token.text {
            "}" => return at + 1,
            "," => at += 1,
            _ => at += spread(&tokens[at..], prefix.to_owned(), found).max(1),
        }
    }
    at
}

fn is_word(token: &Token<'_>) -> bool {
    token.text.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn problems(path: &str, text: &str) -> usize {
        rooms_keep_their_doors(&Source::new(path, text)).len()
    }

    #[test]
    fn a_door_that_names_a_runtime_is_refused() {
        let door = "crates/doors/src/rest.rs";
        assert_eq!(problems(door, "use sandkeep_broker::Broker; // sandkeep_runtime::Runtime"), 0);
        assert_eq!(problems(door, "use sandkeep_runtime::{Capabilities, Usable};"), 0);
        assert_eq!(problems(door, "use sandkeep_runtime::Runtime;"), 1);
        assert_eq!(problems(door, "use sandkeep_runtime::{Usable, Runtime, Plan};"), 2);
        assert_eq!(problems(door, "fn f(s: &dyn sandkeep_store::StateStore) {}"), 1);
    }

    #[test]
    fn a_crate_that_knows_one_above_it_is_refused() {
        let knows = |known: &str| {
            let manifest = format!("[dependencies]\nsandkeep-{known}\n\n[dev-dependencies]\n");
            crates_know_only_those_below_them(&[("runtime".to_owned(), manifest)]).len()
        };
        assert_eq!(knows("core.workspace = true"), 0);
        assert_eq!(knows("sys = { workspace = true, optional = true }"), 0);
        assert_eq!(knows("store.workspace = true"), 1);
        assert_eq!(knows("broker = { workspace = true }"), 1);
    }

    #[test]
    fn a_runtime_that_serves_http_is_refused() {
        let native = "crates/runtime/src/native/launch.rs";
        assert_eq!(problems(native, "use sandkeep_tree::Root; use sandkeep_core::Owner;"), 0);
        assert_eq!(problems(native, "use axum::Router;"), 1);
        assert_eq!(problems(native, "use sandkeep_core::{Owner, Principal};"), 1);
    }

    #[test]
    fn an_error_that_knows_the_broker_is_refused() {
        let text = "use crate::shared::Shared; use sandkeep_store::StoreError;";
        assert_eq!(problems("crates/broker/src/error.rs", text), 1);
        assert_eq!(problems("crates/broker/src/error/code.rs", text), 1);
        assert_eq!(problems("crates/broker/src/errors.rs", text), 0);
    }

    #[test]
    fn a_pure_core_that_does_io_is_refused() {
        let state = "crates/core/src/state.rs";
        assert_eq!(problems(state, "use std::fmt; use crate::limits;"), 0);
        assert_eq!(problems(state, "fn f() { std::fs::read(\"x\"); }"), 1);
    }
}
