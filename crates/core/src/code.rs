//! Every way a request can fail, as callers know it, in whatever dialect they speak. A code never changes its
//! meaning; `docs/errors.md` is generated from this table.

/// What a code comes down to, for dialects that have few errors of their own. Each maps these in one
/// table, with the codes for which it knows better.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request itself is wrong; sent again it fails again.
    Invalid,
    /// Nobody knows who asks.
    Unauthenticated,
    /// It is known who asks, and they may not.
    Forbidden,
    NotFound,
    /// Somebody or something else has what the request needs, or had it at the time.
    Conflict,
    /// What the request is about is not in a state to do this.
    Precondition,
    TooLarge,
    /// Another machine, runtime or client could do it; this one cannot.
    Unsupported,
    /// The caller has as much as it may have at a time.
    Quota,
    /// The caller asks more often than it may.
    RateLimited,
    NoSpace,
    /// What is asked for lies inside a sandbox or elsewhere, and failed there.
    Upstream,
    /// Not now; perhaps soon.
    Unavailable,
    Timeout,
    /// The daemon or its machine is at fault.
    Internal,
}

impl Kind {
    /// Whether whoever runs the daemon should look at it, rather than the caller.
    pub fn is_fault(self) -> bool {
        match self {
            Self::NoSpace | Self::Upstream | Self::Unavailable | Self::Timeout | Self::Internal => {
                true
            }
            Self::Invalid
            | Self::Unauthenticated
            | Self::Forbidden
            | Self::NotFound
            | Self::Conflict
            | Self::Precondition
            | Self::TooLarge
            | Self::Unsupported
            | Self::Quota
            | Self::RateLimited => false,
        }
    }
}

/// Whether the same request may succeed later, without any change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Retry {
    Useful,
    Useless,
}

macro_rules! codes {
    ($($variant:ident $code:literal $kind:ident $retry:ident $title:literal $remedy:literal;)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        pub enum Code {
            $($variant,)*
        }

        impl Code {
            pub const ALL: &[Self] = &[$(Self::$variant,)*];

            fn row(self) -> (&'static str, Kind, Retry, &'static str, &'static str) {
                match self {
                    $(Self::$variant => ($code, Kind::$kind, Retry::$retry, $title, $remedy),)*
                }
            }
        }
    };
}

impl Code {
    pub fn as_str(self) -> &'static str {
        self.row().0
    }

    pub fn kind(self) -> Kind {
        self.row().1
    }

    /// Whether the same request may succeed later, without any change.
    pub fn retryable(self) -> bool {
        self.row().2 == Retry::Useful
    }

    pub fn title(self) -> &'static str {
        self.row().3
    }

    /// What to do about it, where the error itself knows nothing better.
    pub fn remedy(self) -> &'static str {
        self.row().4
    }
}

codes! {
    MalformedBody "malformed_body" Invalid Useless
        "the body is not the JSON this endpoint takes"
        "send a JSON object with only the documented fields";
    BrokenBody "broken_body" Invalid Useful
        "the body could not be read to its end"
        "send the request again";
    InvalidField "invalid_field" Invalid Useless
        "a field has a value that is not allowed"
        "change the field that the detail names";
    InvalidQuery "invalid_query" Invalid Useless
        "the query string is not valid"
        "use only the documented parameters, for example ?stream=true";
    UnknownRuntime "unknown_runtime" Invalid Useless
        "there is no such runtime"
        "choose one of those that GET /api/v1/runtimes (sandkeep runtimes) lists";
    RuntimeUnusable "runtime_unusable" Invalid Useless
        "the runtime cannot be used on this machine"
        "choose a usable one from GET /api/v1/runtimes (sandkeep runtimes), or mend what the detail names";
    UnknownTemplate "unknown_template" Invalid Useless
        "there is no such template"
        "choose one of those that GET /api/v1/templates (sandkeep template ls) lists, import it, or leave it out for the default, `host`";
    SourceInvalid "source_invalid" Invalid Useless
        "what was to become a template or a workspace cannot be used"
        "mend or replace what the detail names: for a template an image for this machine, a tar, an OCI layout or a docker save archive; for a workspace a directory, a git repository or a tar";
    BuildFileInvalid "build_file_invalid" Invalid Useless
        "the build file, or what came with it, cannot be carried out"
        "mend the line that the detail names; docs/build-files.md says what can be written";
    UnknownProfile "unknown_profile" Invalid Useless
        "there is no such profile"
        "choose one of those that the detail names, or leave it out for the default";
    UnsupportedByStorage "unsupported_by_storage" Unsupported Useless
        "the storage in use cannot do this"
        "leave it out, or run the daemon as root with --storage btrfs";
    UnsupportedByRuntime "unsupported_by_runtime" Unsupported Useless
        "the runtime in use cannot do this"
        "choose a runtime whose capabilities in GET /api/v1/runtimes (sandkeep runtimes) include it";
    InvalidArgument "invalid_argument" Invalid Useless
        "an argument of the tool is missing, misspelt or of the wrong kind"
        "give the arguments that its input_schema in GET /api/v1/sandboxes/{id}/tools names (sandkeep tools), and no others";
    GuestRefused "guest_refused" Invalid Useless
        "the sandbox refused the request"
        "change what the detail names";
    FileRequestInvalid "file_request_invalid" Invalid Useless
        "the sandbox cannot make sense of what is asked about its files"
        "change what the detail names: the path, the range, or the archive";
    FileUnsupported "file_unsupported" Unsupported Useless
        "the sandbox's filesystem cannot do this"
        "do it in another way: copy and delete instead of a move between filesystems, for example";
    Unauthenticated "unauthenticated" Unauthenticated Useless
        "the request does not say who makes it, or not so that it can be believed"
        "send an API key as Authorization: Bearer KEY or X-API-Key (SANDKEEP_API_KEY for the CLI); sandkeep keys create makes one";
    Forbidden "forbidden" Forbidden Useless
        "the credential is good, but not for this"
        "use a key that has the scope which the detail names; an admin makes one with sandkeep keys create --scope";
    ForeignHost "foreign_host" Forbidden Useless
        "the request was not addressed to this machine"
        "use http://127.0.0.1 or http://localhost with the daemon's port";
    ForeignOrigin "foreign_origin" Forbidden Useless
        "web pages of other origins may not call this API"
        "call it from a program, not from a page in a browser";
    ForeignPeer "foreign_peer" Forbidden Useless
        "only the user who runs the daemon may call this API"
        "run the client as the same user as the daemon, for example with sudo";
    UrlExpired "url_expired" Forbidden Useless
        "the signed URL has expired"
        "ask whoever gave it to you for a new one: POST …/ports/{port}/url (sandkeep port)";
    UrlForged "url_forged" Forbidden Useless
        "the signed URL is not valid"
        "use it whole and unchanged, or ask for a new one: POST …/ports/{port}/url (sandkeep port)";
    ServiceWorkerRefused "service_worker_refused" Forbidden Useless
        "no service worker can be served from the API's own origin"
        "open the port under its own host name, <port>-<id>.<domain>";
    LocalOnly "local_only" Forbidden Useless
        "this is only for the user of a daemon without keys"
        "reach the port by its host name or by a signed URL: POST …/ports/{port}/url (sandkeep port --sign)";
    SourceForbidden "source_forbidden" Forbidden Useless
        "this path of the host is not for callers of the API"
        "upload it instead: a template with PUT /api/v1/templates/{name}/upload (sandkeep template import), a workspace with POST /api/v1/uploads (--source-tar); the operator can open directories with source_roots";
    RepositoryPrivate "repository_private" Forbidden Useless
        "the git repository asks for credentials"
        "check the URL; clone a private one on the host and give it as git file:///… or source.dir, or send an archive of it (--source-tar)";
    TemplateShared "template_shared" Forbidden Useless
        "the template is for everybody, so only an admin may make or change it"
        "make one of your own under the same name, which comes first, or ask an admin";
    FileNotPermitted "file_not_permitted" Forbidden Useless
        "the sandbox's user may not do this to the file"
        "use a path beneath the user's home or /tmp, or change owner and mode from inside, as root (sandkeep exec --user root)";
    FileReadOnly "file_read_only" Forbidden Useless
        "the file is on a part of the sandbox that nobody can write to"
        "use a path beneath the user's home or /tmp; system directories come from the template";
    NoRoute "no_route" NotFound Useless
        "there is no such endpoint"
        "check the path; all endpoints but /healthz begin with /api/v1/";
    NotFound "not_found" NotFound Useless
        "there is no such sandbox"
        "list those that exist with GET /api/v1/sandboxes (sandkeep ls)";
    SnapshotNotFound "snapshot_not_found" NotFound Useless
        "the sandbox has no such snapshot"
        "list those that it has with GET /api/v1/sandboxes/{id}/snapshots (sandkeep snapshots)";
    TemplateNotFound "template_not_found" NotFound Useless
        "there is no such template"
        "list those that exist with GET /api/v1/templates (sandkeep template ls)";
    RepositoryNotFound "repository_not_found" NotFound Useless
        "there is no such git repository"
        "check the URL of the source; some hosts say so of private ones, too";
    ReferenceNotFound "reference_not_found" NotFound Useless
        "the git repository has no such branch, tag or commit"
        "name one that `git ls-remote` shows after the # of the URL, or leave it out for the default branch";
    UploadNotFound "upload_not_found" NotFound Useless
        "there is no such upload"
        "send it (again) with POST /api/v1/uploads: one is kept for an hour, and not over the end of the daemon";
    KeyNotFound "key_not_found" NotFound Useless
        "there is no such key"
        "list those that exist with GET /api/v1/keys (sandkeep keys ls)";
    ExecNotFound "exec_not_found" NotFound Useless
        "there is no such exec"
        "list those that are kept with GET /api/v1/sandboxes/{id}/execs (sandkeep ps)";
    ShellNotFound "shell_not_found" NotFound Useless
        "there is no such shell"
        "list those of the sandbox with GET /api/v1/sandboxes/{id}/shells, or open one with POST";
    ToolNotFound "tool_not_found" NotFound Useless
        "there is no such tool"
        "use one of those in GET /api/v1/sandboxes/{id}/tools (sandkeep tools)";
    ProcessNotFound "process_not_found" NotFound Useless
        "there is no such process"
        "list those of the sandbox with GET …/processes (sandkeep processes)";
    PortNotFound "port_not_found" NotFound Useless
        "there is no such port"
        "use a number from 1 to 65535";
    ListenerNotFound "listener_not_found" NotFound Useless
        "no port of the host leads there"
        "open one with POST …/ports/{port}/listen (sandkeep port --raw)";
    FileNotFound "file_not_found" NotFound Useless
        "there is no such file or directory in the sandbox"
        "look at what there is with GET …/files/list?path= of the directory above; for a file in a new directory use parents=true";
    MethodNotAllowed "method_not_allowed" Unsupported Useless
        "the endpoint does not have this method"
        "use one of the methods in the Allow header";
    BodyTooSlow "body_too_slow" Invalid Useful
        "the body did not arrive in time"
        "send the request again";
    WrongState "wrong_state" Precondition Useless
        "the sandbox's state does not allow this"
        "look at the sandbox's state first (sandkeep show)";
    Busy "busy" Conflict Useful
        "another operation on the sandbox is under way"
        "try again when it is over";
    ExecsInFlight "execs_in_flight" Precondition Useful
        "execs run that the operation would disturb"
        "wait for them or cancel them, give a pause more time (drain_secs), or do it all the same (force)";
    NotRunning "not_running" Precondition Useless
        "the sandbox does not run"
        "start it with POST /api/v1/sandboxes/{id}/start (sandkeep start)";
    ProcessEnded "process_ended" Precondition Useless
        "the process has ended"
        "look at how: GET …/processes/{process_id} (sandkeep processes)";
    Conflict "conflict" Conflict Useful
        "somebody else changed the same thing at the same time"
        "look at its present state and try again";
    ExecEnded "exec_ended" Precondition Useless
        "the exec has ended"
        "look at how it ended with GET /api/v1/sandboxes/{id}/execs/{exec_id}";
    NoTerminal "no_terminal" Precondition Useless
        "the exec has no terminal"
        "begin it with `terminal`, or follow what it says with GET /api/v1/sandboxes/{id}/execs/{exec_id}/output";
    StdinClosed "stdin_closed" Precondition Useless
        "the exec takes no (more) stdin"
        "start it with \"stdin_open\": true to send stdin while it runs";
    SlotTaken "slot_taken" Conflict Useless
        "another sandbox of the same owner has the slot"
        "use the one that the detail names, destroy it first, or ask POST /api/v1/sandboxes/ensure for whichever there is";
    TemplateInUse "template_in_use" Precondition Useless
        "sandboxes were made from the template"
        "destroy those that the detail names first, or leave the template";
    SnapshotExists "snapshot_exists" Conflict Useless
        "the sandbox has a snapshot of this name"
        "choose another name, or delete that snapshot first";
    SnapshotsFull "snapshots_full" Precondition Useless
        "the sandbox has as many snapshots as it may have, and none of them is a turn's"
        "delete one with DELETE /api/v1/sandboxes/{id}/snapshots/{snapshot} (sandkeep snapshot rm), or raise max_snapshots";
    IdempotencyGone "idempotency_gone" Precondition Useless
        "the sandbox that was made under this Idempotency-Key is gone"
        "use a new Idempotency-Key to make another one";
    ShellEnded "shell_ended" Precondition Useless
        "the shell has ended, so no command can run in it"
        "open another with POST /api/v1/sandboxes/{id}/shells, and delete this one";
    NotADirectory "not_a_directory" Precondition Useless
        "the path, or a part of it, is no directory"
        "look at it with GET …/files/stat?path=, and read a file with GET …/files?path=";
    IsADirectory "is_a_directory" Precondition Useless
        "the path is a directory, and a file is needed"
        "list it with GET …/files/list?path=, or take all of it with GET …/files/archive?path=";
    FileExists "file_exists" Conflict Useless
        "something is at that path already"
        "choose another path, delete what is there first, or say overwrite where the operation has it";
    DirectoryNotEmpty "directory_not_empty" Precondition Useless
        "the directory has something in it"
        "say recursive=true to delete it with all that is in it";
    NotARegularFile "not_a_regular_file" Precondition Useless
        "the path is a FIFO, a socket or a device, which only a program inside can use"
        "use a path of a regular file, or a command of the sandbox for this one";
    FileChanged "file_changed" Conflict Useful
        "the file was changed while it was being read"
        "read it again";
    NoMatch "no_match" Precondition Useless
        "the text that was to be replaced is not in the file, or more than once"
        "read the file again and give text that is in it once, or say replace_all";
    BodyTooLarge "body_too_large" TooLarge Useless
        "the body is over the limit"
        "send less; large input belongs into a file of the sandbox";
    UploadTooLarge "upload_too_large" TooLarge Useless
        "the upload is over the limit"
        "send a smaller archive, compressed perhaps, or have max_upload_mb raised";
    ValueTooLarge "value_too_large" TooLarge Useless
        "the sandbox's description is over the limit"
        "send fewer or shorter labels and environment variables";
    FileTooLarge "file_too_large" TooLarge Useless
        "the file or the answer is larger than may be"
        "take less of it: a range, a lower depth or limit, or one file at a time";
    RangeNotSatisfiable "range_not_satisfiable" Invalid Useless
        "the range is beyond the end of the file"
        "ask for a range within the size that Content-Range names";
    NotJson "not_json" Unsupported Useless
        "the body is not JSON"
        "send JSON with Content-Type: application/json";
    BuildFailed "build_failed" Precondition Useless
        "a step of the build failed"
        "see the step's output; it can be tried in a sandbox of the template that it starts from";
    StartUpFailed "start_up_failed" Precondition Useless
        "what the template starts in its sandboxes did not come up"
        "see what it said; build the template with another `sandkeep.start` or `sandkeep.ready`";
    IdempotencyMismatch "idempotency_mismatch" Conflict Useless
        "the Idempotency-Key was used for another request"
        "use a new Idempotency-Key for every new request, and the same one only to repeat it";
    ToolCallMismatch "tool_call_mismatch" Conflict Useless
        "the tool_call_id was used for another tool or other arguments"
        "use a new tool_call_id for every new call, and the same one only to repeat it";
    QuotaExceeded "quota_exceeded" Quota Useful
        "a quota of the organization or user is reached"
        "destroy what is no longer needed, ask for less, or have the quota raised";
    RateLimited "rate_limited" RateLimited Useful
        "too many requests"
        "wait for as many seconds as the Retry-After header says";
    UpgradeRequired "upgrade_required" Invalid Useless
        "the endpoint is a WebSocket"
        "use a WebSocket client: GET with Upgrade: websocket";
    LimitReached "limit_reached" Quota Useful
        "a limit of the daemon is reached"
        "destroy what is no longer needed, or try again later";
    ShellQueueFull "shell_queue_full" Quota Useful
        "too many commands wait in the shell"
        "wait for the end of those that you have sent, or open another shell";
    SandboxFailed "sandbox_failed" Internal Useless
        "the sandbox could not be made or started"
        "see the reason in the detail and in the daemon's log; sandkeep doctor checks this machine";
    CannotListen "cannot_listen" Internal Useless
        "no port of the host could be opened"
        "see the detail: there may be no free port, or no free descriptor";
    DataDirInUse "data_dir_in_use" Internal Useless
        "another daemon uses the data directory"
        "stop the other daemon, or choose another --data-dir";
    DataDirUnusable "data_dir_unusable" Internal Useless
        "the data directory cannot be used"
        "make it writable for the daemon's user, or choose another --data-dir";
    StoreFailed "store_failed" Internal Useless
        "the state store answered what it never should"
        "see the daemon's log";
    StorageInconsistent "storage_inconsistent" Internal Useless
        "the storage and the registry disagree about a volume"
        "destroy the sandbox and make a new one";
    StorageUnusable "storage_unusable" Internal Useless
        "the storage cannot be used on this machine"
        "mend what the detail names, or use --storage local";
    StorageFull "storage_full" NoSpace Useful
        "there is no space for this: on the disk, in the pool or within resources.disk_total_mb"
        "remove snapshots or sandboxes that nobody needs, free space on the disk of the data directory, or raise --storage-max-mb";
    PoolFull "pool_full" NoSpace Useful
        "hardly any space is left for sandboxes and snapshots, so no new ones are made"
        "destroy sandboxes or remove snapshots that nobody needs, free space on the disk of the data directory, or raise --storage-max-mb; what runs goes on";
    StorageFailed "storage_failed" Internal Useless
        "the storage failed"
        "see the detail and the daemon's log; is the disk full?";
    RuntimeInconsistent "runtime_inconsistent" Internal Useless
        "the runtime and the registry disagree about a sandbox"
        "destroy the sandbox and make a new one";
    RuntimeFailed "runtime_failed" Internal Useless
        "the runtime failed"
        "see the detail and the daemon's log; sandkeep doctor checks this machine";
    GuestVersion "guest_version" Internal Useless
        "the sandbox was made by a version of Sandkeep that is too old or too new"
        "stop and start the sandbox";
    FileFailed "file_failed" Internal Useless
        "the sandbox's kernel refused an operation on a file"
        "see the detail, which has the kernel's own words";
    NoSpace "no_space" NoSpace Useless
        "the sandbox's disk is full; nothing was changed"
        "delete what is not needed in the sandbox (its disk_mb is the limit), or make one with a larger disk_mb; until it is whole, a file that is replaced takes room beside the old one";
    JournalFailed "journal_failed" NoSpace Useful
        "what the command says could not be kept, so it was not begun"
        "make room on the disk of the data directory, or mend what the detail names";
    GuestBroke "guest_broke" Upstream Useless
        "the sandbox broke the guest protocol"
        "stop and start the sandbox, or destroy it: something inside may have taken over";
    ToolboxBroke "toolbox_broke" Upstream Useful
        "what works on files inside the sandbox gave no proper answer"
        "try again; if it stays, look whether the sandbox is out of memory or processes, and stop and start it";
    OutOfMemory "out_of_memory" Upstream Useful
        "what works on files inside the sandbox was killed for want of memory"
        "end what else uses the sandbox's memory, do less at once, or make a sandbox with more memory_mb";
    PortClosed "port_closed" Upstream Useful
        "nothing listens on this port of the sandbox"
        "start a server there that listens on 127.0.0.1, ::1 or all addresses, and try again";
    SourceUnavailable "source_unavailable" Upstream Useful
        "the source of the template could not be reached, or refused"
        "see the detail: the name, the credentials, the registry itself; then try again";
    PortBroke "port_broke" Upstream Useful
        "the server on this port of the sandbox broke off or does not speak HTTP"
        "look at its output; for what is not HTTP use a raw port: POST …/ports/{port}/listen (sandkeep port --raw)";
    ShuttingDown "shutting_down" Unavailable Useful
        "the daemon is shutting down"
        "try again when it is back";
    StoreUnavailable "store_unavailable" Unavailable Useful
        "the state store cannot be used"
        "try again; if it stays, see the daemon's log: is the disk full?";
    AuthUnavailable "auth_unavailable" Unavailable Useful
        "whether the credential is good cannot be found out now"
        "try again later; the detail says what does not answer";
    GuestUnreachable "guest_unreachable" Unavailable Useful
        "the sandbox does not answer"
        "look at its state (sandkeep show); it may just have ended";
    PortSilent "port_silent" Timeout Useless
        "the server on this port of the sandbox did not answer in time"
        "look at its output";
    FileTimedOut "file_timed_out" Timeout Useless
        "the operation on files took too long and was ended"
        "do it in smaller parts, or with a command of the sandbox";
    GuestTimedOut "guest_timed_out" Timeout Useless
        "the sandbox did not answer in time"
        "a command that had begun was canceled: see what it has done before running it again; the sandbox may be out of memory or processes";
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_two_codes_share_a_name() {
        let names: HashSet<_> = Code::ALL.iter().map(|code| code.as_str()).collect();
        assert_eq!(names.len(), Code::ALL.len());
    }
}
