//! Parsing of the command line.

use clap::{CommandFactory, Parser};
use serde_json::json;

use super::*;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(line.split_whitespace())
}

fn command(line: &str) -> Command {
    parse(line).unwrap_or_else(|e| panic!("{line}: {e}")).command
}

#[test]
fn the_definition_of_the_command_line_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_command_explains_itself() {
    for command in Cli::command().get_subcommands().filter(|command| !command.is_hide_set()) {
        assert!(command.get_about().is_some(), "{} has no help", command.get_name());
    }
}

/// `docs/reference/cli.md`: the long help of every command, as a terminal of 100 columns shows it.
fn reference() -> String {
    let mut text = String::from(
        "# Command line\n\n<!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run cli_md -->\n\n\
         `sandkeep COMMAND --help` prints the same. The global options apply to every command.\n",
    );
    let mut whole = Cli::command().term_width(100);
    whole.build();
    describe(&mut whole, &mut text);
    text
}

fn describe(command: &mut clap::Command, text: &mut String) {
    const GLOBAL: &str = "Global options:\n";
    let name = command.get_bin_name().unwrap_or("sandkeep").to_owned();
    let mut help = command.render_long_help().to_string();
    // They are shown once, with the program itself.
    if name != "sandkeep"
        && let Some(start) = help.find(GLOBAL)
    {
        help.truncate(start);
    }
    let lines: Vec<&str> = help.trim_end().lines().map(str::trim_end).collect();
    *text += &format!("\n## {name}\n\n```text\n{}\n```\n", lines.join("\n"));
    for inner in command.get_subcommands_mut().filter(|inner| !inner.is_hide_set()) {
        if inner.get_name() != "help" {
            describe(inner, text);
        }
    }
}

#[test]
fn cli_md_is_what_help_says() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/cli.md");
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        std::fs::write(path, reference()).expect("docs can be written");
    }
    let written = std::fs::read_to_string(path).expect("docs/reference/cli.md exists");
    assert!(
        written == reference(),
        "docs/reference/cli.md is stale: run with SANDKEEP_REGENERATE=1"
    );
}

#[test]
fn what_follows_the_dashes_belongs_to_the_command() {
    let Command::Run(args) = command("sandkeep run -- ls -la --json -- -x") else { panic!() };
    assert_eq!(args.command, ["ls", "-la", "--json", "--", "-x"]);
    let Command::Exec(args) = command("sandkeep exec --env A=b=c sbx -- sh -c true") else {
        panic!()
    };
    assert_eq!(args.command, ["sh", "-c", "true"]);
}

#[test]
fn create_asks_only_for_what_was_said() {
    let Command::Create(args) = command("sandkeep create") else { panic!() };
    assert_eq!(args.spec.into_json().expect("complete"), json!({}));
    let line = "sandkeep create --label a=1 --label b= --env P=x=y --memory-mb 64 --cpus 0.5 --privilege root";
    let Command::Create(args) = command(line) else { panic!() };
    assert_eq!(
        args.spec.into_json().expect("complete"),
        json!({
            "labels": { "a": "1", "b": "" },
            "env": { "P": "x=y" },
            "privilege": "root",
            "resources": { "memory_mb": 64, "cpus": 0.5 },
        })
    );
}

#[test]
fn create_and_ensure_say_whose_it_is_and_for_how_long() {
    let options =
        "--profile py --project web --slot main --timeout 30m --idle-timeout 90 --on-timeout stop";
    let expected = json!({
        "profile": "py", "project": "web", "slot": "main",
        "timeout_secs": 1800, "idle_timeout_secs": 90, "on_timeout": "stop",
    });
    let Command::Create(args) = command(&format!("sandkeep create {options}")) else { panic!() };
    assert_eq!(args.spec.into_json_with(args.kept).expect("complete"), expected);
    let Command::Ensure(args) = command(&format!("sandkeep ensure {options}")) else { panic!() };
    assert_eq!(args.spec.into_json_with(args.kept).expect("complete"), expected);
}

#[test]
fn a_refusal_of_the_daemon_names_the_option_and_not_the_field() {
    for (field, option) in [
        ("resources.memory_mb: 1 is not between", "--memory-mb: 1 is not between"),
        ("timeout_secs: 0 is too short", "--timeout: 0 is too short"),
        ("labels: a name is empty", "--label: a name is empty"),
        ("there is no template \"x\": what now", "there is no template \"x\": what now"),
        ("no field here", "no field here"),
    ] {
        assert_eq!(spec_args::in_options(field), option);
    }
    // Every option that it may name is one.
    let cli = Cli::command();
    let known: Vec<String> = cli
        .get_subcommands()
        .flat_map(|command| command.get_arguments().filter_map(|arg| arg.get_long()))
        .map(|long| format!("--{long}"))
        .collect();
    for (_, option) in spec_args::OPTIONS.iter().filter(|(_, option)| option.starts_with('-')) {
        assert!(known.iter().any(|long| long == option), "{option} is no option");
    }
}

#[test]
fn what_create_sends_is_what_run_checks() {
    let Command::Create(args) = command("sandkeep create --pids 9 --label a=b") else { panic!() };
    let draft: sandkeep_core::SpecDraft =
        serde_json::from_value(args.spec.into_json().expect("complete"))
            .expect("it is the API's own form");
    assert_eq!(draft.resources.and_then(|resources| resources.pids), Some(9));
}

#[test]
fn timeouts_are_durations_or_milliseconds_but_not_both() {
    let timeout = |line: &str| {
        let Command::Exec(args) = command(line) else { panic!() };
        args.exec.timeout_ms()
    };
    assert_eq!(timeout("sandkeep exec --timeout 30s sbx true"), Some(30_000));
    assert_eq!(timeout("sandkeep exec --timeout 1m30s sbx true"), Some(90_000));
    assert_eq!(timeout("sandkeep exec --timeout 90 sbx true"), Some(90_000));
    assert_eq!(timeout("sandkeep exec --timeout-ms 5 sbx true"), Some(5));
    assert_eq!(timeout("sandkeep exec sbx true"), None);
    for wrong in ["--timeout soon", "--timeout=-1s", "--timeout 1s --timeout-ms 5"] {
        assert!(parse(&format!("sandkeep exec {wrong} sbx true")).is_err(), "{wrong}");
    }
}

#[test]
fn what_cannot_be_meant_is_refused() {
    for line in [
        "sandkeep",
        "sandkeep rm",
        "sandkeep run",
        "sandkeep exec",
        "sandkeep create --timeout 500ms",
        "sandkeep create --timeout soon",
        "sandkeep create --on-timeout explode",
        "sandkeep rm --all sbx",
        "sandkeep ls --limit 0",
        "sandkeep completions tcsh",
        "sandkeep --log loud ls",
        "sandkeep serve --limits-max-sandboxes many",
        "sandkeep create --env novalue",
        "sandkeep create --env =x",
        "sandkeep create --privilege admin",
        "sandkeep serve --listen 4500",
        "sandkeep serve --storage zip",
        "sandkeep --url ftp://127.0.0.1 ls",
        "sandkeep --url 127.0.0.1:4500 ls",
    ] {
        let error = parse(line).err().unwrap_or_else(|| panic!("{line} was accepted"));
        assert_eq!(error.exit_code(), i32::from(Exit::Usage.code()), "{line}");
    }
}

#[test]
fn the_launcher_is_a_command_that_nobody_is_shown() {
    let line = "sandkeep-launcher launcher --instance abc";
    assert!(matches!(command(line), Command::Launcher { .. }));
    assert!(!Cli::command().render_long_help().to_string().contains("launcher"));
}

#[test]
fn the_unit_starts_what_there_is() {
    let unit = include_str!("../../../../packaging/sandkeep.service");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/"));
    assert!(matches!(command(line.expect("it starts something")), Command::Serve(_)));
    // Sandboxes outlive the daemon, and it says itself when it is ready.
    for line in ["Type=notify", "KillMode=process", "Delegate=yes"] {
        assert!(unit.lines().any(|found| found == line), "no {line}");
    }
}
