//! `apply --interactive`: every hunk of a changed file, and every other step, is shown and asked for.
//!
//! Everything is staged before the first question, so the answers may take as long as they like: what is shown is what
//! is written. File contents are shown without control characters, because a terminal would obey them.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, Read as _, Write};

use rustix::fs::FileType;
use similar::{Algorithm, DiffOp, DiffTag, capture_diff_slices, group_diff_ops};

use super::ApplyError;
use super::staging::Staging;
use sandkeep_core::limits;
use sandkeep_tree::apply::{Act, Plan, Step};
use sandkeep_tree::{Node, TreePath, View};

/// Context lines around a hunk.
const CONTEXT_LINES: usize = 3;
/// A NUL within this range makes a file binary.
const BINARY_WITHIN_BYTES: usize = 8_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Choice {
    Yes,
    No,
    /// No to this and all that is left.
    Quit,
}

/// The person who is asked.
pub struct Asked<R, W> {
    pub answers: R,
    pub screen: W,
    quit: bool,
}

impl<R: BufRead, W: Write> Asked<R, W> {
    pub fn new(answers: R, screen: W) -> Self {
        Self { answers, screen, quit: false }
    }

    /// Whether this is wanted. The end of the input means the same as quitting.
    fn wants(&mut self, what: &str) -> io::Result<bool> {
        while !self.quit {
            write!(self.screen, "{} [y,n,q]? ", plain(what))?;
            self.screen.flush()?;
            let mut line = String::new();
            let read = self.answers.read_line(&mut line)?;
            let answer = match (read, line.trim()) {
                (0, _) | (_, "q" | "Q") => Some(Choice::Quit),
                (_, "y" | "Y") => Some(Choice::Yes),
                (_, "n" | "N") => Some(Choice::No),
                _ => None,
            };
            match answer {
                Some(Choice::Yes) => return Ok(true),
                Some(Choice::No) => return Ok(false),
                Some(Choice::Quit) => self.quit = true,
                None => writeln!(self.screen, "y: apply, n: leave, q: leave this and the rest")?,
            }
        }
        Ok(false)
    }
}

/// Leaves in the plan, and in the staged files, what is wanted.
pub fn choose<R: BufRead, W: Write>(
    dir: &View,
    staging: &Staging,
    plan: &mut Plan,
    asked: &mut Asked<R, W>,
) -> Result<(), ApplyError> {
    let mut wanted = Vec::with_capacity(plan.steps.len());
    // A rename is one question, asked where the file arrives.
    let departs: BTreeMap<&TreePath, &TreePath> =
        plan.renamed.iter().map(|(from, to)| (from, to)).collect();
    for (number, step) in plan.steps.iter().enumerate() {
        let is_wanted = match &step.act {
            // Whether these are needed follows from the others.
            Act::MakeDirectory { .. } | Act::RemoveDirectory => true,
            Act::Remove if departs.contains_key(&step.path) => true,
            Act::Write { .. } => file(dir, staging, number, step, plan, asked)?,
            Act::Remove => asked.wants(&format!("remove {}", step.path.shown()))?,
            Act::Link { target } => {
                let target = String::from_utf8_lossy(target);
                asked.wants(&format!("link {} to {target}", step.path.shown()))?
            }
            Act::Mode { mode } => {
                asked.wants(&format!("set the mode of {} to {mode:04o}", step.path.shown()))?
            }
        };
        wanted.push(is_wanted);
    }
    follow(plan, &mut wanted);
    let kept = wanted.iter().enumerate().filter(|(_, wanted)| **wanted);
    for (to, (from, _)) in kept.enumerate() {
        staging.renumber(from, to)?;
    }
    let mut answers = wanted.into_iter();
    plan.steps.retain(|_| answers.next().unwrap_or_default());
    Ok(())
}

/// Decides the steps that nobody was asked about: the old name of what was renamed, directories, and what another
/// answer has made impossible.
fn follow(plan: &Plan, wanted: &mut [bool]) {
    let arrives = |act: &Act| matches!(act, Act::Write { .. } | Act::Link { .. });
    let paths = |wanted: &[bool], is: &dyn Fn(&Act, bool) -> bool| -> BTreeSet<TreePath> {
        let all = plan.steps.iter().zip(wanted);
        all.filter(|(step, wanted)| is(&step.act, **wanted))
            .map(|(step, _)| step.path.clone())
            .collect()
    };
    let arrived = paths(wanted, &|act, wanted| wanted && arrives(act));
    for (from, to) in &plan.renamed {
        for (step, wanted) in plan.steps.iter().zip(wanted.iter_mut()) {
            if step.path == *from && step.act == Act::Remove {
                *wanted = arrived.contains(to);
            }
        }
    }
    let stays = paths(wanted, &|act, wanted| !wanted && *act == Act::Remove);
    let left = paths(wanted, &|act, wanted| !wanted && arrives(act));
    let directories = paths(wanted, &|act, _| matches!(act, Act::MakeDirectory { .. }));
    // A file that stays has no room for a directory in its place.
    let blocked: BTreeSet<&TreePath> = stays.intersection(&directories).collect();
    let is_blocked = |path: &TreePath| blocked.iter().any(|above| path.is_beneath(above));
    for (step, wanted) in plan.steps.iter().zip(wanted.iter_mut()) {
        let within = |path: &TreePath| *path != step.path && path.is_beneath(&step.path);
        match step.act {
            // It stays with what stays in it, and if what was to take its place does not come.
            Act::RemoveDirectory => {
                *wanted = !stays.iter().any(within) && !left.contains(&step.path);
            }
            // One that is empty in the sandbox is made; one that was to hold only what is left is not.
            Act::MakeDirectory { .. } => {
                *wanted = arrived.iter().any(within) || !left.iter().any(within);
            }
            Act::Remove | Act::Write { .. } | Act::Link { .. } | Act::Mode { .. } => {}
        }
        *wanted &= step.act == Act::Remove || !is_blocked(&step.path);
    }
    let unmade = paths(wanted, &|act, wanted| !wanted && matches!(act, Act::MakeDirectory { .. }));
    for (step, wanted) in plan.steps.iter().zip(wanted.iter_mut()) {
        // The mode of a directory that is not made.
        *wanted &= !matches!(step.act, Act::Mode { .. }) || !unmade.contains(&step.path);
    }
}

/// A file that arrives: hunk by hunk if it is a text that is there already, or as a whole.
fn file<R: BufRead, W: Write>(
    dir: &View,
    staging: &Staging,
    number: usize,
    step: &Step,
    plan: &Plan,
    asked: &mut Asked<R, W>,
) -> Result<bool, ApplyError> {
    let path = step.path.shown();
    let new = staging.content(number, limits::APPLY_HUNKS_MAX_BYTES)?;
    let from = plan.renamed.iter().find(|(_, to)| *to == step.path);
    if let Some((from, _)) = from {
        return Ok(asked.wants(&format!("rename {} to {path}", from.shown()))?);
    }
    let here = dir.look(&step.path)?.filter(|node| node.kind() == FileType::RegularFile);
    let Some(here) = here else {
        if let Some(new) = new.as_deref().filter(|new| !is_binary(new)) {
            let new = lines(new);
            let whole = DiffOp::Insert { old_index: 0, new_index: 0, new_len: new.len() };
            show(&mut asked.screen, &format!("new file {path}"), &new, &[whole], &[])?;
        }
        return Ok(asked.wants(&format!("add {path}"))?);
    };
    let old = match u64::try_from(here.stat().st_size) {
        Ok(size) if size <= limits::APPLY_HUNKS_MAX_BYTES => Some(read_all(&here)?),
        Ok(_) | Err(_) => None,
    };
    let (Some(old), Some(new)) = (old, new) else {
        return Ok(asked.wants(&format!("replace {path}, which is too large to show"))?);
    };
    if is_binary(&old) || is_binary(&new) {
        return Ok(asked.wants(&format!("replace {path}, which is binary"))?);
    }
    let merged = hunks(&path, &old, &new, asked)?;
    match merged {
        None => Ok(false),
        Some(merged) if merged == new => Ok(true),
        Some(merged) => {
            staging.rewrite(number, &merged)?;
            Ok(true)
        }
    }
}

/// The file with the hunks that are wanted; `None` if none is.
fn hunks<R: BufRead, W: Write>(
    path: &str,
    old: &[u8],
    new: &[u8],
    asked: &mut Asked<R, W>,
) -> io::Result<Option<Vec<u8>>> {
    let (before, after) = (lines(old), lines(new));
    let ops = capture_diff_slices(Algorithm::Myers, &before, &after);
    let groups = group_diff_ops(ops, CONTEXT_LINES);
    let all = groups.len();
    let (mut merged, mut at, mut any) = (Vec::with_capacity(new.len()), 0, false);
    for (number, group) in groups.iter().enumerate() {
        show(&mut asked.screen, path, &after, group, &before)?;
        let takes = asked.wants(&format!("apply hunk {} of {all} to {path}", number + 1))?;
        any |= takes;
        for op in group {
            let (tag, old_range, new_range) = op.as_tag_tuple();
            merged.extend(before[at..old_range.start].concat());
            let chosen = match tag {
                DiffTag::Equal => &before[old_range.clone()],
                DiffTag::Delete | DiffTag::Insert | DiffTag::Replace if takes => &after[new_range],
                DiffTag::Delete | DiffTag::Insert | DiffTag::Replace => &before[old_range.clone()],
            };
            merged.extend(chosen.concat());
            at = old_range.end;
        }
    }
    merged.extend(before[at..].concat());
    Ok(any.then_some(merged))
}

fn read_all(node: &Node) -> io::Result<Vec<u8>> {
    let mut content = Vec::new();
    node.open_whole()?.read_to_end(&mut content)?;
    Ok(content)
}

/// Lines with their ends.
fn lines(text: &[u8]) -> Vec<&[u8]> {
    text.split_inclusive(|byte| *byte == b'\n').collect()
}

fn is_binary(content: &[u8]) -> bool {
    content.iter().take(BINARY_WITHIN_BYTES).any(|byte| *byte == 0)
}

fn show(
    screen: &mut impl Write,
    title: &str,
    after: &[&[u8]],
    group: &[DiffOp],
    before: &[&[u8]],
) -> io::Result<()> {
    writeln!(screen, "{}", plain(title))?;
    for op in group {
        let (tag, old_range, new_range) = op.as_tag_tuple();
        let (gone, come) = match tag {
            DiffTag::Equal => {
                for line in &before[old_range] {
                    writeln!(screen, "  {}", plain(&String::from_utf8_lossy(line)))?;
                }
                continue;
            }
            DiffTag::Delete => (&before[old_range], &[][..]),
            DiffTag::Insert => (&[][..], &after[new_range]),
            DiffTag::Replace => (&before[old_range], &after[new_range]),
        };
        for (sign, lines) in [("-", gone), ("+", come)] {
            for line in lines {
                writeln!(screen, "{sign} {}", plain(&String::from_utf8_lossy(line)))?;
            }
        }
    }
    Ok(())
}

/// Without what a terminal would take for a command.
fn plain(text: &str) -> String {
    let text = text.strip_suffix('\n').unwrap_or(text);
    let text = text.strip_suffix('\r').unwrap_or(text);
    text.replace(|c: char| c.is_control() && c != '\t', "\u{fffd}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chosen(old: &str, new: &str, answers: &str) -> (Option<String>, String) {
        let mut screen = Vec::new();
        let mut asked = Asked::new(answers.as_bytes(), &mut screen);
        let merged = hunks("f", old.as_bytes(), new.as_bytes(), &mut asked).expect("no error");
        let text = |bytes| String::from_utf8(bytes).expect("text");
        (merged.map(text), text(screen))
    }

    /// Two changes that are far enough from each other to be two hunks.
    fn file(first: &str, last: &str) -> String {
        let middle: String = (0..20).map(|n| format!("{n}\n")).collect();
        format!("{first}\n{middle}{last}")
    }

    #[test]
    fn each_hunk_is_taken_or_left() {
        let (old, new) = (file("a", "z\n"), file("A", "Z\n"));
        let merged = |answers| chosen(&old, &new, answers).0;
        assert_eq!(merged("y\ny\n").as_deref(), Some(&*new));
        assert_eq!(merged("y\nn\n"), Some(file("A", "z\n")));
        assert_eq!(merged("n\ny\n"), Some(file("a", "Z\n")));
        assert_eq!(merged("n\nn\n"), None);
        assert_eq!(merged("y\nq\n"), Some(file("A", "z\n")));
        assert_eq!(merged(""), None, "the end of the input is a no");
        assert_eq!(merged("what\ny\ny\n").as_deref(), Some(&*new), "it is asked again");
    }

    #[test]
    fn lines_without_an_end_and_added_ones_survive() {
        assert_eq!(chosen("a", "a\nb", "y\n").0.as_deref(), Some("a\nb"));
        assert_eq!(chosen("a\nb\n", "b\n", "y\n").0.as_deref(), Some("b\n"));
        assert_eq!(chosen("", "new\n", "y\n").0.as_deref(), Some("new\n"));
        assert_eq!(chosen(&file("a", "z"), &file("a", "z\n"), "n\n").0, None);
    }

    #[test]
    fn a_terminal_is_given_nothing_to_obey() {
        let (_, screen) = chosen("a\n", "\u{1b}]0;title\u{7}\n", "n\n");
        assert!(!screen.contains('\u{1b}') && !screen.contains('\u{7}'), "{screen:?}");
        assert!(screen.contains("- a\n+ \u{fffd}]0;title"), "{screen:?}");
    }
}
