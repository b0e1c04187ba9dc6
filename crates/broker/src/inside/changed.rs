//! Tells of files that were changed from outside, or by tools that work on files. Changes by commands are not known.

use toolbox::{Operation, RawPath};

use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::event::{EventKind, FileChangeKind, FileChanged};
use sandkeep_core::{Principal, limits};

/// A change under way, to be told when it is done.
pub(crate) struct Changing(FileChanged);

impl Changing {
    /// `None` if an operation changes nothing.
    pub fn by(who: &Principal, operation: &Operation) -> Option<Self> {
        let (change, path, to) = match operation {
            Operation::Write(request) => (FileChangeKind::Written, &request.path, None),
            Operation::Remove { path, .. } => (FileChangeKind::Deleted, path, None),
            Operation::MakeDirectory(request) => {
                (FileChangeKind::DirectoryMade, &request.path, None)
            }
            Operation::Move(request) => (FileChangeKind::Moved, &request.from, Some(&request.to)),
            Operation::ChangeMode(request) => (FileChangeKind::ModeChanged, &request.path, None),
            Operation::Unpack(request) => (FileChangeKind::Unpacked, &request.path, None),
            Operation::Stat { .. }
            | Operation::Ports
            | Operation::Read { .. }
            | Operation::List(_)
            | Operation::Watch { .. }
            | Operation::Pack { .. }
            | Operation::Restore {}
            | Operation::Tool(_) => return None,
        };
        let text = |path: &RawPath| cut(&path.to_text_lossy());
        let (path, to, by) = (text(path), to.map(text), who.user.clone());
        Some(Self(FileChanged { change, path, to, by, tool: None }))
    }

    /// A file that a tool wrote.
    pub fn by_tool(who: &Principal, tool: &str, path: &str) -> Self {
        let (change, by) = (FileChangeKind::Written, who.user.clone());
        Self(FileChanged { change, path: cut(path), to: None, by, tool: Some(tool.to_owned()) })
    }

    pub fn done(self, shared: &Shared, handle: &Handle) {
        if let Some(subject) = &handle.execs.subject {
            shared.emit(subject, &EventKind::FileChanged(self.0));
        }
    }
}

/// As much of a path as an event has.
pub(crate) fn cut(path: &str) -> String {
    path[..path.floor_char_boundary(limits::EVENT_PATH_MAX_BYTES)].to_owned()
}
