"""Lost connections: no byte is missing or repeated, and nothing is carried out twice."""

from __future__ import annotations

import asyncio
import random

import pytest
from conftest import Daemon, Proxy

from sandkeep import AsyncClient, Client, ConnectionLost

LINES = 30_000
COMMAND = f"i=0; while [ $i -lt {LINES} ]; do i=$((i + 1)); echo \"line $i é€\"; [ $((i % 10)) != 0 ] || echo $i >&2; done"
STDOUT = "".join(f"line {n} é€\n" for n in range(1, LINES + 1))
STDERR = "".join(f"{n}\n" for n in range(10, LINES + 1, 10))


def budgets(chance: random.Random) -> list[int]:
    """The first answer has at least the exec's id in it. Most of the others have at least one whole event."""
    many = [chance.randrange(50, 2000) if chance.random() < 0.2 else chance.randrange(50_000, 150_000) for _ in range(12)]
    return [chance.randrange(1000, 50_000), *many]


def test_output_is_complete_however_often_the_connection_is_cut(
    client: Client, proxy: Proxy, chance: random.Random
) -> None:
    sandbox = client.create()
    for _ in range(3):
        with Client(proxy.url) as far:
            lines: list[str] = []
            there = far.get(sandbox.id)
        with Client(proxy.url) as far:
            there._http = far._http
            proxy.cut_after(budgets(chance))
            before = proxy.cuts
            result = there.run(COMMAND, on_stdout=lines.append)
            assert proxy.cuts - before > 3, "the proxy cut nothing"
            proxy.cut_after([])
        assert result.stdout == STDOUT and result.stderr == STDERR and result.exit_code == 0
        assert lines == STDOUT.splitlines() and not result.truncated


def test_the_async_client_reconnects_as_well(client: Client, proxy: Proxy, chance: random.Random) -> None:
    sandbox = client.create()

    async def far() -> None:
        async with AsyncClient(proxy.url) as far:
            there = await far.get(sandbox.id)
            command = await there.spawn(COMMAND)
        async with AsyncClient(proxy.url) as far:
            there._http = far._http
            proxy.cut_after(budgets(chance))
            result = await there.exec(command.id).wait()
            assert proxy.cuts > 3 and result.stdout == STDOUT and result.stderr == STDERR

    asyncio.run(far())


def test_a_command_is_not_started_twice_when_its_answer_is_lost(client: Client, proxy: Proxy) -> None:
    sandbox = client.create()
    with Client(proxy.url) as far:
        there = far.get(sandbox.id)
    with Client(proxy.url) as far:
        there._http = far._http
        proxy.cut_after([1])
        with pytest.raises(ConnectionLost):
            there.run("echo once >> count")
    # The command may still be about to start; a later one that waits for it sees each of its lines.
    assert sandbox.run("until [ -s count ]; do sleep 0.05; done; cat count", timeout=300).stdout == "once\n"


def test_a_sandbox_is_created_once_however_often_the_answer_is_lost(client: Client, proxy: Proxy) -> None:
    with Client(proxy.url) as far:
        proxy.cut_after([1, 20, 100])
        sandbox = far.create(labels={"test": "once"})
        assert [info.id for info in client.sandboxes(labels={"test": "once"})] == [sandbox.id]
    with Client(proxy.url) as far:
        sandbox._http = far._http
        proxy.cut_after([1, 1])
        sandbox.fork(labels={"test": "fork"})
        assert len(client.sandboxes(labels={"test": "fork"})) == 1
    with Client(proxy.url) as far:
        sandbox._http = far._http
        proxy.cut_after([1, 1])
        sandbox.destroy()
    assert client.sandboxes(labels={"test": "once"}) == []


def test_a_command_outlives_the_daemon_and_its_client_continues(binary: str) -> None:
    daemon = Daemon(binary)
    try:
        with Client(daemon.url) as client, Client(daemon.url) as other:
            sandbox = client.create()
            lines: list[str] = []

            def crash(line: str) -> None:
                lines.append(line)
                if line == "before":
                    daemon.kill()
                    daemon.start()
                    other.get(sandbox.id).files.write("go", "")

            result = sandbox.run("echo before; until [ -e go ]; do sleep 0.05; done; echo after", on_stdout=crash)
            assert lines == ["before", "after"] and result.stdout == "before\nafter\n" and result.ok
    finally:
        daemon.finish()
