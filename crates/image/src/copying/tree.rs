//! A tree of layers as a source of copies.

use std::io::{self, Read};

use rustix::fs::FileType;

use super::{Files, Seen, SeenKind};
use sandkeep_tree::{
    Node, TreePath, View,
    archive::{Attributes, attributes},
    digest::{Digest, Hasher},
    view::Last,
};

impl Files for View {
    fn look(&self, path: &TreePath) -> io::Result<Option<Seen>> {
        View::look(self, path)?.map(|node| seen(&node)).transpose()
    }

    fn resolve(&self, path: &TreePath) -> io::Result<Option<TreePath>> {
        View::resolve(self, path, Last::Followed)
    }

    fn names(&self, directory: &TreePath) -> io::Result<Vec<Vec<u8>>> {
        let entries = there(self, directory)?.entries()?;
        Ok(entries.into_iter().map(|entry| entry.name.into_bytes()).collect())
    }

    fn open(&self, file: &TreePath) -> io::Result<Box<dyn Read + Send>> {
        Ok(Box::new(there(self, file)?.open_whole()?))
    }

    fn digest(&self, file: &TreePath) -> io::Result<Digest> {
        let mut hasher = Hasher::new();
        io::copy(&mut there(self, file)?.open_whole()?, &mut hasher)?;
        Ok(hasher.finish())
    }
}

fn there(view: &View, path: &TreePath) -> io::Result<Node> {
    View::look(view, path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

fn seen(node: &Node) -> io::Result<Seen> {
    let stat = node.stat();
    let kind = match node.kind() {
        FileType::Directory => SeenKind::Directory,
        FileType::RegularFile => {
            SeenKind::File { size_bytes: u64::try_from(stat.st_size).unwrap_or(0) }
        }
        FileType::Symlink => SeenKind::Symlink { target: node.read_link()? },
        FileType::Fifo
        | FileType::Socket
        | FileType::CharacterDevice
        | FileType::BlockDevice
        | FileType::Unknown => SeenKind::Other,
    };
    let mut xattrs = match kind {
        SeenKind::Directory | SeenKind::File { .. } => node.attributes()?,
        SeenKind::Symlink { .. } | SeenKind::Other => Vec::new(),
    };
    xattrs.retain(|(name, _)| attributes::is_kept(name));
    Ok(Seen { kind, attributes: Attributes { xattrs, ..attributes::plain(stat) } })
}
