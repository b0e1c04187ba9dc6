"""The client of a daemon: errors, lists, tools, templates, and a daemon of one's own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import Daemon

from sandkeep import Client, Conflicting, DaemonNotStarted, InvalidRequest, LimitReached, NotFound, Sandbox, Unauthenticated


def test_an_error_says_what_and_what_to_do(client: Client) -> None:
    with pytest.raises(NotFound) as raised:
        client.get("sb-of-nobody")
    error = raised.value
    assert (error.code, error.status, error.retryable) == ("not_found", 404, False)
    assert "sb-of-nobody" in error.detail and error.title and "sandkeep ls" in error.remediation
    assert error.code in str(error) and error.remediation in str(error)
    with pytest.raises(InvalidRequest) as invalid:
        client.create(memory_mb=-1)
    assert invalid.value.status == 400


def test_sandboxes_are_listed_found_and_kept(client: Client) -> None:
    with client.create(labels={"kind": "a"}, keep=True) as first:
        assert client.get(first.id).info().state == "running"
    second = client.create(labels={"kind": "b"})
    assert [info.id for info in client.sandboxes(labels={"kind": "a"})] == [first.id]
    assert {first.id, second.id} <= {info.id for info in client.sandboxes(state=["running", "paused"])}
    with second:
        pass
    assert second.id not in {info.id for info in client.sandboxes()}
    first.destroy()


def test_a_slot_has_one_sandbox(client: Client, app: Path) -> None:
    first = client.ensure("main", source=app)
    assert client.ensure("main").id == first.id and first.info().slot == "main"
    assert [snapshot.name for snapshot in first.snapshots()] == ["base"]
    first.destroy()


def test_a_sandbox_has_a_name_by_which_it_is_found(client: Client) -> None:
    with client.create(name="web") as sandbox, client.create() as other:
        assert sandbox.name == sandbox.info().name == "web" and other.name not in ("", "web")
        assert client.get("web").id == sandbox.id and client.get(sandbox.id).name == "web"
        with pytest.raises(Conflicting) as taken:
            other.rename("web")
        assert taken.value.code == "name_taken" and other.name == other.info().name
        sandbox.rename("site")
        assert sandbox.name == "site" and client.get("site").id == sandbox.id
        with pytest.raises(NotFound):
            client.get("web")
        derived = other.name
        other.rename("mine")
        assert other.rename(None).name == other.name == derived
        (fork,) = sandbox.fork(name="copy")
        assert client.get("copy").id == fork.id and fork.name == "copy"
        with pytest.raises(InvalidRequest):
            sandbox.fork(2, name="both")


def test_an_exception_destroys_the_sandbox(client: Client) -> None:
    with pytest.raises(ZeroDivisionError), client.create(labels={"doomed": "yes"}):
        raise ZeroDivisionError
    assert client.sandboxes(labels={"doomed": "yes"}) == []


def test_tools_have_the_schemas_of_both_apis(sandbox: Sandbox) -> None:
    tools = {tool.name: tool for tool in sandbox.tools.list()}
    for given in sandbox.tools.anthropic():
        assert set(given) == {"name", "description", "input_schema"}
        assert given["input_schema"]["type"] == "object" and given["name"] in tools
    for given in sandbox.tools.openai():
        assert given["type"] == "function" and set(given["function"]) == {"name", "description", "parameters"}
        assert given["function"]["parameters"] == tools[given["function"]["name"]].input_schema


def test_tools_are_called(sandbox: Sandbox) -> None:
    assert not sandbox.tools.call("write_file", {"path": "a.txt", "content": "one\n"}).is_error
    assert "one" in sandbox.tools.call("read_file", {"path": "a.txt"}).text
    failed = sandbox.tools.call("bash", {"command": "exit 3"}, snapshot=True)
    assert failed.is_error and failed.exit_code == 3 and failed.snapshot_id is not None
    again = [sandbox.tools.call("bash", {"command": "echo x >> n; wc -l < n"}, tool_call_id="call_1") for _ in range(2)]
    assert again[0] == again[1] and sandbox.files.read_text("n") == "x\n"
    with pytest.raises(NotFound) as raised:
        sandbox.tools.call("no_such_tool")
    assert raised.value.code == "tool_not_found"


def test_templates_and_runtimes_are_listed(client: Client, sandbox: Sandbox) -> None:
    assert "host" in {template.name for template in client.templates()}
    assert [runtime.name for runtime in client.runtimes() if runtime.default] == ["native"]
    sandbox.files.write("/home/user/saved", "x")
    template = client.import_template("mine/saved:1", {"sandbox": sandbox.id})
    with client.create(template=template.name) as other:
        assert other.files.read_text("saved") == "x"
    client.remove_template(template.name)
    assert template.name not in {known.name for known in client.templates()}
    assert client.version() == client.request("GET", "/healthz")["version"]


def test_a_rate_limit_is_waited_for(binary: str) -> None:
    daemon = Daemon(binary, "--quotas-user-requests-per-second", "1")
    try:
        with Client(daemon.url, retry_secs=600) as patient, Client(daemon.url, retry_secs=0) as hasty:
            assert len([patient.runtimes() for _ in range(4)]) == 4
            with pytest.raises(LimitReached) as raised:
                for _ in range(1000):
                    hasty.runtimes()
            assert raised.value.code == "rate_limited" and raised.value.retry_after_secs is not None
    finally:
        daemon.finish()


def test_a_key_from_the_environment_is_used(binary: str, monkeypatch: pytest.MonkeyPatch) -> None:
    daemon = Daemon(binary)
    command = [binary, "keys", "create", "--data-dir", daemon.data_dir, "--organization", "o", "--user", "u"]
    made = subprocess.run([*command, "--scope", "admin", "--json"], capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    key = next(word.strip('",') for word in made.stdout.split() if word.strip('",').startswith("sk_"))
    with Client(daemon.url) as client, pytest.raises(Unauthenticated):
        client.sandboxes()
    monkeypatch.setenv("SANDKEEP_API_KEY", key)
    daemon.finish()


PROGRAM = """
import sys
from sandkeep import Sandbox
with Sandbox.create(local=True) as sandbox:
    with Sandbox.create(local=True) as second:
        assert second.run("echo hello").stdout == "hello\\n"
    print(sandbox._http.settings.url, flush=True)
    sys.stdin.readline()
    Sandbox.create(local=True, keep=True)
"""


def _local_program(binary: str, place: Path) -> subprocess.Popen[str]:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("SANDKEEP_")}
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM],
        env={**environment, "SANDKEEP_BIN": binary, "SANDKEEP_CONFIG": "/dev/null", "TMPDIR": str(place)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


def _wait_until_empty(place: Path) -> None:
    """The keeper ends when it has removed everything; its parent may be gone."""
    command = 'until [ -z "$(ls -A "$0")" ]; do sleep 0.1; done'
    subprocess.run(["timeout", "300", "sh", "-c", command, str(place)], check=True)


@pytest.mark.usefixtures("binary")
@pytest.mark.parametrize("ending", ["return", "kill"])
def test_a_local_daemon_ends_with_the_program(binary: str, tmp_path: Path, ending: str) -> None:
    program = _local_program(binary, tmp_path)
    assert program.stdin is not None and program.stdout is not None
    url = program.stdout.readline().strip()
    with Client(url) as client:
        assert len(client.sandboxes()) == 1
    if ending == "kill":
        program.send_signal(signal.SIGKILL)
        program.wait(300)
    else:
        program.stdin.write("\n")
        program.stdin.close()
        assert program.wait(300) == 0
        assert os.listdir(tmp_path) == [], "the program waits for the end of its daemon"
    program.stdout.close()
    _wait_until_empty(tmp_path)
    with Client(url) as client, pytest.raises(Exception, match="no daemon answers"):
        client.sandboxes()


def test_a_missing_binary_is_an_error_that_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("SANDKEEP_BIN", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DaemonNotStarted) as raised:
        Sandbox.create(local=True, data_dir=tmp_path)
    assert "SANDKEEP_URL" in raised.value.remediation
    broken = tmp_path / "sandkeep"
    broken.write_text("#!/bin/sh\necho no luck today\nexit 1\n")
    broken.chmod(0o755)
    with pytest.raises(DaemonNotStarted, match="no luck today"):
        Sandbox.create(local=True, data_dir=tmp_path / "data")
