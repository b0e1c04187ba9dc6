//! A tool as data: what it is called, what it takes, and which request it becomes.

use std::sync::Arc;

use axum::http::Method;
use rmcp::model::{Tool, ToolAnnotations};

use sandkeep_broker::parameter::{Kind, Need, Parameter, schema};

pub const SANDBOX: &str = "sandbox";

/// The parameter that names a sandbox.
pub const A_SANDBOX: Parameter = Parameter {
    name: SANDBOX,
    kind: Kind::Text,
    need: Need::Optional,
    description: "The id of a sandbox (sb…). Leave it out for your default sandbox, which is made if there is none.",
};

/// A tool.
#[derive(Debug)]
pub struct Call {
    pub name: &'static str,
    pub title: &'static str,
    /// For the model: what it does and when to use it.
    pub about: &'static str,
    pub effect: Effect,
    pub method: Method,
    /// With `{name}` where a parameter of the path belongs.
    pub path: &'static str,
    pub parameters: &'static [Placed],
}

/// What a call does to what is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Effect {
    Reads,
    /// Something new, beside what is there.
    Adds,
    /// Changes without loss; again changes nothing more.
    Sets,
    /// What was there may be gone.
    Destroys,
}

/// A parameter, and where in the request it goes.
#[derive(Debug)]
pub struct Placed {
    pub place: Place,
    pub parameter: Parameter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    Path,
    Query,
    Body,
}

impl Call {
    pub fn needs_sandbox(&self) -> bool {
        self.parameter(SANDBOX).is_some_and(|sandbox| sandbox.need == Need::Optional)
    }

    pub fn parameter(&self, name: &str) -> Option<&'static Parameter> {
        self.takes().find(|parameter| parameter.name == name)
    }

    /// What it takes, wherever that goes.
    pub fn takes(&self) -> impl Iterator<Item = &'static Parameter> + Clone + use<> {
        self.parameters.iter().map(|placed| &placed.parameter)
    }

    /// As `tools/list` shows it.
    pub fn described(&self) -> Tool {
        Tool::new(self.name, self.about, Arc::new(schema(self.takes())))
            .with_title(self.title)
            .with_annotations(self.effect.annotations().open_world(false))
    }
}

impl Effect {
    fn annotations(self) -> ToolAnnotations {
        let annotations = ToolAnnotations::new();
        match self {
            Self::Reads => annotations.read_only(true),
            Self::Adds => annotations.read_only(false).destructive(false).idempotent(false),
            Self::Sets => annotations.read_only(false).destructive(false).idempotent(true),
            Self::Destroys => annotations.read_only(false).destructive(true).idempotent(true),
        }
    }
}
