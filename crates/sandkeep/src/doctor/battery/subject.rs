//! A temporary sandbox and commands in it.

use std::future::ready;
use std::time::Duration;

use bytes::Bytes;

use super::{BatteryError, TestBroker};
use sandkeep_broker::{ExecDraft, Running, StatsView, error::Error};
use sandkeep_core::network::Network;
use sandkeep_core::{Principal, Privilege, ResourcesDraft, SandboxId, SpecDraft, limits};
use sandkeep_guestlink::{ExecEnd, Outcome, OutputStream, journal::StdinSource};
use sandkeep_tree::Root;

/// How long a bomb may take.
const BOMB: Duration = limits::BATTERY_EXEC.saturating_mul(5);
const PROBE_PATH: &str = "/tmp/sandkeep-probe";
/// A copy that is owned by root and has the set-user-ID bit.
const PROBE_AS_ROOT: &str = "/tmp/sandkeep-probe-as-root";

/// A user inside a sandbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Who {
    /// The default user.
    User,
    /// Root without privileges.
    Root,
    /// Root of a privileged sandbox.
    PrivilegedRoot,
}

impl Who {
    pub fn name(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Root => "root",
            Self::PrivilegedRoot => "privileged root",
        }
    }

    fn user(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Root | Self::PrivilegedRoot => "root",
        }
    }
}

pub struct TestSandbox<'a> {
    ward: &'a TestBroker,
    id: SandboxId,
}

/// A command's output and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub stdout: String,
    pub end: ExecEnd,
}

impl<'a> TestSandbox<'a> {
    pub async fn create(
        ward: &'a TestBroker,
        runtime: &str,
        privilege: Privilege,
        resources: Option<ResourcesDraft>,
        network: Option<Network>,
    ) -> Result<Self, Error> {
        let draft = SpecDraft {
            runtime: Some(runtime.to_owned()),
            privilege: Some(privilege),
            resources,
            network,
            ..SpecDraft::default()
        };
        let id = ward.broker.create(&Principal::local(), draft).await?.id;
        Ok(Self { ward, id })
    }

    pub async fn destroy(&self) -> Result<(), Error> {
        self.ward.broker.destroy(&Principal::local(), &self.id).await
    }

    /// The path of its files on the host.
    pub async fn volume(&self) -> Result<Root, Error> {
        Ok(self.ward.storage.root(&self.id).await?)
    }

    pub async fn stats(&self) -> Result<StatsView, Error> {
        self.ward.broker.stats(&Principal::local(), &self.id).await
    }

    /// Starts a command whose stdin stays open.
    async fn start(&self, user: &str, argv: &[&str], timeout: Duration) -> Result<Running, Error> {
        let draft = ExecDraft {
            argv: argv.iter().map(|&argument| argument.to_owned()).collect(),
            user: Some(user.to_owned()),
            stdin: StdinSource::Given,
            timeout: Some(timeout),
            ..ExecDraft::default()
        };
        self.ward.broker.exec(&Principal::local(), &self.id, draft).await
    }

    /// Runs a command to its end with this input.
    async fn run(&self, user: &str, argv: &[&str], stdin: &[u8]) -> Result<Ran, Error> {
        let running = self.start(user, argv, limits::BATTERY_EXEC).await?;
        let input = running.input.clone();
        let write = async move {
            // A command that ends early does not read everything, and its outcome says so.
            let _ = input.write(stdin).await;
            let _ = input.close().await;
        };
        let (ran, ()) = tokio::join!(to_the_end(running), write);
        Ok(ran)
    }

    /// Copies the probe in, and returns the path of a copy that is owned by root and has the set-user-ID bit; a sandbox
    /// with a single user has none.
    pub async fn bring_probe(&self) -> Result<Option<&'static str>, BatteryError> {
        let plain = format!("cat > {PROBE_PATH} && chmod 755 {PROBE_PATH}");
        let both =
            format!("{plain} && cp {PROBE_PATH} {PROBE_AS_ROOT} && chmod 4755 {PROBE_AS_ROOT}");
        let mut end = None;
        for (user, script, as_root) in [("root", both, Some(PROBE_AS_ROOT)), ("user", plain, None)]
        {
            let ran = self.run(user, &["sh", "-c", &script], sandkeep_embedded::PROBE).await?;
            if ran.end.outcome == Outcome::Exited(0) {
                return Ok(as_root);
            }
            end = Some(ran.end);
        }
        Err(BatteryError::Probe(format!("{end:?}")))
    }

    /// Makes all attempts that are judged inside, and returns the lines. Meanwhile the guest has other requests, so
    /// that an impostor of the guest would receive one.
    pub async fn probe(&self, who: Who, bait: &[String]) -> Result<Ran, Error> {
        let argv: Vec<&str> =
            [PROBE_PATH, "try"].into_iter().chain(bait.iter().map(String::as_str)).collect();
        let busy = async {
            loop {
                if self.run("user", &["true"], b"").await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        tokio::select! {
            ran = self.run(who.user(), &argv, b"") => ran,
            () = busy => unreachable!("it has no end"),
        }
    }

    /// A file with a word in it, and a long-running process whose arguments contain it.
    pub async fn hide(&self, path: &str, word: &str) -> Result<(), Error> {
        let script = format!("cat > {path} && chmod 644 {path}");
        self.run("user", &["sh", "-c", &script], word.as_bytes()).await?;
        // Nothing waits for it; it ends with the sandbox.
        let argv = ["sh", "-c", "sleep 1000; :", word];
        self.start("user", &argv, limits::BATTERY_EXEC).await.map(drop)
    }

    /// Starts a bomb. It makes tens of thousands of files, which takes long on some storage.
    pub async fn bomb(&self, name: &str, max: u64) -> Result<Running, Error> {
        let argv = [PROBE_PATH, "bomb", name, &max.to_string()];
        self.start("user", &argv, BOMB).await
    }

    /// Whether commands can still run in it.
    pub async fn is_well(&self) -> bool {
        let ran =
            tokio::time::timeout(limits::BATTERY_RECOVERY, self.run("user", &["true"], b"")).await;
        matches!(ran, Ok(Ok(ran)) if ran.end.outcome == Outcome::Exited(0))
    }
}

/// All of stdout up to a limit, and the end.
pub async fn to_the_end(running: Running) -> Ran {
    let mut stdout = Vec::new();
    let take = |stream, _, data: Bytes| {
        if stream == OutputStream::Stdout {
            let room = limits::BATTERY_OUTPUT_MAX_BYTES.saturating_sub(stdout.len());
            stdout.extend_from_slice(&data[..data.len().min(room)]);
        }
        ready(())
    };
    let end = running.collect(take).await;
    Ran { stdout: String::from_utf8_lossy(&stdout).into_owned(), end }
}
