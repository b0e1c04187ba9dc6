//! The commands in README and the guides, run like a reader would: all `sh` blocks of a document in one shell, in
//! order, against a daemon of its own. Blocks marked `sh norun` need something that a test machine does not have.

use std::fs;
use std::os::unix::fs::symlink;
use std::process::{Command, Stdio};

use crate::keys::{create_key, key_of};
use crate::support::{Daemon, Ran, obstacle, top};

const GUIDES: &str = "docs/guides";

/// More would mean that the documents make promises that no test checks.
const NOT_RUN_MAX: usize = 9;

/// The contents of the code blocks whose fence says exactly this.
fn blocks(text: &str, language: &str) -> Vec<String> {
    let fence = format!("```{language}");
    let mut found = Vec::new();
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if line == fence {
            found.push(
                lines.by_ref().take_while(|line| *line != "```").collect::<Vec<_>>().join("\n"),
            );
        } else if line.starts_with("```") {
            lines.by_ref().find(|line| *line == "```");
        }
    }
    found
}

fn read(path: &str) -> String {
    fs::read_to_string(top().join(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

fn run(path: &str) {
    let mut daemon = Daemon::start();
    let place = tempfile::tempdir().expect("a directory");
    let programs = place.path().join("bin");
    fs::create_dir(&programs).expect("a new directory");
    symlink(env!("CARGO_BIN_EXE_sandkeep"), programs.join("sandkeep")).expect("a link");
    let script = blocks(&read(path), "sh").join("\n");
    assert!(!script.is_empty(), "{path} has no commands");
    let ran: Ran = Command::new("bash")
        .args(["-euxo", "pipefail", "-c", &script])
        .current_dir(place.path())
        .env_clear()
        .env("HOME", place.path())
        .env("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", programs.display()))
        .env("SANDKEEP_CONFIG", "/dev/null")
        .env("SANDKEEP_DATA_DIR", daemon.data_dir())
        .env("SANDKEEP_URL", daemon.url())
        .stdin(Stdio::null())
        .output()
        .expect("bash runs")
        .into();
    if daemon.data_dir().join("keys-required").exists() {
        let made = create_key(&daemon.data_dir(), "ops", "ops", &["--scope", "admin"]);
        daemon.use_key(key_of(&made));
    }
    assert_eq!(ran.code, 0, "{path}:\n{}\n{}", ran.stderr, ran.stdout);
}

/// A test for each document, so that they run side by side.
macro_rules! commands_run {
    ($($test:ident $path:literal;)*) => {
        const DOCUMENTS: &[&str] = &[$($path,)*];

        $(
            #[test]
            fn $test() {
                crate::skip_if!(obstacle());
                run($path);
            }
        )*
    };
}

commands_run! {
    the_commands_of_the_readme_run "README.md";
    the_commands_of_agents_run "docs/guides/agents.md";
    the_commands_of_audit_run "docs/guides/audit.md";
    the_commands_of_auth_run "docs/guides/auth.md";
    the_commands_of_codebases_run "docs/guides/codebases.md";
    the_commands_of_events_run "docs/guides/events.md";
    the_commands_of_files_run "docs/guides/files.md";
    the_commands_of_flex_run "docs/guides/flex.md";
    the_commands_of_nats_run "docs/guides/nats.md";
    the_commands_of_network_run "docs/guides/network.md";
    the_commands_of_ports_run "docs/guides/ports.md";
    the_commands_of_rootless_run "docs/guides/rootless.md";
    the_commands_of_service_run "docs/guides/service.md";
    the_commands_of_shells_run "docs/guides/shells.md";
    the_commands_of_templates_run "docs/guides/templates.md";
    the_commands_of_time_travel_run "docs/guides/time-travel.md";
    the_commands_of_traces_run "docs/guides/traces.md";
}

/// Guides of another language, whose examples the tests of its client run.
const RUN_ELSEWHERE: &[&str] = &["docs/guides/python.md"];

/// Guides that show only configuration and messages. Tests of NATS and PURISTA use the same.
const WITHOUT_COMMANDS: &[&str] =
    &["docs/guides/agentfense.md", "docs/guides/nats-commands.md", "docs/guides/purista.md"];

#[test]
fn every_guide_is_run_and_few_blocks_are_not() {
    for entry in fs::read_dir(top().join(GUIDES)).expect("the guides") {
        let name = entry.expect("a readable entry").file_name();
        let path = format!("{GUIDES}/{}", name.to_string_lossy());
        let known = DOCUMENTS.iter().chain(RUN_ELSEWHERE).chain(WITHOUT_COMMANDS);
        assert!(known.into_iter().any(|known| *known == path), "no test runs {path}");
    }
    for path in WITHOUT_COMMANDS {
        assert!(blocks(&read(path), "sh").is_empty(), "{path} has commands that no test runs");
    }
    let not_run: usize = DOCUMENTS.iter().map(|path| blocks(&read(path), "sh norun").len()).sum();
    assert!(not_run <= NOT_RUN_MAX, "{not_run} blocks are marked `sh norun`");
    for path in DOCUMENTS {
        let unmarked = blocks(&read(path), "console").len() + blocks(&read(path), "").len();
        assert_eq!(unmarked, 0, "{path}: commands are in blocks marked `sh` or `sh norun`");
    }
}
