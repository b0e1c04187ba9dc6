//! The records of calls. One message of the protocol is one request to the gate, which cannot know what it calls.

use axum::http::request::Parts;
use rmcp::model::{CallToolResult, Extensions, JsonObject};
use serde_json::Value;

use super::{SANDBOX, answer, catalogue, tool};
use crate::kit::Refusal;
use crate::kit::audit::Slip;
use sandkeep_audit::{Effect, RecordSpace};

/// A call that is written down when it is answered. On stdio there is nobody else to hold to account, and no slip.
pub struct Audited {
    slip: Option<Slip>,
    name: String,
    effect: Effect,
    sandbox: Option<String>,
}

impl Audited {
    pub fn of(name: &str, given: &JsonObject, from: &Extensions) -> Self {
        let slip = from.get::<Parts>().and_then(|parts| parts.extensions.get::<Slip>()).cloned();
        let reads = match (catalogue::find(name), tool::find(name)) {
            (Some(offer), _) => offer.reads(),
            (None, Some(tool)) => tool.annotations.read_only,
            (None, None) => true,
        };
        let effect = if reads { Effect::Reads } else { Effect::Changes };
        let sandbox = given.get(SANDBOX).and_then(Value::as_str).map(str::to_owned);
        Self { slip, name: name.to_owned(), effect, sandbox }
    }

    /// Space for the record of a change.
    pub fn admit(&self) -> Result<Option<RecordSpace>, Refusal> {
        match (&self.slip, self.effect) {
            (Some(slip), Effect::Changes) => slip.room().map(Some),
            (Some(_) | None, _) => Ok(None),
        }
    }

    /// Writes the call down, or answers that this failed.
    pub fn settle(self, result: CallToolResult) -> CallToolResult {
        let Self { slip: Some(slip), name, effect, sandbox } = self else { return result };
        let said = |key: &str| {
            let value = result.structured_content.as_ref()?.get(key)?.as_str()?;
            Some(value.to_owned())
        };
        let code = match result.is_error {
            Some(true) => Some(said("code").unwrap_or_else(|| "failed".to_owned())),
            Some(false) | None => None,
        };
        let made = || said("id").filter(|_| name == "sandbox_create");
        let sandbox = sandbox.or_else(made);
        match slip.call(&name, effect, sandbox, code.as_deref()) {
            Ok(()) => result,
            Err(refusal) => answer::failed(refusal.into()),
        }
    }
}
