//! What a sandbox is, without any IO: ids, owner, spec, the state machine.

mod id;
mod owner;
mod signal;
mod spec;
mod state;

pub use id::{ExecId, InvalidId, SandboxId, ShellId};
pub use owner::{DEFAULT_PROJECT, OtherProject, Owner, Principal, Scope, Scopes};
pub use signal::{NoSignal, Signal};
pub(crate) use spec::NamesOnly;
pub use spec::{
    DEFAULT_RUNTIME, DEFAULT_TEMPLATE, HostLimits, InvalidSpec, Privilege, Resources,
    ResourcesDraft, Spec, SpecDraft, check_env,
};
pub use state::{Denied, Event, Liveness, Next, Operation, Reason, State, Status, Verb, apply};
