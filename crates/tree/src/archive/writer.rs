//! An archive that is written entry by entry, for combining files from several sources.

use std::io::{self, Read, Write};

use super::entry::{Attributes, Entry, Kind};
use super::header;

pub struct Writer<W> {
    out: W,
}

impl<W: Write> Writer<W> {
    pub fn new(out: W) -> Self {
        Self { out }
    }

    pub fn directory(&mut self, path: &[u8], attributes: &Attributes) -> io::Result<()> {
        let path = [path, b"/"].concat();
        self.out.write_all(header::directory(&path, attributes).get_ref())
    }

    pub fn symlink(&mut self, path: &[u8], target: &[u8], what: &Attributes) -> io::Result<()> {
        self.out.write_all(header::symlink(path, target, what).get_ref())
    }

    /// A file whose `content` has at least `size_bytes`; fewer are an error.
    pub fn file(
        &mut self,
        path: &[u8],
        size_bytes: u64,
        attributes: &Attributes,
        content: impl Read,
    ) -> io::Result<()> {
        self.out.write_all(header::file(path, size_bytes, attributes).get_ref())?;
        let copied = io::copy(&mut content.take(size_bytes), &mut self.out)?;
        if copied < size_bytes {
            return Err(io::Error::other("it changed while it was read"));
        }
        self.out.write_all(&vec![0; header::padding(size_bytes)])
    }

    /// An entry of another archive, of any kind, under another name.
    pub fn entry(&mut self, path: &[u8], entry: &Entry, content: impl Read) -> io::Result<()> {
        let attributes = &entry.attributes;
        match &entry.kind {
            Kind::Directory => self.directory(path, attributes),
            Kind::Symlink { target } => self.symlink(path, target, attributes),
            Kind::Hardlink { target } => {
                self.out.write_all(header::hardlink(path, target, attributes).get_ref())
            }
            Kind::Fifo => self.out.write_all(header::fifo(path, attributes).get_ref()),
            Kind::File { size_bytes, segments: None } => {
                self.file(path, *size_bytes, attributes, content)
            }
            Kind::File { segments: Some(_), .. } => {
                Err(io::Error::other("it is a sparse file; archive it without --sparse"))
            }
            // Devices are useless in a sandbox.
            Kind::Device => Ok(()),
        }
    }

    /// The writer, for continuing without an end mark.
    pub fn into_inner(self) -> W {
        self.out
    }

    /// Ends the archive.
    pub fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&header::END_MARK)?;
        self.out.flush()?;
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::super::Entries;
    use super::*;

    #[test]
    fn what_is_written_can_be_read_and_what_falls_short_is_an_error() {
        let attributes = Attributes { mode: 0o640, uid: 7, ..Attributes::default() };
        let mut writer = Writer::new(Vec::new());
        writer.directory(b"d", &attributes).expect("a directory");
        writer.file(b"d/f", 3, &attributes, &b"abcdef"[..]).expect("a file");
        writer.symlink(b"d/l", b"f", &attributes).expect("a link");
        let bytes = writer.finish().expect("an archive");
        let mut entries = Entries::new(bytes.as_slice());
        let mut again = Writer::new(Vec::new());
        let mut paths = Vec::new();
        while let Some(entry) = entries.next().expect("an entry") {
            assert_eq!(entry.attributes, attributes);
            let mut content = vec![0; 3];
            let read = entries.read_data(&mut content).expect("its bytes");
            let path = entry.path.strip_suffix(b"/").unwrap_or(&entry.path).to_vec();
            again.entry(&path, &entry, &content[..read]).expect("the same again");
            paths.push(path);
        }
        assert_eq!(paths, [&b"d"[..], b"d/f", b"d/l"]);
        assert_eq!(again.finish().expect("an archive"), bytes);
        let short = Writer::new(Vec::new()).file(b"f", 3, &attributes, &b"ab"[..]);
        assert!(short.is_err());
    }
}
