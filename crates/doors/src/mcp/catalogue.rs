//! All calls. Prompts rely on their names and parameters, so both are stable. The types of the REST API describe the
//! parameters.

use std::sync::{Arc, LazyLock};

use rmcp::model::{JsonObject, Tool, ToolAnnotations};
use serde_json::{Value, json};

use super::call::{Call, Given};
use super::schema::{self, Field};
use super::{A_SANDBOX, SANDBOX};
use crate::kit::Refusal;
use sandkeep_broker::error::Error;
use sandkeep_broker::parameter::{Kind, Misfit, Need, Parameter};
use sandkeep_core::api::{
    AskForNetwork, CreateProcess, CreateSnapshot, DeleteFile, DiffSandbox, FilePath, ForkSandbox,
    ListFiles, ListSandboxes, MakeDirectory, MoveFile, PauseSandbox, RaceSandbox, ReadOutput,
    Revert, RollbackSandbox, SealTurn, SignPortUrl,
};
use sandkeep_core::{GitUrl, SpecDraft, Transport};

/// The definition of a call.
struct Entry {
    name: &'static str,
    title: &'static str,
    /// For the model: what the call does and when to use it.
    about: &'static str,
    effect: Effect,
    /// The names it takes: a sandbox, and an item in it.
    names: &'static [Parameter],
    /// The fields of its request.
    request: fn() -> Vec<Field>,
    /// Fields that are not offered to models.
    hidden: &'static [&'static str],
    /// Fields that are required here, because the alternative is hidden.
    required: &'static [&'static str],
    decode: fn(&mut Given) -> Result<Call, Refusal>,
}

/// The effect of a call on existing data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Effect {
    Reads,
    /// Adds something; existing data is unchanged.
    Adds,
    /// Changes without loss, idempotent.
    Sets,
    /// May delete or overwrite data.
    Destroys,
}

/// A call as it is offered.
pub struct Offer {
    entry: &'static Entry,
    /// Required fields come first.
    pub fields: Vec<Field>,
    /// The entry in `tools/list`.
    pub tool: Tool,
}

static OFFERS: LazyLock<Vec<Offer>> = LazyLock::new(|| ENTRIES.iter().map(Offer::of).collect());

pub fn offers() -> &'static [Offer] {
    &OFFERS
}

pub fn find(name: &str) -> Option<&'static Offer> {
    OFFERS.iter().find(|offer| offer.entry.name == name)
}

impl Offer {
    fn of(entry: &'static Entry) -> Self {
        let mut request = (entry.request)();
        request.retain(|field| !entry.hidden.contains(&field.name.as_str()));
        for field in &mut request {
            if entry.required.contains(&field.name.as_str()) {
                field.need = Need::Required;
            }
        }
        request.sort_by_key(|field| field.need == Need::Optional);
        let fields: Vec<Field> = entry.names.iter().map(Field::from).chain(request).collect();
        let properties: JsonObject =
            fields.iter().map(|field| (field.name.clone(), field.schema.clone())).collect();
        let needed = fields.iter().filter(|field| field.need == Need::Required);
        let needed: Vec<&str> = needed.map(|field| field.name.as_str()).collect();
        let schema = json!({
            "type": "object", "properties": properties, "required": needed, "additionalProperties": false,
        });
        let Value::Object(schema) = schema else { unreachable!("it was written as an object") };
        let tool = Tool::new(entry.name, entry.about, Arc::new(schema))
            .with_title(entry.title)
            .with_annotations(entry.effect.annotations().open_world(false));
        Self { entry, fields, tool }
    }

    pub fn name(&self) -> &'static str {
        self.entry.name
    }

    pub fn reads(&self) -> bool {
        self.entry.effect == Effect::Reads
    }

    /// Whether it means the default sandbox if none is named.
    pub fn has_default(&self) -> bool {
        self.fields.iter().any(|field| field.name == SANDBOX && field.need == Need::Optional)
    }

    /// Checks arguments against the schema: all required ones are present, no unknown ones, each of the right type.
    /// Parsing the request checks their values.
    pub fn check(&self, mut given: JsonObject) -> Result<Given, Misfit> {
        // Some clients send null for omitted arguments.
        given.retain(|_, value| !value.is_null());
        for (name, value) in &mut given {
            let Some(field) = self.fields.iter().find(|field| field.name == *name) else {
                return Err(self.misfit(name, "there is no such parameter"));
            };
            let kind = field.schema["type"].as_str().unwrap_or_default();
            // Models often give one string where a list of strings is expected.
            if kind == "array" && value.is_string() {
                *value = json!([value.take()]);
            }
            let (fits, words) = match kind {
                "string" => (value.is_string(), "it must be a string"),
                "boolean" => (value.is_boolean(), "it must be true or false"),
                "integer" => (value.is_u64(), "it must be a whole number"),
                "array" => (value.is_array(), "it must be an array"),
                "object" => (value.is_object(), "it must be an object"),
                _ => (true, ""),
            };
            if !fits {
                return Err(self.misfit(name, words));
            }
        }
        let missing =
            |field: &&Field| field.need == Need::Required && !given.contains_key(&field.name);
        match self.fields.iter().find(missing) {
            Some(field) => Err(self.misfit(&field.name, "it is missing")),
            None => Ok(Given(given)),
        }
    }

    fn misfit(&self, parameter: &str, problem: &str) -> Misfit {
        let shown = |field: &Field| match field.need {
            Need::Required => field.name.clone(),
            Need::Optional => format!("{}?", field.name),
        };
        let known: Vec<String> = self.fields.iter().map(shown).collect();
        let (parameter, problem) = (parameter.to_owned(), problem.to_owned());
        Misfit { parameter, problem, known: known.join(", ") }
    }

    pub fn decode(&self, mut given: Given) -> Result<Call, Refusal> {
        (self.entry.decode)(&mut given)
    }
}

impl Effect {
    fn annotations(self) -> ToolAnnotations {
        let annotations = ToolAnnotations::new();
        match self {
            Self::Reads => annotations.read_only(true),
            Self::Adds => annotations.read_only(false).destructive(false).idempotent(false),
            Self::Sets => annotations.read_only(false).destructive(false).idempotent(true),
            Self::Destroys => annotations.read_only(false).destructive(true).idempotent(true),
        }
    }
}

const fn named(name: &'static str, kind: Kind, description: &'static str) -> Parameter {
    Parameter { name, kind, need: Need::Required, description }
}

const NAMED: Parameter = named(SANDBOX, Kind::Text, "The id of the sandbox (sb…).");
const PROCESS: Parameter = named("process", Kind::Text, "The id of the process (pr…).");
const SNAPSHOT: Parameter =
    named("snapshot", Kind::Text, "The id (sn…) or the name of a snapshot, such as turn-0001.");
const PORT: Parameter =
    named("port", Kind::Whole { min: 1, max: u16::MAX as u64 }, "The port in the sandbox.");

/// A call whose only parameter is a sandbox.
const fn entry(
    name: &'static str,
    title: &'static str,
    about: &'static str,
    effect: Effect,
    decode: fn(&mut Given) -> Result<Call, Refusal>,
) -> Entry {
    let (names, request) = (&[A_SANDBOX], schema::none);
    Entry { name, title, about, effect, names, request, hidden: &[], required: &[], decode }
}

/// Files of this machine are for the person who starts the server to give, and not for a model to take.
fn remote_source(draft: Box<SpecDraft>) -> Result<Box<SpecDraft>, Refusal> {
    let Some(source) = &draft.source else { return Ok(draft) };
    let is_file = |git: &GitUrl| git.transport() == Transport::File;
    let field = match (&source.dir, &source.git) {
        (Some(_), _) => "source.dir",
        (None, Some(git)) if is_file(git) => "source.git",
        (None, _) => return Ok(draft),
    };
    let problem = "a tool call may not name files of this machine; give an https:// repository, or have the server \
                   started with --source-dir"
        .to_owned();
    Err(Error::InvalidField { field, problem }.into())
}

impl Entry {
    const fn names(self, names: &'static [Parameter]) -> Self {
        Self { names, ..self }
    }

    const fn takes(self, request: fn() -> Vec<Field>) -> Self {
        Self { request, ..self }
    }

    const fn hides(self, hidden: &'static [&'static str]) -> Self {
        Self { hidden, ..self }
    }

    const fn requires(self, required: &'static [&'static str]) -> Self {
        Self { required, ..self }
    }
}

static ENTRIES: &[Entry] = &[
    entry(
        "sandbox_create",
        "Create a sandbox",
        "Create a new isolated Linux computer and return its id. Use it for work that must be separate from \
                other work; for everything else omit `sandbox` in calls to use your default one.",
        Effect::Adds,
        |given| Ok(Call::CreateSandbox(remote_source(given.request()?)?)),
    )
    .names(&[])
    .takes(schema::body::<SpecDraft>)
    // A model is not told secrets.
    .hides(&["secrets"]),
    entry(
        "sandbox_list",
        "List sandboxes",
        "List your sandboxes with their states, oldest first, one page at a time.",
        Effect::Reads,
        |given| Ok(Call::ListSandboxes(given.request()?)),
    )
    .names(&[])
    .takes(schema::query::<ListSandboxes>),
    entry(
        "sandbox_get",
        "Look at a sandbox",
        "Get one sandbox: its state with the reason, template, limits, number of turns and snapshots.",
        Effect::Reads,
        |given| Ok(Call::GetSandbox(given.sandbox()?)),
    ),
    entry(
        "sandbox_destroy",
        "Destroy a sandbox",
        "Destroy a sandbox with all its processes, files and snapshots. This cannot be undone.",
        Effect::Destroys,
        |given| Ok(Call::DestroySandbox(given.sandbox()?)),
    )
    .names(&[NAMED]),
    entry(
        "sandbox_pause",
        "Pause a sandbox",
        "Freeze every process until sandbox_resume. Waits for running commands first, unless `force` is set.",
        Effect::Sets,
        |given| Ok(Call::PauseSandbox(given.sandbox()?, given.request()?)),
    )
    .names(&[NAMED])
    .takes(schema::body::<PauseSandbox>),
    entry(
        "sandbox_resume",
        "Resume a sandbox",
        "Thaw a paused sandbox; its processes continue.",
        Effect::Sets,
        |given| Ok(Call::ResumeSandbox(given.sandbox()?)),
    )
    .names(&[NAMED]),
    entry(
        "sandbox_start",
        "Start a sandbox",
        "Start a stopped or failed sandbox with its existing files.",
        Effect::Sets,
        |given| Ok(Call::StartSandbox(given.sandbox()?)),
    )
    .names(&[NAMED]),
    entry(
        "sandbox_stop",
        "Stop a sandbox",
        "End every process of a sandbox. Its files are kept, and sandbox_start starts it again.",
        Effect::Destroys,
        |given| Ok(Call::StopSandbox(given.sandbox()?)),
    )
    .names(&[NAMED]),
    entry(
        "file_stat",
        "Look at a file",
        "Get size, kind, mode, owner and modification time of one file or directory; a symbolic link is not followed.",
        Effect::Reads,
        |given| Ok(Call::StatFile(given.sandbox()?, given.request()?)),
    )
    .takes(schema::query::<FilePath>),
    entry(
        "file_list",
        "List files",
        "List a directory as structured data, sorted by name; `ls` returns text.",
        Effect::Reads,
        |given| Ok(Call::ListFiles(given.sandbox()?, given.request()?)),
    )
    .takes(schema::query::<ListFiles>),
    entry(
        "file_mkdir",
        "Make a directory",
        "Create a directory; with `parents` also missing parent directories.",
        Effect::Sets,
        |given| Ok(Call::MakeDirectory(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<MakeDirectory>)
    .hides(&["path_b64"])
    .requires(&["path"]),
    entry(
        "file_move",
        "Move a file",
        "Rename or move a file or directory. Refused if the new path exists, unless `overwrite` is set.",
        Effect::Destroys,
        |given| Ok(Call::MoveFile(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<MoveFile>)
    .hides(&["from_b64", "to_b64"])
    .requires(&["from", "to"]),
    entry(
        "file_delete",
        "Delete a file",
        "Delete a file or an empty directory; with `recursive` a directory with its contents.",
        Effect::Destroys,
        |given| Ok(Call::DeleteFile(given.sandbox()?, given.request()?)),
    )
    .takes(schema::query::<DeleteFile>),
    entry(
        "process_start",
        "Start a process",
        "Start a server or another long-running process in the background. Returns at once or, with `ready`, \
                when it is ready. For a command that ends by itself use bash.",
        Effect::Adds,
        |given| Ok(Call::StartProcess(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<CreateProcess>)
    .hides(&["argv"])
    .requires(&["command"]),
    entry(
        "process_list",
        "List processes",
        "List the processes of a sandbox, oldest first, including ended ones with their exit codes.",
        Effect::Reads,
        |given| Ok(Call::ListProcesses(given.sandbox()?)),
    ),
    entry(
        "process_logs",
        "Read what a process printed",
        "Get the output of a process so far: one JSON object per line, with the stream, the offset and the text.",
        Effect::Reads,
        |given| {
            Ok(Call::ReadLogs(given.sandbox()?, given.name(PROCESS.name)?, given.request()?))
        },
    )
    .names(&[A_SANDBOX, PROCESS])
    .takes(schema::query::<ReadOutput>)
    .hides(&["follow"]),
    entry(
        "process_stop",
        "Stop a process",
        "End a process with its whole process tree: SIGTERM, then SIGKILL after ten seconds.",
        Effect::Destroys,
        |given| Ok(Call::EndProcess(given.sandbox()?, given.name(PROCESS.name)?)),
    )
    .names(&[A_SANDBOX, PROCESS]),
    entry(
        "port_list",
        "List ports",
        "List the ports on which a server listens inside, with their URLs.",
        Effect::Reads,
        |given| Ok(Call::ListPorts(given.sandbox()?)),
    ),
    entry(
        "port_url",
        "Get the URL of a port",
        "Create a signed URL with which a person's browser can reach a server in the sandbox.",
        Effect::Adds,
        |given| {
            Ok(Call::SignPortUrl(given.sandbox()?, given.name(PORT.name)?, given.request()?))
        },
    )
    .names(&[A_SANDBOX, PORT])
    .takes(schema::body::<SignPortUrl>),
    entry(
        "port_listen",
        "Open a port on this machine",
        "Open a port on the machine that runs Sandkeep and forward it to a port in the sandbox, for clients \
                other than browsers. Only available from a daemon without keys.",
        Effect::Sets,
        |given| Ok(Call::ListenPort(given.sandbox()?, given.name(PORT.name)?)),
    )
    .names(&[A_SANDBOX, PORT]),
    entry(
        "snapshot_create",
        "Take a snapshot",
        "Save all files as they are now, with an optional name. Running processes are frozen for a moment.",
        Effect::Adds,
        |given| Ok(Call::CreateSnapshot(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<CreateSnapshot>),
    entry(
        "snapshot_list",
        "List snapshots",
        "List the snapshots and turns of a sandbox, oldest first.",
        Effect::Reads,
        |given| Ok(Call::ListSnapshots(given.sandbox()?)),
    ),
    entry(
        "snapshot_delete",
        "Delete a snapshot",
        "Delete a snapshot. The sandbox itself, other snapshots and forks are kept.",
        Effect::Destroys,
        |given| Ok(Call::DeleteSnapshot(given.sandbox()?, given.name(SNAPSHOT.name)?)),
    )
    .names(&[A_SANDBOX, SNAPSHOT]),
    entry(
        "turn_complete",
        "Seal a turn",
        "Record your work so far as a turn (turn-0001, turn-0002, …), to which rollback can return.",
        Effect::Adds,
        |given| Ok(Call::SealTurn(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<SealTurn>),
    entry(
        "rollback",
        "Roll back",
        "Restore all files from a snapshot or turn. Processes end, and later changes are lost unless a \
                snapshot contains them; snapshots are kept. Refused while commands run, unless `force` is set.",
        Effect::Destroys,
        |given| Ok(Call::Rollback(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<RollbackSandbox>),
    entry(
        "fork",
        "Fork a sandbox",
        "Create new sandboxes with the files of this one, at present or at a snapshot, to try several \
                approaches at once. Processes are not copied.",
        Effect::Adds,
        |given| Ok(Call::Fork(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<ForkSandbox>),
    entry(
        "race",
        "Race forks and keep the best",
        "Try several approaches at once: fork the sandbox, run a command (or a different one, or a patch) in each \
                fork, have `judge` print a number in each, and keep the files of the fork with the highest number. \
                The sandbox gets them as a turn, and a turn before it holds what it was. Waits for the end.",
        Effect::Destroys,
        |given| Ok(Call::Race(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<RaceSandbox>)
    .hides(&["argv"]),
    entry(
        "diff",
        "Show what changed",
        "List files that were added, modified, deleted or renamed between a snapshot (default: what the sandbox started with) and now or another snapshot.",
        Effect::Reads,
        |given| Ok(Call::Diff(given.sandbox()?, given.request()?)),
    )
    .takes(schema::query::<DiffSandbox>)
    // A model cannot read an archive.
    .hides(&["format"]),
    entry(
        "revert",
        "Revert files",
        "Restore these files and directories from a snapshot. Everything else is unchanged, and processes keep running.",
        Effect::Destroys,
        |given| Ok(Call::Revert(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<Revert>),
    entry(
        "network_request",
        "Ask for a network destination",
        "Ask the owner of the sandbox to allow a host that its network policy refuses, and say what you need it for. \
                They decide; if they agree, connections to it work from then on.",
        Effect::Adds,
        |given| Ok(Call::AskForNetwork(given.sandbox()?, given.request()?)),
    )
    .takes(schema::body::<AskForNetwork>),
];
