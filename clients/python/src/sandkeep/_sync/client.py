# Generated from ../_async by scripts/make_sync.py. Do not edit.
"""The client of one daemon."""

from __future__ import annotations

import os
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from .._archive import pack
from .._data import Event, OwnerUsage, Runtime, SandboxInfo, Template
from .._errors import SandkeepError
from .._requests import SandboxOptions, instant, is_repository, sandbox_fields, without_none
from .._retry import Repeat
from .._settings import Settings, segment
from ._platform import blocking, file_content
from .events import follow_events, read_events
from .http import Http
from .sandbox import Origin, Sandbox

if TYPE_CHECKING:
    from typing_extensions import Unpack

SANDBOXES = "/api/v1/sandboxes"


class Client:
    """The connection to a daemon. As a context manager it is closed at the end.

    What is not given comes from the environment: `SANDKEEP_URL` (else http://127.0.0.1:4500), `SANDKEEP_API_KEY` and
    `SANDKEEP_CA_FILE`, a file with certificates to trust.
    """

    def __init__(
        self,
        url: str | None = None,
        key: str | None = None,
        *,
        ca_file: str | None = None,
        retry_secs: float = 30.0,
    ) -> None:
        self._http = Http(Settings.resolve(url, key, ca_file, retry_secs))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.url}>"

    @property
    def url(self) -> str:
        return self._http.settings.url

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections. Sandboxes stay."""
        self._http.close()

    def create(
        self,
        *,
        source: str | os.PathLike[str] | None = None,
        source_exclude: Sequence[str] = (),
        source_path: str | None = None,
        slot: str | None = None,
        keep: bool = False,
        **options: Unpack[SandboxOptions],
    ) -> Sandbox:
        """Creates a sandbox. `Sandbox.create` documents the arguments."""
        body = sandbox_fields(options, slot)
        with self._source(source, source_exclude, source_path) as (origin, body["source"]):
            answer = self._http.post_once(SANDBOXES, without_none(**body))
        return self._created(answer, origin, keep)

    def ensure(
        self,
        slot: str,
        *,
        source: str | os.PathLike[str] | None = None,
        source_exclude: Sequence[str] = (),
        source_path: str | None = None,
        **options: Unpack[SandboxOptions],
    ) -> Sandbox:
        """The healthy sandbox of a slot; one is created, started or replaced if necessary. It is kept."""
        body = sandbox_fields(options, slot)
        with self._source(source, source_exclude, source_path) as (origin, body["source"]):
            answer = self._http.post(f"{SANDBOXES}/ensure", without_none(**body), repeat=Repeat.YES)
        return self._created(answer["sandbox"], origin if answer["created"] else None, keep=True)

    def _created(self, answer: Any, origin: Origin | None, keep: bool) -> Sandbox:
        info = self._http.decode(SandboxInfo, answer)
        origin = None if origin is None else replace(origin, sandbox=info.id)
        return Sandbox(self._http, info, origin=origin, keep=keep)

    def get(self, name: str) -> Sandbox:
        """A sandbox by its name or id. It is kept when a `with` block of it ends."""
        info = self._http.read(SandboxInfo, f"{SANDBOXES}/{segment(name)}")
        return Sandbox(self._http, info, keep=True)

    def sandboxes(
        self,
        *,
        labels: Mapping[str, str] | None = None,
        state: str | Sequence[str] | None = None,
        project: str | None = None,
    ) -> Sequence[SandboxInfo]:
        """All sandboxes of the caller, oldest first. The arguments select."""
        states = None if state is None else [state] if isinstance(state, str) else list(state)
        label = None if labels is None else [f"{name}={value}" for name, value in labels.items()]
        return self._http.items(SandboxInfo, SANDBOXES, label=label, state=states, project=project, limit=1000)

    def templates(self) -> Sequence[Template]:
        return self._http.items(Template, "/api/v1/templates")

    def import_template(
        self, name: str, source: str | Mapping[str, str], *, shared: bool = False
    ) -> Template:
        """Creates a template, replacing one of the same name.

        A string is an image in a registry, such as `python:3.12`. A mapping names another source of the API: `dir`, `tar`,
        `oci`, `docker_archive`, or `sandbox` with a `snapshot`.
        """
        named = {"registry": source} if isinstance(source, str) else dict(source)
        body = {"name": name, "source": named, "shared": shared}
        return self._http.decode(Template, self._http.post("/api/v1/templates", body))

    def remove_template(self, name: str) -> None:
        self._http.delete(f"/api/v1/templates/{segment(name)}")

    def runtimes(self) -> Sequence[Runtime]:
        return self._http.items(Runtime, "/api/v1/runtimes", "runtimes")

    def version(self) -> str:
        """The version of the daemon."""
        return str((self._http.get("/healthz"))["version"])

    def usage(self, from_: datetime | None = None, to: datetime | None = None) -> Sequence[OwnerUsage]:
        """What each owner that the caller may see used in a period: by default in the 30 days before its end, now.

        The period is counted in whole hours, the first and the last included.
        """
        query = without_none(to=instant(to))
        query.update(without_none(**{"from": instant(from_)}))
        return self._http.items(OwnerUsage, "/api/v1/usage", **query)

    def events(
        self,
        *,
        after: int | None = None,
        kinds: str | Sequence[str] | None = None,
        sandbox: str | None = None,
        project: str | None = None,
        follow: bool = False,
    ) -> Generator[Event, None, None]:
        """The events that the caller may see, after the number `after`, oldest first.

        `kinds` selects, such as `exec.ended` or `sandbox.*`. With `follow`, waits for more, and begins with the next event
        unless `after` is given. If the connection is lost, no event after the first one is missing or repeated.
        """
        chosen = [kinds] if isinstance(kinds, str) else kinds
        query = without_none(
            after=after, kind=None if chosen is None else list(chosen), sandbox=sandbox, project=project
        )
        return follow_events(self._http, query) if follow else read_events(self._http, query)

    def request(self, method: str, path: str, *, query: Mapping[str, Any] | None = None, body: Any = None) -> Any:
        """Any request of the API, for endpoints that this client has no method for. It is sent once."""
        return self._http.call(method, path, query=query, body=body)

    @contextmanager
    def _source(
        self, source: str | os.PathLike[str] | None, exclude: Sequence[str], path: str | None
    ) -> Generator[tuple[Origin | None, dict[str, Any] | None], None, None]:
        """The source of a sandbox: a local directory is uploaded for as long as it takes to create the sandbox."""
        if source is None:
            yield None, None
        elif is_repository(source):
            yield None, without_none(git=str(source), path=path)
        else:
            local = os.path.realpath(source)
            with blocking(pack, local, exclude) as archive:
                answer = self._http.call(
                    "POST", "/api/v1/uploads", content=lambda: file_content(archive), repeat=Repeat.YES
                )
            path = path or os.path.basename(local) or None
            try:
                yield Origin(local, list(exclude)), without_none(upload=answer["id"], path=path)
            finally:
                # The daemon deletes it within an hour if this fails.
                with suppress(SandkeepError):
                    self._http.delete(f"/api/v1/uploads/{segment(answer['id'])}")
