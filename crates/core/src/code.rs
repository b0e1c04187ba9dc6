//! Every way a request can fail, independent of the API dialect. A code never changes its meaning;
//! `docs/reference/errors.md` is generated from this table.

/// The category of a code, for dialects with few errors of their own. Each dialect maps the categories in one table,
/// and selected codes more precisely.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// The request itself is invalid; a retry fails again.
    Invalid,
    /// The caller is unknown.
    Unauthenticated,
    /// The caller is known, but not authorized.
    Forbidden,
    NotFound,
    /// The request conflicts with another request or an existing object.
    Conflict,
    /// The object of the request is not in the required state.
    Precondition,
    TooLarge,
    /// Another machine, runtime or client could do it; this one cannot.
    Unsupported,
    /// The caller has reached a quota.
    Quota,
    /// The caller exceeds its request rate.
    RateLimited,
    NoSpace,
    /// The failure is inside a sandbox or in a remote service.
    Upstream,
    /// Not possible now; possibly soon.
    Unavailable,
    Timeout,
    /// The daemon or its machine is at fault.
    Internal,
}

impl Kind {
    /// Whether the operator should look at it, rather than the caller.
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

    /// What to do about it, unless the error itself gives better advice.
    pub fn remedy(self) -> &'static str {
        self.row().4
    }
}

codes! {
    MalformedBody "malformed_body" Invalid Useless
        "the body is not valid JSON for this endpoint"
        "send a JSON object with only the documented fields";
    BrokenBody "broken_body" Invalid Useful
        "the body ended early"
        "send the request again";
    InvalidField "invalid_field" Invalid Useless
        "a field has an invalid value"
        "correct the field that the detail names";
    InvalidQuery "invalid_query" Invalid Useless
        "the query string is invalid"
        "use only the documented parameters, for example ?stream=true";
    UnknownRuntime "unknown_runtime" Invalid Useless
        "unknown runtime"
        "choose one from GET /api/v1/runtimes (sandkeep runtimes)";
    RuntimeUnusable "runtime_unusable" Invalid Useless
        "the runtime is not usable on this machine"
        "choose a usable one from GET /api/v1/runtimes (sandkeep runtimes), or fix the problem that the detail names";
    UnknownTemplate "unknown_template" Invalid Useless
        "unknown template"
        "choose one from GET /api/v1/templates (sandkeep template ls), import it, or omit it for the default, `host`";
    SourceInvalid "source_invalid" Invalid Useless
        "the source of the template or workspace is invalid"
        "fix or replace what the detail names: a template needs an image for this machine, a tar, an OCI layout or a docker save archive; a workspace needs a directory, a git repository or a tar";
    BuildFileInvalid "build_file_invalid" Invalid Useless
        "the build file or its context is invalid"
        "correct the line that the detail names; docs/reference/build-files.md lists what is supported";
    UnknownProfile "unknown_profile" Invalid Useless
        "unknown profile"
        "choose one that the detail lists, or omit it for the default";
    UnsupportedByStorage "unsupported_by_storage" Unsupported Useless
        "the storage does not support this"
        "omit it, or run the daemon as root with --storage btrfs";
    UnsupportedByRuntime "unsupported_by_runtime" Unsupported Useless
        "the runtime does not support this"
        "choose a runtime that has the capability in GET /api/v1/runtimes (sandkeep runtimes --wide)";
    InvalidArgument "invalid_argument" Invalid Useless
        "a tool argument is missing, unknown or of the wrong type"
        "give only the arguments of its input_schema in GET /api/v1/sandboxes/{id}/tools (sandkeep tools)";
    GuestRefused "guest_refused" Invalid Useless
        "the sandbox refused the request"
        "correct what the detail names";
    FileRequestInvalid "file_request_invalid" Invalid Useless
        "the file request is invalid"
        "correct what the detail names: the path, the range, or the archive";
    FileUnsupported "file_unsupported" Unsupported Useless
        "the sandbox's filesystem does not support this"
        "use another way, for example copy and delete instead of a move between filesystems";
    Unauthenticated "unauthenticated" Unauthenticated Useless
        "credentials are missing or invalid"
        "send an API key as Authorization: Bearer KEY or X-API-Key (SANDKEEP_API_KEY for the CLI); sandkeep keys create makes one";
    Forbidden "forbidden" Forbidden Useless
        "the credentials do not allow this"
        "use a key with the scope that the detail names; an admin creates one with sandkeep keys create --scope";
    ForeignHost "foreign_host" Forbidden Useless
        "the Host header does not name this machine"
        "use http://127.0.0.1 or http://localhost with the daemon's port";
    ForeignOrigin "foreign_origin" Forbidden Useless
        "web pages of other origins may not call this API"
        "call the API from a program, or have the origin added to cors_origins";
    ForeignPeer "foreign_peer" Forbidden Useless
        "only the user who runs the daemon may call this API"
        "run the client as the same user as the daemon, for example with sudo";
    UrlExpired "url_expired" Forbidden Useless
        "the signed URL has expired"
        "request a new one: POST …/ports/{port}/url (sandkeep port --sign)";
    UrlForged "url_forged" Forbidden Useless
        "the signed URL is invalid"
        "use the URL complete and unchanged, or request a new one: POST …/ports/{port}/url (sandkeep port --sign)";
    ServiceWorkerRefused "service_worker_refused" Forbidden Useless
        "service workers are not served from the API's own origin"
        "open the port under its own host name, <port>-<id>.<domain>";
    LocalOnly "local_only" Forbidden Useless
        "raw ports are only available without API keys"
        "use the port's host name or a signed URL: POST …/ports/{port}/url (sandkeep port --sign)";
    SourceForbidden "source_forbidden" Forbidden Useless
        "API callers may not use this path of the host"
        "upload it instead: a template with PUT /api/v1/templates/{name}/upload (sandkeep template import), a workspace with POST /api/v1/uploads (--source-tar); the operator can allow directories with source_roots";
    RepositoryPrivate "repository_private" Forbidden Useless
        "the git repository requires credentials"
        "check the URL; clone a private repository on the host and use git file:///… or source.dir, or send an archive of it (--source-tar)";
    TemplateShared "template_shared" Forbidden Useless
        "only an admin may create or change a shared template"
        "create your own template under the same name, which takes precedence, or ask an admin";
    NetworkOverCeiling "network_over_ceiling" Forbidden Useless
        "the policy allows more than the operator of this daemon does"
        "leave out what the detail names, or have egress_ceiling changed";
    FileNotPermitted "file_not_permitted" Forbidden Useless
        "permission denied for the sandbox's user"
        "use a path under the user's home or /tmp, or change owner and mode as root inside (sandkeep exec --user root)";
    FileReadOnly "file_read_only" Forbidden Useless
        "the file is on a read-only filesystem"
        "use a path under the user's home or /tmp; system directories come from the template";
    NoRoute "no_route" NotFound Useless
        "unknown endpoint"
        "check the path; all endpoints except /healthz begin with /api/v1/";
    NotFound "not_found" NotFound Useless
        "sandbox not found"
        "list sandboxes with GET /api/v1/sandboxes (sandkeep ls)";
    SnapshotNotFound "snapshot_not_found" NotFound Useless
        "snapshot not found"
        "list snapshots with GET /api/v1/sandboxes/{id}/snapshots (sandkeep snapshots)";
    TemplateNotFound "template_not_found" NotFound Useless
        "template not found"
        "list templates with GET /api/v1/templates (sandkeep template ls)";
    RepositoryNotFound "repository_not_found" NotFound Useless
        "git repository not found"
        "check the URL of the source; some hosts answer the same for private repositories";
    ReferenceNotFound "reference_not_found" NotFound Useless
        "the git repository has no such branch, tag or commit"
        "use one that `git ls-remote` shows after the # of the URL, or omit it for the default branch";
    UploadNotFound "upload_not_found" NotFound Useless
        "upload not found"
        "send it again with POST /api/v1/uploads; an upload is kept for an hour, and not across a restart of the daemon";
    CodebaseNotFound "codebase_not_found" NotFound Useless
        "codebase not found"
        "list codebases with GET /api/v1/codebases (sandkeep codebase ls)";
    WebhookNotFound "webhook_not_found" NotFound Useless
        "webhook not found"
        "list webhooks with GET /api/v1/webhooks (sandkeep webhook ls)";
    NetworkRequestNotFound "network_request_not_found" NotFound Useless
        "no such request waits for a decision"
        "list those that do with GET …/network/requests (sandkeep network requests); a connection waits only for a while";
    KeyNotFound "key_not_found" NotFound Useless
        "key not found"
        "list keys with GET /api/v1/keys (sandkeep keys ls)";
    ExecNotFound "exec_not_found" NotFound Useless
        "exec not found"
        "list execs with GET /api/v1/sandboxes/{id}/execs (sandkeep ps)";
    ShellNotFound "shell_not_found" NotFound Useless
        "shell not found"
        "list shells with GET /api/v1/sandboxes/{id}/shells, or open one with POST";
    ToolNotFound "tool_not_found" NotFound Useless
        "tool not found"
        "use one of those in GET /api/v1/sandboxes/{id}/tools (sandkeep tools)";
    ProcessNotFound "process_not_found" NotFound Useless
        "process not found"
        "list processes with GET …/processes (sandkeep processes)";
    PortNotFound "port_not_found" NotFound Useless
        "invalid port number"
        "use a number from 1 to 65535";
    ListenerNotFound "listener_not_found" NotFound Useless
        "no host port forwards to this port"
        "open one with POST …/ports/{port}/listen (sandkeep port --raw)";
    FileNotFound "file_not_found" NotFound Useless
        "no such file or directory in the sandbox"
        "list the parent directory with GET …/files/list?path=; to create a file in a new directory use parents=true";
    MethodNotAllowed "method_not_allowed" Unsupported Useless
        "the endpoint does not support this method"
        "use one of the methods in the Allow header";
    BodyTooSlow "body_too_slow" Invalid Useful
        "the body did not arrive in time"
        "send the request again";
    DeadlineExceeded "deadline_exceeded" Timeout Useful
        "the deadline that the client set has passed"
        "send the request again with more time; what was begun may have been finished";
    WrongState "wrong_state" Precondition Useless
        "the sandbox's state does not allow this"
        "check the sandbox's state (sandkeep show)";
    Busy "busy" Conflict Useful
        "another operation on the sandbox is in progress"
        "try again when it has finished";
    ExecsInFlight "execs_in_flight" Precondition Useful
        "running execs prevent the operation"
        "wait for them or cancel them, give a pause more time (drain_secs), or use force";
    NotRunning "not_running" Precondition Useless
        "the sandbox is not running"
        "start it with POST /api/v1/sandboxes/{id}/start (sandkeep start)";
    ProcessEnded "process_ended" Precondition Useless
        "the process has ended"
        "see its outcome with GET …/processes/{process_id} (sandkeep processes)";
    Conflict "conflict" Conflict Useful
        "a concurrent change conflicts with this request"
        "read the current state and try again";
    ExecEnded "exec_ended" Precondition Useless
        "the exec has ended"
        "see its outcome with GET /api/v1/sandboxes/{id}/execs/{exec_id}";
    NoTerminal "no_terminal" Precondition Useless
        "the exec has no terminal"
        "start it with `terminal`, or follow its output with GET /api/v1/sandboxes/{id}/execs/{exec_id}/output";
    StdinClosed "stdin_closed" Precondition Useless
        "the exec's stdin is closed"
        "start it with \"stdin_open\": true to send stdin while it runs";
    SlotTaken "slot_taken" Conflict Useless
        "another sandbox of the same owner has the slot"
        "use the one that the detail names, destroy it first, or use POST /api/v1/sandboxes/ensure";
    NameTaken "name_taken" Conflict Useless
        "another sandbox of the same owner has the name"
        "use the one that the detail names, choose another name, or rename or destroy that sandbox first";
    NameAmbiguous "name_ambiguous" Conflict Useless
        "several sandboxes that you can see have the name"
        "use the id of the one that is meant; the detail lists them";
    CodebaseExists "codebase_exists" Conflict Useless
        "the owner already has a codebase of this name"
        "choose another name, or delete that one first";
    CodebaseInUse "codebase_in_use" Conflict Useless
        "sandboxes have the codebase"
        "destroy those that the detail names first; stopped ones count, because they can be started";
    CodebaseExclusive "codebase_exclusive" Conflict Useless
        "another sandbox writes to the codebase where a server of rules would not see it"
        "stop the sandbox that the detail names, start this one, then start that one again; or use rules that mounts alone can keep, such as full-access or read-only";
    RulesServerFailed "rules_server_failed" Internal Useful
        "the server that keeps the rules of a codebase failed"
        "start the sandbox again; if that fails too, look at the daemon's log";
    CodebaseBusy "codebase_busy" Conflict Useful
        "the codebase is being created or deleted"
        "wait until GET /api/v1/codebases/{id} (sandkeep codebase show ID) says that it is ready, or not found";
    RulesNotServed "rules_not_served" Unsupported Useless
        "nothing here can keep these rules"
        "use rules that only allow reading or writing of the whole tree or of directories, such as full-access or read-only";
    TemplateInUse "template_in_use" Precondition Useless
        "sandboxes use the template"
        "destroy those that the detail names first, or keep the template";
    SnapshotExists "snapshot_exists" Conflict Useless
        "a snapshot with this name exists"
        "choose another name, or delete that snapshot first";
    SnapshotsFull "snapshots_full" Precondition Useless
        "the sandbox has its maximum number of snapshots, and none of them is a turn"
        "delete one with DELETE /api/v1/sandboxes/{id}/snapshots/{snapshot} (sandkeep snapshot rm), or raise max_snapshots";
    IdempotencyGone "idempotency_gone" Precondition Useless
        "the sandbox created under this Idempotency-Key no longer exists"
        "use a new Idempotency-Key to create another one";
    ShellEnded "shell_ended" Precondition Useless
        "the shell has ended"
        "open another with POST /api/v1/sandboxes/{id}/shells, and delete this one";
    NotADirectory "not_a_directory" Precondition Useless
        "the path or a part of it is not a directory"
        "check it with GET …/files/stat?path=, and read a file with GET …/files?path=";
    IsADirectory "is_a_directory" Precondition Useless
        "the path is a directory, not a file"
        "list it with GET …/files/list?path=, or download it with GET …/files/archive?path=";
    FileExists "file_exists" Conflict Useless
        "the path already exists"
        "choose another path, delete the existing file first, or use overwrite where the operation has it";
    DirectoryNotEmpty "directory_not_empty" Precondition Useless
        "the directory is not empty"
        "use recursive=true to delete it with its contents";
    NotARegularFile "not_a_regular_file" Precondition Useless
        "the path is a FIFO, socket or device"
        "use the path of a regular file, or run a command in the sandbox";
    FileChanged "file_changed" Conflict Useful
        "the file changed while it was being read"
        "read it again";
    NoMatch "no_match" Precondition Useless
        "the text to replace is missing from the file or not unique"
        "read the file again and give text that occurs exactly once, or use replace_all";
    BodyTooLarge "body_too_large" TooLarge Useless
        "the body is too large"
        "send less; put large input into a file in the sandbox";
    UploadTooLarge "upload_too_large" TooLarge Useless
        "the upload is too large"
        "send a smaller archive, for example compressed, or have max_upload_mb raised";
    ValueTooLarge "value_too_large" TooLarge Useless
        "the sandbox's description is too large"
        "send fewer or shorter labels and environment variables";
    AnswerTooLarge "answer_too_large" TooLarge Useless
        "the answer does not fit into one message"
        "ask for a stream (Sandkeep-Stream: true), or for less: a range or a page";
    FileTooLarge "file_too_large" TooLarge Useless
        "the file or the answer is too large"
        "request less: a range, a lower depth or limit, or one file at a time";
    FilesTooLarge "files_too_large" TooLarge Useless
        "the files are too large, or too many, to be read at once"
        "name a path with fewer or smaller files; a sparse file counts with all of its holes";
    RangeNotSatisfiable "range_not_satisfiable" Invalid Useless
        "the range is beyond the end of the file"
        "request a range within the size in Content-Range";
    NotJson "not_json" Unsupported Useless
        "the body is not JSON"
        "send JSON with Content-Type: application/json";
    NotRaw "not_raw" Unsupported Useless
        "the body is a form, not the file itself"
        "send the bytes of the file as the body: curl -T FILE, or --data-binary @FILE";
    BuildFailed "build_failed" Precondition Useless
        "a build step failed"
        "see the step's output; try the command in a sandbox of the template that the step starts from";
    StartUpFailed "start_up_failed" Precondition Useless
        "the template's start process did not become ready"
        "see its output; build the template with another `sandkeep.start` or `sandkeep.ready`";
    IdempotencyMismatch "idempotency_mismatch" Conflict Useless
        "the Idempotency-Key was used for another request"
        "use a new Idempotency-Key for every new request, and repeat one only to retry";
    ToolCallMismatch "tool_call_mismatch" Conflict Useless
        "the tool_call_id was used for another tool or other arguments"
        "use a new tool_call_id for every new call, and repeat one only to retry";
    QuotaExceeded "quota_exceeded" Quota Useful
        "quota exceeded"
        "destroy what is no longer needed, request less, or have the quota raised";
    RateLimited "rate_limited" RateLimited Useful
        "too many requests"
        "wait for the number of seconds in the Retry-After header";
    UpgradeRequired "upgrade_required" Invalid Useless
        "the endpoint is a WebSocket"
        "use a WebSocket client: GET with Upgrade: websocket";
    LimitReached "limit_reached" Quota Useful
        "a limit of the daemon is reached"
        "destroy what is no longer needed, or try again later";
    ShellQueueFull "shell_queue_full" Quota Useful
        "too many commands are queued in the shell"
        "wait for earlier commands to end, or open another shell";
    SandboxFailed "sandbox_failed" Internal Useless
        "the sandbox could not be created or started"
        "see the detail and the daemon's log; sandkeep doctor checks this machine";
    CannotListen "cannot_listen" Internal Useless
        "cannot open a port on the host"
        "see the detail: there may be no free port or file descriptor";
    DataDirInUse "data_dir_in_use" Internal Useless
        "another daemon uses the data directory"
        "stop the other daemon, or choose another --data-dir";
    DataDirUnusable "data_dir_unusable" Internal Useless
        "the data directory cannot be used"
        "make it writable for the daemon's user, or choose another --data-dir";
    StoreFailed "store_failed" Internal Useless
        "the state store returned an unexpected result"
        "see the daemon's log";
    StorageInconsistent "storage_inconsistent" Internal Useless
        "the storage and the registry disagree about a volume"
        "destroy the sandbox and create a new one";
    StorageUnusable "storage_unusable" Internal Useless
        "the storage cannot be used on this machine"
        "fix the problem that the detail names, or use --storage local";
    StorageFull "storage_full" NoSpace Useful
        "no space left on the disk, in the pool or within resources.disk_total_mb"
        "delete unneeded snapshots or sandboxes, free space on the disk of the data directory, or raise --storage-max-mb";
    PoolFull "pool_full" NoSpace Useful
        "the storage pool is nearly full, so no sandboxes or snapshots are created"
        "destroy unneeded sandboxes or delete snapshots, free space on the disk of the data directory, or raise --storage-max-mb; running sandboxes continue";
    StorageFailed "storage_failed" Internal Useless
        "the storage failed"
        "see the detail and the daemon's log; the disk may be full";
    RuntimeInconsistent "runtime_inconsistent" Internal Useless
        "the runtime and the registry disagree about a sandbox"
        "destroy the sandbox and create a new one";
    RuntimeFailed "runtime_failed" Internal Useless
        "the runtime failed"
        "see the detail and the daemon's log; sandkeep doctor checks this machine";
    GuestVersion "guest_version" Internal Useless
        "the sandbox was started by an incompatible version of Sandkeep"
        "stop and start the sandbox";
    FileFailed "file_failed" Internal Useless
        "a file operation failed in the sandbox"
        "see the detail, which has the kernel's error";
    NoSpace "no_space" NoSpace Useless
        "the sandbox's disk is full; nothing was changed"
        "delete files in the sandbox, or create one with a larger disk_mb; replacing a file needs space for both versions";
    JournalFailed "journal_failed" NoSpace Useful
        "the command's output cannot be recorded, so it was not started"
        "free space on the disk of the data directory, or fix the problem that the detail names";
    AuditFull "audit_full" NoSpace Useful
        "the audit log cannot be written, so nothing is changed"
        "free space on the disk of the data directory, or set audit.on_full to continue";
    GuestBroke "guest_broke" Upstream Useless
        "the sandbox violated the guest protocol"
        "stop and start the sandbox, or destroy it: a process inside may have taken over";
    ToolboxBroke "toolbox_broke" Upstream Useful
        "the file helper in the sandbox gave no valid answer"
        "try again; if it persists, check whether the sandbox is out of memory or processes, then stop and start it";
    OutOfMemory "out_of_memory" Upstream Useful
        "the file helper in the sandbox was killed: out of memory"
        "free memory in the sandbox, do less at once, or create a sandbox with more memory_mb";
    PortClosed "port_closed" Upstream Useful
        "nothing listens on this port of the sandbox"
        "start a server that listens on 127.0.0.1, ::1 or all addresses, and try again";
    SourceUnavailable "source_unavailable" Upstream Useful
        "the source of the template is unreachable or refused the request"
        "see the detail: the name, the credentials or the registry may be wrong; then try again";
    PortBroke "port_broke" Upstream Useful
        "the server on this port disconnected or does not speak HTTP"
        "check the server's output; for other protocols use a raw port: POST …/ports/{port}/listen (sandkeep port --raw)";
    NetworkNotAsked "network_not_asked" Precondition Useless
        "the destination cannot be asked for"
        "see the detail: a policy with on_deny: ask lets a sandbox ask; what the operator denies, nobody can allow";
    GatewayFailed "gateway_failed" Internal Useful
        "the network of the sandbox cannot be opened"
        "see the detail and the daemon's log; a sandbox with network: none needs no gateway";
    SecretsUnreadable "secrets_unreadable" Internal Useless
        "the secrets of the sandbox cannot be encrypted or decrypted"
        "see the detail: the key in the data directory or the KMS command may be missing; create the sandbox again with its secrets";
    ShuttingDown "shutting_down" Unavailable Useful
        "the daemon is shutting down"
        "try again when it is back";
    StoreUnavailable "store_unavailable" Unavailable Useful
        "the state store is unavailable"
        "try again; if it persists, see the daemon's log; the disk may be full";
    AuthUnavailable "auth_unavailable" Unavailable Useful
        "credentials cannot be checked now"
        "try again later; the detail says what does not answer";
    GuestUnreachable "guest_unreachable" Unavailable Useful
        "the sandbox does not answer"
        "check its state (sandkeep show); it may just have ended";
    PortSilent "port_silent" Timeout Useless
        "the server on this port did not answer in time"
        "check the server's output";
    FileTimedOut "file_timed_out" Timeout Useless
        "the file operation took too long and was cancelled"
        "do it in smaller parts, or with a command in the sandbox";
    TookTooLong "took_too_long" Timeout Useless
        "the work took longer than any may"
        "find out what makes it slow, or split it";
    GuestTimedOut "guest_timed_out" Timeout Useless
        "the sandbox did not answer in time"
        "a command that had started was cancelled: check its effects before you run it again; the sandbox may be out of memory or processes";
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
