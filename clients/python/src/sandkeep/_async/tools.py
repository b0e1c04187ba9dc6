"""Tools that a model calls in a sandbox."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any
from uuid import uuid4

from .._data import Tool, ToolResult
from .._requests import without_none
from .._retry import Repeat
from .._settings import segment
from .http import AsyncHttp


class AsyncTools:
    """The tools of a sandbox: files, search, bash and git."""

    def __init__(self, http: AsyncHttp, base: str) -> None:
        self._http = http
        self._path = f"{base}/tools"

    async def list(self) -> Sequence[Tool]:
        return await self._http.items(Tool, self._path, "tools")

    async def anthropic(self) -> Sequence[dict[str, Any]]:
        """The tools for the parameter `tools` of Anthropic's Messages API."""
        return [
            {"name": tool.name, "description": tool.description, "input_schema": tool.input_schema}
            for tool in await self.list()
        ]

    async def openai(self) -> Sequence[dict[str, Any]]:
        """The tools for the parameter `tools` of OpenAI's Chat Completions API."""
        return [
            {
                "type": "function",
                "function": {"name": tool.name, "description": tool.description, "parameters": tool.input_schema},
            }
            for tool in await self.list()
        ]

    async def call(
        self,
        name: str,
        arguments: Mapping[str, Any] | None = None,
        *,
        tool_call_id: str | None = None,
        snapshot: bool | None = None,
        timeout: float | None = None,
    ) -> ToolResult:
        """Calls a tool.

        A tool that refuses or fails answers with `is_error`, for the model to read. With a `tool_call_id` a repeated call
        gets the same answer; without one, each call of this method is a new one.
        """
        extra = without_none(
            tool_call_id=tool_call_id or uuid4().hex,
            snapshot=snapshot,
            resources=None if timeout is None else {"timeout_ms": max(int(timeout * 1000), 1)},
        )
        body = {**(arguments or {}), **extra}
        answer = await self._http.post(f"{self._path}/{segment(name)}", body, repeat=Repeat.YES)
        return self._http.decode(ToolResult, answer)
