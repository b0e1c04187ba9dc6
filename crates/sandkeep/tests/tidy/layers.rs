//! Which room may name which. Paths are read from `use` trees and from the code alike.

use crate::rules::{Violation, is_test};
use crate::source::{Source, Token};

/// A room, what it must not name, and the few things of those that it may.
struct Layer {
    room: &'static str,
    forbidden: &'static [&'static str],
    except: &'static [&'static str],
}

const LAYERS: &[Layer] = &[
    Layer {
        room: "api",
        forbidden: &["crate::runtime", "crate::storage", "crate::store", "crate::sys"],
        // What the one map of errors and the list of runtimes must spell out; plain data.
        except: &[
            "crate::runtime::RuntimeError",
            "crate::runtime::Usable",
            "crate::runtime::Capabilities",
            "crate::storage::StorageError",
            "crate::store::StoreError",
            // Whose socket a client has: authentication, which is this room's own work.
            "crate::sys::peer",
        ],
    },
    Layer {
        room: "runtime",
        forbidden: &[
            "crate::api",
            "crate::broker",
            "crate::cli",
            "crate::store",
            "crate::error",
            "crate::sandbox::Principal",
            "axum",
            // A runtime may be the client of an engine; it serves nobody.
            "hyper::server",
        ],
        except: &[],
    },
    Layer {
        room: "storage",
        forbidden: &["crate::api", "crate::broker", "crate::cli", "crate::store", "crate::runtime"],
        except: &[],
    },
    Layer {
        room: "store",
        forbidden: &[
            "crate::api",
            "crate::broker",
            "crate::cli",
            "crate::storage",
            "crate::runtime",
        ],
        except: &[],
    },
    Layer {
        room: "broker",
        forbidden: &["crate::api", "crate::cli", "crate::sys::launcher", "axum", "hyper"],
        except: &[],
    },
    Layer {
        room: "auth",
        forbidden: &[
            "crate::api",
            "crate::broker",
            "crate::cli",
            "crate::runtime",
            "crate::storage",
            "crate::sys",
            "axum",
            "hyper",
        ],
        except: &[],
    },
    Layer {
        room: "outgoing",
        forbidden: &[
            "crate::api",
            "crate::auth",
            "crate::broker",
            "crate::cli",
            "crate::config",
            "crate::runtime",
            "crate::storage",
            "crate::store",
            "crate::sys",
            "crate::template",
        ],
        except: &[],
    },
    Layer {
        room: "sandbox",
        forbidden: &[
            "crate::api",
            "crate::broker",
            "crate::cli",
            "crate::guest",
            "crate::home",
            "crate::runtime",
            "crate::storage",
            "crate::store",
            "crate::sys",
            "std::fs",
            "std::net",
            "std::process",
            "tokio",
        ],
        except: &[],
    },
    Layer {
        room: "sys",
        forbidden: &["crate::api", "crate::broker", "crate::cli", "crate::store", "crate::storage"],
        except: &[],
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

fn layer_of(source: &Source) -> Option<&'static Layer> {
    if is_test(source) {
        return None;
    }
    let inside = source.path.strip_prefix("crates/sandkeep/src/")?;
    LAYERS.iter().find(|layer| {
        inside.strip_prefix(layer.room).is_some_and(|r| r.starts_with('/') || r == ".rs")
    })
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
        match starts {
            true => at += spread(&tokens[at..], String::new(), &mut found).max(1),
            false => at += 1,
        }
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
    fn an_api_that_names_a_runtime_is_refused() {
        let api = "crates/sandkeep/src/api/rest.rs";
        assert_eq!(problems(api, "use crate::broker::Broker; // crate::runtime::Runtime"), 0);
        assert_eq!(problems(api, "use crate::runtime::{Capabilities, RuntimeError};"), 0);
        assert_eq!(problems(api, "use crate::runtime::Runtime;"), 1);
        assert_eq!(problems(api, "use crate::{error::Error, runtime::{Runtime, Plan}};"), 2);
        assert_eq!(problems(api, "fn f(s: &dyn crate::store::StateStore) {}"), 1);
        assert_eq!(problems(api, "use crate::storage;"), 1);
    }

    #[test]
    fn a_runtime_that_names_the_store_is_refused() {
        let native = "crates/sandkeep/src/runtime/native/launch.rs";
        assert_eq!(problems(native, "use crate::storage::Root; use crate::sandbox::Owner;"), 0);
        assert_eq!(problems(native, "use crate::store::Key;"), 1);
        assert_eq!(problems("crates/sandkeep/src/runtime.rs", "use crate::broker::Parts;"), 1);
        assert_eq!(problems(native, "use axum::Router;"), 1);
    }

    #[test]
    fn a_pure_core_that_does_io_is_refused() {
        let state = "crates/sandkeep/src/sandbox/state.rs";
        assert_eq!(problems(state, "use std::fmt; use crate::limits;"), 0);
        assert_eq!(problems(state, "fn f() { std::fs::read(\"x\"); }"), 1);
    }
}
