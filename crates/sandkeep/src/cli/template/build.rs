//! `sandkeep template build`: uploads a directory with a build file, and shows the build's progress.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Read};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::stream;
use reqwest::Body;
use rustix::fs::{CWD, Mode, OFlags, openat};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::mpsc;

use super::{TemplateOwner, path_of};
use crate::cli::argument::pair;
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::network_args::PolicyArgs;
use crate::cli::{Format, print};
use sandkeep_client::{Client, Error, Lines, Problem};
use sandkeep_core::api::BUILD_SAID_LAST;
use sandkeep_core::network::Network;
use sandkeep_core::{
    TemplateName,
    api::Template,
    limits::{BUILD_SECRET_MAX_BYTES, RECIPE_MAX_BYTES, STDIN_CHUNK_BYTES, UPLOAD_CHUNKS_MAX},
};
use sandkeep_image::{
    copying::{BUILD_FILE_APART, SECRET},
    recipe::{Ignore, is_secret_id},
};
use sandkeep_tree::archive::{Attributes, Filter, Kept, TreeArchive, TreeOwner, Writer};

const IGNORE_FILE: &str = ".dockerignore";
const USUAL_FILE: &str = "Dockerfile";

/// Build a template from a Dockerfile
///
/// Sends the directory to the daemon, except files that .dockerignore excludes. Unchanged steps are taken from the
/// cache. Interrupting this command stops the build.
#[derive(Debug, clap::Args)]
pub struct BuildArgs {
    /// Directory with the build file and the files it copies
    #[arg(value_name = "CONTEXT", default_value = ".")]
    context: PathBuf,
    /// Name of the template, such as app:1 [default: the directory's name]
    #[arg(short = 't', long = "tag", visible_alias = "name", value_name = "NAME")]
    name: Option<TemplateName>,
    /// Build file, or - for stdin [default: Dockerfile in the directory]
    #[arg(short = 'f', long, value_name = "FILE")]
    file: Option<PathBuf>,
    /// Value for an ARG; repeatable
    #[arg(long = "build-arg", value_name = "NAME=VALUE", value_parser = pair)]
    arguments: Vec<(String, String)>,
    /// File, or variable with env= in place of src=, that a RUN mounts as type=secret; repeatable
    #[arg(long = "secret", value_name = "id=ID,src=FILE", value_parser = secret)]
    secrets: Vec<SecretArg>,
    /// Stage to build [default: the last]
    #[arg(long, value_name = "STAGE")]
    target: Option<String>,
    /// Run every step, ignoring the cache
    #[arg(long)]
    no_cache: bool,
    #[command(flatten, next_help_heading = "What RUN may reach")]
    network: PolicyArgs,
    /// Network of the template's sandboxes that name none: none, open, presets and hosts with commas between, or JSON
    #[arg(long, value_name = "POLICY", value_parser = crate::config::read_network, help_heading = "Options")]
    default_network: Option<Network>,
    #[command(flatten, next_help_heading = "Options")]
    place: TemplateOwner,
    #[command(flatten)]
    format: Format,
}

/// Where the value of a secret is.
#[derive(Clone, Debug)]
struct SecretArg {
    id: String,
    from: SecretFrom,
}

/// Why a text names no secret.
#[derive(Debug, thiserror::Error)]
enum NoSecret {
    #[error("an id has letters, digits, - _ and .")]
    Id,
    #[error("expected id=ID,src=FILE or id=ID,env=NAME")]
    Form,
    #[error("it needs an id: id=ID,src=FILE")]
    Nameless,
}

#[derive(Clone, Debug)]
enum SecretFrom {
    File(PathBuf),
    Variable(String),
}

/// `id=ID,src=FILE` or `id=ID,env=NAME`, as for Docker; without either it is the variable ID, if there is one.
fn secret(text: &str) -> Result<SecretArg, NoSecret> {
    let (mut id, mut from, mut kind) = (None, None, None);
    for part in text.split(',') {
        match part.split_once('=') {
            Some(("id", value)) if is_secret_id(value) => id = Some(value.to_owned()),
            Some(("id", _)) => return Err(NoSecret::Id),
            Some(("src" | "source", path)) if !path.is_empty() => {
                from = Some(SecretFrom::File(path.into()));
            }
            Some(("env", name)) if !name.is_empty() => {
                from = Some(SecretFrom::Variable(name.to_owned()));
            }
            Some(("type", value @ ("file" | "env"))) => kind = Some(value),
            _ => return Err(NoSecret::Form),
        }
    }
    let id = id.ok_or(NoSecret::Nameless)?;
    let from = match (from, kind) {
        // Docker writes the variable as src, too, if the type says so.
        (Some(SecretFrom::File(path)), Some("env")) => {
            SecretFrom::Variable(path.to_string_lossy().into_owned())
        }
        (Some(from), _) => from,
        (None, _) => SecretFrom::Variable(id.clone()),
    };
    Ok(SecretArg { id, from })
}

impl SecretArg {
    fn value(&self) -> Result<Vec<u8>, Failure> {
        let unreadable = |problem: String| Failure::Usage {
            problem: format!("the secret {}: {problem}", self.id),
        };
        let value = match &self.from {
            SecretFrom::File(path) => {
                let open = std::fs::File::open(path);
                let mut value = Vec::new();
                let read = open
                    .and_then(|file| file.take(BUILD_SECRET_MAX_BYTES + 1).read_to_end(&mut value));
                read.map_err(|error| unreadable(format!("{}: {error}", path.display())))?;
                value
            }
            SecretFrom::Variable(name) => std::env::var_os(name)
                .map(std::os::unix::ffi::OsStringExt::into_vec)
                .ok_or_else(|| unreadable(format!("there is no variable {name}")))?,
        };
        if value.len() as u64 > BUILD_SECRET_MAX_BYTES {
            Err(unreadable(format!("it has more than {BUILD_SECRET_MAX_BYTES} bytes")))
        } else {
            Ok(value)
        }
    }
}

#[derive(Debug, Deserialize)]
struct Event {
    r#type: String,
    #[serde(default)]
    step: Value,
    #[serde(default)]
    steps: usize,
    stage: Option<String>,
    #[serde(default)]
    instruction: String,
    #[serde(default)]
    cached: bool,
    data: Option<String>,
    template: Option<Value>,
    problem: Option<Box<Problem>>,
}

/// The build file, and whether it is among the uploaded files.
struct BuildFile {
    name: String,
    /// Its content, if it has to be sent separately.
    apart: Option<Vec<u8>>,
}

pub async fn run(args: BuildArgs, client: &Client) -> Result<Exit, Failure> {
    let directory = open(&args.context)?;
    let name = match &args.name {
        Some(name) => name.clone(),
        None => name_of(&args.context)?,
    };
    let file = build_file(&args)?;
    let ignore = ignore(&args.context, &file)?;
    let mut query = vec![
        ("shared", args.place.shared.to_string()),
        ("no_cache", args.no_cache.to_string()),
        ("file", file.name.clone()),
    ];
    query.extend(args.place.project.clone().map(|project| ("project", project)));
    query.extend(args.target.clone().map(|target| ("target", target)));
    if !args.arguments.is_empty() {
        let arguments: BTreeMap<&String, &String> =
            args.arguments.iter().map(|(name, value)| (name, value)).collect();
        let text = serde_json::to_string(&arguments).expect("a map of strings always encodes");
        query.push(("build_args", text));
    }
    let network = args.network.read_as_query()?;
    query.extend(network.map(|network| ("network", network)));
    query.extend(args.default_network.as_ref().map(|it| ("default_network", super::as_query(it))));
    let mut secrets = Vec::with_capacity(args.secrets.len());
    for secret in &args.secrets {
        secrets.push((format!("{SECRET}{}", secret.id), secret.value()?));
    }
    let body = archive(&args.context, directory, ignore, file, secrets)?;
    let path = format!("{}/build", path_of(&name));
    let response = client.post_upload(&path, &query, body).await?;
    follow(Lines::of(client, response), client, args.format).await
}

fn open(context: &Path) -> Result<OwnedFd, Failure> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    openat(CWD, context, flags, Mode::empty()).map_err(|e| unusable(context, &e))
}

fn unusable(path: &Path, why: &dyn std::fmt::Display) -> Failure {
    Failure::Usage { problem: format!("{}: {why}", path.display()) }
}

/// The name of a directory.
fn name_of(context: &Path) -> Result<TemplateName, Failure> {
    let whole = std::fs::canonicalize(context).map_err(|e| unusable(context, &e))?;
    let name = whole.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.to_ascii_lowercase().parse().map_err(|_| Failure::Usage {
        problem: format!("{} does not tell a name; say -t", context.display()),
    })
}

fn build_file(args: &BuildArgs) -> Result<BuildFile, Failure> {
    let apart =
        |bytes| BuildFile { name: format!("{BUILD_FILE_APART}.{USUAL_FILE}"), apart: Some(bytes) };
    let Some(path) = &args.file else {
        return if args.context.join(USUAL_FILE).is_file() {
            Ok(BuildFile { name: USUAL_FILE.to_owned(), apart: None })
        } else {
            Err(unusable(&args.context, &"there is no Dockerfile; say -f"))
        };
    };
    if path == Path::new("-") {
        let mut bytes = Vec::new();
        let read = std::io::stdin().take(RECIPE_MAX_BYTES as u64 + 1).read_to_end(&mut bytes);
        read.map_err(Failure::system("read the build file"))?;
        return Ok(apart(bytes));
    }
    let whole = std::fs::canonicalize(path).map_err(|e| unusable(path, &e))?;
    let context = std::fs::canonicalize(&args.context).map_err(|e| unusable(&args.context, &e))?;
    if let Some(within) = whole.strip_prefix(&context).ok().and_then(Path::to_str) {
        return Ok(BuildFile { name: within.to_owned(), apart: None });
    }
    std::fs::read(&whole).map(apart).map_err(|e| unusable(path, &e))
}

fn ignore(context: &Path, file: &BuildFile) -> Result<Ignore, Failure> {
    for name in [format!("{}{IGNORE_FILE}", file.name), IGNORE_FILE.to_owned()] {
        let path = context.join(name);
        match std::fs::read_to_string(&path) {
            Ok(text) => return Ignore::read(&text).map_err(|e| unusable(&path, &e)),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(error) => return Err(unusable(&path, &error)),
        }
    }
    Ok(Ignore::default())
}

/// The directory as an archive, created while it is sent. The build file and the ignore files are always included,
/// because the daemon needs them; it excludes them itself.
fn archive(
    context: &Path,
    directory: OwnedFd,
    ignore: Ignore,
    file: BuildFile,
    secrets: Vec<(String, Vec<u8>)>,
) -> Result<Body, Failure> {
    let (context, needed) = (context.to_owned(), file.name.clone());
    let filter: Filter = Box::new(move |path| {
        let path = String::from_utf8_lossy(path);
        // Only --secret makes a secret.
        if path.starts_with(SECRET) {
            return Kept::No;
        }
        let is_needed = *path == needed
            || needed.starts_with(&format!("{path}/"))
            || path.ends_with(IGNORE_FILE);
        // Entries of an excluded directory may be included again.
        let is_passed = || ignore.lets_in() && context.join(&*path).is_dir();
        if ignore.leaves_out(&path) && !is_needed && !is_passed() { Kept::No } else { Kept::Yes }
    });
    let files = TreeArchive::new(directory, TreeOwner::All { uid: 0, gid: 0 }, filter);
    let files = files.map_err(Failure::system("read the directory"))?;
    let mut first = Writer::new(Vec::new());
    for (name, bytes) in file.apart.map(|bytes| (file.name, bytes)).into_iter().chain(secrets) {
        let attributes = Attributes { mode: 0o644, ..Attributes::default() };
        let written = first.file(name.as_bytes(), bytes.len() as u64, &attributes, &bytes[..]);
        written.expect("memory can be written to");
    }
    let first = first.into_inner();
    let (pieces, taken) = mpsc::channel(UPLOAD_CHUNKS_MAX);
    // Reading files blocks, and the pieces wait until they are sent.
    tokio::task::spawn_blocking(move || send(std::io::Cursor::new(first).chain(files), &pieces));
    let taken =
        stream::unfold(taken, |mut taken| async move { Some((taken.recv().await?, taken)) });
    Ok(Body::wrap_stream(taken))
}

fn send(mut archive: impl Read, pieces: &mpsc::Sender<std::io::Result<Bytes>>) {
    loop {
        let mut piece = vec![0; STDIN_CHUNK_BYTES];
        let read = archive.read(&mut piece).map(|read| {
            piece.truncate(read);
            Bytes::from(piece)
        });
        // The end is signaled by closing the channel, an error by an item.
        let (at_end, failed) = (matches!(&read, Ok(piece) if piece.is_empty()), read.is_err());
        if at_end || pieces.blocking_send(read).is_err() || failed {
            return;
        }
    }
}

/// Shows the steps and their output until the last event.
async fn follow(mut lines: Lines, client: &Client, format: Format) -> Result<Exit, Failure> {
    let mut at_line_start = true;
    let last = loop {
        let event: Event = lines.next().await?;
        match event.r#type.as_str() {
            "step" => {
                let fresh = if at_line_start { "" } else { "\n" };
                print::stderr(format!("{fresh}{}\n", headline(&event)).as_bytes())?;
                at_line_start = true;
            }
            "output" => {
                let data = event.data.unwrap_or_default();
                print::stderr(data.as_bytes())?;
                at_line_start = data.is_empty() && at_line_start || data.ends_with('\n');
            }
            "progress" => {}
            _ => break event,
        }
    };
    match (last.template, last.problem) {
        (Some(template), _) if format.json => print::json(&template)?,
        (Some(template), _) => print::line(&client.read::<Template>(template)?.name)?,
        (None, Some(mut problem)) => {
            // It was printed when it came.
            if let Some((why, _)) = problem.detail.split_once(BUILD_SAID_LAST) {
                problem.detail = why.to_owned();
            }
            return Err(Error::Refused(problem).into());
        }
        (None, None) => {
            return Err(client.not_sandkeep(format!("an event {:?}", last.r#type)).into());
        }
    }
    Ok(Exit::Ok)
}

/// `[2/5] CACHED RUN make`, in bold on a terminal.
fn headline(event: &Event) -> String {
    let stage = event.stage.as_ref().map(|stage| format!("{stage} ")).unwrap_or_default();
    let cached = if event.cached { "CACHED " } else { "" };
    let instruction = event.instruction.replace('\n', " ");
    let text = format!("[{stage}{}/{}] {cached}{instruction}", event.step, event.steps);
    if std::io::stderr().is_terminal() { format!("\u{1b}[1m{text}\u{1b}[0m") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn what_is_sent_leaves_out_what_is_ignored_but_not_the_build_file() {
        let dir = tempfile::tempdir().expect("a directory");
        let stray = format!("{SECRET}stray");
        std::fs::create_dir(dir.path().join("deep")).expect("a directory");
        for (name, text) in [
            ("Dockerfile", "FROM x"),
            (IGNORE_FILE, "*\n!deep/kept"),
            ("secret", "s"),
            (stray.as_str(), "s"),
            ("deep/kept", "k"),
            ("deep/secret", "s"),
        ] {
            std::fs::write(dir.path().join(name), text).expect("a file");
        }
        let file = BuildFile { name: "Dockerfile".to_owned(), apart: None };
        let ignore = ignore(dir.path(), &file).expect("a list");
        let opened = open(dir.path()).expect("a directory");
        let secrets = vec![(format!("{SECRET}token"), b"s".to_vec())];
        let body = archive(dir.path(), opened, ignore, file, secrets).expect("an archive");
        let bytes = http_body_util::BodyExt::collect(body).await.expect("bytes").to_bytes();
        let mut entries = sandkeep_tree::archive::Entries::new(&bytes[..]);
        let mut paths = Vec::new();
        while let Some(entry) = entries.next().expect("an entry") {
            paths.push(String::from_utf8(entry.path).expect("text"));
        }
        let given = format!("{SECRET}token");
        assert_eq!(paths, [given.as_str(), "./", IGNORE_FILE, "Dockerfile", "deep/", "deep/kept"]);
    }

    #[test]
    fn a_secret_is_a_file_or_a_variable() {
        for (text, id, from) in [
            ("id=a,src=/f", "a", "File(\"/f\")"),
            ("type=file,id=a,source=/f", "a", "File(\"/f\")"),
            ("id=a,env=NAME", "a", "Variable(\"NAME\")"),
            ("type=env,id=a,src=NAME", "a", "Variable(\"NAME\")"),
            ("id=TOKEN", "TOKEN", "Variable(\"TOKEN\")"),
        ] {
            let secret = secret(text).expect(text);
            assert_eq!((secret.id.as_str(), format!("{:?}", secret.from).as_str()), (id, from));
        }
        for text in ["", "a", "src=/f", "id=", "id=a/b", "id=a,src=", "id=a,mode=1"] {
            assert!(secret(text).is_err(), "{text}");
        }
    }
}
