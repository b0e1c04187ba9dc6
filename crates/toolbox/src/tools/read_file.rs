//! read_file: some lines of a text file, each with its number.

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use super::call::ReadFile;
use super::refusal::{FileRefusal, Refusal};
use super::{READ_ANSWER_MAX_BYTES, READ_LINE_MAX_CHARS, READ_LINES_MAX, READ_MAX_BYTES};

/// How much of a file is checked to distinguish text from binary, as in git and grep.
const LOOKED_AT_BYTES: usize = 8 * 1024;
/// How many names of a directory are compared with a missing one.
const NAMES_COMPARED_MAX: usize = 2_000;
/// Minimum similarity of a suggested name.
const NAME_ALIKE: f32 = 0.6;

pub fn read_file(call: &ReadFile) -> Result<String, Refusal> {
    let path = Path::new(&call.path);
    let bytes = text_of(path)?;
    let text = String::from_utf8_lossy(&bytes);
    let text = text.strip_prefix('\u{feff}').unwrap_or(&text);
    if text.is_empty() {
        return Ok(format!("{} is empty", call.path));
    }
    let lines = text.lines().count();
    let first = usize::try_from(call.offset).unwrap_or(usize::MAX).max(1);
    if first > lines {
        let (path, lines) = (call.path.clone(), lines as u64);
        return Err(FileRefusal::BeyondEnd { path, offset: call.offset, lines }.into());
    }
    let wanted =
        call.limit.map_or(READ_LINES_MAX, |limit| usize::try_from(limit).unwrap_or(usize::MAX));
    Ok(shown(text, lines, first, wanted.min(READ_LINES_MAX)))
}

/// The lines from `first` on, as many as fit, and a note about the rest.
fn shown(text: &str, lines: usize, first: usize, wanted: usize) -> String {
    let mut answer = String::new();
    let mut next = first;
    for line in text.lines().skip(first - 1).take(wanted) {
        if answer.len() >= READ_ANSWER_MAX_BYTES {
            break;
        }
        answer.push_str(&numbered(next, line));
        next += 1;
    }
    if next <= lines {
        let last = next - 1;
        answer.push_str(&format!(
            "[lines {first} to {last} of {lines}; read on with offset {next}]\n"
        ));
    }
    answer
}

/// A line as displayed by tools.
pub fn numbered(number: usize, line: &str) -> String {
    format!("{number:>6}\t{}\n", clipped(line))
}

fn clipped(line: &str) -> String {
    match line.char_indices().nth(READ_LINE_MAX_CHARS) {
        None => line.to_owned(),
        Some((end, _)) => {
            let more = line[end..].chars().count();
            format!("{} [{more} more characters]", &line[..end])
        }
    }
}

/// The whole content of a text file that is not too large.
pub fn text_of(path: &Path) -> Result<Vec<u8>, Refusal> {
    let mut file = open(path)?;
    let refused = |error: &std::io::Error| FileRefusal::of(path, error);
    let shown = || path.display().to_string();
    let bytes = file.metadata().map_err(|error| refused(&error))?.len();
    if bytes > READ_MAX_BYTES {
        return Err(FileRefusal::TooLarge { path: shown(), bytes }.into());
    }
    let mut content = Vec::new();
    // It may have grown since, and files of /proc do not report their length.
    let limit = READ_MAX_BYTES + 1;
    (&mut file).take(limit).read_to_end(&mut content).map_err(|error| refused(&error))?;
    if content.len() as u64 > READ_MAX_BYTES {
        return Err(FileRefusal::TooLarge { path: shown(), bytes: content.len() as u64 }.into());
    }
    if content.iter().take(LOOKED_AT_BYTES).any(|byte| *byte == 0) {
        Err(FileRefusal::Binary { path: shown() }.into())
    } else {
        Ok(content)
    }
}

/// Opens a regular file; never blocks, not even on a pipe without a writer.
fn open(path: &Path) -> Result<File, Refusal> {
    let nonblock = i32::try_from(rustix::fs::OFlags::NONBLOCK.bits()).unwrap_or_default();
    let opened = OpenOptions::new().read(true).custom_flags(nonblock).open(path);
    let file = opened.map_err(|error| explained(path, &error))?;
    let kind = file.metadata().map_err(|error| FileRefusal::of(path, &error))?.file_type();
    let shown = path.display().to_string();
    match () {
        () if kind.is_file() => Ok(file),
        () if kind.is_dir() => Err(FileRefusal::IsDirectory { path: shown }.into()),
        () => Err(FileRefusal::NotRegular { path: shown }.into()),
    }
}

/// Why a path could not be opened, with a similar name as a suggestion.
pub fn explained(path: &Path, error: &std::io::Error) -> Refusal {
    match FileRefusal::of(path, error) {
        FileRefusal::NotFound { path: shown, .. } => {
            FileRefusal::NotFound { path: shown, near: near(path) }.into()
        }
        // A socket cannot be opened at all.
        FileRefusal::Failed { path, .. }
            if error.raw_os_error() == Some(rustix::io::Errno::NXIO.raw_os_error()) =>
        {
            FileRefusal::NotRegular { path }.into()
        }
        other => other.into(),
    }
}

/// The most similar name in the same directory.
fn near(path: &Path) -> Option<String> {
    let wanted = path.file_name()?.to_str()?;
    let directory = path.parent().filter(|parent| !parent.as_os_str().is_empty());
    let entries = std::fs::read_dir(directory.unwrap_or(Path::new("."))).ok()?;
    let names = entries
        .take(NAMES_COMPARED_MAX)
        .filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    let alike = |name: String| {
        let ratio = similar::TextDiff::from_chars(wanted, name.as_str()).ratio();
        (ratio > NAME_ALIKE).then_some((ratio, name))
    };
    let (_, name) = names.filter_map(alike).max_by(|(a, _), (b, _)| a.total_cmp(b))?;
    Some(
        directory
            .map_or_else(|| name.clone(), |directory| directory.join(&name).display().to_string()),
    )
}
