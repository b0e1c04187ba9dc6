//! The build context: an index of the uploaded archive. The files stay in the archive, so nothing is unpacked, and
//! nothing is left when the archive is removed.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{self, Read, Seek as _};
use std::sync::Arc;

use super::{CopyError, Files, Seen, SeenKind};
use crate::recipe::{Ignore, is_secret_id};
use crate::source::{Section, SpoolDir};
use sandkeep_core::limits;
use sandkeep_tree::{
    TreePath,
    archive::{ArchiveError, Attributes, Compression, Entries, Entry, Kind, decoded},
    digest::{Digest, Hasher},
    tree_path::Met,
};

/// A build file from outside of the context has this name, plus an extension; it is never copied.
pub const BUILD_FILE_APART: &str = ".sandkeep-build-file";
/// A secret of the build has this name, followed by its id; it is never copied.
pub const SECRET: &str = ".sandkeep-build-secret.";

const IGNORE_FILE: &str = ".dockerignore";

/// The files that a build may copy from, by path.
#[derive(Debug)]
pub struct Context {
    archive: Arc<File>,
    items: BTreeMap<TreePath, Item>,
    secrets: Secrets,
}

/// Their values, by id.
#[derive(Default)]
struct Secrets(BTreeMap<String, Vec<u8>>);

impl std::fmt::Debug for Secrets {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0.keys()).finish()
    }
}

#[derive(Clone, Debug)]
struct Item {
    what: ContextEntry,
    attributes: Attributes,
}

#[derive(Clone, Debug)]
enum ContextEntry {
    Directory,
    File { offset: u64, size_bytes: u64, digest: Digest },
    Symlink { target: Vec<u8> },
}

impl Context {
    /// Reads and indexes the whole archive, plain or compressed. Blocks.
    pub fn read(mut archive: File, spool: &SpoolDir) -> Result<Self, CopyError> {
        let failed = |source| CopyError::Io { what: "what was sent".to_owned(), source };
        let mut start = Vec::new();
        archive.by_ref().take(MARK_BYTES).read_to_end(&mut start).map_err(failed)?;
        archive.rewind().map_err(failed)?;
        let mut plain = match Compression::of(&start)? {
            Compression::None => archive,
            Compression::Gzip | Compression::Zstd => {
                spool.take(decoded(archive)?).map_err(ArchiveError::from)?
            }
        };
        plain.rewind().map_err(failed)?;
        let mut entries = Entries::new(io::BufReader::with_capacity(
            READ_BYTES,
            plain.try_clone().map_err(failed)?,
        ));
        let mut index = Index::default();
        while let Some(entry) = entries.next()? {
            index.take(entry, &mut entries)?;
        }
        let context =
            Self { archive: Arc::new(plain), items: index.items, secrets: Secrets::default() };
        context.with_secrets()
    }

    /// Takes the secrets out of the files, so that nothing copies them.
    fn with_secrets(mut self) -> Result<Self, CopyError> {
        let id_of = |path: &TreePath| {
            let id = std::str::from_utf8(path.bytes()).ok()?.strip_prefix(SECRET)?;
            is_secret_id(id).then(|| (path.clone(), id.to_owned()))
        };
        let found: Vec<(TreePath, String)> = self.items.keys().filter_map(id_of).collect();
        if found.len() > limits::BUILD_SECRETS_MAX {
            return Err(CopyError::TooManySecrets { max: limits::BUILD_SECRETS_MAX });
        }
        for (path, id) in found {
            let mut value = Vec::new();
            let opened = self.open(&path).map_err(CopyError::reading(&path))?;
            let read = opened.take(limits::BUILD_SECRET_MAX_BYTES + 1).read_to_end(&mut value);
            read.map_err(CopyError::reading(&path))?;
            if value.len() as u64 > limits::BUILD_SECRET_MAX_BYTES {
                return Err(CopyError::SecretTooLarge { id, max: limits::BUILD_SECRET_MAX_BYTES });
            }
            self.items.remove(&path);
            self.secrets.0.insert(id, value);
        }
        Ok(self)
    }

    /// The value of a secret that came with the build.
    pub fn secret(&self, id: &str) -> Option<&[u8]> {
        self.secrets.0.get(id).map(Vec::as_slice)
    }

    /// The text of a file in it, if it exists.
    pub fn text(&self, path: &str, max_bytes: usize) -> Result<Option<String>, CopyError> {
        let clean = clean(path.as_bytes())?;
        let Some(found) = self.resolve(&clean).map_err(CopyError::reading(&clean))? else {
            return Ok(None);
        };
        let mut bytes = Vec::new();
        let opened = self.open(&found).map_err(CopyError::reading(&clean))?;
        // One byte more than allowed, so that the caller sees that it is too long.
        let read = opened.take(max_bytes as u64 + 1).read_to_end(&mut bytes);
        read.map_err(CopyError::reading(&clean))?;
        String::from_utf8(bytes).map(Some).map_err(|_| CopyError::NotText { file: path.to_owned() })
    }

    /// The ignore file for a build file of this name.
    pub fn ignore_file(&self, build_file: &str) -> Result<Option<(String, String)>, CopyError> {
        for name in [format!("{build_file}{IGNORE_FILE}"), IGNORE_FILE.to_owned()] {
            if let Some(text) = self.text(&name, limits::RECIPE_MAX_BYTES)? {
                return Ok(Some((name, text)));
            }
        }
        Ok(None)
    }

    /// The same without the files that an ignore file excludes.
    pub fn without(mut self, ignore: &Ignore) -> Self {
        self.items.retain(|path, _| {
            let text = String::from_utf8_lossy(path.bytes());
            !text.starts_with(BUILD_FILE_APART) && (path.is_root() || !ignore.leaves_out(&text))
        });
        // Files that are included again keep their parent directories.
        let paths: Vec<TreePath> = self.items.keys().cloned().collect();
        paths.iter().for_each(|path| add_parents(&mut self.items, path));
        self
    }

    fn item(&self, path: &TreePath) -> io::Result<&Item> {
        self.items.get(path).ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// Length of the longest magic number of a compression format.
const MARK_BYTES: u64 = 6;
const READ_BYTES: usize = 256 * 1024;

fn clean(name: &[u8]) -> Result<TreePath, CopyError> {
    TreePath::clean(name).map_err(|problem| CopyError::Path {
        path: String::from_utf8_lossy(name).into_owned(),
        problem,
    })
}

#[derive(Default)]
struct Index {
    items: BTreeMap<TreePath, Item>,
    names_bytes: usize,
}

impl Index {
    fn take(&mut self, entry: Entry, entries: &mut Entries<impl Read>) -> Result<(), CopyError> {
        let path = clean(&entry.path)?;
        let what = match entry.kind {
            Kind::Directory => ContextEntry::Directory,
            Kind::File { size_bytes, segments: None } => {
                let offset = entries.position();
                ContextEntry::File { offset, size_bytes, digest: hashed(entries)? }
            }
            Kind::File { segments: Some(_), .. } => {
                let what = "it is a sparse file; archive it without --sparse".to_owned();
                return Err(ArchiveError::Entry { path: path.shown(), what }.into());
            }
            Kind::Symlink { target } => ContextEntry::Symlink { target },
            Kind::Hardlink { target } => match self.items.get(&clean(&target)?) {
                Some(item) => item.what.clone(),
                None => {
                    let path = String::from_utf8_lossy(&target).into_owned();
                    return Err(CopyError::Missing { path });
                }
            },
            // None of these is useful in an image.
            Kind::Fifo | Kind::Device => return Ok(()),
        };
        self.names_bytes += path.bytes().len();
        let too_large = |what, max| CopyError::ContextTooLarge { what, max };
        if self.items.len() >= limits::CONTEXT_ENTRIES_MAX {
            return Err(too_large("too many files", limits::CONTEXT_ENTRIES_MAX));
        }
        if self.names_bytes > limits::CONTEXT_NAMES_MAX_BYTES {
            return Err(too_large("names of too many bytes", limits::CONTEXT_NAMES_MAX_BYTES));
        }
        add_parents(&mut self.items, &path);
        // The original owner does not matter here.
        let attributes = Attributes { uid: 0, gid: 0, xattrs: Vec::new(), ..entry.attributes };
        self.items.insert(path, Item { what, attributes });
        Ok(())
    }
}

fn hashed(entries: &mut Entries<impl Read>) -> Result<Digest, CopyError> {
    let mut hasher = Hasher::new();
    let mut buffer = vec![0; READ_BYTES];
    loop {
        match entries.read_data(&mut buffer)? {
            0 => return Ok(hasher.finish()),
            read => hasher.update(&buffer[..read]),
        }
    }
}

/// An archive need not contain the parent directories of its files.
fn add_parents(items: &mut BTreeMap<TreePath, Item>, path: &TreePath) {
    let mut above = path.clone();
    while let Some((parent, _)) = above.split() {
        let attributes = Attributes { mode: 0o755, ..Attributes::default() };
        match items.get(&parent) {
            Some(_) => return,
            None => {
                items.insert(parent.clone(), Item { what: ContextEntry::Directory, attributes })
            }
        };
        above = parent;
    }
}

impl Files for Context {
    fn look(&self, path: &TreePath) -> io::Result<Option<Seen>> {
        let seen = |item: &Item| Seen {
            kind: match &item.what {
                ContextEntry::Directory => SeenKind::Directory,
                ContextEntry::File { size_bytes, .. } => SeenKind::File { size_bytes: *size_bytes },
                ContextEntry::Symlink { target } => SeenKind::Symlink { target: target.clone() },
            },
            attributes: item.attributes.clone(),
        };
        Ok(self.items.get(path).map(seen))
    }

    fn resolve(&self, path: &TreePath) -> io::Result<Option<TreePath>> {
        path.followed(|next, _| {
            Ok(match self.items.get(next).map(|item| &item.what) {
                None => Met::Nothing,
                Some(ContextEntry::Directory | ContextEntry::File { .. }) => Met::Something,
                Some(ContextEntry::Symlink { target }) => Met::Link { target: target.clone() },
            })
        })
    }

    fn names(&self, directory: &TreePath) -> io::Result<Vec<Vec<u8>>> {
        let (prefix, end) = if directory.is_root() {
            (Vec::new(), None)
        } else {
            // No path sorts between those starting with a slash and those starting with the next byte.
            ([directory.bytes(), b"/"].concat(), Some([directory.bytes(), b"0"].concat()))
        };
        let beneath = self.items.range(directory.clone()..).map(|(path, _)| path.bytes());
        let within = |path: &&[u8]| end.as_ref().is_none_or(|end| *path < &end[..]);
        let names = beneath.take_while(within).filter_map(|path| path.strip_prefix(&prefix[..]));
        let own = names.filter(|name| !name.is_empty() && !name.contains(&b'/'));
        Ok(own.map(<[u8]>::to_vec).collect())
    }

    fn open(&self, file: &TreePath) -> io::Result<Box<dyn Read + Send>> {
        match self.item(file)?.what {
            ContextEntry::File { offset, size_bytes, .. } => {
                let archive = Arc::clone(&self.archive);
                Ok(Box::new(Section::new(archive, offset, size_bytes).reader()))
            }
            ContextEntry::Directory | ContextEntry::Symlink { .. } => {
                Err(io::Error::new(io::ErrorKind::InvalidInput, "it is no regular file"))
            }
        }
    }

    fn digest(&self, file: &TreePath) -> io::Result<Digest> {
        match self.item(file)?.what {
            ContextEntry::File { digest, .. } => Ok(digest),
            ContextEntry::Directory | ContextEntry::Symlink { .. } => {
                Err(io::ErrorKind::InvalidInput.into())
            }
        }
    }
}
