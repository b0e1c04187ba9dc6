//! ls: the entries of a directory, sorted by name, with their types.

use std::fs::{self, DirEntry};
use std::path::Path;

use super::LS_ENTRIES_MAX;
use super::call::Ls;
use super::read_file::explained;
use super::refusal::{FileRefusal, Refusal};

/// How many names of a directory are read; in a larger one the displayed ones are not the first by name.
const NAMES_READ_MAX: usize = 100_000;

pub fn ls(call: &Ls) -> Result<String, Refusal> {
    let path = Path::new(&call.path);
    let entries = fs::read_dir(path).map_err(|error| explained(path, &error))?;
    let read: Result<Vec<DirEntry>, _> = entries.take(NAMES_READ_MAX + 1).collect();
    let mut entries = read.map_err(|error| FileRefusal::of(path, &error))?;
    if entries.is_empty() {
        return Ok(format!("{} is empty", call.path));
    }
    let all = entries.len();
    entries.sort_by_key(DirEntry::file_name);
    let mut answer: String = entries.iter().take(LS_ENTRIES_MAX).map(line).collect();
    if all > NAMES_READ_MAX {
        answer.push_str(&format!(
            "[{LS_ENTRIES_MAX} of more than {NAMES_READ_MAX} entries; use glob to find some of them]\n"
        ));
    } else if all > LS_ENTRIES_MAX {
        answer.push_str(&format!(
            "[the first {LS_ENTRIES_MAX} of {all} entries; use glob to find others]\n"
        ));
    }
    Ok(answer)
}

/// `name/` for a directory, `name -> target` for a link, `name (size)` for a file.
fn line(entry: &DirEntry) -> String {
    let name = entry.file_name();
    let name = name.to_string_lossy();
    // It may have gone meanwhile; its name is reported all the same.
    let Ok(metadata) = entry.metadata() else { return format!("{name}\n") };
    let kind = metadata.file_type();
    match () {
        () if kind.is_dir() => format!("{name}/\n"),
        () if kind.is_symlink() => {
            let target = fs::read_link(entry.path()).unwrap_or_default();
            format!("{name} -> {}\n", target.display())
        }
        () if kind.is_file() => format!("{name} ({} bytes)\n", metadata.len()),
        () => format!("{name} (pipe, socket or device)\n"),
    }
}
