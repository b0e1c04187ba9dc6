//! exec: run one command in a running sandbox. Execs go straight to the guest, side by side with each
//! other and with the supervisor; what they have in common is a count and the sandbox's end.

pub(super) mod sending;

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::OwnedSemaphorePermit;
use tracing::debug;

use super::shared::{Handle, Shared};
use super::supervisor::denied_error;
use crate::error::Error;
use crate::failpoint;
use crate::guest::{
    ExecEvent, ExecRequest, Execution, ExecutionInput, Guest, Offsets, Origin, Stdin,
};
use crate::limits;
use crate::sandbox::{Event, ExecId, NamesOnly, Verb, apply, check_env};

/// Who a command runs as unless it says otherwise.
const DEFAULT_USER: &str = "user";

/// What every command's environment begins with; nothing of the daemon's own is ever in it.
const BASE_ENV: [(&str, &str); 2] =
    [("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"), ("LANG", "C.UTF-8")];

/// One command as a caller asks for it, before it is checked.
#[derive(Clone, Default)]
pub struct ExecDraft {
    pub argv: Vec<String>,
    pub env: BTreeMap<String, String>,
    pub cwd: Option<String>,
    pub user: Option<String>,
    pub stdin: Option<Stdin>,
    pub timeout: Option<Duration>,
}

impl fmt::Debug for ExecDraft {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ExecDraft")
            .field("argv", &self.argv)
            .field("env", &NamesOnly(&self.env))
            .field("cwd", &self.cwd)
            .field("user", &self.user)
            .field("stdin", &self.stdin)
            .field("timeout", &self.timeout)
            .finish()
    }
}

/// A running exec. Dropping it lets the command go on; the broker then drains its output.
pub struct Running {
    pub id: ExecId,
    pub input: ExecutionInput,
    guest: Arc<dyn Guest>,
    output: Output,
}

impl Running {
    /// The next event; `None` after the one `Ended`.
    pub async fn next(&mut self) -> Option<ExecEvent> {
        self.output.next().await
    }

    /// Signals the first process of the command.
    pub async fn signal(&self, signal: i32) -> Result<(), Error> {
        Ok(self.guest.signal(&self.id, signal).await?)
    }

    /// Kills the whole tree of the command.
    pub async fn cancel(&self) -> Result<(), Error> {
        Ok(self.guest.cancel(&self.id).await?)
    }
}

/// The output of an exec and its place in the count. Whoever drops it before the end leaves the rest to
/// a task that reads on, because a guest holds its breath until its output is taken.
struct Output {
    shared: Arc<Shared>,
    /// `None` once the end was seen.
    open: Option<(Execution, OwnedSemaphorePermit)>,
}

impl Output {
    async fn next(&mut self) -> Option<ExecEvent> {
        let (execution, _) = self.open.as_mut()?;
        let event = execution.next().await;
        if matches!(event, Some(ExecEvent::Ended(_)) | None) {
            self.open = None;
            failpoint!("exec.after_end");
        }
        event
    }
}

impl Drop for Output {
    fn drop(&mut self) {
        let Some((execution, permit)) = self.open.take() else { return };
        // Outside of a runtime there is nobody left to read: the process is ending.
        if tokio::runtime::Handle::try_current().is_ok() {
            let drain = drain(Arc::clone(&self.shared), execution, permit);
            self.shared.tasks.spawn(drain);
        }
    }
}

/// Takes the output of an exec that nobody listens to, until it ends or the broker does.
async fn drain(shared: Arc<Shared>, mut execution: Execution, permit: OwnedSemaphorePermit) {
    let to_the_end = async { while execution.next().await.is_some() {} };
    tokio::select! {
        () = shared.closing.cancelled() => {}
        () = to_the_end => {}
    }
    drop(permit);
}

/// Admits a command and starts it.
pub(super) async fn exec(
    shared: &Arc<Shared>,
    handle: &Handle,
    draft: ExecDraft,
) -> Result<Running, Error> {
    if shared.closing.is_cancelled() {
        return Err(Error::ShuttingDown);
    }
    let guest = admitted(handle)?;
    let request = request(handle, draft)?;
    let permit = Arc::clone(&handle.execs).try_acquire_owned().map_err(|_| {
        let limit = limits::EXECS_PER_SANDBOX_MAX;
        Error::LimitReached { what: "execs in this sandbox", limit }
    })?;
    failpoint!("exec.after_admission");
    let id = request.id.clone();
    let (execution, permit) = sending::send(shared, &guest, request, permit).await?;
    failpoint!("exec.after_start");
    let input = execution.input();
    let output = Output { shared: Arc::clone(shared), open: Some((execution, permit)) };
    Ok(Running { id, input, guest, output })
}

/// The way inside, if the sandbox is in a state for it.
fn admitted(handle: &Handle) -> Result<Arc<dyn Guest>, Error> {
    let snapshot = handle.snapshot.borrow();
    apply(&snapshot.status, Event::Begin(Verb::Exec))
        .map_err(|denied| denied_error(handle.id.clone(), denied))?;
    let unreachable = || {
        let reason = "its guest cannot be reached".to_owned();
        Error::SandboxFailed { id: handle.id.clone(), reason }
    };
    snapshot.guest.clone().ok_or_else(unreachable)
}

fn request(handle: &Handle, draft: ExecDraft) -> Result<ExecRequest, Error> {
    check(&draft)?;
    let base = BASE_ENV.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let mut env = BTreeMap::from(base);
    env.extend(handle.spec.env().iter().map(|(name, value)| (name.clone(), value.clone())));
    env.extend(draft.env);
    let request = ExecRequest {
        id: ExecId::random(),
        argv: draft.argv,
        env: env.into_iter().collect(),
        cwd: draft.cwd,
        user: draft.user.unwrap_or_else(|| DEFAULT_USER.to_owned()),
        stdin: draft.stdin.unwrap_or(Stdin::Null),
        timeout: draft.timeout,
        privilege: handle.spec.privilege(),
    };
    let env: usize = request.env.iter().map(|(name, value)| name.len() + value.len() + 2).sum();
    let argv: usize = request.argv.iter().map(|argument| argument.len() + 1).sum();
    let (size, max) = (argv + env, limits::EXEC_STRINGS_MAX_BYTES);
    match size <= max {
        true => Ok(request),
        false => Err(invalid(
            "argv",
            format!(
                "with the environment it has {size} bytes, more than {max}; use a file or stdin"
            ),
        )),
    }
}

fn check(draft: &ExecDraft) -> Result<(), Error> {
    if draft.argv.first().is_none_or(String::is_empty) {
        return Err(invalid("argv", "it names no command".to_owned()));
    }
    if draft.argv.iter().any(|argument| argument.contains('\0')) {
        return Err(invalid("argv", "an argument holds NUL".to_owned()));
    }
    let max = limits::ARGUMENT_MAX_BYTES;
    if let Some(long) = draft.argv.iter().find(|argument| argument.len() > max) {
        let problem = format!(
            "an argument has {} bytes, more than the {max} that the kernel takes; send it as stdin",
            long.len()
        );
        return Err(invalid("argv", problem));
    }
    check_env(&draft.env)?;
    match &draft.cwd {
        Some(cwd) if !cwd.starts_with('/') || cwd.contains('\0') => {
            return Err(invalid("cwd", format!("{cwd:?} is not an absolute path")));
        }
        Some(_) | None => {}
    }
    match &draft.user {
        Some(user) if user.is_empty() || user.contains('\0') => {
            return Err(invalid("user", "it is neither a name, a uid nor uid:gid".to_owned()));
        }
        Some(_) | None => {}
    }
    match draft.timeout {
        Some(Duration::ZERO) => Err(invalid("timeout_ms", "it is zero".to_owned())),
        Some(_) | None => Ok(()),
    }
}

fn invalid(field: &'static str, problem: String) -> Error {
    Error::InvalidField { field, problem }
}

/// Joins the execs that an earlier daemon started, so that they can go on and end.
pub(super) async fn drain_leftovers(
    shared: Arc<Shared>,
    handle: Arc<Handle>,
    guest: Arc<dyn Guest>,
) {
    let known = tokio::select! {
        () = shared.closing.cancelled() => return,
        known = guest.execs() => known,
    };
    let known = match known {
        Ok(known) => known,
        Err(error) => {
            debug!(id = %handle.id, %error, "cannot list the execs of an adopted sandbox");
            return;
        }
    };
    // Joining an exec cuts off whoever watches it, which may be a caller of ours by now.
    for exec in known.into_iter().filter(|exec| exec.origin == Origin::Earlier) {
        // There were at most as many as there may be now.
        let Ok(permit) = Arc::clone(&handle.execs).try_acquire_owned() else { return };
        match guest.attach(&exec.id, Offsets::default()).await {
            Ok(execution) => {
                shared.tasks.spawn(drain(Arc::clone(&shared), execution, permit));
            }
            Err(error) => {
                debug!(id = %handle.id, exec = %exec.id, %error, "cannot join an exec");
            }
        }
    }
}
