//! `sandkeep-probe`: makes the attempts inside a sandbox, and prints the result of each.
//!
//! ```text
//! sandkeep-probe try KEY=VALUE…     every attempt but the bombs, or `only` some; one line each, then `end`
//! sandkeep-probe bomb NAME MAX      takes until it is refused or has MAX, prints how far it got, waits for stdin
//! sandkeep-probe whoami             the user id it runs as, for a set-user-ID copy
//! ```
//!
//! No attempt does harm if it succeeds: it writes to nothing that it opens, removes what it creates, and sets values
//! only to what they were. Each is made in its own child process, so that being killed affects only that attempt.

mod apart;
mod attempts;
mod bombs;
mod finding;
mod scene;
mod sys;

use std::process::ExitCode;

use probe::{Attempt, END, Report, Scope, Verdict};

use finding::Finding;
use scene::Scene;

const USAGE: &str =
    "usage: sandkeep-probe try KEY=VALUE... | bomb NAME MAX | whoami; sandkeep doctor runs it";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match words.as_slice() {
        ["try", bait @ ..] => try_all(&Scene::new(bait)),
        ["bomb", name, max] => match (Attempt::named(name), max.parse()) {
            (Some(attempt), Ok(max)) => return bombs::run(attempt, max),
            (None, _) | (_, Err(_)) => return usage(),
        },
        ["whoami"] => println!("{}", sys::effective_uid()),
        _ => return usage(),
    }
    ExitCode::SUCCESS
}

fn usage() -> ExitCode {
    eprintln!("{USAGE}");
    ExitCode::from(2)
}

fn try_all(scene: &Scene) {
    let only = scene.all("only");
    let asked = |attempt: &Attempt| only.is_empty() || only.contains(&attempt.name());
    let inside = Attempt::ALL.into_iter().filter(|attempt| attempt.scope() != Scope::Share);
    for attempt in inside.filter(asked) {
        let found = apart::run(attempt, || attempts::make(attempt, scene));
        let Finding { verdict, detail } = contained(attempt, scene, found);
        println!("{}", Report { attempt, verdict, detail }.line());
    }
    println!("{END}");
}

/// Permissions granted by a kernel of the sandbox's own do not matter: they never reach the host's.
fn contained(attempt: Attempt, scene: &Scene, found: Finding) -> Finding {
    let is_its_own = attempt.scope() == Scope::Kernel && scene.has_kernel_of_its_own();
    match found.verdict {
        Verdict::Leaked if is_its_own => finding::held(format!(
            "allowed by a kernel of its own, not the host's: {}",
            found.detail
        )),
        Verdict::Held | Verdict::Leaked | Verdict::NotApplicable => found,
    }
}
