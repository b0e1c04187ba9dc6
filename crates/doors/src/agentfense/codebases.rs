//! Codebases of the schema, and their files.
//!
//! The name of ours is made from the client's: it is unique, and has no spaces. `owner_id` is the project, so that it
//! separates names; a key that is bound to a project stays in that.

use bytes::{Bytes, BytesMut};
use futures_util::{Stream, stream};
use jiff::Timestamp as Time;
use md5::{Digest, Md5};
use toolbox::{Entry, EntryKind, ListDirectory, Parents, RawPath, Reading, WriteFile};

use super::call::Scene;
use super::messages::{
    Codebase, CodebaseRequest, CreateCodebaseRequest, DownloadFileRequest, Empty, FileChunk,
    FileInfo, ListCodebasesRequest, ListCodebasesResponse, ListFilesRequest, ListFilesResponse,
    UploadChunk, UploadContent, UploadMetadata, UploadResult,
};
use super::sandboxes::invalid;
use crate::grpc::Messages;
use crate::kit::Refusal;
use sandkeep_broker::{FileStream, ToolboxInput, error::Error};
use sandkeep_core::limits::{
    AGENTFENSE_FILES_MAX, AGENTFENSE_FRAME_BYTES, AGENTFENSE_NAMES_TRIED, FILE_DEPTH_MAX,
    FILES_PAGE_MAX, SLOT_MAX_BYTES,
};
use sandkeep_core::{Code, CodebaseName, CodebaseRef, api};

/// The codebase of a request.
pub fn named(id: &str) -> Result<CodebaseRef, Refusal> {
    match id {
        "" => Err(invalid("codebase_id", "it is required")),
        // A text that cannot be a name names nothing.
        id => id.parse().map_err(|_| Error::CodebaseNotFound { text: id.to_owned() }.into()),
    }
}

/// A name that ours can have; `again` tells apart what others have already.
fn name_of(asked: &str, again: usize) -> String {
    let fits = |c: char| if c.is_ascii_alphanumeric() || "_-".contains(c) { c } else { '-' };
    let plain: String = asked.chars().map(fits).collect();
    let plain = plain.trim_start_matches(['-', '_']);
    let end = if again == 0 { String::new() } else { format!("-{}", again + 1) };
    let room = SLOT_MAX_BYTES - end.len();
    let plain = if plain.is_empty() { "codebase" } else { &plain[..plain.len().min(room)] };
    format!("{plain}{end}")
}

/// What is in a directory, and perhaps below it.
struct Tree {
    entries: Vec<Entry>,
}

impl Tree {
    async fn read(
        scene: &Scene,
        of: &CodebaseRef,
        path: &str,
        depth: u32,
    ) -> Result<Self, Refusal> {
        let (mut entries, mut after) = (Vec::new(), None);
        loop {
            let path = RawPath::from(path);
            let request = ListDirectory { path, depth, limit: FILES_PAGE_MAX, after };
            let page = scene.broker.list_codebase_files(&scene.who, of, request).await?;
            entries.extend(page.entries);
            after = page.next;
            if after.is_none() {
                return Ok(Self { entries });
            }
            if entries.len() >= AGENTFENSE_FILES_MAX {
                let problem = format!("it has more than {AGENTFENSE_FILES_MAX} entries");
                return Err(invalid("path", format!("{problem}; list its directories one by one")));
            }
        }
    }

    fn files(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().filter(|entry| entry.kind == EntryKind::File)
    }
}

async fn shown(scene: &Scene, codebase: api::Codebase) -> Result<Codebase, Refusal> {
    let (files, size, changed) = match codebase.state {
        api::CodebaseState::Ready => {
            let tree = Tree::read(scene, &(&codebase.id).into(), ".", FILE_DEPTH_MAX).await?;
            let size = tree.files().map(|entry| entry.size).sum();
            let changed = tree.entries.iter().map(|entry| entry.modified_ms).max();
            (tree.files().count(), size, changed)
        }
        api::CodebaseState::Creating | api::CodebaseState::Deleting => (0, 0, None),
    };
    let created = codebase.created_at;
    let changed = changed.and_then(|ms| Time::from_millisecond(ms).ok());
    Ok(Codebase {
        id: codebase.id.to_string(),
        name: codebase.name.to_string(),
        owner_id: codebase.owner.project,
        size: whole(size),
        file_count: i32::try_from(files).unwrap_or(i32::MAX),
        created_at: Some(created.into()),
        // Files may be older than the codebase.
        updated_at: Some(changed.map_or(created, |changed| changed.max(created)).into()),
    })
}

fn whole(size: u64) -> i64 {
    i64::try_from(size).unwrap_or(i64::MAX)
}

pub async fn create(scene: Scene, asked: CreateCodebaseRequest) -> Result<Codebase, Refusal> {
    if asked.name.is_empty() {
        return Err(invalid("name", "it is required"));
    }
    let project = Some(asked.owner_id).filter(|owner| !owner.is_empty());
    // A key's own project is stronger than what its client calls itself.
    let project = project.filter(|project| scene.who.owner(Some(project.as_str())).is_ok());
    for again in 0..AGENTFENSE_NAMES_TRIED {
        let name: CodebaseName = name_of(&asked.name, again).parse().map_err(
            |wrong: sandkeep_core::InvalidCodebaseName| invalid("name", wrong.to_string()),
        )?;
        let draft =
            api::CreateCodebase { name, project: project.clone(), source: None, disk_mb: None };
        match scene.broker.create_codebase(&scene.who, draft).await {
            Ok(codebase) => return shown(&scene, codebase).await,
            Err(error) if error.code() == Code::CodebaseExists => {}
            Err(error) => return Err(error.into()),
        }
    }
    let problem = format!("{AGENTFENSE_NAMES_TRIED} codebases are called so; choose another");
    Err(invalid("name", problem))
}

pub async fn get(scene: Scene, asked: CodebaseRequest) -> Result<Codebase, Refusal> {
    let codebase = scene.broker.codebase(&scene.who, &named(&asked.codebase_id)?)?;
    shown(&scene, codebase).await
}

pub async fn list(
    scene: Scene,
    asked: ListCodebasesRequest,
) -> Result<ListCodebasesResponse, Refusal> {
    let mut all = scene.broker.codebases(&scene.who);
    if !asked.owner_id.is_empty() {
        all.retain(|codebase| codebase.owner.project == asked.owner_id);
    }
    // Ids are random, so that a page begins after one whatever was created or deleted meanwhile.
    all.sort_by(|a, b| a.id.cmp(&b.id));
    all.retain(|codebase| codebase.id.as_str() > asked.page_token.as_str());
    let limit = super::sandboxes::page(asked.page_size)?;
    let more = all.len() > limit;
    all.truncate(limit);
    let last = all.last().filter(|_| more).map(|codebase| codebase.id.to_string());
    let mut codebases = Vec::new();
    for codebase in all {
        codebases.push(shown(&scene, codebase).await?);
    }
    Ok(ListCodebasesResponse { codebases, next_page_token: last.unwrap_or_default() })
}

pub async fn delete(scene: Scene, asked: CodebaseRequest) -> Result<Empty, Refusal> {
    scene.broker.delete_codebase(&scene.who, &named(&asked.codebase_id)?).await?;
    Ok(Empty {})
}

/// A path from the root of a codebase.
fn inside(path: &str) -> Result<&str, Refusal> {
    let path = path.trim_start_matches('/');
    if path.is_empty() || path.split('/').any(|part| part == "..") || path.contains('\0') {
        return Err(invalid("file_path", format!("{path:?} is no path from the codebase's root")));
    }
    Ok(path)
}

/// Writes one file: what it is, and then its bytes. It is replaced once all of them have arrived.
pub async fn upload(
    scene: Scene,
    mut chunks: Messages<UploadChunk>,
) -> Result<UploadResult, Refusal> {
    let first = chunks.next().await?.and_then(|chunk| chunk.content);
    let Some(UploadContent::Metadata(metadata)) = first else {
        return Err(invalid("metadata", "the first message has to have it"));
    };
    let codebase = named(&metadata.codebase_id)?;
    let path = RawPath::from(inside(&metadata.file_path)?);
    let request = WriteFile { path, mode: None, parents: Parents::Make };
    let written = scene.broker.write_codebase_file(&scene.who, &codebase, request).await?;
    let input = written.input();
    let mut received = Received { size: 0, digest: Md5::new() };
    written.finish(received.send(&mut chunks, &metadata, &input)).await?;
    let UploadMetadata { codebase_id, file_path, .. } = metadata;
    let checksum = hex::encode(received.digest.finalize());
    Ok(UploadResult { codebase_id, file_path, size: whole(received.size), checksum })
}

/// What has arrived of a file.
struct Received {
    size: u64,
    /// The schema's checksum; it protects nothing.
    digest: Md5,
}

impl Received {
    async fn send(
        &mut self,
        chunks: &mut Messages<UploadChunk>,
        metadata: &UploadMetadata,
        input: &ToolboxInput,
    ) -> Result<(), Refusal> {
        while let Some(chunk) = chunks.next().await? {
            let data = match chunk.content {
                Some(UploadContent::Data(data)) => data,
                Some(UploadContent::Metadata(_)) => {
                    return Err(invalid("metadata", "only the first message may have it"));
                }
                None => continue,
            };
            self.size += data.len() as u64;
            self.digest.update(&data);
            input.send(&data).await;
        }
        // Clients that do not know it beforehand say zero.
        if metadata.total_size != 0 && whole(self.size) != metadata.total_size {
            let (said, came) = (metadata.total_size, self.size);
            return Err(invalid("total_size", format!("{came} bytes came instead of {said}")));
        }
        input.end().await;
        Ok(())
    }
}

pub async fn download(
    scene: Scene,
    asked: DownloadFileRequest,
) -> Result<impl Stream<Item = Result<FileChunk, Refusal>> + use<>, Refusal> {
    let (codebase, path) = (named(&asked.codebase_id)?, RawPath::from(inside(&asked.file_path)?));
    let (reading, file) =
        scene.broker.read_codebase_file(&scene.who, &codebase, path, None).await?;
    let (Reading::Bytes { .. } | Reading::Unsatisfiable { .. }) = reading;
    // The file is gone once all of it was read; what was read is sent until then.
    let reading = Some((Some(file), BytesMut::new()));
    Ok(stream::unfold(reading, move |reading| async move {
        let (mut file, mut read) = reading?;
        match next_chunk(&mut file, &mut read, scene.deadline).await {
            Ok(Some(data)) => Some((Ok(FileChunk { data }), Some((file, read)))),
            Ok(None) => None,
            Err(refusal) => Some((Err(refusal), None)),
        }
    }))
}

async fn next_chunk(
    file: &mut Option<FileStream>,
    read: &mut BytesMut,
    deadline: crate::rpc::Deadline,
) -> Result<Option<Bytes>, Refusal> {
    while let Some(open) = file
        && read.len() < AGENTFENSE_FRAME_BYTES
    {
        match deadline.within(open.next()).await?? {
            Some(bytes) => read.extend_from_slice(&bytes),
            None => *file = None,
        }
    }
    let chunk = read.split_to(read.len().min(AGENTFENSE_FRAME_BYTES)).freeze();
    Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
}

/// The files of a directory, or of all below it. Links and special files are none of the schema's.
pub async fn list_files(
    scene: Scene,
    asked: ListFilesRequest,
) -> Result<ListFilesResponse, Refusal> {
    let codebase = named(&asked.codebase_id)?;
    let below = match asked.path.trim_matches('/') {
        "" | "." => ".",
        path => inside(path)?,
    };
    let depth = if asked.recursive { FILE_DEPTH_MAX } else { 1 };
    let tree = Tree::read(&scene, &codebase, below, depth).await?;
    let is_known = |entry: &&Entry| matches!(entry.kind, EntryKind::File | EntryKind::Directory);
    let files = tree.entries.iter().filter(is_known).map(info).collect();
    Ok(ListFilesResponse { files })
}

fn info(entry: &Entry) -> FileInfo {
    let path = entry.path.to_text_lossy();
    let path = path.trim_start_matches("./").trim_start_matches('/').to_owned();
    let name = path.rsplit('/').next().unwrap_or_default().to_owned();
    let is_dir = entry.kind == EntryKind::Directory;
    let modified = Time::from_duration(jiff::SignedDuration::from_millis(entry.modified_ms));
    FileInfo {
        path,
        name,
        is_dir,
        size: if is_dir { 0 } else { whole(entry.size) },
        modified_at: modified.ok().map(Into::into),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_becomes_one_of_ours() {
        for (asked, again, expected) in [
            ("site", 0, "site"),
            ("my site", 0, "my-site"),
            ("site", 1, "site-2"),
            (".hidden", 0, "hidden"),
            ("..", 0, "codebase"),
            ("é", 2, "codebase-3"),
        ] {
            assert_eq!(name_of(asked, again), expected, "{asked:?}");
        }
        for asked in ["x".repeat(1_000), "cb_0123456789abcdef".to_owned(), "-_-".to_owned()] {
            assert!(name_of(&asked, 7).parse::<CodebaseName>().is_ok(), "{asked:?}");
        }
    }

    #[test]
    fn no_path_leads_out() {
        assert_eq!(inside("/a/b").ok(), Some("a/b"));
        for wrong in ["", "/", "../x", "a/../../x", "a\0b"] {
            assert!(inside(wrong).is_err(), "{wrong:?}");
        }
    }
}
