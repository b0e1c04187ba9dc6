//! Files of a sandbox that would make the user's tools run commands: with real git, and what it really obeys.

use std::fs;
use std::path::Path;
use std::process::Command;

use serde_json::json;

use crate::skip_if;
use crate::support::{Daemon, Ran, binary, obstacle};

fn no_git() -> Option<&'static str> {
    obstacle().or((!Path::new("/usr/bin/git").exists()).then_some("there is no git"))
}

/// Git as the user runs it in a directory.
fn git(home: &Path, directory: &Path, arguments: &[&str]) {
    let ran = Command::new("git")
        .current_dir(directory)
        .args(["-c", "user.name=Ann", "-c", "user.email=ann@example.org"])
        .args(arguments)
        .env_clear()
        .env("PATH", std::env::var_os("PATH").unwrap_or_default())
        .env("HOME", home)
        .output()
        .expect("git runs");
    assert!(ran.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&ran.stderr));
}

fn call(daemon: &Daemon, arguments: &[&str]) -> Ran {
    let mut command = binary();
    command.args(arguments).env("SANDKEEP_URL", daemon.url());
    command.output().expect("the binary runs").into()
}

fn refused(ran: &Ran, paths: &[&str]) {
    assert_eq!(ran.code, 1, "{ran:?}");
    for path in paths {
        assert!(ran.complaint().contains(path), "{path} is not named: {ran:?}");
    }
    assert!(ran.complaint().contains("--allow-tool-config"), "{ran:?}");
}

/// All names beneath a directory but those that git makes by itself.
fn names(top: &Path) -> Vec<String> {
    let found =
        Command::new("find").arg(top).args(["-printf", "%P\n"]).output().expect("find runs");
    String::from_utf8_lossy(&found.stdout).lines().map(str::to_owned).collect()
}

#[test]
fn a_sandbox_cannot_make_the_users_git_run_its_program() {
    skip_if!(no_git());
    let daemon = Daemon::start();
    let place = tempfile::tempdir().expect("a directory");
    let (home, proof) = (place.path(), place.path().join("ran"));
    let repository = home.join("repo");
    fs::create_dir(&repository).expect("a directory");
    git(home, &repository, &["init", "--quiet", "-b", "main"]);
    fs::write(repository.join("notes"), "of the host\n").expect("a file");
    git(home, &repository, &["add", "-A"]);
    git(home, &repository, &["commit", "--quiet", "-m", "one"]);
    let source = json!({ "source": { "dir": repository, "path": "repo" } });
    let id = daemon.create_with(&source);
    daemon.expect(
        201,
        "POST",
        &format!("/api/v1/sandboxes/{id}/snapshots"),
        &json!({ "name": "first" }),
    );
    let evil = format!("#!/bin/sh\ntouch {}\n", proof.display());
    daemon.sh(&id, &format!(
        "cd ~/repo && echo more >> notes && printf '{}' > evil && chmod +x evil \
         && git config core.fsmonitor ./evil && cp evil .git/hooks/pre-commit && mkdir sub && cp -r .git sub/.git",
        evil.replace('\n', "\\n"),
    )).ok();
    let to = repository.to_str().expect("text");
    let apply = ["apply", &id, "--from", "first", "--path", "/home/user/repo", "--to", to];
    for more in [&["--dry-run"][..], &[]] {
        let ran = call(&daemon, &[&apply[..], more].concat());
        refused(&ran, &[".git/config", ".git/hooks/pre-commit", "sub/.git/config"]);
        assert!(!names(&repository).iter().any(|name| name == "evil"), "half of it was applied");
        git(home, &repository, &["status", "--short"]);
        git(home, &repository, &["commit", "--quiet", "--allow-empty", "-m", "mine"]);
        assert!(!proof.exists(), "code of the sandbox ran as the user");
    }
    assert_eq!(fs::read_to_string(repository.join("notes")).expect("a file"), "of the host\n");
    // Copied as a directory, and as what is in it, into a place that is there and one that is not.
    let (new, there) = (home.join("new"), home.join("there"));
    fs::create_dir(&there).expect("a directory");
    for (from, to) in [(".", &new), ("/home/user/repo", &there), ("./.", &there), (".git", &there)]
    {
        let ran = call(&daemon, &["cp", &format!("{id}:{from}"), to.to_str().expect("text")]);
        refused(&ran, &["config", "hooks/pre-commit"]);
        assert!(
            !new.exists() && names(&there) == [""],
            "half of it was copied: {:?}",
            names(&there)
        );
    }
    let config = repository.join(".git/config");
    let before = fs::read(&config).expect("a file");
    let ran = call(
        &daemon,
        &["cp", &format!("{id}:.git/config"), repository.join(".git").to_str().expect("text")],
    );
    refused(&ran, &["config"]);
    assert_eq!(fs::read(&config).expect("a file"), before);
    // Nor does a link lead there that came with other files.
    daemon.sh(&id, "mkdir ~/links && ln -s ../repo/.git/config ~/links/notes").ok();
    let links = home.join("links");
    assert_eq!(
        call(&daemon, &["cp", &format!("{id}:/home/user/links"), home.to_str().expect("text")])
            .code,
        0
    );
    daemon.sh(&id, "rm ~/links/notes && echo '[core]' > ~/links/notes").ok();
    let ran = call(
        &daemon,
        &["cp", &format!("{id}:/home/user/links/notes"), links.to_str().expect("text")],
    );
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(ran.complaint().contains("symbolic link"), "{ran:?}");
    assert_eq!(fs::read(&config).expect("a file"), before, "a link was followed");
    // With the flag it is written; that it does run says that the test would see it.
    let ran = call(
        &daemon,
        &[
            "cp",
            "--allow-tool-config",
            &format!("{id}:/home/user/repo"),
            there.to_str().expect("text"),
        ],
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    git(home, &there.join("repo"), &["status", "--short"]);
    assert!(proof.exists(), "git runs what its config says");
}

#[test]
fn commits_made_in_a_sandbox_come_home() {
    skip_if!(no_git());
    let daemon = Daemon::start();
    let place = tempfile::tempdir().expect("a directory");
    let (home, repository) = (place.path(), place.path().join("repo"));
    fs::create_dir(&repository).expect("a directory");
    git(home, &repository, &["init", "--quiet", "-b", "main"]);
    fs::write(repository.join("notes"), "one\n").expect("a file");
    git(home, &repository, &["add", "-A"]);
    git(home, &repository, &["commit", "--quiet", "-m", "one"]);
    let id = daemon.create_with(&json!({ "source": { "dir": repository, "path": "repo" } }));
    daemon.expect(
        201,
        "POST",
        &format!("/api/v1/sandboxes/{id}/snapshots"),
        &json!({ "name": "first" }),
    );
    daemon.sh(&id, "cd ~/repo && echo two >> notes && git -c user.name=A -c user.email=a@b commit -qam two").ok();
    let to = repository.to_str().expect("text");
    let ran =
        call(&daemon, &["apply", &id, "--from", "first", "--path", "/home/user/repo", "--to", to]);
    assert_eq!(ran.code, 0, "{ran:?}");
    git(home, &repository, &["diff", "--exit-code", "HEAD"]);
    git(home, &repository, &["rev-parse", "--verify", "HEAD~1"]);
}
