//! write_file: writes the whole content of a file, which is created with its parent directories if necessary.

use std::path::Path;

use super::call::WriteFile;
use super::refusal::{FileRefusal, Refusal};
use crate::answer::Failure;
use crate::files::{Before, Replacement};

pub fn write_file(call: &WriteFile) -> Result<String, Refusal> {
    let path = Path::new(&call.path);
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        std::fs::create_dir_all(parent).map_err(|error| FileRefusal::of(parent, &error))?;
    }
    let before = replace(path, call.content.as_bytes())?;
    let (bytes, lines) = (call.content.len(), call.content.lines().count());
    let done = match before {
        Before::Absent => "made",
        Before::Present => "replaced",
    };
    Ok(format!("{done} {}: {lines} lines, {bytes} bytes", call.path))
}

/// Replaces a file's content atomically; it keeps its mode.
pub fn replace(path: &Path, content: &[u8]) -> Result<Before, Refusal> {
    let replaced = Replacement::of(path).and_then(|mut replacement| {
        replacement.write(content)?;
        replacement.finish(None)
    });
    replaced.map_err(|failure: Failure| FileRefusal::failed(path, failure).into())
}
