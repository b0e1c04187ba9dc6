use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::*;
use sandkeep_core::{HostLimits, Labels, Owner, SandboxId, SpecDraft};

fn data() -> (tempfile::TempDir, DataDir) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let data = DataDir::open(&dir.path().join("data")).expect("a new data directory");
    (dir, data)
}

fn meta(data: &DataDir) -> Meta {
    let host = HostLimits { memory_mb: 4096, cpus: 2.0, disk_default_mb: None };
    let spec = SpecDraft::default().check(&host).expect("valid");
    let labels = Labels { instance: data.instance().as_str().to_owned(), owner: Owner::local() };
    Meta::new(SandboxId::random(), labels, spec, data.boot_id().to_owned())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).expect("it exists").permissions().mode() & 0o777
}

#[test]
fn only_the_owner_can_enter_the_data_directory() {
    let (_dir, data) = data();
    assert_eq!(mode(data.path()), 0o700);
    let meta = meta(&data);
    let home = data.home(&meta.id);
    home.create(&meta).expect("a home");
    assert_eq!(mode(home.path()), 0o700);
    assert_eq!(mode(&home.path().join("meta.json")), 0o600);
}

#[test]
fn a_directory_that_others_can_write_to_is_refused() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o777)).expect("chmod");
    let error = DataDir::open(dir.path()).expect_err("anybody may have planted anything");
    assert!(matches!(error, DataDirError::Unusable { .. }), "{error}");
}

#[test]
fn a_readable_directory_of_ours_is_made_private() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    DataDir::open(dir.path()).expect("it is ours");
    assert_eq!(mode(dir.path()), 0o700);
}

#[test]
fn a_second_daemon_is_refused_and_told_the_pid_of_the_first() {
    let (_dir, data) = data();
    let error = DataDir::open(data.path()).expect_err("it is in use");
    let DataDirError::InUse { pid, .. } = error else { panic!("{error}") };
    assert_eq!(pid, Some(std::process::id()));
    let path = data.path().to_owned();
    drop(data);
    DataDir::open(&path).expect("the lock went with the first daemon");
}

#[test]
fn the_instance_stays_the_same_for_ever() {
    let (_dir, data) = data();
    let (path, instance) = (data.path().to_owned(), data.instance().clone());
    drop(data);
    assert_eq!(DataDir::open(&path).expect("opens again").instance(), &instance);
    assert_eq!(fs::read_to_string(path.join("instance")).expect("a file"), instance.as_str());
}

#[test]
fn metadata_is_read_as_it_was_written_and_goes_with_its_home() {
    let (_dir, data) = data();
    let mut meta = meta(&data);
    let home = data.home(&meta.id);
    assert!(matches!(home.read(), HomeState::Missing));
    home.create(&meta).expect("a home");
    for phase in [Phase::Creating, Phase::Ready, Phase::Destroying] {
        meta.phase = phase;
        home.write(&meta).expect("written");
        let HomeState::Known(read) = home.read() else { panic!("not readable") };
        assert_eq!(*read, meta);
    }
    assert_eq!(data.homes().expect("a list"), [meta.id.clone()]);
    home.remove().expect("removed");
    home.remove().expect("a second time is no error");
    assert!(data.homes().expect("a list").is_empty());
}

#[test]
fn a_home_without_metadata_is_empty_only_if_nothing_else_is_in_it() {
    let (_dir, data) = data();
    let home = data.home(&SandboxId::random());
    fs::create_dir(home.path()).expect("a directory");
    fs::write(home.path().join("meta.json.new"), "{").expect("a torn write");
    assert!(matches!(home.read(), HomeState::Empty));
    fs::write(home.path().join("guest.sock"), "").expect("something else");
    assert!(matches!(home.read(), HomeState::Unreadable(_)));
}

#[test]
fn torn_foreign_and_newer_metadata_is_unreadable() {
    let (_dir, data) = data();
    let meta = meta(&data);
    let home = data.home(&meta.id);
    home.create(&meta).expect("a home");
    let good = fs::read_to_string(home.path().join("meta.json")).expect("text");
    let other = SandboxId::random();
    for bad in [
        good[..good.len() / 2].to_owned(),
        good.replace(meta.id.as_str(), other.as_str()),
        good.replace(data.instance().as_str(), "aaaaaaaaaaaaaaaa"),
        good.replace("\"version\":2", "\"version\":3"),
    ] {
        fs::write(home.path().join("meta.json"), &bad).expect("written");
        assert!(matches!(home.read(), HomeState::Unreadable(_)), "{bad}");
    }
}

#[test]
fn metadata_of_the_first_version_is_read_with_its_labels() {
    let (_dir, data) = data();
    let id = SandboxId::random();
    let first = serde_json::json!({
        "version": 1, "id": id, "instance": data.instance().as_str(), "boot_id": "some boot",
        "created_at": "2026-11-15T21:30:00.123456Z",
        "spec": {
            "template": "host", "runtime": "native", "labels": { "team": "blue" },
            "env": { "A": "1" }, "privilege": "none",
            "resources": { "memory_mb": 1024, "cpus": 2.0, "pids": 512, "disk_mb": 4096 },
        },
        "owner": { "organization": "local", "user": "local", "project": "default" },
        "phase": "ready", "turn": 3,
    });
    let home = data.home(&id);
    fs::create_dir(home.path()).expect("a directory");
    fs::write(home.path().join("meta.json"), first.to_string()).expect("written");
    let HomeState::Known(meta) = home.read() else { panic!("{:?}", home.read()) };
    assert_eq!(meta.terms.labels.get("team").map(String::as_str), Some("blue"));
    assert_eq!((meta.terms.timeout_secs, meta.slot.as_ref(), meta.turn), (None, None, 3));
    assert_eq!(meta.began.wall, meta.created_at);
    home.write(&meta).expect("written anew");
    let HomeState::Known(again) = home.read() else { panic!("{:?}", home.read()) };
    assert_eq!(again.terms, meta.terms);
}

#[test]
fn quarantine_keeps_everything() {
    let (_dir, data) = data();
    let home = data.home(&SandboxId::random());
    for _ in 0..2 {
        fs::create_dir(home.path()).expect("a directory");
        fs::write(home.path().join("meta.json"), "?").expect("a file");
        let aside = data.quarantine(&home).expect("put aside");
        assert_eq!(fs::read_to_string(aside.join("meta.json")).expect("kept"), "?");
    }
    let survey = survey(data.path()).expect("a look");
    assert_eq!((survey.homes.len(), survey.quarantined.len()), (0, 2));
}

#[test]
fn a_survey_beside_a_daemon_shows_homes_with_their_phases() {
    let (_dir, data) = data();
    let mut meta = meta(&data);
    meta.phase = Phase::Ready;
    data.home(&meta.id).create(&meta).expect("a home");
    fs::create_dir(data.sandboxes().join("lost+found")).expect("something strange");
    let survey = survey(data.path()).expect("a look");
    assert_eq!(survey.instance.as_ref(), Some(data.instance()));
    assert_eq!(survey.daemon_pid, Some(std::process::id()));
    assert_eq!(survey.strange, ["lost+found"]);
    let [home] = &survey.homes[..] else { panic!("{survey:?}") };
    assert_eq!(home.id, meta.id);
    assert!(matches!(home.phase, Ok(Phase::Ready)), "{home:?}");
}
