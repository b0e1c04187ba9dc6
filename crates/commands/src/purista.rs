//! PURISTA's Sandbox service, version 1, for callers that need not be changed.
//!
//! ```text
//!   service ──▶ message ──▶ request ──▶ gate ──▶ door ──▶ broker
//!      │        envelope                          │
//!      ◀── reply, SandboxStarted ◀── answer ──────┘
//!      events, info   published besides
//! ```
//!
//! Whoever may publish commands names the tenant that they are for; nothing is signed. The service therefore starts only
//! where the operator says that the server's permissions decide who may (see the guide).
//!
//! Identity is taken from the message, never from its subject: subjects are made with a rule that loses characters.

mod door;
mod envelope;
mod events;
mod exec;
mod files;
mod id;
mod info;
mod input;
mod owner;
mod service;
mod snake;
mod subject;
mod workspace;

pub use door::MESSAGE_DOOR;
pub use owner::EVENT_LABEL;
pub use service::{Options, serve};

/// The service as callers know it.
const SERVICE: &str = "Sandbox";
const SERVICE_VERSION: &str = "1";

/// What it can be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Command {
    CreateSandbox,
    EnsureSandbox,
    ExecuteBash,
    ReadFile,
    WriteFiles,
    DestroySandbox,
}

impl Command {
    pub const ALL: [Self; 6] = [
        Self::CreateSandbox,
        Self::EnsureSandbox,
        Self::ExecuteBash,
        Self::ReadFile,
        Self::WriteFiles,
        Self::DestroySandbox,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::CreateSandbox => "createSandbox",
            Self::EnsureSandbox => "ensureSandbox",
            Self::ExecuteBash => "executeBash",
            Self::ReadFile => "readFile",
            Self::WriteFiles => "writeFiles",
            Self::DestroySandbox => "destroySandbox",
        }
    }

    fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|command| command.name() == name)
    }
}
