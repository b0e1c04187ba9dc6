# Generated from ../_async by scripts/make_sync.py. Do not edit.
"""A sandbox."""

from __future__ import annotations

import os
import posixpath
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, closing, suppress
from dataclasses import dataclass, field, replace
from tempfile import TemporaryFile
from typing import IO, TYPE_CHECKING, Any

import httpx

from .. import _beneath as beneath
from .._apply import bundle
from .._apply.plan import State, States
from .._apply.select import Rules
from .._data import (
    Applied,
    Changes,
    ExecInfo,
    ExecResult,
    LogEntry,
    PortInfo,
    PortUrl,
    ProcessInfo,
    Racer,
    RaceResult,
    SandboxInfo,
    ShellInfo,
    Snapshot,
    Stats,
)
from .._decode import timestamp
from .._diff import Diff
from .._errors import ApplyConflict, ApplyFailed, ConnectionLost, NotFound, refusal
from .._local import local_daemon
from .._output import OnLine
from .._requests import (
    Command,
    command_fields,
    milliseconds,
    network_field,
    shown,
    stdin_fields,
    whole_seconds,
    without_none,
)
from .._settings import segment
from ._platform import blocking
from .execs import CAPTURE_BYTES, Exec, run_command
from .files import Files
from .http import Http
from .processes import Process
from .shells import Shell
from .terminal import Terminal, open_terminal
from .tools import Tools

if TYPE_CHECKING:
    from .client import Client

_BASE = "base"
_DIFF_CHANGES_MAX = 200_000


@dataclass(frozen=True)
class Origin:
    """The local directory that a workspace was made from."""

    local: str
    exclude: Sequence[str]
    """Patterns of the files that were not uploaded, and that are not applied."""
    sandbox: str = ""
    """The id of the sandbox that it was uploaded to. Forks of that sandbox have the same origin."""
    applied: States = field(default_factory=dict[bytes, State])
    """The state of each file that was applied to the directory."""


class Sandbox:
    """A sandbox. As a context manager it is destroyed at the end, with the forks that were made of it.

    Commands and relative paths begin in `workdir`: the workspace if the sandbox was created with a `source`, otherwise the
    working directory of its template.
    """

    def __init__(self, http: Http, info: SandboxInfo, *, origin: Origin | None = None, keep: bool = False) -> None:
        self._http = http
        self._path = f"/api/v1/sandboxes/{segment(info.id)}"
        self._origin = origin
        self._keep = keep
        self._forks: list[Sandbox] = []
        self._client: Client | None = None
        self.id: str = info.id
        self.name: str = info.name
        """The name that was chosen, or one that is derived from the id."""
        self.workdir: str = info.workdir
        self.workspace: str | None = None if info.source is None else info.source.path
        """The directory of the sandbox that its source was copied to."""
        self.files: Files = Files(http, self._path)
        self.tools: Tools = Tools(http, self._path)

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.id}>"

    @classmethod
    def create(
        cls,
        *,
        name: str | None = None,
        template: str | None = None,
        source: str | os.PathLike[str] | None = None,
        source_exclude: Sequence[str] = (),
        source_path: str | None = None,
        env: Mapping[str, str] | None = None,
        labels: Mapping[str, str] | None = None,
        memory_mb: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        disk_mb: int | None = None,
        disk_total_mb: int | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: str | None = None,
        runtime: str | None = None,
        profile: str | None = None,
        project: str | None = None,
        privilege: str | None = None,
        slot: str | None = None,
        max_snapshots: int | None = None,
        snapshot_tool_calls: bool | None = None,
        network: str | Sequence[str] | Mapping[str, Any] | None = None,
        secrets: Mapping[str, Mapping[str, Any]] | None = None,
        keep: bool = False,
        local: bool = False,
        data_dir: str | os.PathLike[str] | None = None,
        client: Client | None = None,
    ) -> Sandbox:
        """Creates a sandbox.

        - `name`: usable wherever the id is. Only one sandbox of its owner can have it.
        - `source`: a local directory, which is uploaded, or the URL of a git repository (`https://…#REF`), which is cloned in
          the sandbox. `source_exclude` are patterns of files to leave out, as in a `.gitignore` file. The snapshot `base` has
          the files as they arrived.
        - `timeout`, `idle_timeout`: seconds until `on_timeout`: `destroy` (default), `stop` or `pause`.
        - `network`: what it may reach: `"none"` (default), `"open"`, entries such as `["python", "api.example.com"]`, or a
          policy as in the API.
        - `secrets`: `{"TOKEN": {"hosts": ["api.example.com"], "value": "…"}}`. Inside is a placeholder; these hosts get the
          value.
        - `keep`: do not destroy it at the end of a `with` block.
        - `local`: if neither SANDKEEP_URL is set nor a daemon answers at the default URL, start one that ends with this
          program. It needs `sandkeep` on PATH (or SANDKEEP_BIN). Its files are temporary unless `data_dir` is given.
        - `client`: the daemon to use; otherwise the one of the environment.
        """
        from .client import Client

        own = client is None
        if client is None:
            client = Client(blocking(local_daemon, data_dir) if local else None)
        try:
            sandbox = client.create(
                name=name,
                template=template,
                source=source,
                source_exclude=source_exclude,
                source_path=source_path,
                env=env,
                labels=labels,
                memory_mb=memory_mb,
                cpus=cpus,
                pids=pids,
                disk_mb=disk_mb,
                disk_total_mb=disk_total_mb,
                timeout=timeout,
                idle_timeout=idle_timeout,
                on_timeout=on_timeout,
                runtime=runtime,
                profile=profile,
                project=project,
                privilege=privilege,
                slot=slot,
                max_snapshots=max_snapshots,
                snapshot_tool_calls=snapshot_tool_calls,
                network=network,
                secrets=secrets,
                keep=keep,
            )
        except BaseException:
            if own:
                client.close()
            raise
        if own:
            sandbox._client = client
        return sandbox

    def __enter__(self) -> Sandbox:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if not self._keep:
                self._destroy_all()
        finally:
            self.close()

    def close(self) -> None:
        """Closes the connections that this sandbox opened for itself. The sandbox stays."""
        if self._client is not None:
            self._client.close()

    def _destroy_all(self) -> None:
        """Destroys the forks that were not kept, and this sandbox. One that is gone is as it should be."""
        try:
            for fork in self._forks:
                if not fork._keep:
                    fork._destroy_all()
        finally:
            with suppress(NotFound):
                self.destroy()

    # The sandbox itself.

    def info(self) -> SandboxInfo:
        return self._http.read(SandboxInfo, self._path)

    def stats(self) -> Stats:
        return self._http.read(Stats, f"{self._path}/stats")

    def log(self, *, limit: int = 100) -> Sequence[LogEntry]:
        """The history of the sandbox, oldest first."""
        items = (self._http.get(f"{self._path}/log", limit=limit))["items"]
        return [LogEntry(timestamp(item["at"]), item["event"], item) for item in items]

    def update(
        self,
        *,
        labels: Mapping[str, str | None] | None = None,
        timeout: float | None = None,
        idle_timeout: float | None = None,
        on_timeout: str | None = None,
    ) -> SandboxInfo:
        """Changes labels and timeouts. A label that is None is removed."""
        body = without_none(
            labels=None if labels is None else dict(labels),
            timeout_secs=whole_seconds(timeout),
            idle_timeout_secs=whole_seconds(idle_timeout),
            on_timeout=on_timeout,
        )
        return self._http.decode(SandboxInfo, self._http.call("PATCH", self._path, body=body))

    def rename(self, name: str | None) -> SandboxInfo:
        """Gives the sandbox a new name; None gives it the one that is derived from its id."""
        info = self._http.decode(SandboxInfo, self._http.call("PATCH", self._path, body={"name": name}))
        self.name = info.name
        return info

    def keepalive(self, timeout: float | None = None) -> None:
        """Restarts the timeouts."""
        self._http.post(f"{self._path}/keepalive", without_none(timeout_secs=whole_seconds(timeout)))

    def pause(self, *, drain: float | None = None, force: bool = False) -> SandboxInfo:
        """Freezes all processes. `drain` is the time in seconds that running commands have to end first."""
        body = without_none(drain_secs=whole_seconds(drain), force=force)
        return self._http.decode(SandboxInfo, self._http.post(f"{self._path}/pause", body))

    def resume(self) -> SandboxInfo:
        return self._http.decode(SandboxInfo, self._http.post(f"{self._path}/resume"))

    def stop(self) -> SandboxInfo:
        """Ends all processes. The files are kept."""
        return self._http.decode(SandboxInfo, self._http.post(f"{self._path}/stop"))

    def start(self) -> SandboxInfo:
        return self._http.decode(SandboxInfo, self._http.post(f"{self._path}/start"))

    def destroy(self) -> None:
        """Destroys the sandbox and everything in it."""
        self._http.delete(self._path)

    # Commands.

    def run(
        self,
        command: Command,
        *,
        on_stdout: OnLine | None = None,
        on_stderr: OnLine | None = None,
        stdin: str | bytes | None = None,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        check: bool = False,
        backpressure: bool = False,
        memory_mb: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
        capture_bytes: int = CAPTURE_BYTES,
    ) -> ExecResult:
        """Runs a command and waits for its end.

        A string is run by `sh -c`; a sequence is a program and its arguments. `on_stdout` and `on_stderr` are called with
        each line as it arrives. If the connection is lost, the client reconnects and continues with the next byte. After
        `timeout` seconds the command is killed with all it started, and `status` is `timed_out`. With `check`, a command
        that does not exit with 0 raises CommandFailed. The result keeps the first and the last part of each stream,
        `capture_bytes` in all. `backpressure` slows down a command that prints faster than this client reads.
        """
        body = self._exec_body(command, stdin, timeout, cwd, env, user, memory_mb, cpus, pids)
        if backpressure:
            body["backpressure"] = True
        return run_command(
            self._http,
            self._path,
            f"{self._path}/execs",
            body,
            command=shown(command),
            on_stdout=on_stdout,
            on_stderr=on_stderr,
            check=check,
            capture_bytes=capture_bytes,
        )

    def spawn(
        self,
        command: Command,
        *,
        stdin: str | bytes | None = None,
        stdin_open: bool = False,
        timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
        memory_mb: int | None = None,
        cpus: float | None = None,
        pids: int | None = None,
    ) -> Exec:
        """Starts a command in the background. With `stdin_open`, its stdin is open for `Exec.write`."""
        body = self._exec_body(command, stdin, timeout, cwd, env, user, memory_mb, cpus, pids)
        body["stdin_open"] = stdin_open
        started = self._http.call("POST", f"{self._path}/execs", query={"wait": False}, body=body)
        return Exec(self._http, self._path, started["exec_id"], shown(command))

    def exec(self, exec_id: str) -> Exec:
        """A command that was started earlier, by its id."""
        return Exec(self._http, self._path, exec_id)

    def execs(self) -> Sequence[ExecInfo]:
        """The running and recent commands, oldest first."""
        return self._http.items(ExecInfo, f"{self._path}/execs", limit=1000)

    def _exec_body(
        self,
        command: Command,
        stdin: str | bytes | None,
        timeout: float | None,
        cwd: str | None,
        env: Mapping[str, str] | None,
        user: str | None,
        memory_mb: int | None,
        cpus: float | None,
        pids: int | None,
    ) -> dict[str, Any]:
        limits = without_none(memory_mb=memory_mb, cpus=cpus, pids=pids)
        return without_none(
            **command_fields(command),
            **stdin_fields(stdin),
            timeout_ms=milliseconds(timeout),
            cwd=cwd,
            env=None if env is None else dict(env),
            user=user,
            resources=limits or None,
        )

    def shell(
        self,
        *,
        shell: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Shell:
        """Opens a shell (`bash` or `sh`) that keeps directory, variables and functions between commands."""
        body = without_none(
            shell=shell, cwd=cwd, env=None if env is None else dict(env), user=user
        )
        opened = self._http.post(f"{self._path}/shells", body)
        return Shell(self._http, self._path, opened["id"])

    def shells(self) -> Sequence[ShellInfo]:
        return self._http.items(ShellInfo, f"{self._path}/shells")

    def terminal(
        self,
        command: str | None = None,
        *,
        rows: int = 24,
        cols: int = 80,
        cwd: str | None = None,
        user: str | None = None,
        term: str | None = None,
        on_disconnect: str = "kill",
    ) -> AbstractContextManager[Terminal]:
        """A command, or an interactive shell, in a terminal, as a context manager."""
        query = without_none(
            command=command,
            rows=rows,
            cols=cols,
            cwd=cwd,
            user=user,
            term=term,
            on_disconnect=on_disconnect,
        )
        return open_terminal(self._http, f"{self._path}/terminal", query)

    # Processes and ports.

    def start_process(
        self,
        command: Command,
        *,
        port: int | None = None,
        ready_path: str | None = None,
        ready_timeout: float | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        user: str | None = None,
    ) -> Process:
        """Starts a server or another long-running process.

        With a `port` it has a `url`, and this method returns when the port accepts connections, or answers a GET of
        `ready_path` with a status below 400. See `Process.started.status`.
        """
        ready: dict[str, Any] | None = None
        if port is not None:
            ready = without_none(http_path=ready_path, tcp=ready_path is None or None)
            ready.update(without_none(timeout_secs=whole_seconds(ready_timeout)))
        body = without_none(
            **command_fields(command),
            port=port,
            ready=ready,
            cwd=cwd,
            env=None if env is None else dict(env),
            user=user,
        )
        started = self._http.post(f"{self._path}/processes", body)
        return Process(self._http, self._path, self._http.decode(ProcessInfo, started))

    def processes(self) -> Sequence[Process]:
        """All processes, oldest first, including ended ones."""
        found = self._http.items(ProcessInfo, f"{self._path}/processes")
        return [Process(self._http, self._path, info) for info in found]

    def ports(self) -> Sequence[PortInfo]:
        """The open ports."""
        return self._http.items(PortInfo, f"{self._path}/ports")

    def port_url(self, port: int, *, expires: float | None = None) -> PortUrl:
        """A signed URL that gives anyone access to a port, for an hour or `expires` seconds."""
        body = without_none(expires_secs=whole_seconds(expires))
        return self._http.decode(PortUrl, self._http.post(f"{self._path}/ports/{port}/url", body))

    def listen(self, port: int) -> str:
        """Opens a `host:port` on the daemon's loopback that forwards to a port of the sandbox."""
        return str((self._http.post(f"{self._path}/ports/{port}/listen"))["address"])

    # Snapshots.

    def snapshot(self, name: str | None = None, *, note: str | None = None) -> Snapshot:
        """Takes a snapshot of all files. It stays until it is deleted."""
        body = without_none(name=name, note=note)
        return self._http.decode(Snapshot, self._http.post(f"{self._path}/snapshots", body))

    def turn(self, note: str | None = None) -> Snapshot:
        """Takes a numbered snapshot for one step of an agent."""
        return self._http.decode(Snapshot, self._http.post(f"{self._path}/turns", without_none(note=note)))

    def snapshots(self) -> Sequence[Snapshot]:
        return self._http.items(Snapshot, f"{self._path}/snapshots")

    def delete_snapshot(self, name: str) -> None:
        self._http.delete(f"{self._path}/snapshots/{segment(name)}")

    def network(self) -> dict[str, Any]:
        """Its policy, what each entry means, and what was used."""
        return self._http.get(f"{self._path}/network")

    def change_network(
        self,
        policy: str | Sequence[str] | Mapping[str, Any] | None = None,
        *,
        allow: Sequence[str] = (),
        deny: Sequence[str] = (),
    ) -> dict[str, Any]:
        """Replaces its policy, or adds entries to it. New connections follow it at once, and open ones that it does not
        allow end."""
        patch = without_none(policy=network_field(policy), add_allow=list(allow) or None, add_deny=list(deny) or None)
        return self._http.call("PATCH", f"{self._path}/network", body=patch)

    def rollback(self, snapshot: str, *, force: bool = False) -> SandboxInfo:
        """Restores all files from a snapshot. All processes end; with `force` also running commands."""
        body = {"snapshot": snapshot, "force": force}
        return self._http.decode(SandboxInfo, self._http.post(f"{self._path}/rollback", body))

    def revert(self, paths: str | Sequence[str], *, snapshot: str) -> Sequence[str]:
        """Restores files and directories from a snapshot; answers those that changed."""
        body = {"paths": [paths] if isinstance(paths, str) else list(paths), "snapshot": snapshot}
        return (self._http.post(f"{self._path}/revert", body))["reverted"]

    def fork(
        self,
        count: int = 1,
        *,
        name: str | None = None,
        snapshot: str | None = None,
        labels: Mapping[str, str | None] | None = None,
        keep: bool = False,
    ) -> Sequence[Sandbox]:
        """Creates sandboxes with the files of this one, now or at a snapshot. Processes are not copied.

        The snapshot `base` of a fork has the files that it began with. A single fork can be given a `name`. When a `with`
        block of this sandbox ends, its forks are destroyed too, unless `keep` is given.
        """
        body = without_none(count=count, name=name, snapshot=snapshot, labels=None if labels is None else dict(labels))
        answer = self._http.post_once(f"{self._path}/fork", body)
        infos = [self._http.decode(SandboxInfo, info) for info in answer["sandboxes"]]
        forks = [Sandbox(self._http, info, origin=self._origin, keep=keep) for info in infos]
        self._forks += forks
        return forks

    def race(
        self,
        count: int | None = None,
        command: Command | None = None,
        *,
        judge: str,
        commands: Sequence[str] | None = None,
        patches: Sequence[str] | None = None,
        on_update: Callable[[Racer], object] | None = None,
        snapshot: str | None = None,
        cwd: str | None = None,
        env: Mapping[str, str] | None = None,
        timeout: float | None = None,
        judge_timeout: float | None = None,
    ) -> RaceResult:
        """Forks the sandbox, tries something in each fork, and keeps the files of the best.

        Each racer runs `command`, or the one of `commands` with its number, after its unified diff of `patches` was applied.
        Then `judge` runs in it and prints a number on its last line: the highest wins. A patch, command or judge that fails
        puts its racer out. `SANDKEEP_RACER` is the racer's number, from 1. The winner's files become those of this sandbox, as
        a turn; the turn before it holds what the sandbox was. The forks are destroyed at the end, or if the connection is
        lost before. `on_update` is called when a racer has come further. Without a winner, `RaceResult.winner` is None.
        """
        body = without_none(
            **({} if command is None else command_fields(command)),
            count=count,
            commands=None if commands is None else list(commands),
            patches=None if patches is None else list(patches),
            judge=judge,
            snapshot=snapshot,
            cwd=cwd,
            env=None if env is None else dict(env),
            timeout_ms=milliseconds(timeout),
            judge_timeout_ms=milliseconds(judge_timeout),
        )
        with closing(self._http.events("POST", f"{self._path}/race", body=body)) as events:
            for event in events:
                if event["type"] == "racer" and on_update is not None:
                    on_update(self._http.decode(Racer, event["racer"]))
                elif event["type"] == "done":
                    return self._http.decode(RaceResult, event["result"])
                elif event["type"] == "failed":
                    problem = event["problem"]
                    raise refusal(problem, problem["status"], None) or ConnectionLost(self._http.settings.url, "it failed")
        raise ConnectionLost(self._http.settings.url, "the race was given up, and the sandbox is as it was")

    def diff(
        self, from_: str | None = None, to: str | None = None, *, path: str | None = None, text: bool = True
    ) -> Diff:
        """The files that differ between two points in time: names of snapshots, `base` or `now`.

        By default from `base` to `now`. `base` is what the sandbox began with: the workspace as it arrived, the files at the
        moment of the fork, or the template. A fork can be compared with snapshots of the sandbox it was made from, by name.
        """
        query = without_none(to=to, path=path, text=text, limit=_DIFF_CHANGES_MAX)
        query["from"] = from_ or _BASE
        return Diff.of(self._http.read(Changes, f"{self._path}/diff", **query))

    def apply(
        self,
        local: str | os.PathLike[str],
        *,
        path: str | None = None,
        from_: str | None = None,
        exclude: Sequence[str] = (),
        include: Sequence[str] = (),
        ignore: bool = True,
        ours: Sequence[str] = (),
        theirs: Sequence[str] = (),
        force: bool = False,
        all_or_nothing: bool = False,
        dry_run: bool = False,
        allow_tool_config: bool = False,
    ) -> Applied:
        """Applies the changes of the sandbox to a local directory.

        `path` is the directory in the sandbox, by default `workdir`. Each file is compared in three states: before, in the
        sandbox now, and in the local directory. If it changed on both sides, it is a conflict: it stays as it is in the
        directory, everything else is applied, and then ApplyConflict is raised. With `all_or_nothing`, a conflict keeps
        everything else from being applied, too. A `dry_run` changes nothing and returns the conflicts with the rest.

        Patterns are those of a `.gitignore` file. `ours` names files that stay as they are in a conflict, `theirs` those that
        are replaced by the sandbox's; `force` replaces all others. `exclude` leaves files out, `include` selects files.
        Changes that the `.gitignore` files of the directory ignore are not applied, unless `ignore` is False. A rename is
        applied whole or not at all.

        Files that make tools on this machine run commands raise ToolConfigRefused before anything is changed, unless
        `allow_tool_config` is given.

        "Before" is the snapshot `from_`, by default `base`. A fork that was made with `fork` from the sandbox that the source
        was uploaded to begins at that sandbox's `base` instead, so its changes include those from before the fork. A change
        that was applied and is undone in the sandbox afterwards is not undone in the directory.
        """
        top = posixpath.join(self.workdir, path or "")
        origin = self._origin if from_ is None and path is None else None
        is_home = origin is not None and os.path.realpath(local) == origin.local
        options = bundle.Options(
            top=beneath.clean(os.fsencode(top)),
            rules=Rules(
                exclude=[*exclude, *(origin.exclude if origin else ())],
                include=include,
                ours=ours,
                theirs=theirs,
                force=force,
                ignore=ignore,
            ),
            all_or_nothing=all_or_nothing,
            dry_run=dry_run,
            allow_tool_config=allow_tool_config,
            applied=origin.applied if origin is not None and is_home else {},
        )
        begin = from_ or self._begin()
        query = {"path": top, "from": begin, "limit": _DIFF_CHANGES_MAX}
        changes = self._http.read(Changes, f"{self._path}/diff", **query)
        begun = blocking(bundle.Begun, os.fspath(local), changes, options)
        try:
            body = {"path": top, "from": begin, "scope": "listed", "files": begun.files}
            with TemporaryFile(prefix="sandkeep-") as file:
                self._plan_apply(body, file)
                outcome = blocking(begun.carry_out, file)
        finally:
            blocking(begun.close)
        if origin is not None and is_home:
            self._origin = replace(origin, applied={**origin.applied, **outcome.settled})
        if outcome.applied.conflicts and not dry_run:
            raise ApplyConflict(outcome.applied)
        return outcome.applied

    def _plan_apply(self, body: Mapping[str, Any], file: IO[bytes]) -> None:
        """Writes the daemon's plan, with the new files, to a local file."""
        path = f"{self._path}/apply/plan"
        try:
            with self._http.stream("POST", path, query={"format": "tar"}, body=body) as response:
                for data in response.iter_bytes():
                    blocking(file.write, data)
        except httpx.TransportError as error:
            raise ConnectionLost(self._http.settings.url, str(error) or type(error).__name__) from error
        blocking(file.seek, 0)

    def _begin(self) -> str:
        """The snapshot that has the files as the local directory had them."""
        origin = self._origin
        if origin is None or origin.sandbox == self.id:
            return _BASE
        found: Sequence[Snapshot] = ()
        with suppress(NotFound):
            found = self._http.items(Snapshot, f"/api/v1/sandboxes/{segment(origin.sandbox)}/snapshots")
        for snapshot in found:
            if snapshot.name == _BASE:
                return snapshot.id
        raise ApplyFailed(
            f"the snapshot {_BASE} of {origin.sandbox}, which the files were uploaded to, does not exist any more",
            f'apply only the changes since the fork with from_="{_BASE}"',
        )
