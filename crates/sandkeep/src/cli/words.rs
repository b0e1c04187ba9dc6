//! Remedies of the API, in the words of the command line. The API tells a program which request to make; a person at a
//! terminal wants the command.

use sandkeep_core::Code;

/// Where the command line has other advice than the API.
const OWN: &[(Code, &str)] = &[
    (
        Code::MalformedBody,
        "this client and the daemon may differ in version: compare `sandkeep version` on both",
    ),
    (
        Code::InvalidQuery,
        "this client and the daemon may differ in version: compare `sandkeep version` on both",
    ),
    (Code::InvalidArgument, "give only the arguments that `sandkeep tools` lists"),
    (
        Code::SourceForbidden,
        "upload it instead: a template with `sandkeep template import`, a workspace with --source-tar; the operator can allow directories with source_roots",
    ),
    (
        Code::NoRoute,
        "this client and the daemon may differ in version: compare `sandkeep version` on both",
    ),
    (
        Code::UploadNotFound,
        "run the command again; an upload is kept for an hour, and not across a restart of the daemon",
    ),
    (
        Code::ShellNotFound,
        "list shells with `sandkeep shells ls`, or open one with `sandkeep shells open`",
    ),
    (Code::ShellEnded, "open another one with `sandkeep shells open`"),
    (Code::ProcessNotFound, "list processes with `sandkeep process ls`"),
    (Code::ProcessEnded, "see its outcome with `sandkeep process ls`"),
    (Code::FileNotFound, "list the directory with `sandkeep exec ID -- ls -a DIR`"),
    (Code::NotADirectory, "check it with `sandkeep exec ID -- ls -ld PATH`"),
    (Code::IsADirectory, "list it with `sandkeep exec ID -- ls -a DIR`"),
    (Code::ExecEnded, "see its outcome with `sandkeep ps`, and its output with `sandkeep logs`"),
    (Code::NoTerminal, "run it with -t, or follow its output with `sandkeep logs -f`"),
    (Code::StdinClosed, "run it with -i to send stdin while it runs"),
    (Code::SlotTaken, "use that one, destroy it first, or use `sandkeep ensure`"),
    (Code::DirectoryNotEmpty, "delete its contents as well"),
    (
        Code::ExecsInFlight,
        "wait for them or end them with `sandkeep kill`, give a pause more time with --drain, or use --force",
    ),
    (Code::RateLimited, "wait a moment, and try again"),
    (
        Code::UpgradeRequired,
        "this client and the daemon may differ in version: compare `sandkeep version` on both",
    ),
];

/// Ends of advice that are for other clients.
const OTHER_CLIENTS: &[(&str, &str)] = &[
    (", or the same verb of the API", ""),
    ("ask POST /api/v1/sandboxes/ensure for whichever there is", "use `sandkeep ensure`"),
];

/// A person reads advice right behind the error that it is about, which a program has in the field `detail`.
const BEHIND_THE_ERROR: &[(&str, &str)] = &[
    ("correct the field that the detail names", ""),
    ("correct what the detail names: ", "correct "),
    ("correct what the detail names", ""),
    ("correct the line that the detail names; ", ""),
    ("fix or replace what the detail names: ", ""),
    ("fix the problem that the detail names", "fix that problem"),
    ("choose one that the detail lists", "choose one of these"),
    ("leave out what the detail names", "leave it out"),
    ("the scope that the detail names", "that scope"),
    ("the one that the detail names", "that one"),
    ("those that the detail names", "those"),
    ("the sandbox that the detail names", "that sandbox"),
    ("; the detail lists them", ""),
    ("; the detail says what does not answer", ""),
    ("see the detail and the daemon's log", "see the daemon's log"),
    ("see the detail, which has the kernel's error", ""),
    ("see the detail: ", ""),
];

const METHODS: [&str; 5] = ["GET ", "POST ", "PUT ", "PATCH ", "DELETE "];

/// The remedy of a refusal with this code; empty if the error says enough.
pub fn remedy(code: &str, said: &str) -> String {
    let own = OWN.iter().find(|(of, _)| of.as_str() == code);
    match own {
        // The advice may be about the very case.
        Some((of, own)) if said == of.remedy() => (*own).to_owned(),
        Some(_) | None => {
            let replaced = OTHER_CLIENTS.iter().chain(BEHIND_THE_ERROR);
            commands(&replaced.fold(said.to_owned(), |said, (api, cli)| said.replace(api, cli)))
        }
    }
}

/// Puts the command in the place of the request that it stands behind: `GET /x (sandkeep ls)` becomes `` `sandkeep ls` ``.
fn commands(said: &str) -> String {
    let mut rest = said;
    let mut text = String::new();
    while let Some(begins) = METHODS.iter().filter_map(|method| rest.find(method)).min() {
        let (before, request) = rest.split_at(begins);
        let Some((_, after)) = request.split_once(" (sandkeep ") else { break };
        let Some((command, after)) = after.split_once(')') else { break };
        text.push_str(before);
        text.push_str(&format!("`sandkeep {command}`"));
        rest = after;
    }
    text + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_remedy_of_the_command_line_is_a_request() {
        for code in Code::ALL {
            let told = remedy(code.as_str(), code.remedy());
            for word in METHODS.iter().chain(&["/api/v1", "…/", "the detail"]) {
                assert!(!told.contains(word), "{}: {told}", code.as_str());
            }
        }
    }

    #[test]
    fn a_request_becomes_its_command_and_other_advice_stays() {
        let told = remedy("not_found", "list sandboxes with GET /api/v1/sandboxes (sandkeep ls)");
        assert_eq!(told, "list sandboxes with `sandkeep ls`");
        let told = remedy(
            "wrong_state",
            "start it first: sandkeep start web, or the same verb of the API",
        );
        assert_eq!(told, "start it first: sandkeep start web");
        assert_eq!(remedy("of_a_later_version", "wait"), "wait");
    }
}
