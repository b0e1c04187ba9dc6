//! Races: forks try something each, a judge gives each a number, and the files of the best become the sandbox's.

#[cfg(feature = "failpoints")]
mod killed;

use std::process::{Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::support::{Daemon, Ground, Patience, Ran, binary, until};
use crate::{daemon, on_each_storage};

#[cfg(feature = "failpoints")]
pub use killed::points as killed_at;

on_each_storage!(the_files_of_the_best_become_the_sandboxs);

fn at(id: &str, rest: &str) -> String {
    format!("/api/v1/sandboxes/{id}/{rest}")
}

fn race(daemon: &Daemon, id: &str, wish: &Value) -> Value {
    daemon.expect(200, "POST", &at(id, "race"), wish)
}

fn names(daemon: &Daemon, id: &str) -> Vec<String> {
    let listing = daemon.expect(200, "GET", &at(id, "snapshots"), &Value::Null);
    let items = listing["items"].as_array().expect("items").iter();
    items.map(|item| item["name"].as_str().expect("a name").to_owned()).collect()
}

/// Files that a winner must bring, change, leave and take away.
const FILL: &str =
    "cd ~ && mkdir -p dir && echo old > dir/changed && echo gone > gone && echo same > same";
const TRY: &str = "cd ~ && echo $SANDKEEP_RACER > dir/changed && rm gone && ln -s same link && mkdir new \
                   && echo $SANDKEEP_RACER > new/file && chmod 700 new";
const LOOK: &str = "cd ~ && cat dir/changed same new/file && readlink link && stat -c %a new && ls";

fn the_files_of_the_best_become_the_sandboxs(ground: &Ground) {
    let daemon = Daemon::start_with(&ground.setup());
    let id = daemon.create();
    daemon.sh(&id, FILL).ok();
    let host_name = daemon.sh(&id, "cat /etc/hostname").ok();
    let process = daemon.sh(&id, "sleep 100000 >/dev/null 2>&1 & echo $!").ok();
    let wish = json!({ "count": 4, "command": TRY, "judge": "echo a log; echo $((10 - (SANDKEEP_RACER - 3) * (SANDKEEP_RACER - 3)))" });
    let result = race(&daemon, &id, &wish);
    assert_eq!((&result["winner"], &result["kept"]), (&json!(3), &Value::Null), "{result:#}");
    let scores: Vec<_> =
        (0..4).map(|at| result["racers"][at]["score"].as_f64().expect("a score")).collect();
    assert_eq!(scores, [6.0, 9.0, 10.0, 9.0]);
    assert_eq!(daemon.sh(&id, LOOK).ok(), "3\nsame\n3\nsame\n700\ndir\nlink\nnew\nsame");
    assert_eq!(daemon.sh(&id, "cat /etc/hostname").ok(), host_name, "it is the same machine");
    let alive = daemon.sh(&id, &format!("cat /proc/{process}/comm"));
    assert_eq!(alive.ok(), "sleep", "processes go on");
    assert_eq!(daemon.ids(), [id.as_str()], "the forks are gone");
    assert_eq!(names(&daemon, &id), ["turn-0001", "turn-0002"]);
    assert_eq!(result["turn"]["note"], "race: racer 3 of 4, score 10");

    // Both turns are what they say.
    let back = json!({ "snapshot": "turn-0001" });
    daemon.expect(200, "POST", &at(&id, "rollback"), &back);
    assert_eq!(
        daemon.sh(&id, "cd ~ && cat dir/changed gone && ls").ok(),
        "old\ngone\ndir\ngone\nsame"
    );
    let forth = json!({ "snapshot": "turn-0002" });
    daemon.expect(200, "POST", &at(&id, "rollback"), &forth);
    assert_eq!(daemon.sh(&id, LOOK).ok(), "3\nsame\n3\nsame\n700\ndir\nlink\nnew\nsame");
}

#[test]
fn who_fails_is_out_and_if_all_do_nothing_changes() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.sh(&id, "echo old > ~/f").ok();
    let commands =
        ["echo a > ~/f", "echo b > ~/f; exit 3", "echo c > ~/f", "sleep 1000", "echo e > ~/f"];
    let judge = "case $SANDKEEP_RACER in 1) echo 1;; 3) exit 5;; 5) echo much;; esac";
    let wish = json!({ "commands": commands, "judge": judge, "timeout_ms": 3000 });
    let result = race(&daemon, &id, &wish);
    let problem =
        |at: usize| result["racers"][at]["problem"].as_str().unwrap_or_default().to_owned();
    assert_eq!(result["winner"], 1, "{result:#}");
    assert_eq!(result["racers"][1]["exit_code"], 3);
    assert!(problem(1).contains("exited with 3"), "{result:#}");
    assert!(problem(2).contains("the judge exited with 5"), "{result:#}");
    assert!(problem(3).contains("timed out"), "{result:#}");
    assert!(problem(4).contains("must be a number"), "{result:#}");
    assert_eq!(daemon.sh(&id, "cat ~/f").ok(), "a");

    let none =
        race(&daemon, &id, &json!({ "count": 2, "command": "echo x > ~/f", "judge": "false" }));
    assert_eq!((&none["winner"], &none["turn"]), (&Value::Null, &Value::Null), "{none:#}");
    assert_eq!(daemon.sh(&id, "cat ~/f").ok(), "a");
    assert_eq!(names(&daemon, &id), ["turn-0001", "turn-0002"], "no turn for nothing");
    assert_eq!(daemon.ids(), [id.as_str()]);
}

#[test]
fn each_racer_may_have_a_patch() {
    let daemon = daemon!();
    let id = daemon.create();
    daemon.sh(&id, "echo one > ~/f").ok();
    let to = |word: &str| format!("--- a/f\n+++ b/f\n@@ -1 +1 @@\n-one\n+{word}\n");
    let patches = [to("two"), to("three"), "no patch at all\n".to_owned()];
    let wish = json!({ "patches": patches, "judge": "wc -c < f" });
    let result = race(&daemon, &id, &wish);
    assert_eq!(
        (&result["winner"], &result["racers"][2]["state"]),
        (&json!(2), &json!("out")),
        "{result:#}"
    );
    assert_eq!(daemon.sh(&id, "cat ~/f").ok(), "three");
}

#[test]
fn what_makes_no_race_is_refused_before_anything_is_made() {
    let daemon = daemon!();
    let id = daemon.create();
    let refused = |wish: Value, field: &str| {
        let answer = daemon.expect(400, "POST", &at(&id, "race"), &wish);
        assert!(answer["detail"].to_string().contains(field), "{answer:#}");
    };
    refused(json!({ "count": 2, "command": "true", "judge": " " }), "judge");
    refused(json!({ "command": "true", "judge": "true" }), "count");
    refused(json!({ "count": 2, "judge": "true" }), "command");
    refused(json!({ "count": 0, "command": "true", "judge": "true" }), "count");
    refused(json!({ "count": 1_000_000_000_u64, "command": "true", "judge": "true" }), "count");
    refused(json!({ "count": 3, "commands": ["true", "true"], "judge": "true" }), "commands");
    refused(
        json!({ "count": 2, "command": "true", "commands": ["true", "true"], "judge": "true" }),
        "commands",
    );
    daemon.verb(&id, "pause");
    let wish = json!({ "count": 2, "command": "true", "judge": "echo 1" });
    assert_eq!(daemon.expect(409, "POST", &at(&id, "race"), &wish)["code"], "wrong_state");
    assert_eq!(daemon.ids(), [id.as_str()]);
}

#[test]
fn the_command_line_shows_a_race_and_ctrl_c_ends_it() {
    let daemon = daemon!();
    let id = daemon.create_with(&json!({ "name": "web" }));
    let race = |rest: &[&str]| -> Ran {
        let mut command = binary();
        command.env("SANDKEEP_URL", daemon.url()).args(["race", "web"]).args(rest);
        command.output().expect("the binary runs").into()
    };
    let ran = race(&["-n", "3", "--judge", "cat n", "--", "sh", "-c", "echo $SANDKEEP_RACER > n"]);
    assert_eq!(ran.code, 0, "{ran:?}");
    let winner = ran.stdout.lines().find(|line| line.ends_with("winner"));
    assert!(winner.is_some_and(|line| line.starts_with("3 ")), "{ran:?}");
    assert!(ran.stdout.contains(&format!("sandkeep rollback {id} turn-0001")), "{ran:?}");
    assert_eq!(daemon.sh(&id, "cat ~/n").ok(), "3");
    let lost = race(&["-n", "2", "--judge", "echo nothing good; exit 1", "--", "true"]);
    assert_eq!(lost.code, 1, "{lost:?}");
    assert!(lost.stderr.contains("nothing good") && lost.stderr.contains("as it was"), "{lost:?}");

    let mut command: Command = binary();
    command.env("SANDKEEP_URL", daemon.url());
    command.args(["race", "web", "-n", "2", "--judge", "echo 1", "--", "sleep", "100000"]);
    let mut child = command.stdout(Stdio::null()).stderr(Stdio::null()).spawn().expect("it runs");
    until("the racers run", Patience::Short, || daemon.ids().len() == 3);
    let pid = Pid::from_child(&child);
    kill_process(pid, Signal::INT).expect("it is our child");
    child.wait().expect("it ends");
    until("the racers are gone", Patience::Short, || daemon.ids() == [id.as_str()]);
    assert_eq!(daemon.sh(&id, "cat ~/n").ok(), "3");
    daemon.assert_no_leaks();
}
