//! Guests that dial the host: they support everything that others do, find the next daemon by themselves, and cannot be
//! impersonated.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;

use guest_proto::DIAL_TOKEN_LEN;
use sandkeep_guestlink::*;
use sandkeep_sys::pidfd;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::harness::*;

const SOCKET: &str = "dial.sock";

/// A guest that dials, as PID 1 of a pid namespace with the host's files or a root of its own.
struct Dialing {
    home: tempfile::TempDir,
    token: Option<DialToken>,
    process: Child,
}

/// What the guest is started with.
#[derive(Default)]
struct Start {
    token: Option<DialToken>,
    root: Option<PathBuf>,
}

impl Dialing {
    fn start(start: Start) -> Self {
        let home = tempfile::tempdir().unwrap();
        let program = install(home.path());
        // In a mount namespace of its own, so that nothing mounted here stays.
        let script = r#"
            test -z "$3" || mount -t proc proc "$3/proc"
            exec "$1" --dial "$2" ${3:+--chroot "$3"} ${4:+--token-fd 0}"#;
        let mut process = Command::new("unshare")
            .args(["--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", script, "sh"])
            .arg(&program)
            .arg(directory(home.path()).join(SOCKET))
            .arg(start.root.unwrap_or_default())
            .arg(if start.token.is_some() { "token" } else { "" })
            .stdin(std::process::Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = process.stdin.take().unwrap();
        if let Some(token) = &start.token {
            stdin.write_all(token.as_bytes()).unwrap();
        }
        Self { home, token: start.token, process }
    }

    fn pid(&self) -> u32 {
        let unshare = self.process.id();
        let children = format!("/proc/{unshare}/task/{unshare}/children");
        loop {
            let children = std::fs::read_to_string(&children).unwrap();
            if let Ok(pid) = children.trim().parse() {
                return pid;
            }
            std::thread::yield_now();
        }
    }

    /// As a daemon does it that comes for the first time, or again.
    fn client(&self) -> GuestClient {
        let socket = open_directory(&directory(self.home.path()));
        let dial_back = DialBack::bind(socket, SOCKET, 0).unwrap();
        let process = pidfd::open(self.pid()).unwrap();
        let proof = self.token.clone().map_or(Proof::Process, Proof::Token);
        GuestClient::dialed(dial_back, process, proof, Arc::new(NoLeaves)).unwrap()
    }

    /// A connection to the daemon that is not the guest's.
    fn pose(&self) -> UnixStream {
        let directory = open_directory(&directory(self.home.path()));
        UnixStream::connect(sandkeep_sys::socket::short_path(&directory, SOCKET)).unwrap()
    }
}

impl Drop for Dialing {
    fn drop(&mut self) {
        end(&mut self.process);
    }
}

/// Longer than any address of a socket.
fn directory(home: &Path) -> PathBuf {
    let directory = home.join("d".repeat(100)).join("e".repeat(100));
    std::fs::create_dir_all(&directory).unwrap();
    directory
}

async fn run(client: &GuestClient, request: ExecRequest) -> Collected {
    collect(&mut client.exec(request).await.unwrap()).await
}

#[tokio::test]
async fn a_guest_that_dials_carries_out_more_at_once_than_it_keeps_connections() {
    for token in [None, Some(DialToken::random())] {
        let guest = Dialing::start(Start { token, ..Start::default() });
        let client = Arc::new(guest.client());
        let running: Vec<_> = (0..50)
            .map(|n| {
                let client = Arc::clone(&client);
                tokio::spawn(async move { run(&client, sh(&format!("cat; echo {n}"))).await })
            })
            .collect();
        for (n, ran) in running.into_iter().enumerate() {
            assert_eq!(ran.await.unwrap().out(), format!("{n}\n"));
        }
        assert_eq!(client.refused_dials(), 0);
    }
}

#[tokio::test]
async fn the_daemon_may_come_late_and_go_and_come_back() {
    for token in [None, Some(DialToken::random())] {
        let guest = Dialing::start(Start { token, ..Start::default() });
        let client = guest.client();
        let mut request = command(&["cat"]);
        request.stdin = Stdin::Piped;
        let id = request.id.clone();
        let execution = client.exec(request).await.unwrap();
        execution.input().write(b"before ").await.unwrap();
        drop((execution, client));

        let next = guest.client();
        let mut execution = next.attach(&id, Offsets::default()).await.unwrap();
        execution.input().write(b"after").await.unwrap();
        execution.input().close().await.unwrap();
        assert_eq!(collect(&mut execution).await.out(), "before after");
    }
}

#[tokio::test]
async fn a_guest_that_has_gone_is_not_waited_for() {
    let guest = Dialing::start(Start::default());
    let client = guest.client();
    client.terminate(Duration::ZERO).await.unwrap();
    let patience = tokio::time::timeout(PATIENCE, async {
        // Connections that were idle when it went are skipped.
        while client.ping().await.is_ok() {}
        client.ping().await
    });
    let gone = patience.await.unwrap();
    assert!(matches!(gone, Err(GuestError::Unreachable(_))), "{gone:?}");
}

/// Everything that the daemon sends on a connection that is not the guest's.
fn heard(mut stream: UnixStream) -> Vec<u8> {
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut heard = Vec::new();
    match stream.read_to_end(&mut heard) {
        Ok(_) => heard,
        Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => heard,
        Err(error) => panic!("it was not closed: {error}"),
    }
}

/// Waits until this many connections were refused: they are closed first and counted then.
async fn refused(client: &GuestClient, count: u64) {
    let waiting = async {
        while client.refused_dials() < count {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(PATIENCE, waiting).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_process_that_was_named_is_let_in() {
    let guest = Dialing::start(Start::default());
    let client = guest.client();
    client.ping().await.unwrap();
    for _ in 0..20 {
        assert_eq!(heard(guest.pose()), b"", "nothing is said to a stranger");
    }
    refused(&client, 20).await;

    // One inside, with the guest's own user, that does nothing else.
    let dial = r#"use Socket; while (1) {
        socket(my $s, AF_UNIX, SOCK_STREAM, 0); connect($s, pack_sockaddr_un($ARGV[0])) }"#;
    let mut request = command(&["perl", "-e", dial, SOCKET]);
    request.cwd = Some(directory(guest.home.path()).display().to_string());
    let id = request.id.clone();
    let mut hostile = client.exec(request).await.unwrap();
    tokio::time::timeout(PATIENCE, async {
        while client.refused_dials() < 200 {
            assert_eq!(run(&client, sh("echo fine")).await.out(), "fine\n");
        }
    })
    .await
    .unwrap();
    client.cancel(&id).await.unwrap();
    assert_eq!(collect(&mut hostile).await.end.outcome, Outcome::Canceled);
}

#[tokio::test(flavor = "multi_thread")]
async fn without_the_token_nobody_is_let_in_and_silence_blocks_nobody() {
    let guest = Dialing::start(Start { token: Some(DialToken::random()), root: None });
    let client = guest.client();
    client.ping().await.unwrap();
    let mut wrong = guest.pose();
    wrong.write_all(DialToken::random().as_bytes()).unwrap();
    assert_eq!(heard(wrong), b"");
    let mut short = guest.pose();
    short.write_all(&[0; DIAL_TOKEN_LEN - 1]).unwrap();
    short.shutdown(std::net::Shutdown::Write).unwrap();
    assert_eq!(heard(short), b"");
    let mut silent: Vec<_> = (0..100).map(|_| guest.pose()).collect();
    for _ in 0..20 {
        assert_eq!(run(&client, sh("echo fine")).await.out(), "fine\n");
    }
    for stream in silent.drain(..50) {
        assert_eq!(heard(stream), b"", "the oldest make room");
    }
    drop(silent);
    refused(&client, 102).await;
}

#[tokio::test]
async fn no_process_of_the_sandbox_can_read_the_token() {
    let token = DialToken::random();
    let guest = Dialing::start(Start { token: Some(token.clone()), root: None });
    let client = guest.client();
    let look = "cat /proc/1/cmdline; cat /proc/1/environ /proc/1/mem /proc/1/fd/* /proc/1/fdinfo/*";
    let ran = run(&client, sh(look)).await;
    assert!(ran.stdout.starts_with(guest.home.path().to_str().unwrap().as_bytes()), "{ran:?}");
    let shown = ran.stdout.windows(DIAL_TOKEN_LEN).any(|bytes| bytes == token.as_bytes());
    assert!(!shown, "the token is to be read inside");
    let stdin = run(&client, sh("readlink /proc/1/fd/0 || echo hidden")).await;
    assert_eq!(stdin.out(), "hidden\n");
}

#[tokio::test]
async fn ports_of_a_guest_that_can_pass_no_descriptors_are_carried_with_both_ends() {
    let guest = Dialing::start(Start { token: Some(DialToken::random()), root: None });
    let client = guest.client();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    for ours_first in [true, false] {
        let (ours, theirs) = tokio::join!(client.dial(port), listener.accept());
        let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().0);
        let mut heard = String::new();
        if ours_first {
            ours.write_all(b"question").await.unwrap();
            ours.shutdown().await.unwrap();
            theirs.read_to_string(&mut heard).await.unwrap();
            theirs.write_all(b" answer").await.unwrap();
            drop(theirs);
            ours.read_to_string(&mut heard).await.unwrap();
        } else {
            theirs.write_all(b"question").await.unwrap();
            theirs.shutdown().await.unwrap();
            ours.read_to_string(&mut heard).await.unwrap();
            ours.write_all(b" answer").await.unwrap();
            drop(ours);
            theirs.read_to_string(&mut heard).await.unwrap();
        }
        assert_eq!(heard, "question answer");
    }
    let (ours, theirs) = tokio::join!(client.dial(port), listener.accept());
    drop(ours.unwrap());
    assert_eq!(theirs.unwrap().0.read(&mut [0; 1]).await.unwrap(), 0, "it was closed");
    drop(listener);
    let closed = client.dial(port).await.err();
    assert!(matches!(closed, Some(GuestError::PortClosed { .. })), "{closed:?}");
}

#[tokio::test]
async fn a_carried_flood_arrives_whole_and_fills_no_memory() {
    let guest = Dialing::start(Start { token: Some(DialToken::random()), root: None });
    let client = guest.client();
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let (ours, theirs) = tokio::join!(client.dial(port), listener.accept());
    let (mut ours, mut theirs) = (ours.unwrap(), theirs.unwrap().0);
    const LEN: usize = 64 << 20;
    let sent = tokio::spawn(async move {
        let piece: Vec<u8> = (0..1 << 20).map(|n| (n % 251) as u8).collect();
        for _ in 0..LEN / piece.len() {
            theirs.write_all(&piece).await.unwrap();
        }
    });
    let (mut came, mut piece) = (0, vec![0; 1 << 20]);
    loop {
        let len = ours.read(&mut piece).await.unwrap();
        for (at, byte) in piece[..len].iter().enumerate() {
            assert_eq!(*byte, (((came + at) % (1 << 20)) % 251) as u8);
        }
        came += len;
        if len == 0 {
            break;
        }
    }
    sent.await.unwrap();
    assert_eq!(came, LEN);
    let memory = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", guest.pid())).unwrap();
    let anonymous = memory.lines().find_map(|line| line.strip_prefix("Anonymous:")).unwrap();
    let anonymous: u64 = anonymous.split_whitespace().next().unwrap().parse().unwrap();
    assert!(anonymous < 512, "the guest has {anonymous} KiB");
}

#[tokio::test]
async fn a_guest_enters_its_root_and_still_finds_the_host() {
    let root = tempfile::tempdir().unwrap();
    for directory in ["bin", "proc", "dev"] {
        std::fs::create_dir(root.path().join(directory)).unwrap();
    }
    if let Err(error) = std::fs::copy("/bin/busybox", root.path().join("bin/busybox")) {
        return eprintln!("SKIP a_guest_enters_its_root_and_still_finds_the_host: {error}");
    }
    std::fs::write(root.path().join("dev/null"), "").unwrap();
    std::fs::write(root.path().join("mark"), "inside").unwrap();
    let guest = Dialing::start(Start { token: None, root: Some(root.path().to_owned()) });
    let client = guest.client();
    let ran = run(
        &client,
        command(&["/bin/busybox", "sh", "-c", "cat /mark; busybox ls / /proc/1/root/"]),
    )
    .await;
    assert!(ran.out().starts_with("inside/:\nbin\ndev\nmark\nproc\n"), "{ran:?}");
    drop(client);
    let next = guest.client();
    let ran = run(&next, command(&["/bin/busybox", "pwd"])).await;
    assert_eq!(ran.out(), "/\n");
    // Nothing is left with which to leave it again.
    let ran = run(&next, command(&["/bin/busybox", "chroot", "/proc", "true"])).await;
    assert_ne!(ran.end.outcome, Outcome::Exited(0), "{ran:?}");
}

#[tokio::test]
async fn a_guest_that_takes_no_descriptors_is_given_a_program_byte_by_byte() {
    let guest = Dialing::start(Start { token: Some(DialToken::random()), root: None });
    let client = guest.client();
    for _ in 0..2 {
        let request = ExecRequest { stdin: Stdin::Piped, ..command(&["sandkeep-toolbox"]) };
        let mut execution = client.exec_toolbox(request).await.unwrap();
        // A request that is none is answered as a failure: that it is answered at all shows that it runs.
        execution.input().close().await.unwrap();
        let ran = collect(&mut execution).await;
        assert_eq!(ran.end.outcome, Outcome::Exited(1), "{ran:?}");
        assert!(ran.out().contains("broken_off"), "{ran:?}");
    }
}
