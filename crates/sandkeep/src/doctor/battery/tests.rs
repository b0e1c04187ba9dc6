//! Tests of the isolation tests: in deliberately weak sandboxes they must report those weaknesses by name.
//!
//! The weak sandboxes are created with namespaces of this machine, by `unshare`, `setpriv` and `bwrap`, around the same
//! probe and the same bait. No attempt does harm if it succeeds; those that would are left out, with a note.

use std::collections::BTreeSet;
use std::fs::{self, Permissions};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use probe::{Attempt, END, Report, Scope, Verdict};
use tempfile::TempDir;

use super::bait::Bait;

/// The probe on the host, with bait and a directory that it may change.
struct Weakness {
    dir: TempDir,
    bait: Bait,
}

impl Weakness {
    /// `None`, with the reason printed, where this machine lets nobody make one.
    async fn new() -> Option<Self> {
        if !rustix::process::geteuid().is_root() {
            let thread = std::thread::current();
            eprintln!("SKIP {}: not root", thread.name().unwrap_or("weakness"));
            return None;
        }
        let dir = tempfile::tempdir().expect("a temporary directory");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("it is ours");
        for (name, mode) in [("probe", 0o755), ("probe-as-root", 0o4755)] {
            let path = dir.path().join(name);
            fs::write(&path, sandkeep_embedded::PROBE).expect("a writable directory");
            fs::set_permissions(&path, Permissions::from_mode(mode)).expect("it is ours");
        }
        for name in ["shared", "tmp", "run", "proc", "dev"] {
            fs::create_dir(dir.path().join(name)).expect("a writable directory");
        }
        fs::write(dir.path().join("shared/file"), "of all").expect("a writable directory");
        let shared = dir.path().join("shared").display().to_string();
        let mut bait = Bait::lay(vec![shared]).await.expect("bait");
        bait.other_is(&dir.path().join("other"));
        Some(Self { dir, bait })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// What leaks when the probe is run by this command, and all that it said.
    fn leaks(&self, wrapper: &[&str], program: &Path, only: &[Attempt]) -> BTreeSet<&'static str> {
        let said = self.run(wrapper, program, only);
        let reports: Vec<Report> = said.lines().filter_map(Report::parse).collect();
        assert_eq!(said.lines().last(), Some(END), "{wrapper:?} {said}");
        assert_eq!(reports.len(), only.len(), "{wrapper:?} {said}");
        println!("{wrapper:?}\n{said}");
        let leaked = reports.iter().filter(|report| report.verdict == Verdict::Leaked);
        leaked.map(|report| report.attempt.name()).collect()
    }

    fn run(&self, wrapper: &[&str], program: &Path, only: &[Attempt]) -> String {
        let as_root = self.path("probe-as-root").display().to_string();
        let mut arguments = self.bait.arguments(Some(&as_root));
        let names: Vec<&str> = only.iter().map(|attempt| attempt.name()).collect();
        arguments.push(format!("only={}", names.join(":")));
        if only.iter().any(|attempt| OF_THE_GATEWAY.contains(attempt)) {
            arguments.push(format!("allowed={}", super::ALLOWED));
        }
        // As in a sandbox with a way out, whose listener somebody has forgotten.
        if only == [Attempt::ListenerPort] {
            arguments.push("listener=61001".to_owned());
        }
        let output = Command::new(wrapper[0])
            .args(&wrapper[1..])
            .arg(program)
            .arg("try")
            .args(arguments)
            .env("TMPDIR", "/tmp")
            .output();
        let Output { stdout, stderr, status } = output.expect("the wrapper is installed");
        let stderr = String::from_utf8_lossy(&stderr);
        assert!(status.success(), "{wrapper:?}: {status} {stderr}");
        String::from_utf8_lossy(&stdout).into_owned()
    }
}

/// What is tried where there is a gateway.
const OF_THE_GATEWAY: [Attempt; 4] = [
    Attempt::GatewayNames,
    Attempt::GatewayAddresses,
    Attempt::GatewayProxy,
    Attempt::GatewayDatagrams,
];

/// A gateway that refuses nothing, in a network of its own where every address is local; then the command. It gives
/// everybody who sends it something an answer.
const OPEN_GATEWAY: &str = r#"
import os, socket, subprocess, sys, threading
for words in ("link set lo up", "addr add 198.18.0.1/32 dev lo", "route add local default dev lo",
              "-6 route add local default dev lo"):
    subprocess.run(["ip", *words.split()], check=True)
def datagrams(port):
    for family in (socket.AF_INET, socket.AF_INET6):
        s = socket.socket(family, socket.SOCK_DGRAM)
        if family == socket.AF_INET6: s.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        # The answer has to come from the address that was asked.
        s.setsockopt(*((socket.IPPROTO_IPV6, 49, 1) if family == socket.AF_INET6 else (socket.IPPROTO_IP, 8, 1)))
        s.bind(("", port))
        def serve(s=s):
            while True:
                data, extra, _, to = s.recvmsg(512, 256)
                level, kind, info = extra[0]
                info = info[:4] + info[8:12] + info[4:8] if level == socket.IPPROTO_IP else info
                s.sendmsg([data[:2] + b"\x81\x80" + data[4:]], [(level, kind, info)], 0, to)
        threading.Thread(target=serve, daemon=True).start()
def streams(port, answer):
    s = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    def serve():
        while True:
            peer = s.accept()[0]
            peer.recv(4096)
            peer.sendall(answer)
            peer.close()
    threading.Thread(target=serve, daemon=True).start()
for port in (53, 443, 123): datagrams(port)
streams(53, b"\0\x0c\x5a\x5a\x81\x80" + bytes(8))
streams(443, b"hello")
streams(3128, b"HTTP/1.1 200 OK\r\n\r\n")
os._exit(subprocess.run(sys.argv[1:]).returncode)
"#;

/// Everything that is judged inside, but what would connect to other people's sockets in the host's own root.
fn all_but_posing() -> Vec<Attempt> {
    let inside = Attempt::ALL.into_iter().filter(|attempt| attempt.scope() != Scope::Share);
    inside.filter(|attempt| *attempt != Attempt::DialBack).collect()
}

/// What no sandbox of this machine can leak, because its kernel has no such thing.
fn not_in_this_kernel(attempt: Attempt) -> bool {
    let there = |path: &str| Path::new(path).exists();
    match attempt {
        Attempt::KernelModule => !there("/proc/modules"),
        Attempt::Kexec => !there("/sys/kernel/kexec_loaded"),
        Attempt::Sysrq => !there("/proc/sysrq-trigger"),
        Attempt::Vsock => {
            !fs::read_to_string("/proc/net/protocols").is_ok_and(|all| all.contains("AF_VSOCK"))
        }
        // The tests may have been started with core dumps disabled.
        Attempt::CoreDump => {
            let core = rustix::process::getrlimit(rustix::process::Resource::Core);
            core.maximum.is_some_and(|bytes| bytes <= 1)
        }
        Attempt::I386Call => !there("/proc/sys/abi/vsyscall32"),
        // Few kernels are built with it, and nothing but trying tells.
        Attempt::X32Call => true,
        _ => false,
    }
}

/// Namespaces for mounts and processes, so that nothing of the host is changed; all else is the host's.
const OPEN: [&str; 5] = ["unshare", "--mount", "--pid", "--fork", "--mount-proc"];
/// A command that forgets to close a descriptor, in front of another.
const FORGETFUL: [&str; 4] = ["sh", "-c", "exec 9</dev/null && exec \"$@\"", "sh"];

#[tokio::test(flavor = "multi_thread")]
async fn every_attempt_is_reported_where_nothing_holds_it() {
    let Some(weakness) = Weakness::new().await else { return };
    let probe = weakness.path("probe");
    let nothing_holds: Vec<&str> = FORGETFUL.into_iter().chain(OPEN).collect();
    let on_the_host = all_but_posing();
    let on_the_host: Vec<Attempt> =
        on_the_host.into_iter().filter(|attempt| !OF_THE_GATEWAY.contains(attempt)).collect();
    let mut leaked = weakness.leaks(&nothing_holds, &probe, &on_the_host);
    // Without a namespace of processes. Nothing that concerns PID 1 is tried there: it is the host's.
    let of_processes = [Attempt::HostProcessSeen, Attempt::HostProcessSignal];
    leaked.extend(weakness.leaks(&["env"], &probe, &of_processes));
    // An ordinary user who has kept more than he should.
    let kept = ["--inh-caps=+setuid,+setgid", "--ambient-caps=+setuid,+setgid"];
    let user = ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", kept[0], kept[1]];
    let wrapper: Vec<&str> = OPEN.into_iter().chain(user).collect();
    let of_users = [Attempt::SetuidCall, Attempt::SetuidFile];
    leaked.extend(weakness.leaks(&wrapper, &probe, &of_users));
    leaked.extend(weakness.leaks(&["unshare", "--net"], &probe, &[Attempt::ListenerPort]));
    let open_gateway = ["unshare", "--net", "python3", "-c", OPEN_GATEWAY];
    leaked.extend(weakness.leaks(&open_gateway, &probe, &OF_THE_GATEWAY));
    let missed: Vec<&str> = all_but_posing()
        .into_iter()
        .filter(|attempt| !leaked.contains(attempt.name()) && !not_in_this_kernel(*attempt))
        .map(Attempt::name)
        .collect();
    assert_eq!(missed, [""; 0], "these would never be noticed");
}

/// An otherwise tight sandbox: the single weakness is reported, and nothing else.
#[tokio::test(flavor = "multi_thread")]
async fn one_open_door_is_reported_and_the_closed_ones_are_not() {
    let Some(weakness) = Weakness::new().await else { return };
    let root = weakness.dir.path().display().to_string();
    let places = ["bwrap", "--bind", &root, "/", "--proc", "/proc", "--dev", "/dev"];
    let base: Vec<&str> =
        places.into_iter().chain(["--unshare-all", "--cap-drop", "ALL"]).collect();
    let network = [Attempt::HostLoopback, Attempt::AbstractSocket, Attempt::Dns];
    let looked_at: Vec<Attempt> = network
        .into_iter()
        .chain([
            Attempt::HostFile,
            Attempt::OtherSandboxFile,
            Attempt::HostProcessSeen,
            Attempt::HostProcessSignal,
            Attempt::RawDisk,
            Attempt::DeviceFiles,
            Attempt::Mount,
            Attempt::Capabilities,
        ])
        .collect();
    let host_file = weakness.bait.host_file().display().to_string();
    let with = |more: &[&'static str]| {
        let wrapper: Vec<&str> = base.iter().copied().chain(more.iter().copied()).collect();
        weakness.leaks(&wrapper, Path::new("/probe"), &looked_at)
    };
    assert_eq!(with(&[]), BTreeSet::new(), "it holds without a weakness");
    assert_eq!(with(&["--share-net"]), network.map(Attempt::name).into());
    let devices = with(&["--dev-bind", "/dev", "/dev"]);
    assert_eq!(devices, [Attempt::DeviceFiles, Attempt::RawDisk].map(Attempt::name).into());
    assert_eq!(with(&["--cap-add", "CAP_NET_ADMIN"]), ["capabilities"].into());
    let admin = with(&["--cap-add", "CAP_SYS_ADMIN"]);
    assert_eq!(admin, ["capabilities", "mount"].into());
    // The host's file at its own path, and nothing else of the host.
    let bind = ["--ro-bind", &host_file, &host_file];
    let wrapper: Vec<&str> = base.iter().copied().chain(bind).collect();
    assert_eq!(weakness.leaks(&wrapper, Path::new("/probe"), &looked_at), ["host-file"].into());
}

/// A host that answers every dialing process is reported; a silent one is not.
#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_takes_anybody_for_the_guest_is_reported() {
    let Some(weakness) = Weakness::new().await else { return };
    let root = weakness.dir.path().display().to_string();
    let wrapper = ["bwrap", "--bind", &root, "/", "--proc", "/proc", "--unshare-pid"];
    let leaks = || weakness.leaks(&wrapper, Path::new("/probe"), &[Attempt::DialBack]);
    let door = weakness.path("run/door");
    let listener = UnixListener::bind(&door).expect("a socket");
    let silent = listener.try_clone().expect("a descriptor");
    assert_eq!(leaks(), BTreeSet::new(), "nobody spoke");
    std::thread::spawn(move || {
        for stream in silent.incoming() {
            // A poser who has gone hears nothing.
            let _ = stream.and_then(|mut stream| stream.write_all(b"run this"));
        }
    });
    assert_eq!(leaks(), ["dial-back"].into());
}

/// Permissions of a kernel of the sandbox's own do not matter, except where it passes a call on to the host.
#[tokio::test(flavor = "multi_thread")]
async fn what_another_kernel_allows_is_its_own_business() {
    let Some(weakness) = Weakness::new().await else { return };
    let probe = weakness.path("probe");
    let asked = [Attempt::Mount, Attempt::Bpf, Attempt::HostFile, Attempt::HostLoopback];
    let said = weakness.run(&OPEN, &probe, &asked);
    assert_eq!(said.matches("leaked").count(), 4, "{said}");
    let output = Command::new(OPEN[0])
        .args(&OPEN[1..])
        .arg(&probe)
        .args(["try", "only=mount:bpf:host-file:host-loopback", "kernel=another"])
        .args(weakness.bait.arguments(None).iter().filter(|bait| !bait.starts_with("kernel")))
        .output()
        .expect("unshare runs");
    let said = String::from_utf8_lossy(&output.stdout);
    let verdict = |name: &str| {
        let line = said.lines().find(|line| line.starts_with(name)).unwrap_or_default();
        Report::parse(line).map(|report| report.verdict)
    };
    assert_eq!((verdict("mount"), verdict("bpf")), (Some(Verdict::Held), Some(Verdict::Held)));
    for name in ["host-file", "host-loopback"] {
        assert_eq!(verdict(name), Some(Verdict::Leaked), "{said}");
    }
}

/// Damage seen by the host counts, whatever is reported inside.
#[tokio::test(flavor = "multi_thread")]
async fn what_the_host_sees_done_to_its_bait_is_reported() {
    let mut bait = Bait::lay(Vec::new()).await.expect("bait");
    assert_eq!(bait.harm(), None);
    let argument = |bait: &Bait, key: &str| {
        let all = bait.arguments(None);
        let value = all.iter().find_map(|pair| pair.strip_prefix(key)?.strip_prefix('='));
        value.expect("a key that the probe knows").to_owned()
    };
    let socket = std::net::UdpSocket::bind("127.0.0.1:0").expect("a socket");
    let port: u16 = argument(&bait, "udp").parse().expect("a port");
    socket.send_to(b"query", ("127.0.0.1", port)).expect("it is sent");
    socket.recv(&mut [0; 64]).expect("an answer");
    assert_eq!(bait.harm().map(|(attempt, _)| attempt), Some(Attempt::Dns));
    let pid = argument(&bait, "process").parse().ok().and_then(rustix::process::Pid::from_raw);
    let pid = pid.expect("a process");
    rustix::process::kill_process(pid, rustix::process::Signal::TERM).expect("it is our child");
    // It takes the kernel a moment; a test that never sees it is killed.
    while bait.harm().map(|(attempt, _)| attempt) != Some(Attempt::HostProcessSignal) {
        tokio::task::yield_now().await;
    }
}

/// The table of `docs/threat-model.md`, between its marks.
#[test]
fn threat_model_md_lists_every_attempt() {
    const BEGIN: &str =
        "<!-- Generated: SANDKEEP_REGENERATE=1 cargo nextest run threat_model_md -->\n";
    const END: &str = "<!-- end of what is generated -->\n";
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/threat-model.md");
    let written = fs::read_to_string(path).expect("docs/threat-model.md exists");
    let (before, rest) = written.split_once(BEGIN).expect("the table has a beginning");
    let (_, after) = rest.split_once(END).expect("the table has an end");
    let row = |attempt: Attempt| format!("| `{}` | {} |\n", attempt.name(), attempt.proves());
    let rows: String = Attempt::ALL.into_iter().map(row).collect();
    let table = format!("\n| attempt | what holds |\n|---|---|\n{rows}\n");
    let text = [before, BEGIN, &table, END, after].concat();
    if std::env::var_os("SANDKEEP_REGENERATE").is_some() {
        fs::write(path, &text).expect("docs can be written");
        return;
    }
    assert!(written == text, "docs/threat-model.md is stale: run with SANDKEEP_REGENERATE=1");
}

/// Attempts whose bait is missing have proved nothing.
#[test]
fn without_bait_nothing_holds() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("probe");
    fs::write(&path, sandkeep_embedded::PROBE).expect("a writable directory");
    fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("it is ours");
    let names = ["host-file", "host-socket", "other-sandbox-file", "host-process-seen"];
    let more = ["host-process-signal", "host-loopback", "abstract-socket", "dns"];
    let only = format!("only={}", [names, more].concat().join(":"));
    let output = Command::new(&path).args(["try", &only]).output().expect("it runs");
    let said = String::from_utf8_lossy(&output.stdout);
    assert_eq!(said.matches("leaked\tnot judged").count(), 8, "{said}");
}
