//! `sandkeep run` with a daemon: the same command in a throwaway sandbox of that daemon.
//!
//! The sandbox is destroyed when the command ends. If this process is killed, its command ends with the connection, and
//! the idle timeout removes the sandbox.

use serde_json::{Value, json};

use super::signals::Signals;
use super::{Args, ask};
use crate::cli::awaited::{Awaited, Piped};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{print, spinner};
use sandkeep_client::Client;
use sandkeep_core::api::Sandbox;
use sandkeep_core::{ExecId, SandboxId, limits::RUN_ABANDONED};

pub async fn run(mut args: Args, client: &Client) -> Result<Exit, Failure> {
    if let Some(option) = args.afterwards.given() {
        let problem = format!(
            "{option} is for a run without a daemon; there, changes are in the codebase at once \
             (sandkeep codebase apply)"
        );
        return Err(Failure::Usage { problem });
    }
    if !args.volume.is_empty() {
        let problem = "-v mounts a directory of this machine, and is for a run without a daemon; leave out --url and \
                       SANDKEEP_URL, or send a copy with --source-dir"
            .to_owned();
        return Err(Failure::Usage { problem });
    }
    let mut signals = Signals::listen()?;
    let terminal = args.terminal()?;
    let source = std::mem::take(&mut args.spec.source);
    let piped = if source.takes_stdin() || args.asks_on_stdin() {
        Piped::NotAtAll
    } else {
        Piped::AsItComes
    };
    let source = source.send(client).await?;
    let mut body = args.spec.into_json()?;
    body.as_object_mut().expect("it was made as an object").extend(
        [("source", source), ("name", args.kept.name.clone().map(Value::from))]
            .into_iter()
            .filter_map(|(name, value)| Some((name.to_owned(), value?))),
    );
    if !args.kept.keep {
        body["idle_timeout_secs"] = json!(RUN_ABANDONED.as_secs());
        body["on_timeout"] = json!("destroy");
    }
    let made = client.post::<Value>("/api/v1/sandboxes", &body);
    let sandbox: Sandbox = client.read(spinner::during("creating", made).await?)?;
    let id = sandbox.id;
    let result = match args.kept.publish.open(&id, client).await {
        Ok(()) => {
            let mut exec = json!({ "argv": args.command, "on_disconnect": "kill" });
            exec["cwd"] = json!(args.exec.cwd);
            exec["user"] = json!(args.exec.user);
            exec["timeout_ms"] = json!(args.exec.timeout_ms());
            let asked = async {
                let Some(terminal) = terminal else { return std::future::pending().await };
                ask::about(ask::Keeper::Daemon(client.clone()), id.clone(), terminal).await;
                std::future::pending().await
            };
            tokio::select! {
                ended = execute(&id, exec, piped, &mut signals, client) => ended,
                never = asked => never,
            }
        }
        // It was destroyed again.
        Err(failure) => return Err(failure),
    };
    if args.kept.keep {
        print::note(&format!("kept {} ({id})", sandbox.name))
    } else {
        client.destroy(&id).await?
    }
    result
}

/// The first signal goes to the command, the second ends the run.
async fn execute(
    id: &SandboxId,
    body: Value,
    piped: Piped,
    signals: &mut Signals,
    client: &Client,
) -> Result<Exit, Failure> {
    let path = format!("/api/v1/sandboxes/{id}/execs");
    let begun = std::cell::OnceCell::<ExecId>::new();
    let awaited = Awaited { path: &path, sandbox: id, body, piped };
    let mut live = std::pin::pin!(awaited.follow(client, &begun));
    let mut told = false;
    loop {
        let signal = tokio::select! {
            ended = &mut live => return ended,
            signal = signals.next() => signal,
        };
        let Some(exec) = begun.get().filter(|_| !told) else {
            return Ok(Exit::Command(signal.exit_code()));
        };
        told = true;
        let said = client
            .tell(&format!("{path}/{exec}/signal"), &json!({ "signal": signal.number() }))
            .await;
        // It may have just ended; then its end comes next.
        if let Err(error) = said {
            tracing::debug!("the command did not get the signal: {error}");
        }
    }
}
