//! `COPY` and `ADD`.

use super::super::lines::{Document, Line, Variables};
use super::super::problem::Problem;
use super::super::text::Text;
use super::super::{Archives, Copy, Copyable, Origin, stage_named};
use super::{Reader, flagged, list, no_flag};

const NEEDS: &str = "at least one source and a destination, as in COPY a b /srv/";

impl Reader {
    pub(super) fn copy(&self, instruction: &'static str, line: &Line) -> Result<Copy, Problem> {
        let flagged = flagged(&line.rest);
        let archives = match instruction {
            "ADD" => Archives::Unpacked,
            _ => Archives::Kept,
        };
        let (from, to) = (Origin::Context, Text::default());
        let mut copy = Copy { from, sources: Vec::new(), to, owner: None, mode: None, archives };
        for (flag, value) in flagged.flags {
            match (flag, value, archives) {
                ("chown", Some(owner), _) => copy.owner = Some(self.read(owner)?),
                ("chmod", Some(mode), _) => copy.mode = Some(self.read(mode)?),
                // How it is stored is up to us in any case.
                ("link", None | Some("true" | "false"), _) => {}
                ("from", Some(name), Archives::Kept) => copy.from = self.origin("COPY", name)?,
                _ => return Err(no_flag(instruction, flag)),
            }
        }
        let mut words: Vec<String> = match list(flagged.rest) {
            Some(words) => words,
            // Quotes do not group words here; names with spaces need the list form.
            None => flagged.rest.split_whitespace().map(str::to_owned).collect(),
        };
        copy.to = match (words.pop(), words.is_empty()) {
            (Some(to), false) => self.read(&to)?,
            _ => return Err(Problem::Needs { instruction, needs: NEEDS }),
        };
        let source = |word: &String| self.source(word, archives, &line.documents);
        copy.sources = words.iter().map(source).collect::<Result<_, _>>()?;
        check_destination(instruction, &copy)?;
        Ok(copy)
    }

    fn source(
        &self,
        word: &str,
        archives: Archives,
        documents: &[Document],
    ) -> Result<Copyable, Problem> {
        if let Some(document) = documents.iter().find(|document| document.written == word) {
            let content = match document.variables {
                Variables::Expanded => Text::document(&document.content, self.escape)?,
                Variables::Kept => Text::plain(&document.content),
            };
            return Ok(Copyable::Inline { name: document.name.clone(), content });
        }
        let remote = ["http://", "https://", "git://", "git@"];
        if archives == Archives::Unpacked && remote.iter().any(|scheme| word.starts_with(scheme)) {
            return Err(Problem::Url { url: word.to_owned() });
        }
        Ok(Copyable::Path(self.read(word)?))
    }

    /// An earlier stage by name or number, otherwise an image.
    pub(super) fn origin(&self, instruction: &'static str, name: &str) -> Result<Origin, Problem> {
        if name.contains('$') {
            let what = "variables in the name of a stage or image".to_owned();
            return Err(Problem::DoesNotTake { instruction, what });
        }
        // The last stage is the one that contains this line.
        let stages = &self.recipe.stages;
        let earlier = &stages[..stages.len().saturating_sub(1)];
        let is_own = stage_named(stages, name).is_some();
        match (stage_named(earlier, name), name.parse::<usize>()) {
            (Some(index), _) => Ok(Origin::Stage(index)),
            (None, Ok(_)) => Err(Problem::NoStage { name: name.to_owned() }),
            (None, Err(_)) if is_own || name.is_empty() => {
                Err(Problem::NoStage { name: name.to_owned() })
            }
            (None, Err(_)) => Ok(Origin::Image(name.to_owned())),
        }
    }
}

/// Several sources need a directory. Expanded variables are checked later.
fn check_destination(instruction: &'static str, copy: &Copy) -> Result<(), Problem> {
    let is_file = |to: &str| !to.ends_with('/') && !matches!(to, "." | "..") && !to.ends_with("/.");
    match copy.to.as_plain() {
        Some(to) if copy.sources.len() > 1 && is_file(to) => {
            let needs = "a destination that ends with / if there is more than one source";
            Err(Problem::Needs { instruction, needs })
        }
        _ => Ok(()),
    }
}
