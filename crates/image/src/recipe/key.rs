//! What the result of a step is known by: what was there before, what is done, and to which files.

use super::scene::{Copied, CopiedFrom, Directory, Effect, Running};
use super::{Archives, Origin};
use sandkeep_tree::digest::{Digest, Hasher};

/// Changes when keys come to mean something else, so that none of an older daemon is taken for ours.
const VERSION: &str = "sandkeep recipe 1";

/// Two builds that come to the same key have the same files.
///
/// What is only noted in the config is in no key: whatever of it matters to a command (its environment,
/// directory and user) is in the key of that command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Digest);

/// A file that a step copies, whatever about it is copied being in the digest.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopiedFile {
    /// Relative to what is copied from.
    pub path: String,
    pub digest: Digest,
}

impl Key {
    /// Of a base: the diff ids of its layers, lowest first.
    pub fn of_layers(layers: &[Digest]) -> Self {
        let mut writer = Writer::new("layers");
        writer.number(layers.len());
        layers.iter().for_each(|layer| writer.digest(layer));
        writer.key()
    }

    /// After an effect. `files` are those that it copies, in any order.
    pub fn after(self, effect: &Effect, files: &[CopiedFile]) -> Self {
        match effect {
            Effect::Noted => self,
            Effect::Run(running) => self.after_running(running),
            Effect::Copy(copied) => self.after_copying(copied, files),
            Effect::Directory(Directory { path, owner }) => {
                let mut writer = self.followed_by("directory");
                writer.text(path);
                writer.maybe(owner.as_deref());
                writer.key()
            }
        }
    }

    pub fn digest(&self) -> &Digest {
        &self.0
    }

    fn followed_by(self, what: &str) -> Writer {
        let mut writer = Writer::new(what);
        writer.digest(&self.0);
        writer
    }

    fn after_running(self, running: &Running) -> Self {
        let Running { argv, env, workdir, user } = running;
        let mut writer = self.followed_by("run");
        writer.number(argv.len());
        argv.iter().for_each(|argument| writer.text(argument));
        writer.number(env.len());
        for (name, value) in env {
            writer.text(name);
            writer.text(value);
        }
        writer.text(workdir);
        writer.maybe(user.as_deref());
        writer.key()
    }

    fn after_copying(self, copied: &Copied, files: &[CopiedFile]) -> Self {
        let Copied { from, sources, to, owner, mode, archives } = copied;
        let mut writer = self.followed_by("copy");
        // Which stage or image it was does not matter if the files are the same.
        writer.text(match from {
            Origin::Context => "context",
            Origin::Stage(_) | Origin::Image(_) => "tree",
        });
        writer.number(sources.len());
        for source in sources {
            match source {
                CopiedFrom::Path(path) => {
                    writer.text("path");
                    writer.text(path);
                }
                CopiedFrom::Inline { name, content } => {
                    writer.text("inline");
                    writer.text(name);
                    writer.text(content);
                }
            }
        }
        writer.text(to);
        writer.maybe(owner.as_deref());
        writer.maybe(mode.map(|mode| mode.to_string()).as_deref());
        writer.text(match archives {
            Archives::Kept => "kept",
            Archives::Unpacked => "unpacked",
        });
        let mut files: Vec<&CopiedFile> = files.iter().collect();
        files.sort_unstable();
        writer.number(files.len());
        for file in files {
            writer.text(&file.path);
            writer.digest(&file.digest);
        }
        writer.key()
    }
}

/// Writes everything with its length before it, so that no two things are written alike.
struct Writer(Hasher);

impl Writer {
    fn new(what: &str) -> Self {
        let mut writer = Self(Hasher::new());
        writer.text(VERSION);
        writer.text(what);
        writer
    }

    fn number(&mut self, number: usize) {
        self.0.update(&(number as u64).to_le_bytes());
    }

    fn text(&mut self, text: &str) {
        self.number(text.len());
        self.0.update(text.as_bytes());
    }

    fn maybe(&mut self, text: Option<&str>) {
        self.number(usize::from(text.is_some()));
        text.into_iter().for_each(|text| self.text(text));
    }

    fn digest(&mut self, digest: &Digest) {
        self.text(&digest.hex());
    }

    fn key(self) -> Key {
        Key(self.0.finish())
    }
}
