//! `RUN --mount`: what a step sees while it runs, what it leaves in caches, and that nothing of it is in a layer.

use serde_json::{Value, json};

use super::{STORAGES, build, built, cached, context, sandbox, with_base, write};
use crate::skip_if;
use crate::templates::images;

const MOUNTS: &str = "\
FROM base AS other
RUN echo made > /made
FROM base
WORKDIR /w
RUN --mount=type=bind,source=list,target=list --mount=from=other,source=/made,target=/in/made \\
    --mount=target=/ctx --mount=type=cache,target=/var/cache/x \\
    --mount=type=secret,id=token,target=/root/.token --mount=type=secret,id=word,env=WORD \\
    --mount=type=secret,id=none <<SCRIPT
set -e
b=/bin/busybox
a=$(cat list); c=$(cat /in/made); d=$(cat /ctx/dir/deep); t=$(cat /root/.token)
echo \"$a $c $d\" > seen
test \"$(echo \"$t $WORD\" | $b md5sum)\" = '2efcd1f8899bfab3d6c69f1161b67a68  -'
test ! -e /run/secrets/none
$b stat -c '%a %u' /root/.token > mode
! (echo x > list) 2> /dev/null
! (echo x > /ctx/new) 2> /dev/null
$b test -e /var/cache/x/n && $b cp /var/cache/x/n n
echo x >> /var/cache/x/n
SCRIPT
";

#[test]
fn a_step_sees_its_mounts_and_a_layer_does_not() {
    skip_if!(images::obstacle());
    for storage in STORAGES {
        let daemon = with_base(storage);
        let context = context(&[("Dockerfile", MOUNTS), ("list", "one"), ("dir/deep", "two")]);
        let secret = context.path().join("../").join(format!(
            "{}-secret",
            context.path().file_name().expect("a name").to_string_lossy()
        ));
        std::fs::write(&secret, "s3cr3t-v4lue").expect("a file");
        let from_file = format!("id=token,src={}", secret.display());
        let arguments = |name: &'static str| {
            vec!["-t", name, "--secret", from_file.as_str(), "--secret", "id=word,env=PROBE_WORD"]
        };
        let ran = |name: &'static str| {
            let mut command = super::command(&daemon, context.path(), &arguments(name));
            command.env("PROBE_WORD", "w0rd-v4lue");
            let ran: crate::support::Ran = command.output().expect("the binary runs").into();
            assert_eq!(ran.code, 0, "{storage}: {ran:?}\n{}", daemon.said());
            ran
        };
        ran("mounted");
        let id = sandbox(&daemon, "mounted");
        assert_eq!(daemon.sh(&id, "cat seen mode").ok(), "one made two\n400 0", "{storage}");
        let left =
            "ls -A /w; ls -d /in /ctx /var/cache/x /root/.token /run/secrets 2>/dev/null; true";
        assert_eq!(daemon.sh(&id, left).ok(), "mode\nseen", "{storage}: places are removed");
        let again = ran("mounted:2");
        assert_eq!(cached(&again), 3, "{storage}: {again:?}");
        write(context.path(), "list", "three");
        ran("mounted:3");
        let id = sandbox(&daemon, "mounted:3");
        let seen = daemon.sh(&id, "cat seen n").ok();
        assert_eq!(seen, "three made two\nx", "{storage}: the cache is as the first build left it");
        // Neither in a template's files nor in anything that the daemon keeps or says.
        for value in ["s3cr3t-v4lue", "w0rd-v4lue"] {
            // The command is in the exec's record, so it does not spell the value.
            let (first, rest) = value.split_at(1);
            let look = format!("grep -rl '[{first}]{rest}' /w /root /run /etc; true");
            let found = daemon.sh(&id, &look).ok();
            assert_eq!(found, "", "{storage}");
            assert!(!daemon.said().contains(value), "{storage}: the log has a secret");
            let (_, events) = daemon.request("GET", "/api/v1/events?follow=false", &Value::Null);
            assert!(!events.to_string().contains(value));
            assert!(!holds(&daemon.data_dir(), value.as_bytes()), "{storage}: a file has {value}");
        }
        std::fs::remove_file(&secret).expect("it is there");
    }
}

/// Whether a regular file of a data directory, other than the pool's image, holds these bytes.
fn holds(directory: &std::path::Path, value: &[u8]) -> bool {
    let Ok(entries) = directory.read_dir() else { return false };
    entries.filter_map(Result::ok).any(|entry| {
        let path = entry.path();
        match entry.file_type() {
            Ok(kind) if kind.is_dir() => holds(&path, value),
            Ok(kind)
                if kind.is_file() && entry.metadata().is_ok_and(|found| found.len() < 64 << 20) =>
            {
                std::fs::read(&path)
                    .is_ok_and(|bytes| bytes.windows(value.len()).any(|window| window == value))
            }
            _ => false,
        }
    })
}

#[test]
fn a_cache_belongs_to_its_owner_and_counts_for_it() {
    skip_if!(images::obstacle());
    let daemon = with_base("btrfs");
    let file = |text: &str| format!("FROM base\nRUN --mount=type=cache,target=/c,id=x {text}\n");
    let fill =
        file("[\"/bin/busybox\", \"dd\", \"if=/dev/zero\", \"of=/c/big\", \"bs=1M\", \"count=3\"]");
    let context = context(&[("Dockerfile", &fill)]);
    built(&daemon, context.path(), &["-t", "fill"]);
    write(context.path(), "Dockerfile", &file("/bin/busybox stat -c %s /c/big > /size"));
    built(&daemon, context.path(), &["-t", "look"]);
    let id = sandbox(&daemon, "look");
    assert_eq!(daemon.sh(&id, "cat /size").ok(), "3145728");
    // Another project is another owner.
    let look = build(&daemon, context.path(), &["-t", "look", "--project", "other"]);
    assert_ne!(look.code, 0, "{look:?}");
}

#[test]
fn what_a_step_needs_and_does_not_get_is_said() {
    skip_if!(images::obstacle());
    let daemon = with_base("btrfs");
    for (line, word) in [
        ("RUN --mount=type=secret,id=token,required cat /run/secrets/token", "--secret id=token"),
        ("RUN --mount=source=nothing,target=/x true", "nothing"),
        ("RUN --mount=type=cache,target=/bin/busybox true", "something else is there"),
    ] {
        let context = context(&[("Dockerfile", &format!("FROM base\n{line}\n"))]);
        let ran = build(&daemon, context.path(), &["-t", "wrong"]);
        assert_ne!(ran.code, 0, "{line}: {ran:?}");
        assert!(ran.stderr.contains(word), "{line}: {ran:?}");
        assert!(daemon.ids().is_empty());
    }
    let body = json!({ "template": "base" });
    daemon.create_with(&body);
}

#[test]
fn a_failed_step_prints_its_output_once() {
    skip_if!(images::obstacle());
    let daemon = with_base("btrfs");
    let context = context(&[(
        "Dockerfile",
        "FROM base\nRUN <<EOF\necho first-line-$((1+1)); echo last-line-$((1+1)) >&2\nexit 3\nEOF\n",
    )]);
    for json in [false, true] {
        let arguments: &[&str] = if json { &["-t", "x", "--json"] } else { &["-t", "x"] };
        let ran = build(&daemon, context.path(), arguments);
        assert_ne!(ran.code, 0);
        let said = format!("{}{}", ran.stdout, ran.stderr);
        assert_eq!(said.matches("first-line-2").count(), 1, "{ran:?}");
        assert_eq!(said.matches("last-line-2").count(), 1, "{ran:?}");
        assert!(said.contains("exit code 3"), "{ran:?}");
    }
}
