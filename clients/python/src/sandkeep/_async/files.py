"""The files of a sandbox, as its user sees them."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from tempfile import TemporaryFile
from typing import IO, Any

import httpx

from .._archive import ArchiveKind, pack, unpack
from .._data import FileEvent, FileInfo
from .._errors import ConnectionLost, NotFound
from .._requests import mode_text, path_field, without_none
from .._retry import Repeat
from .._settings import path_query
from ._platform import blocking, file_content
from .http import AsyncHttp

PathText = str | bytes


class AsyncFiles:
    """Files by path. A relative path begins in the working directory of the sandbox, which is its workspace if it has one."""

    def __init__(self, http: AsyncHttp, base: str) -> None:
        self._http = http
        self._path = f"{base}/files"

    async def read(self, path: PathText) -> bytes:
        """The content of a file."""
        return (await self._http.send("GET", self._path, query=self._query(path))).content

    async def read_text(self, path: PathText) -> str:
        return (await self.read(path)).decode()

    async def write(
        self, path: PathText, data: str | bytes, *, mode: int | None = None, parents: bool = True
    ) -> FileInfo:
        """Writes a file. The new content replaces the old one when all of it has arrived."""
        raw = data.encode() if isinstance(data, str) else data
        query = self._query(path, mode=mode_text(mode), parents=parents)
        answer = await self._http.call("PUT", self._path, query=query, content=lambda: raw, repeat=Repeat.YES)
        return self._http.decode(FileInfo, answer)

    async def list(self, path: PathText = ".", *, depth: int = 1) -> Sequence[FileInfo]:
        """The entries of a directory, sorted by name; with a depth, also those of its subdirectories."""
        found: list[FileInfo] = []
        cursor: str | None = None
        while True:
            query = self._query(path, depth=depth, limit=10_000, cursor=cursor)
            page = await self._http.call("GET", f"{self._path}/list", query=query)
            found += [self._http.decode(FileInfo, item) for item in page["items"]]
            cursor = page.get("next_cursor")
            if cursor is None:
                return found

    async def stat(self, path: PathText) -> FileInfo:
        """Metadata of a path. Symbolic links are not followed."""
        answer = await self._http.call("GET", f"{self._path}/stat", query=self._query(path))
        return self._http.decode(FileInfo, answer)

    async def exists(self, path: PathText) -> bool:
        try:
            await self.stat(path)
        except NotFound as error:
            if error.code == "file_not_found":
                return False
            raise
        return True

    async def mkdir(self, path: PathText, *, mode: int | None = None, parents: bool = False) -> FileInfo:
        body = without_none(**path_field(path), mode=mode_text(mode), parents=parents)
        return self._http.decode(FileInfo, await self._http.post(f"{self._path}/mkdir", body))

    async def rm(self, path: PathText, *, recursive: bool = False) -> None:
        query = self._query(path, recursive=recursive)
        await self._http.send("DELETE", self._path, query=query, repeat=Repeat.YES)

    async def move(self, source: PathText, target: PathText, *, overwrite: bool = False) -> FileInfo:
        ends = {**path_field(source, "from"), **path_field(target, "to")}
        return self._http.decode(FileInfo, await self._http.post(f"{self._path}/move", {**ends, "overwrite": overwrite}))

    async def chmod(self, path: PathText, mode: int, *, recursive: bool = False) -> FileInfo:
        body = {**path_field(path), "mode": mode_text(mode), "recursive": recursive}
        return self._http.decode(FileInfo, await self._http.post(f"{self._path}/chmod", body))

    async def upload(
        self, local: str | os.PathLike[str], path: PathText, *, exclude: Sequence[str] = ()
    ) -> None:
        """Copies a local file or the contents of a local directory to a path of the sandbox."""
        if not os.path.isdir(local):
            with open(local, "rb") as file:
                mode = os.fstat(file.fileno()).st_mode & 0o777
                query = self._query(path, mode=mode_text(mode), parents=True)
                content = lambda: file_content(file)  # noqa: E731
                await self._http.send("PUT", self._path, query=query, content=content, repeat=Repeat.YES)
            return
        with await blocking(pack, local, exclude) as archive:
            await self._http.send(
                "PUT",
                f"{self._path}/archive",
                query=self._query(path, parents=True),
                content=lambda: file_content(archive),
                repeat=Repeat.YES,
            )

    async def download(
        self,
        path: PathText,
        local: str | os.PathLike[str],
        *,
        exclude: Sequence[str] = (),
        allow_tool_config: bool = False,
    ) -> None:
        """Copies a file, or the contents of a directory, to a local path.

        Nothing that arrives is trusted: files stay beneath the local path, and no link is followed. Files that make tools
        on this machine run commands are refused before anything is written, unless `allow_tool_config` is given.
        """
        async with self._fetched(path) as (kind, archive):
            await blocking(unpack, archive, kind, os.fspath(local), exclude, allow_tool_config)

    async def watch(self, path: PathText = ".", *, recursive: bool = False) -> AsyncGenerator[FileEvent, None]:
        """The changes of a file or directory as they happen. The first event has the type `watching`."""
        query = self._query(path, recursive=recursive)
        async for event in self._http.events("GET", f"{self._path}/watch", query=query):
            yield self._http.decode(FileEvent, event)

    @asynccontextmanager
    async def _fetched(self, path: PathText) -> AsyncGenerator[tuple[ArchiveKind, IO[bytes]], None]:
        """An archive of a path, in an unnamed local file."""
        with TemporaryFile(prefix="sandkeep-") as file:
            try:
                async with self._http.stream("GET", f"{self._path}/archive", query=self._query(path)) as response:
                    kind = ArchiveKind.of(response.headers.get("x-sandkeep-archive-of"))
                    async for data in response.aiter_bytes():
                        await blocking(file.write, data)
            except httpx.TransportError as error:
                raise ConnectionLost(self._http.settings.url, str(error)) from error
            file.seek(0)
            yield kind, file

    def _query(self, path: PathText, **more: Any) -> str:
        given = {name: value for name, value in more.items() if value is not None}
        rest = httpx.QueryParams({k: str(v).lower() if isinstance(v, bool) else v for k, v in given.items()})
        return path_query(path) + (f"&{rest}" if given else "")

