//! All tools. Their names and parameters are promises to whoever has them in a prompt.

use axum::http::Method;
use rmcp::model::Tool;

use super::call::{A_SANDBOX, Call, Effect, Place, Placed, SANDBOX};
use sandkeep_broker::parameter::{Kind, Need, Parameter};

/// As `tools/list` shows them.
pub fn tools() -> Vec<Tool> {
    CALLS.iter().map(Call::described).collect()
}

pub fn find(name: &str) -> Option<&'static Call> {
    CALLS.iter().find(|call| call.name == name)
}

const SANDBOX_IN_PATH: Placed = Placed { place: Place::Path, parameter: A_SANDBOX };

const fn part(name: &'static str, kind: Kind, description: &'static str) -> Placed {
    let parameter = Parameter { name, kind, need: Need::Required, description };
    Placed { place: Place::Path, parameter }
}

const fn query(name: &'static str, kind: Kind, description: &'static str) -> Placed {
    let parameter = Parameter { name, kind, need: Need::Optional, description };
    Placed { place: Place::Query, parameter }
}

const fn field(name: &'static str, kind: Kind, description: &'static str) -> Placed {
    let parameter = Parameter { name, kind, need: Need::Optional, description };
    Placed { place: Place::Body, parameter }
}

const fn required(placed: Placed) -> Placed {
    let Placed { place, parameter: Parameter { name, kind, need: _, description } } = placed;
    Placed { place, parameter: Parameter { name, kind, need: Need::Required, description } }
}

const NAMED: Placed = part(SANDBOX, Kind::Text, "The id of the sandbox (sb…).");
/// A number that is counted.
const COUNT: Kind = Kind::Whole { min: 0, max: u64::MAX };
const SNAPSHOT_ABOUT: &str = "The id (sn…) or the name of a snapshot, such as turn-0001.";

static CALLS: &[Call] = &[
    Call {
        name: "sandbox_create",
        title: "Create a sandbox",
        about: "Makes a new isolated Linux computer and answers with its id. Use it for work that must not mix with \
                other work; for everything else leave `sandbox` out of calls and use your default one.",
        effect: Effect::Adds,
        method: Method::POST,
        path: "/api/v1/sandboxes",
        parameters: &[
            field(
                "template",
                Kind::Text,
                "What it starts from: `host` (the default) or a template's name, such as python:3.12.",
            ),
            field("slot", Kind::Text, "A name that only one of your sandboxes has at a time."),
            field("runtime", Kind::Text, "The isolation technology; leave it out for the default."),
            field("env", Kind::TextMap, "Variables for all commands in it."),
            field("labels", Kind::TextMap, "Labels to find it by."),
            field("timeout_secs", COUNT, "After so many seconds its time is over."),
            field(
                "idle_timeout_secs",
                COUNT,
                "After so many seconds without use its time is over.",
            ),
            field("on_timeout", Kind::Text, "What happens then: destroy, stop or pause."),
            field(
                "snapshot_tool_calls",
                Kind::Flag,
                "Make a snapshot after each call that may have changed files; its answer has the snapshot_id.",
            ),
            field("resources", Kind::Object, "Limits: memory_mb, cpus, pids, disk_mb."),
        ],
    },
    Call {
        name: "sandbox_list",
        title: "List sandboxes",
        about: "Your sandboxes with their states, newest first, a page at a time.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes",
        parameters: &[
            query(
                "state",
                Kind::Text,
                "Only those in this state: running, paused, stopped, failed.",
            ),
            query("label", Kind::Text, "Only those with this label, as name=value."),
            query("limit", COUNT, "How many at most."),
            query("cursor", Kind::Text, "The next_cursor of the page before."),
        ],
    },
    Call {
        name: "sandbox_get",
        title: "Look at a sandbox",
        about: "One sandbox: its state and why, template, limits, how many turns and snapshots it has.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes/{sandbox}",
        parameters: &[SANDBOX_IN_PATH],
    },
    Call {
        name: "sandbox_destroy",
        title: "Destroy a sandbox",
        about: "Ends everything in a sandbox and removes it with all its files and snapshots. Nothing brings it back.",
        effect: Effect::Destroys,
        method: Method::DELETE,
        path: "/api/v1/sandboxes/{sandbox}",
        parameters: &[NAMED],
    },
    Call {
        name: "sandbox_pause",
        title: "Pause a sandbox",
        about: "Every process stands still until sandbox_resume. Waits for running commands first, unless `force`.",
        effect: Effect::Sets,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/pause",
        parameters: &[
            NAMED,
            field("drain_secs", COUNT, "How long to wait for commands that run."),
            field("force", Kind::Flag, "Freeze running commands as they are."),
        ],
    },
    Call {
        name: "sandbox_resume",
        title: "Resume a sandbox",
        about: "Lets a paused sandbox go on where it was.",
        effect: Effect::Sets,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/resume",
        parameters: &[NAMED],
    },
    Call {
        name: "sandbox_start",
        title: "Start a sandbox",
        about: "Starts a stopped or failed sandbox with the files it had.",
        effect: Effect::Sets,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/start",
        parameters: &[NAMED],
    },
    Call {
        name: "sandbox_stop",
        title: "Stop a sandbox",
        about: "Ends every process of a sandbox. Its files stay, and sandbox_start brings it back.",
        effect: Effect::Destroys,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/stop",
        parameters: &[NAMED],
    },
    Call {
        name: "file_stat",
        title: "Look at a file",
        about: "Size, kind, mode, owner and times of one file or directory.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes/{sandbox}/files/stat",
        parameters: &[
            SANDBOX_IN_PATH,
            required(query("path", Kind::Text, "Absolute, or from the home directory.")),
        ],
    },
    Call {
        name: "file_list",
        title: "List files",
        about: "What a directory holds, as data; `ls` says it as text.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes/{sandbox}/files/list",
        parameters: &[
            SANDBOX_IN_PATH,
            required(query("path", Kind::Text, "The directory.")),
            query("depth", COUNT, "How many levels down; 1 is the directory itself."),
            query("limit", COUNT, "How many entries at most."),
            query("cursor", Kind::Text, "The next_cursor of the page before."),
        ],
    },
    Call {
        name: "file_mkdir",
        title: "Make a directory",
        about: "Makes a directory and those above it that are missing.",
        effect: Effect::Sets,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/files/mkdir",
        parameters: &[
            SANDBOX_IN_PATH,
            required(field("path", Kind::Text, "The directory to make.")),
        ],
    },
    Call {
        name: "file_move",
        title: "Move a file",
        about: "Renames a file or directory.",
        effect: Effect::Destroys,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/files/move",
        parameters: &[
            SANDBOX_IN_PATH,
            required(field("from", Kind::Text, "What to move.")),
            required(field("to", Kind::Text, "Its new path.")),
        ],
    },
    Call {
        name: "file_delete",
        title: "Delete a file",
        about: "Deletes a file, or a directory with all it holds.",
        effect: Effect::Destroys,
        method: Method::DELETE,
        path: "/api/v1/sandboxes/{sandbox}/files",
        parameters: &[
            SANDBOX_IN_PATH,
            required(query("path", Kind::Text, "What to delete.")),
            query("recursive", Kind::Flag, "Also a directory that is not empty."),
        ],
    },
    Call {
        name: "process_start",
        title: "Start a process",
        about: "Starts a server or another long-running process in the background and answers at once, or, with `ready`, when \
                it is ready. For a command that ends by itself use bash.",
        effect: Effect::Adds,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/processes",
        parameters: &[
            SANDBOX_IN_PATH,
            required(field("command", Kind::Text, "The command, for a shell.")),
            field("cwd", Kind::Text, "Where it runs."),
            field("env", Kind::TextMap, "Variables for it alone."),
            field("port", COUNT, "The port that it will listen on."),
            field(
                "ready",
                Kind::Object,
                "When it counts as ready: {tcp: true} or {http_path: \"/\"}, and timeout_secs.",
            ),
        ],
    },
    Call {
        name: "process_list",
        title: "List processes",
        about: "The processes that were started here, also those that have ended, with exit codes.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes/{sandbox}/processes",
        parameters: &[SANDBOX_IN_PATH],
    },
    Call {
        name: "process_logs",
        title: "Read what a process printed",
        about: "What a process has printed so far.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes/{sandbox}/processes/{process}/logs",
        parameters: &[
            SANDBOX_IN_PATH,
            part("process", Kind::Text, "The id of the process (pr…)."),
            query("stream", Kind::Text, "Only stdout or stderr."),
            query("offset", COUNT, "From which byte of that stream on."),
        ],
    },
    Call {
        name: "process_stop",
        title: "Stop a process",
        about: "Ends a process with all that it has started: SIGTERM, a grace, SIGKILL.",
        effect: Effect::Destroys,
        method: Method::DELETE,
        path: "/api/v1/sandboxes/{sandbox}/processes/{process}",
        parameters: &[SANDBOX_IN_PATH, part("process", Kind::Text, "The id of the process (pr…).")],
    },
    Call {
        name: "port_list",
        title: "List ports",
        about: "The ports on which something listens inside, with the URL of each.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes/{sandbox}/ports",
        parameters: &[SANDBOX_IN_PATH],
    },
    Call {
        name: "port_url",
        title: "Get the URL of a port",
        about: "A signed URL by which a person's browser reaches a server in the sandbox.",
        effect: Effect::Adds,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/ports/{port}/url",
        parameters: &[
            SANDBOX_IN_PATH,
            part("port", COUNT, "The port."),
            field("expires_secs", COUNT, "How long the URL is good for."),
        ],
    },
    Call {
        name: "port_listen",
        title: "Open a port on this machine",
        about: "Opens a port of the machine that Sandkeep runs on, which leads to a port in the sandbox, for clients that are no browsers.",
        effect: Effect::Sets,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/ports/{port}/listen",
        parameters: &[SANDBOX_IN_PATH, part("port", COUNT, "The port in the sandbox.")],
    },
    Call {
        name: "snapshot_create",
        title: "Take a snapshot",
        about: "Keeps all files as they are now, under a name if one is given. It takes milliseconds and disturbs nothing.",
        effect: Effect::Adds,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/snapshots",
        parameters: &[
            SANDBOX_IN_PATH,
            field("name", Kind::Text, "A name to find it by, such as before-refactoring."),
        ],
    },
    Call {
        name: "snapshot_list",
        title: "List snapshots",
        about: "The snapshots and turns of a sandbox, oldest first.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes/{sandbox}/snapshots",
        parameters: &[SANDBOX_IN_PATH],
    },
    Call {
        name: "snapshot_delete",
        title: "Delete a snapshot",
        about: "Forgets a snapshot. The sandbox itself, other snapshots and forks stay.",
        effect: Effect::Destroys,
        method: Method::DELETE,
        path: "/api/v1/sandboxes/{sandbox}/snapshots/{snapshot}",
        parameters: &[SANDBOX_IN_PATH, part("snapshot", Kind::Text, SNAPSHOT_ABOUT)],
    },
    Call {
        name: "turn_complete",
        title: "Seal a turn",
        about: "Seals what you have done so far as a turn (turn-0001, turn-0002, …), to which rollback can return.",
        effect: Effect::Adds,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/turns",
        parameters: &[SANDBOX_IN_PATH],
    },
    Call {
        name: "rollback",
        title: "Roll back",
        about: "Brings all files back to a snapshot or turn. Processes are ended and later changes are gone, unless they are in a \
                snapshot of their own; snapshots stay.",
        effect: Effect::Destroys,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/rollback",
        parameters: &[
            SANDBOX_IN_PATH,
            required(field("snapshot", Kind::Text, SNAPSHOT_ABOUT)),
            field("force", Kind::Flag, "Also while commands run, which are ended."),
        ],
    },
    Call {
        name: "fork",
        title: "Fork a sandbox",
        about: "Makes new sandboxes with the files of this one, as they are now or were at a snapshot, to try several ways at once.",
        effect: Effect::Adds,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/fork",
        parameters: &[
            SANDBOX_IN_PATH,
            field("snapshot", Kind::Text, SNAPSHOT_ABOUT),
            field("count", COUNT, "How many; 1 if left out."),
        ],
    },
    Call {
        name: "diff",
        title: "Show what changed",
        about: "Files that were added, modified, deleted or renamed between a snapshot (the newest, if left out) and now or another one.",
        effect: Effect::Reads,
        method: Method::GET,
        path: "/api/v1/sandboxes/{sandbox}/diff",
        parameters: &[
            SANDBOX_IN_PATH,
            query("from", Kind::Text, SNAPSHOT_ABOUT),
            query("to", Kind::Text, "The same; now, if left out."),
            query("text", Kind::Flag, "With the changed lines, as unified diffs."),
        ],
    },
    Call {
        name: "revert",
        title: "Revert files",
        about: "Makes these files and directories as they were at a snapshot. Everything else stays, and processes go on.",
        effect: Effect::Destroys,
        method: Method::POST,
        path: "/api/v1/sandboxes/{sandbox}/revert",
        parameters: &[
            SANDBOX_IN_PATH,
            required(field("snapshot", Kind::Text, SNAPSHOT_ABOUT)),
            required(field("paths", Kind::Paths, "The files and directories to bring back.")),
        ],
    },
];
