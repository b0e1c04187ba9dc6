//! The cache key of a step's result: the state before, the effect, and the copied files.

use super::scene::{Copied, CopiedFrom, Directory, Effect, Running};
use super::{Archives, Origin, RunMount};
use sandkeep_tree::digest::{Digest, Hasher};

/// Changed whenever the meaning of keys changes, so that keys of an older version never match.
const VERSION: &str = "sandkeep recipe 1";

/// Two builds with the same key have the same files.
///
/// Settings that are only recorded in the config are not part of a key: those that affect a command (its environment,
/// directory and user) are in the key of that command.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key(Digest);

/// A file that a step copies; the digest covers everything that is copied of it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct CopiedFile {
    /// Relative to the source tree.
    pub path: String,
    pub digest: Digest,
}

impl Key {
    /// For a base: the diff ids of its layers, lowest first.
    pub fn of_layers(layers: &[Digest]) -> Self {
        let mut writer = Writer::new("layers");
        writer.number(layers.len());
        layers.iter().for_each(|layer| writer.digest(layer));
        writer.key()
    }

    /// The key after an effect. `files` are those that it copies or binds, in any order.
    pub fn after(self, effect: &Effect, files: &[CopiedFile]) -> Self {
        match effect {
            Effect::Noted => self,
            Effect::Run(running) => self.after_running(running, files),
            Effect::Copy(copied) => self.after_copying(copied, files),
            Effect::Directory(Directory { path, owner }) => {
                let mut writer = self.followed_by("directory");
                writer.text(path);
                writer.maybe(owner.as_deref());
                writer.key()
            }
        }
    }

    /// The key after a command that had a network: another policy may have another result. Without a network the key
    /// stays as it is.
    pub fn in_network(self, policy: &str) -> Self {
        let mut writer = self.followed_by("network");
        writer.text(policy);
        writer.key()
    }

    pub fn digest(&self) -> &Digest {
        &self.0
    }

    fn followed_by(self, what: &str) -> Writer {
        let mut writer = Writer::new(what);
        writer.digest(&self.0);
        writer
    }

    fn after_running(self, running: &Running, files: &[CopiedFile]) -> Self {
        let Running { argv, env, workdir, user, stdin, mounts } = running;
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
        // A step without them has the key that it always had.
        if stdin.is_some() || !mounts.is_empty() {
            writer.maybe(stdin.as_deref());
            writer.number(mounts.len());
            mounts.iter().for_each(|mount| writer.mount(mount));
            writer.files(files);
        }
        writer.key()
    }

    fn after_copying(self, copied: &Copied, files: &[CopiedFile]) -> Self {
        let Copied { from, sources, to, owner, mode, archives } = copied;
        let mut writer = self.followed_by("copy");
        // The name of the stage or image does not matter if the files are the same.
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
        writer.files(files);
        writer.key()
    }
}

/// Writes each value with its length before it, so that the encoding is unambiguous.
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

    fn files(&mut self, files: &[CopiedFile]) {
        let mut files: Vec<&CopiedFile> = files.iter().collect();
        files.sort_unstable();
        self.number(files.len());
        for file in files {
            self.text(&file.path);
            self.digest(&file.digest);
        }
    }

    /// Where something is mounted and how. The content of a cache and the value of a secret are left out: neither is
    /// part of what a step is. That of bound files is in their digests.
    fn mount(&mut self, mount: &RunMount<String>) {
        match mount {
            RunMount::Cache { id, target, sharing: _, access, mode, uid, gid } => {
                self.text("cache");
                self.maybe(id.as_deref());
                self.text(target);
                self.text(access.as_str());
                self.text(&format!("{mode} {uid} {gid}"));
            }
            RunMount::Secret { id, target, env, need: _, mode, uid, gid } => {
                self.text("secret");
                self.text(id);
                self.maybe(target.as_deref());
                self.maybe(env.as_deref());
                self.text(&format!("{mode} {uid} {gid}"));
            }
            RunMount::Bind { from: _, source: _, target } => {
                self.text("bind");
                self.text(target);
            }
        }
    }

    fn digest(&mut self, digest: &Digest) {
        self.text(&digest.hex());
    }

    fn key(self) -> Key {
        Key(self.0.finish())
    }
}
