//! The workspace of a new sandbox. The daemon reads a directory and a repository itself; an archive is uploaded.

use std::path::{Path, PathBuf};

use futures_util::TryStreamExt;
use reqwest::Body;
use serde_json::{Value, json};
use tokio::io::AsyncRead;

use crate::cli::failure::Failure;
use crate::cli::progress::read;
use sandkeep_broker::Broker;
use sandkeep_client::Client;

use sandkeep_core::Principal;

/// File name extensions that do not belong to the name.
const ENDINGS: [&str; 7] = [".gz", ".tgz", ".zst", ".tar", ".oci", ".docker", ".img"];

#[derive(Debug, Default, clap::Args)]
pub struct SourceArgs {
    /// Copy this directory of the daemon's host to /home/user/NAME; the original is never changed
    #[arg(long, value_name = "DIR", group = "source")]
    source_dir: Option<PathBuf>,
    /// Clone this git repository (file:///… or https://…) to /home/user/NAME
    #[arg(long, value_name = "URL[#REF]", group = "source")]
    source_git: Option<String>,
    /// Upload this tar (plain, gzip or zstd) and unpack it to /home/user/NAME; `-` is stdin
    #[arg(long, value_name = "FILE|-", group = "source")]
    source_tar: Option<PathBuf>,
    /// Use this path in /home/user instead of the source's own name
    #[arg(long, value_name = "PATH", requires = "source")]
    source_path: Option<String>,
}

/// An archive to be uploaded.
type Archive = Box<dyn AsyncRead + Send + Unpin>;

impl SourceArgs {
    /// The field `source` for a daemon; an archive is uploaded first.
    pub async fn send(self, client: &Client) -> Result<Option<Value>, Failure> {
        let Some(archive) = self.archive().await? else { return self.described() };
        let body = Body::wrap_stream(read(archive));
        let upload: Value = client.post_archive("/api/v1/uploads", body).await?;
        Ok(Some(self.with_upload(&upload["id"])))
    }

    /// The same for a broker in this process.
    pub async fn hand_to(self, broker: &Broker) -> Result<Option<Value>, Failure> {
        let Some(archive) = self.archive().await? else { return self.described() };
        let mut upload = broker.begin_upload(&Principal::local()).await?;
        let mut pieces = std::pin::pin!(read(archive));
        while let Some(piece) =
            pieces.try_next().await.map_err(Failure::system("read the archive"))?
        {
            upload.write(&piece).await?;
        }
        let kept = broker.keep_upload(&Principal::local(), upload).await?;
        Ok(Some(self.with_upload(&json!(kept.id))))
    }

    /// Whether the archive is read from stdin.
    pub fn takes_stdin(&self) -> bool {
        self.source_tar.as_deref() == Some(Path::new("-"))
    }

    async fn archive(&self) -> Result<Option<Archive>, Failure> {
        let Some(path) = &self.source_tar else { return Ok(None) };
        if self.takes_stdin() {
            return Ok(Some(Box::new(tokio::io::stdin())));
        }
        let opened = tokio::fs::File::open(path).await;
        let file = opened.map_err(|error| usage("--source-tar", path, &error))?;
        Ok(Some(Box::new(file)))
    }

    fn with_upload(self, id: &Value) -> Value {
        let tar = self.source_tar.as_deref().and_then(Path::file_name).and_then(|n| n.to_str());
        let name = tar.map(without_endings).filter(|name| !matches!(*name, "" | "-"));
        let path = self.source_path.or_else(|| name.map(str::to_owned));
        placed(json!({ "upload": id }), path)
    }

    /// The field `source`, if nothing has to be uploaded.
    fn described(self) -> Result<Option<Value>, Failure> {
        let source = match (self.source_dir, self.source_git) {
            (Some(dir), _) => {
                let found = std::fs::canonicalize(&dir);
                json!({ "dir": found.map_err(|error| usage("--source-dir", &dir, &error))? })
            }
            (None, Some(git)) => json!({ "git": git }),
            (None, None) => return Ok(None),
        };
        Ok(Some(placed(source, self.source_path)))
    }
}

fn placed(mut source: Value, path: Option<String>) -> Value {
    if let Some(path) = path {
        source["path"] = json!(path);
    }
    source
}

fn usage(option: &str, path: &Path, error: &std::io::Error) -> Failure {
    Failure::Usage { problem: format!("{option} {}: {error}", path.display()) }
}

/// A file name without its extensions.
pub fn without_endings(mut name: &str) -> &str {
    while let Some(shorter) = ENDINGS.iter().find_map(|ending| name.strip_suffix(ending)) {
        name = shorter;
    }
    name
}
