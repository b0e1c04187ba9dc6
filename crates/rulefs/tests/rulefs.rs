//! The filesystem on a real mount, as root. This program is also the server that it tests: a server must be started by
//! a process without threads, so the tests have a harness of their own, with the arguments of the usual one.

#![expect(clippy::unwrap_used, reason = "tests say what must hold by panicking when it does not")]

#[path = "it/escapes.rs"]
mod escapes;
#[path = "it/ground.rs"]
mod ground;
#[path = "it/programs.rs"]
mod programs;
#[path = "it/semantics.rs"]
mod semantics;
#[path = "it/server.rs"]
mod server;
#[path = "it/sharing.rs"]
mod sharing;
#[path = "it/support/wait.rs"]
mod wait;

use std::panic::AssertUnwindSafe;
use std::process::ExitCode;

type Test = (&'static str, fn());

/// Names of functions, with the functions.
#[macro_export]
macro_rules! tests {
    ($module:ident: $($name:ident),* $(,)?) => {
        pub const TESTS: &[(&str, fn())] =
            &[$((concat!(stringify!($module), "::", stringify!($name)), $name as fn())),*];
    };
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if arguments.first().is_some_and(|first| first == ground::SERVER) {
        return sandkeep_rulefs::main();
    }
    let has = |flag: &str| arguments.iter().any(|argument| argument == flag);
    let all =
        [semantics::TESTS, escapes::TESTS, server::TESTS, programs::TESTS, sharing::TESTS].concat();
    let with_value = ["--format", "--test-threads", "--color", "--skip"];
    let is_value = |at: usize| at > 0 && with_value.contains(&arguments[at - 1].as_str());
    let filters: Vec<&String> = arguments
        .iter()
        .enumerate()
        .filter(|(at, argument)| !argument.starts_with('-') && !is_value(*at))
        .map(|(_, argument)| argument)
        .collect();
    let is_chosen = |test: &&Test| {
        filters.is_empty()
            || filters.iter().any(|filter| {
                if has("--exact") {
                    test.0 == filter.as_str()
                } else {
                    test.0.contains(filter.as_str())
                }
            })
    };
    let chosen: Vec<&Test> = all.iter().filter(is_chosen).collect();
    if has("--list") {
        if !has("--ignored") {
            chosen.iter().for_each(|(name, _)| println!("{name}: test"));
        }
        return ExitCode::SUCCESS;
    }
    let failed: Vec<&str> = chosen.iter().filter(|test| !run(test)).map(|test| test.0).collect();
    println!("{} tests, failed: {failed:?}", chosen.len());
    if failed.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}

fn run((name, test): &Test) -> bool {
    if let Some(reason) = sandkeep_rulefs::unusable() {
        println!("SKIP {name}: {reason}");
        return true;
    }
    let passed = std::panic::catch_unwind(AssertUnwindSafe(test)).is_ok();
    println!("test {name} ... {}", if passed { "ok" } else { "FAILED" });
    passed
}
