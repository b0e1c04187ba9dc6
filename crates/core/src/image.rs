//! What a sandbox remembers of the image it was made from. It is part of its spec and never changes: a
//! template that is removed, or imported anew under the same name, concerns later sandboxes only.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::process::StartUp;
use super::spec::NamesOnly;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedImage {
    /// Of the template's description; `sha256:` and 64 digits.
    pub digest: String,
    /// What its volume lies above, as the storage names it, the lowest first.
    pub layers: Vec<String>,
    /// The built-in template that shows through, of an image that was made of a sandbox of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// What the image says for itself; without it the template beneath is all that counts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<ImageDefaults>,
}

/// How commands run that do not say otherwise.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDefaults {
    /// As in Docker's USER: a name or uid, and a group or gid after a colon.
    pub user: String,
    /// An absolute path.
    pub workdir: String,
    /// Beneath the sandbox's own.
    pub env: BTreeMap<String, String>,
    /// Entrypoint and arguments, for whoever names no command; empty if the image names none either.
    pub command: Vec<String>,
    /// What runs from the creation on, if anything does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartUp>,
}

/// An image's variables are as likely to hold a secret as any.
impl fmt::Debug for ImageDefaults {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ImageDefaults")
            .field("user", &self.user)
            .field("workdir", &self.workdir)
            .field("env", &NamesOnly(&self.env))
            .field("command", &self.command)
            .field("start", &self.start)
            .finish()
    }
}
