//! Workspaces: from a directory, a repository or an upload, on each storage. The host's own files never change, and an
//! unavailable source is an error before anything is created.

mod cloned;
mod refused;

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::skip_if;
use crate::support::{Daemon, Ran, Setup, binary, obstacle, run_with_stdin};
use crate::templates::images::Image;

const SANDBOXES: &str = "/api/v1/sandboxes";
const STORAGES: [&str; 2] = ["btrfs", "local"];

fn on(storage: &str) -> Setup {
    Setup::default().argument("--storage").argument(storage)
}

/// A directory of the host with a project in it.
struct Project(TempDir);

impl Project {
    fn new() -> Self {
        let top = tempfile::Builder::new().prefix("skws-").tempdir().expect("a directory");
        let project = Self(top);
        let path = project.path();
        std::fs::create_dir(&path).expect("a directory");
        std::fs::create_dir_all(path.join("src")).expect("a directory");
        std::fs::write(path.join("src/main.py"), "print('hello')\n").expect("a file");
        std::fs::write(path.join("notes"), "of the host\n").expect("a file");
        std::os::unix::fs::symlink("src/main.py", path.join("run")).expect("a link");
        project
    }

    fn path(&self) -> PathBuf {
        self.0.path().join("app")
    }

    /// All that is in it, with the times of its last changes.
    fn state(&self) -> Vec<(PathBuf, i64, i64)> {
        let mut found: Vec<_> = ["", "src", "src/main.py", "notes", "run"]
            .map(|name| {
                let path = self.path().join(name);
                let stat = std::fs::symlink_metadata(&path).expect("it is there");
                (path, stat.ctime(), stat.ctime_nsec())
            })
            .into();
        found.sort();
        found
    }

    /// Makes it a repository with two commits, a branch and a tag.
    fn commit(&self) {
        let git = |arguments: &[&str]| self.git(arguments);
        git(&["init", "--quiet", "-b", "main"]);
        git(&["add", "-A"]);
        git(&["commit", "--quiet", "-m", "one"]);
        git(&["tag", "v1"]);
        git(&["checkout", "--quiet", "-b", "feature"]);
        std::fs::write(self.path().join("notes"), "of the feature\n").expect("a file");
        git(&["commit", "--quiet", "-am", "two"]);
        git(&["checkout", "--quiet", "main"]);
        std::fs::write(self.path().join("uncommitted"), "x").expect("a file");
    }

    fn git(&self, arguments: &[&str]) -> String {
        let path = self.path();
        let ran = Command::new("git")
            .arg("-C")
            .arg(&path)
            .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.org"])
            .args(arguments)
            .env_clear()
            .env("PATH", std::env::var_os("PATH").unwrap_or_default())
            .env("HOME", self.0.path())
            .output()
            .expect("git runs");
        assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
        String::from_utf8_lossy(&ran.stdout).trim().to_owned()
    }

    fn url(&self) -> String {
        format!("file://{}", self.path().display())
    }

    /// A tar of it, by the system's own.
    fn tar(&self, compress: &str) -> PathBuf {
        let path = self.0.path().join(format!("sent.tar{compress}"));
        let made = Command::new("tar")
            .args(["--auto-compress", "-cf"])
            .arg(&path)
            .arg("-C")
            .arg(self.path())
            .arg(".")
            .status();
        assert!(made.expect("tar runs").success());
        path
    }
}

fn no_git() -> Option<&'static str> {
    let git = Path::new("/usr/bin/git").exists();
    obstacle().or((!git).then_some("there is no git"))
}

fn call(daemon: &Daemon, arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.args(arguments).env("SANDKEEP_URL", daemon.url());
    command.output().expect("the binary runs").into()
}

/// Sends an archive; its id.
fn upload(daemon: &Daemon, archive: &Path) -> Value {
    let sent = Command::new("curl")
        .args(["--silent", "--show-error", "--data-binary"])
        .arg(format!("@{}", archive.display()))
        .arg(format!("{}/api/v1/uploads", daemon.url()))
        .output()
        .expect("curl runs");
    serde_json::from_slice(&sent.stdout).unwrap_or_else(|e| panic!("{e}: {sent:?}"))
}

#[test]
fn a_directory_is_there_as_the_users_own_and_the_host_never_changes() {
    skip_if!(obstacle());
    for storage in STORAGES {
        let (daemon, project) = (Daemon::start_with(&on(storage)), Project::new());
        let before = project.state();
        let id = daemon.create_with(&json!({ "source": { "dir": project.path() } }));
        let source = &daemon.get(&id)["source"];
        assert_eq!(*source, json!({ "dir": project.path(), "path": "/home/user/app" }));
        let look = "cd ~/app && cat run notes && stat -c '%U %A %n' . src notes run && \
                    echo mine >> notes && rm src/main.py && mkdir new && echo done";
        let expected = "print('hello')\nof the host\nuser drwxr-xr-x .\nuser drwxr-xr-x src\n\
                        user -rw-r--r-- notes\nuser lrwxrwxrwx run\ndone";
        assert_eq!(daemon.sh(&id, look).ok(), expected, "{storage}");
        assert_eq!(project.state(), before, "the host's own");
        daemon.verb(&id, "stop");
        daemon.verb(&id, "start");
        assert_eq!(
            daemon.sh(&id, "cat ~/app/notes").ok(),
            "of the host\nmine",
            "it is not brought again"
        );
    }
}

#[test]
fn a_directory_lies_where_it_was_asked_to_above_an_image_too() {
    skip_if!(crate::templates::images::obstacle());
    let image = Image::busybox();
    for storage in STORAGES {
        let (daemon, project) = (Daemon::start_with(&on(storage)), Project::new());
        let imported = call(
            &daemon,
            &[
                "template",
                "import",
                image.docker_archive().to_str().expect("text"),
                "--name",
                "box",
            ],
        );
        assert_eq!(imported.code, 0, "{imported:?}");
        let source = json!({ "dir": project.path(), "path": "deep/er" });
        let id = daemon.create_with(&json!({ "template": "box", "source": source }));
        let said = daemon
            .root_sh(&id, "cat /home/user/deep/er/notes; stat -c %u:%g /home/user/deep/er/notes");
        assert_eq!(said.ok(), "of the host\n1000:1000", "{storage}");
        let said = daemon.root_sh(&id, "cat /srv/data/greeting; stat -c %u /home/app");
        assert_eq!(said.ok(), "hello from the image\n1001", "the image is beneath it");
    }
}

#[test]
fn an_upload_serves_any_number_of_sandboxes_until_it_is_removed() {
    skip_if!(obstacle());
    for storage in STORAGES {
        let (daemon, project) = (Daemon::start_with(&on(storage)), Project::new());
        for compress in ["", ".gz", ".zst"] {
            let sent = upload(&daemon, &project.tar(compress));
            let spec = json!({ "source": { "upload": sent["id"], "path": "work" } });
            for _ in 0..2 {
                let id = daemon.create_with(&spec);
                let said = daemon.sh(&id, "cd ~/work && cat run notes && stat -c %U . run notes");
                let expected = "print('hello')\nof the host\nuser\nuser\nuser";
                assert_eq!(said.ok(), expected, "{storage} {compress}");
                daemon.destroy(&id);
            }
            let target = format!("/api/v1/uploads/{}", sent["id"].as_str().expect("an id"));
            daemon.expect(204, "DELETE", &target, &Value::Null);
            let gone = daemon.expect(404, "POST", SANDBOXES, &spec);
            assert_eq!(gone["code"], "upload_not_found");
        }
    }
}

#[test]
fn a_repository_of_the_host_is_cloned_inside_by_branch_tag_or_commit() {
    skip_if!(no_git());
    let project = Project::new();
    project.commit();
    let first = project.git(&["rev-parse", "v1"]);
    for storage in STORAGES {
        let daemon = Daemon::start_with(&on(storage));
        let clone = |reference: &str| {
            let git = format!("{}{reference}", project.url());
            daemon.create_with(&json!({ "source": { "git": git } }))
        };
        let look = "cd ~/app && cat notes && git rev-parse --abbrev-ref HEAD && git status --short && \
                    git remote get-url origin && ls -A ~ && stat -c %U .git notes";
        let said = |reference: &str, notes: &str, head: &str| {
            let id = clone(reference);
            let url = project.url();
            let expected = format!("{notes}\n{head}\n{url}\napp\nuser\nuser");
            assert_eq!(daemon.sh(&id, look).ok(), expected, "{storage} {reference}");
            id
        };
        said("", "of the host", "main");
        said("#v1", "of the host", "HEAD");
        said(&format!("#{first}"), "of the host", "HEAD");
        let id = said("#feature", "of the feature", "feature");
        assert_eq!(daemon.sh(&id, "cd ~/app && git rev-parse feature@{u} | wc -l").ok(), "1");
        assert_eq!(daemon.sh(&id, "ls ~/app/uncommitted").exit_code, Some(2));
        for id in daemon.ids() {
            daemon.destroy(&id);
        }
    }
    assert_eq!(project.git(&["status", "--short"]), "?? uncommitted");
}

#[test]
fn the_command_line_brings_workspaces_to_create_ensure_and_run() {
    skip_if!(no_git());
    let (daemon, project) = (Daemon::start(), Project::new());
    project.commit();
    let path = project.path();
    let path = path.to_str().expect("text");
    let made = call(&daemon, &["create", "--source-dir", path, "--source-path", "x"]);
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(daemon.sh(made.stdout.trim(), "cat ~/x/notes").ok(), "of the host");
    let url = format!("{}#feature", project.url());
    let made = call(&daemon, &["ensure", "--slot", "s", "--source-git", &url]);
    assert_eq!(made.code, 0, "{made:?}");
    assert_eq!(daemon.sh(made.stdout.trim(), "cat ~/app/notes").ok(), "of the feature");
    let again = call(&daemon, &["ensure", "--slot", "s", "--source-dir", path]);
    assert_eq!(again.stdout, made.stdout, "the one that is there is answered as it is");
    let tar = project.tar(".gz");
    let made = call(&daemon, &["create", "--source-tar", tar.to_str().expect("text")]);
    assert_eq!(daemon.sh(made.stdout.trim(), "cat ~/sent/notes").ok(), "of the host", "{made:?}");
    let bytes = std::fs::read(&tar).expect("it was made");
    let mut command = binary();
    command.args(["run", "--source-tar", "-", "--", "sh", "-c", "cat notes; cat"]);
    let ran = run_with_stdin(&mut command, &bytes);
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "of the host\n"), "{ran:?}");
    let mut command = binary();
    command.args(["run", "--source-dir", path, "--", "cat", "notes"]);
    let ran: Ran = command.output().expect("the binary runs").into();
    assert_eq!((ran.code, ran.stdout.as_str()), (0, "of the host\n"), "{ran:?}");
    let both = call(&daemon, &["create", "--source-dir", path, "--source-git", &url]);
    assert_eq!(both.code, 2, "{both:?}");
}

/// Those that can run here.
fn real_runtimes(daemon: &Daemon) -> Vec<String> {
    let listed = daemon.expect(200, "GET", "/api/v1/runtimes", &Value::Null);
    let mut names = Vec::new();
    for runtime in listed["runtimes"].as_array().expect("runtimes") {
        let name = runtime["name"].as_str().expect("a name");
        if runtime["usable"] == true && name != "mock" {
            names.push(name.to_owned())
        } else {
            eprintln!("without {name}: {}", runtime["reason"])
        }
    }
    names
}

#[test]
fn every_runtime_shows_a_workspace() {
    skip_if!(no_git());
    let (daemon, project) = (Daemon::start(), Project::new());
    project.commit();
    for name in &real_runtimes(&daemon) {
        let sources = [json!({ "dir": project.path() }), json!({ "git": project.url() })];
        for source in sources {
            let id = daemon.create_with(&json!({ "runtime": name, "source": source }));
            let said = daemon.sh(&id, "cat ~/app/notes && echo more >> ~/app/notes && echo $?");
            assert_eq!(said.ok(), "of the host\n0", "{name} {source}");
            daemon.destroy(&id);
        }
    }
}
