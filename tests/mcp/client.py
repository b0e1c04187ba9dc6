"""The official client against Sandkeep's MCP server, as a process of its own.

    client.py stdio PROGRAM [ARGUMENT…]
    client.py http URL [KEY]

Each check is one line of output; a check that does not hold ends the program.
"""

import asyncio
import json
import os
import sys

import httpx2
from mcp import Client
from mcp.client.stdio import StdioServerParameters
from mcp.client.streamable_http import streamable_http_client

EXPECTED = {
    "sandbox_create", "sandbox_list", "sandbox_get", "sandbox_destroy",
    "read_file", "write_file", "edit_file", "ls", "grep", "glob", "bash",
    "git_status", "git_diff", "git_log", "git_show", "git_add", "git_commit",
    "git_clone", "git_fetch", "git_pull", "git_push",
    "file_stat", "file_list", "file_mkdir", "file_move", "file_delete",
    "process_start", "process_list", "process_logs", "process_stop", "port_list", "port_url",
    "snapshot_create", "snapshot_list", "snapshot_delete", "turn_complete", "rollback", "fork", "race", "diff", "revert",
}


def said(result):
    return "\n".join(block.text for block in result.content)


def good(result):
    assert not result.is_error, said(result)
    return result


def refused(result):
    assert result.is_error, said(result)
    return said(result)


async def tools_are_described(client):
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert EXPECTED <= set(tools), EXPECTED - set(tools)
    for tool in tools.values():
        assert tool.description and tool.input_schema["type"] == "object", tool.name
        assert tool.annotations is not None, tool.name
    assert tools["read_file"].annotations.read_only_hint is True
    assert tools["sandbox_destroy"].annotations.destructive_hint is True


async def files_and_commands_share_one_sandbox(client):
    good(await client.call_tool("write_file", {"path": "hello.txt", "content": "one\ntwo\n"}))
    assert "two" in said(good(await client.call_tool("bash", {"command": "cat hello.txt"})))
    good(await client.call_tool("edit_file", {"path": "hello.txt", "old_string": "two", "new_string": "drei"}))
    assert "drei" in said(good(await client.call_tool("read_file", {"path": "hello.txt"})))
    assert "hello.txt" in said(good(await client.call_tool("grep", {"pattern": "drei"})))
    failed = await client.call_tool("bash", {"command": "exit 3"})
    assert failed.is_error and failed.structured_content["exit_code"] == 3, failed


async def refusals_say_what_to_do(client):
    missing = refused(await client.call_tool("read_file", {"path": "no-such-file"}))
    assert "no-such-file" in missing, missing
    wrong = refused(await client.call_tool("rollback", {"snap": "x"}))
    assert "snapshot" in wrong, wrong
    nowhere = refused(await client.call_tool("bash", {"command": "true", "sandbox": "sb" + "a" * 26}))
    assert "What to do" in nowhere, nowhere


async def sandboxes_come_and_go(client):
    made = good(await client.call_tool("sandbox_create", {"labels": {"by": "client.py"}}))
    sandbox = made.structured_content["id"]
    listed = good(await client.call_tool("sandbox_list", {"label": "by=client.py"}))
    assert [item["id"] for item in listed.structured_content["items"]] == [sandbox], listed
    good(await client.call_tool("bash", {"command": "echo there > f", "sandbox": sandbox}))
    good(await client.call_tool("sandbox_destroy", {"sandbox": sandbox}))
    refused(await client.call_tool("sandbox_get", {"sandbox": sandbox}))


async def turns_can_be_taken_back(client):
    good(await client.call_tool("write_file", {"path": "state", "content": "before"}))
    turn = good(await client.call_tool("turn_complete", {})).structured_content
    good(await client.call_tool("write_file", {"path": "state", "content": "after"}))
    changed = good(await client.call_tool("diff", {"from": turn["name"]}))
    assert "state" in json.dumps(changed.structured_content), changed
    good(await client.call_tool("rollback", {"snapshot": turn["name"]}))
    assert "before" in said(good(await client.call_tool("read_file", {"path": "state"})))
    forks = good(await client.call_tool("fork", {"count": 2})).structured_content["sandboxes"]
    for fork in forks:
        good(await client.call_tool("bash", {"command": "grep before state", "sandbox": fork["id"]}))
        good(await client.call_tool("sandbox_destroy", {"sandbox": fork["id"]}))


async def servers_have_urls(client):
    started = good(await client.call_tool("process_start", {
        "command": "python3 -m http.server 8123", "port": 8123, "ready": {"tcp": True, "timeout_secs": 30},
    })).structured_content
    url = good(await client.call_tool("port_url", {"port": 8123})).structured_content["url"]
    assert "8123" in url, url
    good(await client.call_tool("process_stop", {"process": started["id"]}))


async def progress_is_told(client):
    told = []

    async def on_progress(progress, total, message):
        told.append(message)

    command = "for i in 1 2 3; do echo line $i; done"
    result = await client.call_tool("bash", {"command": command}, progress_callback=on_progress)
    assert "line 3" in said(good(result))
    assert any("line" in (message or "") for message in told), told


async def cancellation_kills(client):
    """A call that is given up ends its command: the lock that it holds can be had again."""
    good(await client.call_tool("bash", {"command": "rm -f lock begun; mkfifo begun"}))
    holder = asyncio.create_task(
        client.call_tool("bash", {"command": "exec 9>lock; flock 9; echo > begun; sleep 1001"}))
    good(await client.call_tool("bash", {"command": "cat begun"}))
    holder.cancel()
    try:
        await holder
    except asyncio.CancelledError:
        pass
    good(await client.call_tool("bash", {"command": "flock lock true", "timeout_ms": 60000}))


async def files_are_resources(client):
    good(await client.call_tool("write_file", {"path": "seen.txt", "content": "a resource"}))
    resources = (await client.list_resources()).resources
    uris = [str(resource.uri) for resource in resources if str(resource.uri).endswith("/seen.txt")]
    assert uris, resources
    read = await client.read_resource(uris[0])
    assert read.contents[0].text == "a resource", read


CHECKS = [
    tools_are_described,
    files_and_commands_share_one_sandbox,
    refusals_say_what_to_do,
    sandboxes_come_and_go,
    turns_can_be_taken_back,
    servers_have_urls,
    progress_is_told,
    cancellation_kills,
    files_are_resources,
]


def server(transport, target, rest):
    if transport == "stdio":
        return StdioServerParameters(command=target, args=rest, env=dict(os.environ))
    headers = {"Authorization": f"Bearer {rest[0]}"} if rest else {}
    return streamable_http_client(target, http_client=httpx2.AsyncClient(headers=headers, timeout=120))


async def main(transport, target, *rest):
    async with Client(server(transport, target, list(rest))) as client:
        for check in CHECKS:
            await check(client)
            print(check.__name__, flush=True)


asyncio.run(main(*sys.argv[1:]))
