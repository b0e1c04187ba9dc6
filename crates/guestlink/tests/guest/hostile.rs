//! The guest keeps working after any bytes on the socket.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use guest_proto::{
    FRAME_MAX, FrameReader, FromGuest, OLDEST_VERSION, Offsets, Op, ToGuest, VERSION, encode,
    preface,
};
use proptest::prelude::*;
use proptest::test_runner::TestRunner;
use sandkeep_guestlink::{Guest, Outcome};

use crate::harness::*;

/// Sends bytes and returns all that comes back until the guest closes.
fn answer_to(guest: &TestGuest, bytes: &[u8]) -> Vec<u8> {
    let mut stream = UnixStream::connect(guest.socket()).unwrap();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    // The guest may close before it has all.
    let _ = stream.write_all(bytes);
    let mut answer = Vec::new();
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return answer,
            Ok(len) => answer.extend_from_slice(&buffer[..len]),
            Err(error) if error.kind() == std::io::ErrorKind::ConnectionReset => return answer,
            Err(error) => panic!("the guest did not close: {error}"),
        }
    }
}

#[tokio::test]
async fn garbage_is_closed_and_harms_nobody() {
    let guest = TestGuest::start();
    assert_eq!(answer_to(&guest, b"GET / HTTP/1.1\r\n\r\n"), b"");
    let mut oversized = preface(OLDEST_VERSION).to_vec();
    oversized.extend_from_slice(&(FRAME_MAX as u32 + 1).to_le_bytes());
    assert_eq!(answer_to(&guest, &oversized), b"");
    let mut unknown = preface(OLDEST_VERSION).to_vec();
    unknown.extend_from_slice(&[1, 0, 0, 0, 99]);
    assert_eq!(answer_to(&guest, &unknown), b"");
    guest.client.ping().await.unwrap();
}

#[tokio::test]
async fn a_version_the_guest_does_not_speak_is_refused() {
    let guest = TestGuest::start();
    for version in [0, VERSION + 1, u16::MAX] {
        let mut request = preface(version).to_vec();
        encode(&Op::Ping, &mut request);
        assert_eq!(answer_to(&guest, &request), preface(0));
    }
    guest.client.ping().await.unwrap();
}

#[tokio::test]
async fn random_bytes_never_stop_the_guest() {
    let guest = TestGuest::start();
    let mut runner = TestRunner::default();
    let bytes = proptest::collection::vec(any::<u8>(), 0..200);
    runner
        .run(&(bytes, any::<bool>()), |(bytes, framed)| {
            let mut stream = UnixStream::connect(guest.socket()).unwrap();
            let mut wire = preface(OLDEST_VERSION).to_vec();
            if framed {
                wire.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
            }
            // A frame that happens to be `Terminate` would be obeyed.
            if bytes.first() != Some(&6) {
                wire.extend_from_slice(&bytes);
            }
            let _ = stream.write_all(&wire);
            Ok(())
        })
        .unwrap();
    guest.client.ping().await.unwrap();
    assert_eq!(guest.sh("echo fine").await.out(), "fine\n");
}

#[tokio::test]
async fn a_peer_that_breaks_the_rules_of_an_exec_is_cut_and_the_exec_goes_on() {
    let guest = TestGuest::start();
    for violation in [
        ToGuest::Stdin(vec![0; guest_proto::STDIN_FIRST + 1]),
        ToGuest::Ack(Offsets { stdout: 1 << 40, stderr: 0 }),
        ToGuest::Forget,
    ] {
        let request = {
            let mut request = command(&["cat"]);
            request.stdin = sandkeep_guestlink::Stdin::Piped;
            request
        };
        let id = request.id.clone();
        drop(guest.client.exec(request).await.unwrap());
        let mut wire = preface(OLDEST_VERSION).to_vec();
        encode(&Op::Attach { exec_id: id.to_string(), from: Offsets::default() }, &mut wire);
        encode(&violation, &mut wire);
        answer_to(&guest, &wire);
        let mut execution = guest.client.attach(&id, Offsets::default()).await.unwrap();
        execution.input().close().await.unwrap();
        assert_eq!(collect(&mut execution).await.end.outcome, Outcome::Exited(0));
    }
}

#[tokio::test]
async fn connections_that_ask_for_nothing_do_not_keep_others_out() {
    let guest = TestGuest::start();
    let mut idle = Vec::new();
    for _ in 0..500 {
        idle.push(UnixStream::connect(guest.socket()).unwrap());
    }
    guest.client.ping().await.unwrap();
}

#[tokio::test]
async fn requests_in_single_bytes_are_understood() {
    let guest = TestGuest::start();
    let mut stream = UnixStream::connect(guest.socket()).unwrap();
    let mut wire = preface(OLDEST_VERSION).to_vec();
    encode(&Op::Ping, &mut wire);
    for byte in wire {
        stream.write_all(&[byte]).unwrap();
    }
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).unwrap();
    let mut reader = FrameReader::new();
    reader.feed(&answer);
    assert_eq!(reader.take_raw(), Some(preface(OLDEST_VERSION)));
    assert_eq!(reader.next_message(), Ok(Some(FromGuest::Pong)));
}

#[tokio::test]
async fn a_guest_that_does_not_answer_is_not_waited_for_for_ever() {
    // A socket that nobody serves: connecting works, an answer never comes.
    let home = tempfile::tempdir().unwrap();
    let path = home.path().join(sandkeep_home::GUEST_SOCKET);
    let _listener = std::os::unix::net::UnixListener::bind(path).unwrap();
    let directory = std::fs::File::open(home.path()).unwrap().into();
    let pool = std::sync::Arc::new(sandkeep_guestlink::leaf::NoLeaves);
    let client = sandkeep_guestlink::GuestClient::new(directory, pool).unwrap();
    let answer = client.ping().await;
    assert!(
        matches!(answer, Err(sandkeep_guestlink::GuestError::TimedOut { after }) if after >= Duration::from_secs(1)),
        "{answer:?}"
    );
}

/// Takes a lease on the file `$1`, and stops whoever waits for it to execute it.
const HOLD_UP: &str = r#"
import fcntl, os, signal, sys
file = os.open(sys.argv[1], os.O_RDONLY)
def stop(*_):
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if pid != "1" and open(f"/proc/{pid}/comm").read().startswith("sandkeep-"):
                os.kill(int(pid), signal.SIGSTOP)
                os.write(1, b"stopped\n")
        except OSError:
            pass
signal.signal(signal.SIGIO, stop)
fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
os.write(1, b"holding\n")
while True:
    signal.pause()
"#;

#[tokio::test]
async fn a_child_held_up_and_stopped_before_it_executes_does_not_hold_up_the_guest() {
    if !std::path::Path::new("/usr/bin/python3").exists() {
        eprintln!("SKIP: there is no python3 to take a lease with");
        return;
    }
    let guest = TestGuest::start();
    let as_user = |argv: &[&str]| {
        let mut request = command(argv);
        request.user = "1000:1000".to_owned();
        request
    };
    let copied = guest
        .run(as_user(&["/bin/sh", "-c", "d=$(mktemp -d); cp /bin/true $d/held; printf $d"]))
        .await;
    let directory = copied.out();
    let held = format!("{directory}/held");
    let mut holder = guest.client.exec(as_user(&["python3", "-c", HOLD_UP, &held])).await.unwrap();
    wait_for_output(&mut holder, b"holding\n").await;
    let asked = std::time::Instant::now();
    let ran = guest.run(as_user(&[&held])).await;
    assert!(asked.elapsed() < Duration::from_secs(8), "{:?}", asked.elapsed());
    wait_for_output(&mut holder, b"stopped\n").await;
    assert_eq!(ran.end.outcome, Outcome::Exited(126), "{ran:?}");
    assert!(ran.end.error.unwrap().contains("not executed within"));
    for _ in 0..3 {
        assert_eq!(guest.run(as_user(&["echo", "fine"])).await.out(), "fine\n");
    }
    let left = guest.sh("ps axo uid=,comm= | grep -c '^ *1000 [s]andkeep-'").await;
    assert_eq!(left.out(), "0\n", "the children that were held up are gone");
    std::fs::remove_dir_all(directory).unwrap();
}

#[tokio::test]
async fn a_signal_that_claims_to_come_from_the_host_does_not_end_the_sandbox() {
    let guest = TestGuest::start();
    // rt_sigqueueinfo of SIGTERM to PID 1: si_signo, si_errno, si_code SI_QUEUE, and si_pid 0.
    let forge = r#"my $info = pack("iiix4ii", 15, 0, -1, 0, 0) . "\0" x 104;
        syscall(129, 1, 15, $info) == 0 or die "cannot queue: $!";"#;
    if !cfg!(target_arch = "x86_64") || !std::path::Path::new("/usr/bin/perl").exists() {
        eprintln!("SKIP: no perl, or its system calls have other numbers here");
        return;
    }
    let ran = guest.run(command(&["/usr/bin/perl", "-e", forge])).await;
    assert_eq!(ran.end.outcome, Outcome::Exited(0), "{ran:?}");
    assert_eq!(guest.sh("echo fine").await.out(), "fine\n");
}
