"""Commands, shells, terminals, processes and ports, in real sandboxes."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import httpx
import pytest

from sandkeep import AsyncSandbox, CommandFailed, Conflicting, NotFound, Sandbox


def test_a_result_has_the_exit_code_and_both_streams(sandbox: Sandbox) -> None:
    result = sandbox.run("echo out; echo err >&2; exit 3")
    assert (result.exit_code, result.stdout, result.stderr, result.status) == (3, "out\n", "err\n", "exited")
    assert not result.ok and not result.truncated and result.duration >= 0
    assert sandbox.run(["printf", "%s|", "a b", "$HOME"]).stdout == "a b|$HOME|"
    assert sandbox.run(r"printf '\377\376'").stdout_raw == b"\xff\xfe"


def test_lines_arrive_while_the_command_runs(sandbox: Sandbox) -> None:
    lines: list[str] = []

    def answer(line: str) -> None:
        lines.append(line)
        if line == "ready":
            sandbox.files.write("go", "")

    result = sandbox.run("echo ready; until [ -e go ]; do sleep 0.05; done; printf 'last'", on_stdout=answer)
    assert lines == ["ready", "last"] and result.stdout == "ready\nlast"


def test_stdin_environment_directory_and_user_are_the_callers(sandbox: Sandbox) -> None:
    assert sandbox.run("cat", stdin="typed").stdout == "typed"
    assert sandbox.run("od -An -tx1", stdin=b"\xff\x00").stdout.split() == ["ff", "00"]
    assert sandbox.run("echo $A; pwd", env={"A": "b"}, cwd="/tmp").stdout == "b\n/tmp\n"
    assert sandbox.run("id -un", user="root").stdout == "root\n"


def test_a_timeout_ends_the_command(sandbox: Sandbox) -> None:
    result = sandbox.run("sleep 1000", timeout=0.5)
    assert (result.status, result.exit_code) == ("timed_out", None)


def test_check_raises_with_the_result(sandbox: Sandbox) -> None:
    with pytest.raises(CommandFailed) as raised:
        sandbox.run("echo reason >&2; exit 4", check=True)
    assert raised.value.result.exit_code == 4 and "reason" in str(raised.value)
    assert sandbox.run("true", check=True).ok


def test_long_output_keeps_both_ends(sandbox: Sandbox) -> None:
    result = sandbox.run("seq 100000", capture_bytes=1000)
    assert result.truncated and result.stdout.startswith("1\n2\n") and result.stdout.endswith("\n100000\n")
    assert len(result.stdout_raw) == 1000
    whole = sandbox.run("seq 300000", backpressure=True)
    assert whole.stdout == "".join(f"{n}\n" for n in range(1, 300001)) and not whole.truncated


def test_a_background_command_is_written_to_followed_and_killed(sandbox: Sandbox) -> None:
    command = sandbox.spawn("read name; echo hello $name; cat", stdin_open=True)
    command.write("you\n")
    assert next(iter(command.output())).text == "hello you\n"
    command.write("more", close=True)
    assert command.wait(check=True).stdout == "hello you\nmore"
    assert command.info().status == "exited"
    assert [piece.text for piece in command.output(stdout_offset=6, follow=False)][0].startswith("you")

    endless = sandbox.spawn("sleep 1000")
    assert endless.info().status == "running"
    endless.kill()
    assert sandbox.exec(endless.id).wait().status == "canceled"
    assert {info.exec_id for info in sandbox.execs()} >= {command.id, endless.id}
    signalled = sandbox.spawn(["sleep", "1000"])
    signalled.signal("SIGINT")
    assert signalled.wait().signal == 2


def test_a_shell_keeps_its_state(sandbox: Sandbox) -> None:
    with sandbox.shell() as shell:
        shell.run("cd /tmp; n=41", check=True)
        assert shell.run("pwd; echo $((n + 1))").stdout == "/tmp\n42\n"
        assert [info.id for info in sandbox.shells()] == [shell.id]
        late = shell.run("sleep 1000", timeout=0.5)
        assert late.status == "timed_out" and late.shell in ("kept", "replaced", "ended")
    with pytest.raises(NotFound):
        shell.info()


def test_a_terminal_is_typed_into_and_read(sandbox: Sandbox) -> None:
    with sandbox.terminal("stty size; read name; echo hello $name; exit 5", rows=11, cols=33) as terminal:
        seen = b""
        while b"11 33" not in seen:
            seen += terminal.read()
        terminal.write("you\n")
        while piece := terminal.read():
            seen += piece
        assert b"hello you" in seen and terminal.exit_code == 5 and terminal.exec_id is not None


def test_a_refused_terminal_is_an_error(sandbox: Sandbox) -> None:
    sandbox.stop()
    with pytest.raises(Conflicting) as raised, sandbox.terminal():
        pass
    assert raised.value.status == 409


def test_a_server_in_a_sandbox_is_reached(sandbox: Sandbox) -> None:
    sandbox.files.write("index.html", "served")
    server = sandbox.start_process(["python3", "-m", "http.server", "8000"], port=8000, ready_path="/")
    assert server.started.status == "running" and server.url is not None
    assert httpx.get(f"http://{server.address}/index.html", trust_env=False).text == "served"
    assert httpx.get(f"http://{sandbox.listen(8000)}/index.html", trust_env=False).text == "served"
    assert [port.port for port in sandbox.ports()] == [8000]
    assert "8000" in sandbox.port_url(8000, expires=60).url
    assert next(piece for piece in server.logs(follow=True) if b"GET" in piece.data).stream == "stderr"
    assert all(piece.stream in ("stdout", "stderr") for piece in server.logs())
    assert [process.id for process in sandbox.processes()] == [server.id]
    server.stop()
    assert server.info().status == "exited"
    failed = sandbox.start_process("echo cannot; exit 9", port=8001)
    assert (failed.started.status, failed.started.exit_code) == ("exited", 9)


def test_threads_share_a_sandbox(sandbox: Sandbox) -> None:
    with ThreadPoolExecutor(8) as threads:
        results = list(threads.map(lambda n: sandbox.run(f"echo {n}").stdout, range(24)))
    assert results == [f"{n}\n" for n in range(24)]


@pytest.mark.usefixtures("daemon")
def test_the_async_client_does_the_same_at_once() -> None:
    async def evening() -> list[str]:
        async with await AsyncSandbox.create() as sandbox:
            await sandbox.files.write("data.txt", "x")
            results = await asyncio.gather(*(sandbox.run(f"echo {n}; cat data.txt") for n in range(8)))
            seen: list[str] = []
            command = await sandbox.spawn("echo spawned")
            async for piece in command.output():
                seen.append(piece.text)
            async with sandbox.terminal("read x; echo got $x") as terminal:
                await terminal.write("it\n")
                output = b""
                while piece := await terminal.read():
                    output += piece
            assert b"got it" in output and seen == ["spawned\n"]
            fork = (await sandbox.fork())[0]
            assert await fork.files.read_text("data.txt") == "x"
        return [result.stdout for result in results]

    assert asyncio.run(evening()) == [f"{n}\nx" for n in range(8)]
