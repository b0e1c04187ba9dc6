//! Builds: a sandbox of the template matches the build file, on each storage. Cached steps are not repeated; a failed
//! build leaves nothing, and builds are invisible to others.

mod base;
mod copies;
#[cfg(feature = "failpoints")]
mod killed;
mod mounts;
mod starts;

use std::io::{BufRead, BufReader};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::skip_if;
use crate::support::{Daemon, Patience, Ran, Setup, binary, until};
use crate::templates::images::{self, Image};

#[cfg(feature = "failpoints")]
pub use killed::points as killed_at;

const STORAGES: [&str; 2] = ["btrfs", "local"];

fn on(storage: &str) -> Setup {
    Setup::default().argument("--storage").argument(storage)
}

/// A directory with these files.
fn context(files: &[(&str, &str)]) -> TempDir {
    let dir = tempfile::Builder::new().prefix("sandkeep-context-").tempdir().expect("a directory");
    for (path, text) in files {
        write(dir.path(), path, text);
    }
    dir
}

fn write(dir: &Path, path: &str, text: &str) {
    let path = dir.join(path);
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("a directory");
    std::fs::write(path, text).expect("a file");
}

fn command(daemon: &Daemon, context: &Path, arguments: &[&str]) -> Command {
    let mut command = binary();
    command.args(["template", "build"]).args(arguments).arg(context);
    command.env("SANDKEEP_URL", daemon.url());
    command
}

/// `sandkeep template build` against a daemon.
fn build(daemon: &Daemon, context: &Path, arguments: &[&str]) -> Ran {
    command(daemon, context, arguments).output().expect("the binary runs").into()
}

fn built(daemon: &Daemon, context: &Path, arguments: &[&str]) -> Ran {
    let ran = build(daemon, context, arguments);
    assert_eq!(ran.code, 0, "{ran:?}\n{}", daemon.said());
    ran
}

/// A daemon with the busybox image as `base`, whose user is root.
fn with_base(storage: &str) -> Daemon {
    let daemon = Daemon::start_with(&on(storage));
    import_base(&daemon);
    daemon
}

fn import_base(daemon: &Daemon) {
    let image = Image::busybox().config(&json!({ "Env": ["PATH=/bin"] }));
    let archive = image.docker_archive();
    let body = json!({ "name": "base", "source": { "docker_archive": archive } });
    daemon.expect(201, "POST", "/api/v1/templates", &body);
}

fn sandbox(daemon: &Daemon, template: &str) -> String {
    daemon.create_with(&json!({ "template": template }))
}

/// How many steps of a build were taken from before.
fn cached(ran: &Ran) -> usize {
    ran.stderr.lines().filter(|line| line.contains("] CACHED ")).count()
}

const DOCKERFILE: &str = "\
FROM base AS made
ARG WHO=nobody
RUN echo built by $WHO > /made; echo seen >&2
FROM base
ENV GREETING=hello NAME=\"two words\"
WORKDIR /srv/app
COPY app/ ./
COPY --from=made /made /srv/
RUN pwd > where; env > env; id > id
USER app
EXPOSE 80
LABEL a=b
CMD [\"cat\", \"main\"]
";

#[test]
fn a_dockerfile_becomes_a_template_and_is_not_built_twice() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        let daemon = with_base(storage);
        let context = context(&[
            ("Dockerfile", DOCKERFILE),
            ("app/main", "the application\n"),
            ("app/notes/todo", "nothing"),
            ("app/junk.o", "left out"),
            (".dockerignore", "**/*.o\nDockerfile\n"),
        ]);
        let first =
            built(&daemon, context.path(), &["-t", "app:1", "--build-arg", "WHO=me", "--json"]);
        assert!(first.stderr.contains("seen\n"), "what commands say is told: {first:?}");
        assert!(first.stderr.contains("[made 3/13] RUN echo"), "{first:?}");
        let shown: Value = serde_json::from_str(&first.stdout).expect(&first.stdout);
        assert_eq!(
            (&shown["name"], &shown["source"]),
            (&json!("app:1"), &json!("build Dockerfile"))
        );
        assert_eq!(shown["config"]["exposed_ports"], json!(["80/tcp"]), "{shown}");
        assert_eq!(shown["config"]["labels"], json!({ "a": "b" }));
        assert!(daemon.ids().is_empty(), "nobody sees the sandboxes of a build");
        let id = sandbox(&daemon, "app:1");
        assert_eq!(daemon.exec(&id, &json!({})).ok(), "the application", "its own command");
        let said = daemon.sh(&id, "id -un; pwd; echo $GREETING $NAME; ls; cat notes/todo").ok();
        assert_eq!(
            said, "app\n/srv/app\nhello two words\nenv\nid\nmain\nnotes\nwhere\nnothing",
            "{storage}"
        );
        assert_eq!(daemon.sh(&id, "cat /srv/made where").ok(), "built by me\n/srv/app");
        assert!(daemon.sh(&id, "cat id").ok().starts_with("uid=0(root) gid=0(root)"));
        let env = daemon.sh(&id, "cat env").ok();
        assert!(env.contains("GREETING=hello") && env.contains("NAME=two words"), "{env}");
        assert_eq!(daemon.sh(&id, "stat -c %u:%a main notes").ok(), "0:644\n0:755");
        let again = built(&daemon, context.path(), &["-t", "app:2", "--build-arg", "WHO=me"]);
        assert_eq!((cached(&again), again.stdout.trim()), (5, "app:2"), "{again:?}");
        write(context.path(), "app/main", "changed\n");
        let changed = built(&daemon, context.path(), &["-t", "app:2", "--build-arg", "WHO=me"]);
        assert_eq!(cached(&changed), 2, "the stage and WORKDIR are as before: {changed:?}");
        let id = sandbox(&daemon, "app:2");
        assert_eq!(daemon.exec(&id, &json!({})).ok(), "changed", "{storage}");
        let anew = built(&daemon, context.path(), &["-t", "app:3", "--no-cache"]);
        assert_eq!(cached(&anew), 0, "{anew:?}");
        let stage = built(&daemon, context.path(), &["-t", "made", "--target", "made"]);
        assert!(
            stage.stderr.contains("[made 2/2]") || stage.stderr.contains("[made 3/3]"),
            "{stage:?}"
        );
    }
}

#[test]
fn a_template_is_built_above_the_host_with_no_image_at_all() {
    skip_if!(crate::support::obstacle());
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
        let context = context(&[
            (
                "Dockerfile",
                "FROM host\nENV COLOR=blue\nCOPY tool /home/user/bin/\nRUN <<END\nid -un > who\n\
                 python3 -c 'print(6*7)' > answer\nEND\nWORKDIR /home/user/work\n",
            ),
            ("tool", "#!/bin/sh\necho tool $COLOR\n"),
        ]);
        let first = built(&daemon, context.path(), &["-t", "mine"]);
        assert!(first.stderr.starts_with("[1/5] FROM host\n[2/5] ENV COLOR=blue\n"), "{first:?}");
        let id = sandbox(&daemon, "mine");
        let said = daemon.sh(&id, "pwd; cat ../who ../answer; sh ~/bin/tool; touch mine").ok();
        assert_eq!(said, "/home/user/work\nuser\n42\ntool blue", "{storage}");
        let again = built(&daemon, context.path(), &["-t", "mine"]);
        assert_eq!(cached(&again), 3, "{again:?}");
    }
}

#[test]
fn a_step_that_fails_is_named_with_its_line_and_leaves_nothing() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        let daemon = with_base(storage);
        for (file, clues) in [
            (
                "FROM base\nRUN true\nRUN echo so far; echo it broke >&2; exit 7\n",
                &["line 3", "exit code 7", "it broke"][..],
            ),
            ("FROM base\nCOPY nothing /x\n", &["line 2", "\"nothing\" is not there"]),
            ("FROM base\nVOLUMES /x\n", &["line 2", "VOLUMES is not supported"]),
            ("FROM base\nCOPY --chown=ghost Dockerfile /x\n", &["line 2", "ghost", "/etc/passwd"]),
            ("FROM scratch\nRUN true\n", &["line 2", "/bin/sh"]),
            ("FROM no-such.invalid/image:1\n", &["line 1", "no such template here"]),
        ] {
            let context = context(&[("Dockerfile", file)]);
            let ran = build(&daemon, context.path(), &["-t", "bad"]);
            assert_ne!(ran.code, 0, "{file}");
            for clue in clues {
                assert!(ran.stderr.contains(clue), "{clue}: {ran:?}");
            }
        }
        assert!(daemon.ids().is_empty());
        daemon.expect(404, "GET", "/api/v1/templates/bad", &Value::Null);
    }
}

#[test]
fn what_has_no_meaning_here_is_warned_of_and_a_failure_is_printed_once() {
    skip_if!(images::obstacle());
    let daemon = with_base("btrfs");
    let file = "FROM base\nVOLUME /x\nHEALTHCHECK NONE\nRUN echo fine > /f\nMAINTAINER me\n";
    let ran = built(&daemon, context(&[("Dockerfile", file)]).path(), &["-t", "odd"]);
    for word in ["VOLUME", "HEALTHCHECK", "MAINTAINER"] {
        assert!(ran.stderr.contains(&format!("warning: {word} is ignored")), "{ran:?}");
    }
    // Not as it is written in the step.
    let file = "FROM base\nRUN echo it bro''ke >&2; exit 7\n";
    let ran = build(&daemon, context(&[("Dockerfile", file)]).path(), &["-t", "bad"]);
    assert_ne!(ran.code, 0, "{ran:?}");
    assert_eq!(ran.stderr.matches("it broke").count(), 1, "{ran:?}");
}

/// A build whose one step does not end.
fn endless(daemon: &Daemon) -> (TempDir, Child) {
    let context = context(&[("Dockerfile", "FROM base\nRUN echo begun; sleep 100000\n")]);
    let mut command = command(daemon, context.path(), &["-t", "endless"]);
    let mut child = command.stderr(Stdio::piped()).process_group(0).spawn().expect("it runs");
    let stderr = child.stderr.take().expect("it is piped");
    let mut lines = BufReader::new(stderr).lines();
    let begun = lines.any(|line| line.expect("text") == "begun");
    assert!(begun, "{}", daemon.said());
    (context, child)
}

#[test]
fn a_build_that_nobody_waits_for_stops_and_its_sandbox_goes() {
    skip_if!(images::obstacle());
    let mut daemon = with_base("btrfs");
    let running = |daemon: &Daemon| daemon.home("").read_dir().map_or(0, |homes| homes.count());
    let (_context, mut child) = endless(&daemon);
    assert_eq!(running(&daemon), 1, "the sandbox of the step");
    assert!(daemon.ids().is_empty(), "nobody sees it");
    child.kill().and_then(|()| child.wait()).expect("it is ours");
    until("the sandbox of the build is gone", Patience::Short, || running(&daemon) == 0);
    daemon.expect(404, "GET", "/api/v1/templates/endless", &Value::Null);
    // A daemon that ends takes its builds with it.
    let (_context, mut child) = endless(&daemon);
    assert!(daemon.stop().success());
    assert!(!child.wait().expect("it ends").success());
    assert_eq!(running(&daemon), 0);
    daemon.start_again(&on("btrfs"));
    assert!(daemon.ids().is_empty());
}

#[test]
fn builds_of_the_same_at_once_share_their_steps() {
    skip_if!(images::obstacle());
    let daemon = with_base("btrfs");
    let context = context(&[("Dockerfile", "FROM base\nRUN sleep 1; cat /proc/uptime > /when\n")]);
    let children: Vec<Child> = ["one", "two", "three"]
        .map(|name| {
            let mut command = command(&daemon, context.path(), &["-t", name]);
            command.stderr(Stdio::piped()).spawn().expect("it runs")
        })
        .into();
    let mut hits = 0;
    for child in children {
        let ran: Ran = child.wait_with_output().expect("it ends").into();
        assert_eq!(ran.code, 0, "{ran:?}");
        hits += cached(&ran);
    }
    assert_eq!(hits, 2, "one carried it out");
    let when = |name: &str| daemon.sh(&sandbox(&daemon, name), "cat /when").ok();
    assert_eq!(when("one"), when("three"));
}

#[test]
fn the_api_takes_a_tar_and_tells_each_step() {
    skip_if!(images::obstacle());
    let daemon = with_base("local");
    let file = "FROM base\nARG A\nRUN echo $A\n";
    let mut tar = tar::Builder::new(Vec::new());
    let mut header = tar::Header::new_gnu();
    header.set_size(file.len() as u64);
    header.set_uid(3_000_000);
    header.set_gid(3_000_000);
    header.set_mode(0o644);
    tar.append_data(&mut header, "sub/Containerfile", file.as_bytes()).expect("a tar");
    let tar = tar.into_inner().expect("a tar");
    let query =
        "stream=true&file=sub/Containerfile&build_args=%7B%22A%22%3A%22gr%C3%BC%C3%9Fe%22%7D";
    let target = format!("/api/v1/templates/a%2Fb:1/build?{query}");
    let (status, text) = daemon.send_bytes(&target, tar.clone());
    assert_eq!(status, 200, "{text}");
    let events: Vec<Value> =
        text.lines().map(|line| serde_json::from_str(line).expect(line)).collect();
    let steps: Vec<&Value> = events.iter().filter(|event| event["type"] == "step").collect();
    assert_eq!(steps.len(), 3, "{events:?}");
    let last = json!({
        "type": "step", "step": 3, "steps": 3, "line": 3, "instruction": "RUN echo $A", "cached": false,
    });
    assert_eq!(steps[2], &last);
    let output = events.iter().find(|event| event["type"] == "output").expect("output");
    assert_eq!((&output["stream"], &output["data"]), (&json!("stdout"), &json!("grüße\n")));
    let done = events.last().expect("an event");
    assert_eq!((&done["type"], &done["template"]["name"]), (&json!("done"), &json!("a/b:1")));
    // Without a stream the answer is the template, or the problem.
    let (status, text) =
        daemon.send_bytes("/api/v1/templates/c/build?file=sub/Containerfile", tar.clone());
    assert_eq!(status, 201, "{text}");
    for (query, status, code) in [
        ("", 400, "build_file_invalid"),
        ("?file=sub/Containerfile&target=none", 400, "build_file_invalid"),
        ("?file=sub/Containerfile&build_args=x", 400, "invalid_query"),
    ] {
        let (found, text) =
            daemon.send_bytes(&format!("/api/v1/templates/d/build{query}"), tar.clone());
        let problem: Value = serde_json::from_str(&text).expect(&text);
        assert_eq!((found, &problem["code"]), (status, &json!(code)), "{text}");
    }
}
