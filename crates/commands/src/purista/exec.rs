//! executeBash: a command, all of its output, and its exit code.

use std::time::Duration;

use axum::response::{IntoResponse, Response};
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use sandkeep_broker::{Broker, ExecDraft, OnDisconnect, Running};
use sandkeep_core::excerpt::Cut;
use sandkeep_core::limits::OWN_COMMAND_MAX;
use sandkeep_core::{Principal, SandboxId};
use sandkeep_doors::kit::long_answer::heavy_answer;
use sandkeep_doors::rest::Collected;
use sandkeep_guestlink::Outcome;
use serde_json::json;

use super::door::{Failed, Fault};
use super::input::{Bash, GitConfig};
use super::workspace::{ROOT, absolute};

/// A template need not have bash.
const SHELL: &str =
    r#"if command -v bash >/dev/null 2>&1; then exec bash -c "$1"; else exec sh -c "$1"; fi"#;
/// What `timeout(1)` exits with when the time is up.
const TIMED_OUT: i32 = 124;
/// What a shell adds to the number of the signal that ended a command.
const SIGNALED: i32 = 128;
const SIGKILL: i32 = 9;
/// How much of stderr is told of a command that was stopped.
const STDERR_TOLD_BYTES: usize = 64 * 1024;

pub async fn run(
    broker: &Broker,
    who: &Principal,
    uuid: &str,
    id: &SandboxId,
    bash: Bash,
) -> Result<Response, Failed> {
    let Bash { command, cwd, timeout_ms } = bash;
    let cwd = cwd.map_or_else(|| ROOT.to_owned(), |cwd| absolute(&cwd));
    let draft = ExecDraft {
        argv: ["/bin/sh", "-c", SHELL, "bash", &command].map(str::to_owned).to_vec(),
        cwd: Some(cwd.clone()),
        timeout: Some(Duration::from_millis(timeout_ms)),
        // Nobody could ask for what it says later.
        on_disconnect: OnDisconnect::Kill,
        ..ExecDraft::default()
    };
    let collected = Collected::of(broker.exec(who, id, draft).await?).await;
    let truncated = collected.is_truncated();
    let Collected { end, stdout, stderr, space } = collected;
    let (stdout, mut stderr) = (text(stdout), text(stderr));
    let exit_code = match end.outcome {
        Outcome::TimedOut | Outcome::Exited(TIMED_OUT) => {
            let data = json!({
                "sandboxId": uuid, "command": command, "cwd": cwd, "timeoutMs": timeout_ms,
                "stderr": tail(&stderr),
            });
            return Ok(Fault::new(504, "command timed out").with(data).into_response());
        }
        Outcome::Exited(code) => code,
        Outcome::Signaled(signal) => SIGNALED + signal,
        Outcome::Canceled | Outcome::OomKilled | Outcome::Lost => SIGNALED + SIGKILL,
    };
    if truncated {
        let message = "the output is too large; redirect it into a file";
        return Ok(Fault::new(413, message).into_response());
    }
    if let Some(error) = &end.error {
        stderr += error;
        stderr.push('\n');
    }
    let result = json!({ "stdout": stdout, "stderr": stderr, "exitCode": exit_code });
    Ok(heavy_answer(&result, space))
}

fn text(cut: Cut) -> String {
    String::from_utf8(cut.bytes)
        .unwrap_or_else(|not_text| String::from_utf8_lossy(not_text.as_bytes()).into_owned())
}

fn tail(text: &str) -> &str {
    &text[text.ceil_char_boundary(text.len().saturating_sub(STDERR_TOLD_BYTES))..]
}

/// A command of our own that did not do what it was for.
#[derive(Debug, thiserror::Error)]
#[error("{outcome:?}: {said}")]
pub struct OwnCommandFailed {
    outcome: Outcome,
    said: String,
}

/// Waits for a command of our own.
pub async fn finished(running: Running) -> Result<(), OwnCommandFailed> {
    let collected = Collected::of(running).await;
    match collected.end.outcome {
        Outcome::Exited(0) => Ok(()),
        outcome => {
            let (said, error) = (text(collected.stderr), collected.end.error.unwrap_or_default());
            Err(OwnCommandFailed { outcome, said: format!("{} {error}", tail(&said).trim()) })
        }
    }
}

/// Writes what git should know of its user. The values come in variables, which are never shown.
const CONFIGURE: &str = r#"umask 077 && printf '%s' "$SANDKEEP_GIT_CONFIG" > "$HOME/.gitconfig" &&
if [ -n "$SANDKEEP_GIT_CREDENTIALS" ]; then
    printf '%s' "$SANDKEEP_GIT_CREDENTIALS" > "$HOME/.git-credentials"
fi"#;

pub async fn configure_git(
    broker: &Broker,
    who: &Principal,
    id: &SandboxId,
    git: &GitConfig,
) -> Result<(), Failed> {
    let (config, credentials) = git_files(git);
    let env = [("SANDKEEP_GIT_CONFIG", config), ("SANDKEEP_GIT_CREDENTIALS", credentials)];
    let draft = ExecDraft {
        argv: ["/bin/sh", "-c", CONFIGURE].map(str::to_owned).to_vec(),
        env: env.map(|(name, value)| (name.to_owned(), value)).into(),
        timeout: Some(OWN_COMMAND_MAX),
        ..ExecDraft::default()
    };
    finished(broker.exec(who, id, draft).await?).await.map_err(|failed| {
        tracing::warn!(%id, "cannot configure git: {failed}");
        Fault::internal().into()
    })
}

/// `.gitconfig` and `.git-credentials`. A token is for github.com alone: it goes to no host that a repository names.
fn git_files(git: &GitConfig) -> (String, String) {
    let quoted = |text: &str| format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""));
    let (name, email) = (quoted(&git.username), quoted(&git.email));
    let user = format!("[user]\n\tname = {name}\n\temail = {email}\n");
    let Some(token) = &git.token else { return (user, String::new()) };
    let encoded = |text: &str| utf8_percent_encode(text, NON_ALPHANUMERIC).to_string();
    let credentials = format!("https://{}:{}@github.com\n", encoded(&git.username), encoded(token));
    (format!("{user}[credential]\n\thelper = store\n"), credentials)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_breaks_out_of_the_configuration_of_git() {
        let git = GitConfig {
            username: "a\"\\ b".to_owned(),
            email: "e".to_owned(),
            token: Some("t/@:".to_owned()),
        };
        let (config, credentials) = git_files(&git);
        assert!(config.contains(r#"name = "a\"\\ b""#), "{config}");
        assert_eq!(credentials, "https://a%22%5C%20b:t%2F%40%3A@github.com\n");
    }

    #[test]
    fn the_end_of_a_long_text_is_told() {
        let long = "é".repeat(STDERR_TOLD_BYTES) + "x";
        assert!(tail(&long).len() <= STDERR_TOLD_BYTES && tail(&long).ends_with("éx"));
        assert_eq!(tail("short"), "short");
    }
}
