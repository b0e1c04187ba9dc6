//! The image that a sandbox was created from. It is part of its spec and never changes: removing a template, or
//! importing it again under the same name, affects only later sandboxes.

use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Serialize};

use super::process::StartUp;
use super::spec::NamesOnly;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PinnedImage {
    /// Digest of the image's config: `sha256:` and 64 digits.
    pub digest: String,
    /// The layers below its volume, with the storage's names, lowest first.
    pub layers: Vec<String>,
    /// The built-in template that shows through, if the image was captured from a sandbox of that template.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub over: Option<String>,
    /// The image's own settings; without them only the underlying template's apply.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub defaults: Option<ImageDefaults>,
}

/// Defaults for commands.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ImageDefaults {
    /// As in Docker's USER: a name or uid, optionally followed by a colon and a group or gid.
    pub user: String,
    /// An absolute path.
    pub workdir: String,
    /// Overridden by the sandbox's own environment.
    pub env: BTreeMap<String, String>,
    /// Entrypoint and arguments, if the caller names no command; empty if the image has none.
    pub command: Vec<String>,
    /// The command that runs from the creation on, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start: Option<StartUp>,
}

/// An image's environment may contain secrets.
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
