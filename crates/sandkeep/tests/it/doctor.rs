//! `sandkeep doctor`: whether the runtimes of this machine isolate, and the consequences if one does not.

#[path = "../../../../tests/vm/machine.rs"]
mod machine;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::on_btrfs_and_local;
use crate::support::{
    Daemon, Ground, Patience, Pool, Ran, binary, cgroups_of, obstacle, on_ground, until, until_some,
};

/// A doctor with directories of its own: one for its sandboxes, one for what it finds.
pub(crate) struct Doctor {
    pub(crate) tmp: TempDir,
    data: PathBuf,
}

impl Doctor {
    pub(crate) fn new() -> Self {
        let tmp = tempfile::tempdir().expect("a temp dir");
        // The files are open to all, so that a failed attempt is not due to their permissions.
        let open = std::os::unix::fs::PermissionsExt::from_mode(0o755);
        fs::set_permissions(tmp.path(), open).expect("it is ours");
        let data = tmp.path().join("data");
        Self { tmp, data }
    }

    fn beside(daemon: &Daemon) -> Self {
        Self { data: daemon.data_dir(), ..Self::new() }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = binary();
        command.env("TMPDIR", self.tmp.path()).args(["doctor", "--data-dir"]).arg(&self.data);
        command.args(arguments);
        command
    }

    fn run(&self, arguments: &[&str]) -> Ran {
        let ran: Ran = self.command(arguments).output().expect("the binary runs").into();
        ran.assert_no_panic();
        assert_eq!(self.leftovers(), [""; 0].map(PathBuf::from), "{ran:?}");
        ran
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let ran = self.run(arguments);
        serde_json::from_str(&ran.stdout).unwrap_or_else(|error| panic!("{error}: {ran:?}"))
    }

    /// What it made and did not remove.
    pub(crate) fn leftovers(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.tmp.path()).expect("it is ours").flatten();
        entries.map(|entry| entry.path()).filter(|path| *path != self.data).collect()
    }
}

pub(crate) fn verdicts<'a>(battery: &'a Value, verdict: &str) -> Vec<&'a str> {
    let attempts = battery["attempts"].as_array().expect("attempts");
    let of = attempts.iter().filter(|attempt| attempt["verdict"] == verdict);
    of.map(|attempt| attempt["name"].as_str().expect("a name")).collect()
}

#[test]
fn everything_holds_on_native() {
    crate::skip_if!(obstacle());
    let said = Doctor::new().json(&["--json", "--runtime", "native"]);
    let native = &said["runtimes"][0];
    assert_eq!((&native["name"], &native["usable"]), (&json!("native"), &json!(true)));
    let battery = &native["battery"];
    assert_eq!(verdicts(battery, "leaked"), [""; 0], "{battery:#}");
    assert_eq!(battery["verdict"], "held");
    // The guest is handed its socket, so there is none to pose at.
    let mut nothing_to_try = vec!["dial-back"];
    if said["storage"]["capabilities"]["disk_quota"] == false {
        nothing_to_try.extend(["disk-bomb", "inode-bomb"]);
    }
    assert_eq!(verdicts(battery, "not_applicable"), nothing_to_try, "{battery:#}");
    assert!(battery["held"].as_u64() >= Some(50), "{battery:#}");
}

/// Those whose tools are installed. A runtime that cannot be used says why.
#[test]
fn everything_holds_on_every_other_runtime_that_works_here() {
    crate::skip_if!(obstacle());
    let said = Doctor::new().json(&["--json"]);
    for runtime in said["runtimes"].as_array().expect("runtimes") {
        let (name, battery) = (&runtime["name"], &runtime["battery"]);
        if runtime["usable"] != true {
            // One that leaks is not offered either, and must not pass for one that is not installed.
            let reason = runtime["reason"].as_str().expect("a reason");
            assert!(!reason.contains("leak") && battery.is_null(), "{runtime:#}");
            continue;
        }
        assert_eq!(verdicts(battery, "leaked"), [""; 0], "{name}: {battery:#}");
    }
}

/// As the sandboxes of a daemon with this storage would be.
fn everything_holds_on_storage(ground: &Ground) {
    // zfs-fuse can stop answering for good while a dataset is mounted.
    const LONGEST_SECS: &str = "1200";
    let doctor = Doctor::new();
    let storage = match ground {
        Ground::Pool(pool) => format!("zfs:{}", pool.name),
        Ground::Btrfs | Ground::Local => ground.name().to_owned(),
    };
    let program = doctor.command(&["--json", "--runtime", "native"]);
    let mut command = Command::new("timeout");
    command.args(["--signal=KILL", LONGEST_SECS]).arg(program.get_program());
    command.args(program.get_args()).env("SANDKEEP_STORAGE", &storage);
    for (name, value) in program.get_envs() {
        match value {
            Some(value) => command.env(name, value),
            None => command.env_remove(name),
        };
    }
    let ran: Ran = command.output().expect("timeout runs").into();
    ran.assert_no_panic();
    let said: Value = serde_json::from_str(&ran.stdout).unwrap_or_else(|e| panic!("{e}: {ran:?}"));
    assert_eq!(said["storage"]["name"], ground.name(), "{:#}", said["storage"]);
    let battery = &said["runtimes"][0]["battery"];
    assert_eq!(verdicts(battery, "leaked"), [""; 0], "{battery:#}");
    assert_eq!(battery["verdict"], "held", "{battery:#}");
    // A quota of the storage holds against a full disk, and one of files where there is one.
    let untried = verdicts(battery, "not_applicable").contains(&"disk-bomb");
    assert_eq!(untried, said["storage"]["capabilities"]["disk_quota"] == false, "{battery:#}");
    assert_eq!(doctor.leftovers(), [""; 0].map(PathBuf::from));
}

on_btrfs_and_local!(everything_holds_on_storage);

#[test]
#[ignore = "slow: ./test --full runs it"]
fn soak_everything_holds_on_zfs() {
    let pool = || Pool::make().map(Ground::Pool);
    on_ground(crate::test_name!(), pool, everything_holds_on_storage);
}

/// In a virtual machine that has no others, as root and as an ordinary user.
#[test]
#[ignore = "slow: ./test --full runs it"]
fn soak_everything_holds_where_control_groups_are_those_of_version_2() {
    const LONGEST: Duration = Duration::from_secs(3000);
    let filters = ["doctor::everything_holds_on_native"];
    machine::keep_in_vm(&[env!("CARGO_BIN_EXE_sandkeep")], &filters, 2, LONGEST);
}

/// With one user id, and without cgroups or quotas: tests of missing limits do not apply, all others hold.
fn everything_holds_without_root_on(runtime: &str) {
    let doctor = Doctor::new();
    let program = doctor.tmp.path().join("sandkeep");
    fs::copy(env!("CARGO_BIN_EXE_sandkeep"), &program).expect("it is ours");
    std::os::unix::fs::chown(doctor.tmp.path(), Some(1000), Some(1000)).expect("we are root");
    let mut command = Command::new("setpriv");
    command.args(["--reuid=1000", "--regid=1000", "--clear-groups"]).arg(&program);
    command.args(["doctor", "--json", "--runtime", runtime, "--data-dir"]).arg(&doctor.data);
    command.env_clear().env("TMPDIR", doctor.tmp.path()).env("SANDKEEP_CONFIG", "/dev/null");
    let ran: Ran = command.output().expect("setpriv runs").into();
    let said: Value = serde_json::from_str(&ran.stdout).expect("JSON");
    let found = &said["runtimes"][0];
    // Whether a user may have namespaces is the machine's choice.
    if found["usable"] == true {
        assert_eq!(verdicts(&found["battery"], "leaked"), [""; 0], "{found:#}");
        assert_eq!(ran.code, 0, "{ran:?}");
    } else {
        assert!(found["reason"].is_string(), "{found:#}");
    }
}

#[test]
fn everything_holds_on_native_without_root() {
    crate::skip_if!(obstacle());
    everything_holds_without_root_on("native");
}

#[test]
fn everything_holds_on_bwrap_without_root() {
    crate::skip_if!(obstacle());
    everything_holds_without_root_on("bwrap");
}

/// Those that need root say so, and are not found out by a battery that cannot begin.
#[test]
fn everything_holds_on_gvisor_without_root_or_it_is_not_offered() {
    crate::skip_if!(obstacle());
    everything_holds_without_root_on("gvisor");
}

#[test]
fn a_runtime_that_leaks_is_not_offered_until_it_holds() {
    let daemon = crate::daemon!();
    let doctor = Doctor::beside(&daemon);
    let id = daemon.create();
    let runtime = || {
        let listed = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
        listed["runtimes"][0].clone()
    };
    assert!(runtime().get("battery").is_none(), "nobody has tried it");
    assert_eq!(doctor.run(&["--runtime", "native"]).code, 0);
    let tried = runtime();
    assert_eq!((&tried["usable"], &tried["battery"]["verdict"]), (&json!(true), &json!("held")));
    daemon.assert_no_leaks();

    // As a doctor would leave it who got out.
    let file = daemon.data_dir().join("batteries/native.json");
    let mut result: Value =
        serde_json::from_slice(&fs::read(&file).expect("a result")).expect("JSON");
    result["verdict"] = json!("leaked");
    result["attempts"][0]["verdict"] = json!("leaked");
    fs::write(&file, result.to_string()).expect("root writes anywhere");
    let leaky = runtime();
    assert_eq!((&leaky["usable"], &leaky["battery"]["verdict"]), (&json!(false), &json!("leaked")));
    let reason = leaky["reason"].as_str().expect("a reason");
    assert!(reason.contains("host-file") && reason.contains("sandkeep doctor"), "{reason}");
    let (_, refused) = daemon.request("POST", "/api/v1/sandboxes", &json!({}));
    assert_eq!(refused["code"], "runtime_unusable", "{refused}");
    // Running sandboxes go on, but are not started again.
    assert_eq!(daemon.sh(&id, "echo alive").ok(), "alive");
    daemon.verb(&id, "stop");
    let (_, refused) =
        daemon.request("POST", &format!("/api/v1/sandboxes/{id}/start"), &Value::Null);
    assert_eq!(refused["code"], "runtime_unusable", "{refused}");

    assert_eq!(doctor.run(&["--runtime", "native"]).code, 0);
    daemon.verb(&id, "start");
    daemon.create();
}

#[test]
fn looking_without_trying_leaves_no_result() {
    crate::skip_if!(obstacle());
    let doctor = Doctor::new();
    let said = doctor.json(&["--json", "--no-battery"]);
    assert_eq!(said["runtimes"][0]["name"], "native");
    assert_eq!(said["runtimes"][0]["installed"], "built_in");
    assert!(said["runtimes"][0].get("battery").is_none(), "{said:#}");
    assert!(said["checks"].as_array().is_some_and(|checks| checks.len() > 5), "{said:#}");
    assert!(said["storage"]["name"].is_string(), "{said:#}");
    assert!(!doctor.data.exists());
    let unknown = doctor.run(&["--runtime", "no-such"]);
    assert_eq!(unknown.code, 2, "{unknown:?}");
    assert!(unknown.complaint().contains("native"), "{unknown:?}");
}

#[test]
fn a_killed_doctor_leaves_nothing_behind() {
    crate::skip_if!(obstacle());
    let doctor = Doctor::new();
    let mut victim = doctor.command(&[]).stdout(Stdio::null()).spawn().expect("the binary runs");
    let of_kind = |prefix: &str| {
        let named = |path: &PathBuf| path.file_name().is_some_and(|name| has(name, prefix));
        doctor.leftovers().into_iter().find(named)
    };
    let data = until_some("it has a sandbox", Patience::Short, || {
        let data = of_kind("sandkeep-run.")?;
        let homes = fs::read_dir(data.join("sandboxes")).ok()?.count();
        (homes > 0).then_some(data)
    });
    let instance = fs::read_to_string(data.join("instance")).expect("an instance");
    victim.kill().expect("it is our child");
    victim.wait().expect("it is our child");
    // Its launcher clears up.
    until("it is cleared up", Patience::Short, || of_kind("sandkeep-run.").is_none());
    until("its cgroups are gone", Patience::Short, || cgroups_of(instance.trim()).is_empty());
    // The bait is a file and a socket, which the next doctor sweeps up.
    doctor.run(&["--runtime", "native"]);
}

fn has(name: &std::ffi::OsStr, prefix: &str) -> bool {
    Path::new(name).to_string_lossy().starts_with(prefix)
}
