//! Executes a plan: as an archive, and as the input of a cache key.

use std::io::{self, Read, Write};

use super::owner::Ids;
use super::plan::{Plan, Planned, What};
use super::{CopyError, Files};
use crate::recipe::CopiedFile;
use sandkeep_tree::{
    TreePath,
    archive::{ArchiveError, Attributes, Entries, Entry, Kind, Writer, decoded},
    digest::{Digest, Hasher},
    tree_path::PathProblem,
};

impl Plan {
    /// All relevant properties of the copied files. Modification times are not.
    pub fn files(&self, files: &dyn Files) -> Result<Vec<CopiedFile>, CopyError> {
        let file = |planned: &Planned| {
            let path = String::from_utf8_lossy(planned.to.bytes()).into_owned();
            Ok(CopiedFile { path, digest: digest(planned, files)? })
        };
        self.entries.iter().map(file).collect()
    }

    /// Writes it as an archive, including the content of archives to be unpacked. Blocks.
    pub fn write(&self, files: &dyn Files, out: impl Write) -> Result<(), CopyError> {
        let mut writer = Writer::new(out);
        for Planned { to, what, attributes } in &self.entries {
            let failed = CopyError::reading(to);
            let path = to.bytes();
            match what {
                What::Directory => writer.directory(path, attributes).map_err(failed)?,
                What::Symlink { target } => {
                    writer.symlink(path, target, attributes).map_err(failed)?;
                }
                What::Text(text) => {
                    let size_bytes = text.len() as u64;
                    writer.file(path, size_bytes, attributes, text.as_bytes()).map_err(failed)?;
                }
                What::File { from, size_bytes } => {
                    let written = files
                        .open(from)
                        .and_then(|content| writer.file(path, *size_bytes, attributes, content));
                    written.map_err(CopyError::reading(from))?;
                }
                What::Unpacked { archive } => unpack(files, archive, to, self.owner, &mut writer)?,
            }
        }
        writer.finish().map(drop).map_err(|source| CopyError::Io { what: "it".to_owned(), source })
    }
}

fn digest(planned: &Planned, files: &dyn Files) -> Result<Digest, CopyError> {
    let mut hasher = Hasher::new();
    let mut part = |bytes: &[u8]| {
        hasher.update(&(bytes.len() as u64).to_le_bytes());
        hasher.update(bytes);
    };
    part(planned.to.bytes());
    let Attributes { mode, uid, gid, modified: _, xattrs } = &planned.attributes;
    part(format!("{mode:o} {uid} {gid}").as_bytes());
    for (name, value) in xattrs {
        part(name.to_bytes());
        part(value);
    }
    let content = |path: &TreePath| files.digest(path).map_err(CopyError::reading(path));
    match &planned.what {
        What::Directory => part(b"directory"),
        What::Symlink { target } => {
            part(b"symlink");
            part(target);
        }
        What::Text(text) => {
            part(b"file");
            part(Digest::of(text.as_bytes()).hex().as_bytes());
        }
        What::File { from, .. } => {
            part(b"file");
            part(content(from)?.hex().as_bytes());
        }
        What::Unpacked { archive } => {
            part(b"unpacked");
            part(content(archive)?.hex().as_bytes());
        }
    }
    Ok(hasher.finish())
}

/// Copies the entries of an archive below a directory.
fn unpack(
    files: &dyn Files,
    archive: &TreePath,
    to: &TreePath,
    owner: Option<Ids>,
    writer: &mut Writer<impl Write>,
) -> Result<(), CopyError> {
    let opened = files.open(archive).map_err(CopyError::reading(archive))?;
    let mut entries = Entries::new(decoded(opened)?);
    while let Some(mut entry) = entries.next()? {
        let name = String::from_utf8_lossy(&entry.path).into_owned();
        let unusable = |problem: PathProblem| ArchiveError::Entry {
            path: name.clone(),
            what: problem.to_string(),
        };
        let path = beneath(to, &entry.path).map_err(unusable)?;
        // The directory itself exists, and stays as it is.
        if path == *to {
            continue;
        }
        if path.parts().any(|part| part.starts_with(b".wh.")) {
            return Err(CopyError::Whiteout { path: path.shown() });
        }
        if let Kind::Hardlink { target } = &mut entry.kind {
            *target = beneath(to, target).map_err(unusable)?.bytes().to_vec();
        }
        if let Some(Ids { uid, gid }) = owner {
            (entry.attributes.uid, entry.attributes.gid) = (uid.into(), gid.into());
        }
        let entry = Entry { path: path.bytes().to_vec(), ..entry };
        let written = writer.entry(path.bytes(), &entry, Data(&mut entries));
        written.map_err(CopyError::reading(&path))?;
    }
    Ok(())
}

fn beneath(to: &TreePath, name: &[u8]) -> Result<TreePath, PathProblem> {
    let within = TreePath::clean(name)?;
    let mut path = to.clone();
    within.parts().try_for_each(|part| path.push(part))?;
    Ok(path)
}

/// The bytes of the current entry.
struct Data<'a, R>(&'a mut Entries<R>);

impl<R: Read> Read for Data<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        Ok(self.0.read_data(buffer)?)
    }
}
