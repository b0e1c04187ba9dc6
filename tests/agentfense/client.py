"""AgentFense's own client, unchanged, calls every method of both services; and what it never calls, through its stubs.

    python3 client.py GRPC_ADDRESS REST_URL RUNTIME
"""

import asyncio
import hashlib
import json
import os
import sys
import tempfile
import urllib.error
import urllib.request
from datetime import timedelta

import grpc
from agentfense import (
    AsyncSandbox, AsyncSandboxClient, CommandExecutionError, CommandTimeoutError, InvalidConfigurationError,
    ResourceLimits, RuntimeType, Sandbox, SandboxClient, SandboxError, SandboxStatus, SessionStatus,
)
from agentfense._gen import codebase_pb2, codebase_pb2_grpc, sandbox_pb2, sandbox_pb2_grpc

ADDRESS, REST, RUNTIME = sys.argv[1], sys.argv[2], RuntimeType(sys.argv[3])
ALL = [{"pattern": "**/*", "permission": "write"}]
READ = [{"pattern": "**/*", "permission": "read"}]


def raised(kind, call, *arguments, **named):
    """The error that a call has to raise, of exactly this class."""
    try:
        call(*arguments, **named)
    except Exception as error:
        assert type(error) is kind, f"{type(error).__name__}: {error}"
        return error
    raise AssertionError(f"{call} succeeded")


def refused(code, call, request):
    try:
        answer = call(request)
        if hasattr(answer, "__next__"):
            list(answer)
    except grpc.RpcError as error:
        assert error.code() == code, f"{error.code()} {error.details()}"
        return error.details()
    raise AssertionError(f"{request} succeeded")


def codebases(client):
    made = client.create_codebase("my project", "user_0123abcd")
    assert made.id and made.name == "my-project" and made.owner_id == "user_0123abcd", made
    again = client.create_codebase("my project", "user_0123abcd")
    assert again.id != made.id and again.name == "my-project-2", again
    assert [cb.id for cb in client.list_codebases("user_0123abcd")].count(made.id) == 1
    assert client.list_codebases("nobody") == []
    client.delete_codebase(again.id)
    raised(SandboxError, client.get_codebase, again.id)
    raised(InvalidConfigurationError, client.get_codebase, "")
    raised(InvalidConfigurationError, client.create_codebase, "", "")

    content = os.urandom(300_000)
    sent = client.upload_file(made.id, "src/deep/data.bin", content)
    assert sent.size == len(content) and sent.checksum == hashlib.md5(content).hexdigest(), sent
    assert client.upload_file(made.id, "empty", b"").size == 0
    client.upload_file(made.id, "/workspace.txt", b"first")
    client.upload_file(made.id, "workspace.txt", b"second")
    assert client.download_file(made.id, "src/deep/data.bin") == content
    assert client.download_file(made.id, "workspace.txt") == b"second"
    assert client.download_file(made.id, "empty") == b""
    raised(SandboxError, client.download_file, made.id, "none")
    for wrong in ["../outside", "a/../../b", ""]:
        raised(InvalidConfigurationError, client.upload_file, made.id, wrong, b"x")

    top = {file.path: file for file in client.list_files(made.id)}
    assert set(top) == {"src", "empty", "workspace.txt"} and top["src"].is_dir, top
    assert top["workspace.txt"].size == 6 and top["workspace.txt"].name == "workspace.txt"
    paths = [file.path for file in client.list_files(made.id, recursive=True)]
    assert "src/deep/data.bin" in paths, paths
    assert [file.path for file in client.list_files(made.id, "src")] == ["src/deep"]
    counted = client.get_codebase(made.id)
    assert (counted.file_count, counted.size) == (3, len(content) + 6), counted
    client.delete_codebase(made.id)


def sandboxes(client):
    codebase = client.create_codebase("sandboxes", "")
    client.upload_file(codebase.id, "note", b"hello\n")
    limits = ResourceLimits(memory_bytes=256 << 20, cpu_quota=50_000, pids_limit=64)
    box = client.create_sandbox(
        codebase.id, ALL, {"team": "blue"}, timedelta(hours=1), RUNTIME, resources=limits)
    assert box.status == SandboxStatus.PENDING and box.labels == {"team": "blue"}, box
    assert box.codebase_id == codebase.id and box.runtime == RUNTIME, box
    assert [rule.pattern for rule in box.permissions] == ["**/*"], box
    assert (box.resources.memory_bytes, box.resources.cpu_quota, box.resources.pids_limit) == (256 << 20, 50_000, 64)
    left = box.expires_at - box.created_at
    assert timedelta(minutes=59) < left < timedelta(minutes=61), left
    assert box.started_at is None
    raised(SandboxError, client.exec, box.id, "true")
    raised(SandboxError, client.stop_sandbox, box.id)
    box = client.start_sandbox(box.id)
    assert box.status == SandboxStatus.RUNNING and box.started_at is not None, box
    raised(SandboxError, client.start_sandbox, box.id)
    assert [found.id for found in client.list_sandboxes(codebase.id)] == [box.id]
    assert client.list_sandboxes("cb_none") == []
    assert client.get_sandbox(box.id).status == SandboxStatus.RUNNING

    execs(client, codebase.id, box.id)
    sessions(client, box.id)
    streams(client, codebase.id, box.id)

    raised(SandboxError, client.delete_codebase, codebase.id)
    stopped = client.stop_sandbox(box.id)
    assert stopped.status == SandboxStatus.STOPPED and stopped.stopped_at is not None, stopped
    raised(SandboxError, client.exec, box.id, "true")
    assert client.start_sandbox(box.id).status == SandboxStatus.RUNNING
    assert client.exec(box.id, "cat note").stdout == "hello\n"
    client.destroy_sandbox(box.id)
    raised(SandboxError, client.get_sandbox, box.id)

    reader = client.create_sandbox(codebase.id, READ, runtime=RUNTIME)
    client.start_sandbox(reader.id)
    result = client.exec(reader.id, "cat note; echo x > note")
    assert result.stdout == "hello\n" and result.exit_code != 0, result
    client.destroy_sandbox(reader.id)
    for wrong in [{"permissions": [{"pattern": "", "permission": "read"}]}, {"resources": ResourceLimits(cpu_shares=7)},
                  {"resources": ResourceLimits(pids_limit=-1)}, {"labels": {"agentfense.schema": "v2"}}]:
        raised(InvalidConfigurationError, client.create_sandbox, codebase.id,
               **{"permissions": ALL, "runtime": RUNTIME, **wrong})
    raised(SandboxError, client.create_sandbox, "cb_none", ALL)
    client.delete_codebase(codebase.id)


def execs(client, codebase, box):
    result = client.exec(box, "echo out; echo err >&2; exit 3")
    assert (result.stdout, result.stderr, result.exit_code) == ("out\n", "err\n", 3), result
    assert result.duration > timedelta(0)
    assert client.exec(box, "pwd; cat note").stdout == "/workspace\nhello\n"
    result = client.exec(box, "cat; echo $GREETING; pwd", stdin="typed\n", env={"GREETING": "hi"}, workdir="/tmp")
    assert result.stdout == "typed\nhi\n/tmp\n", result
    client.exec(box, "mkdir made && echo inside > made/file")
    assert client.download_file(codebase, "made/file") == b"inside\n"
    client.upload_file(codebase, "later", b"from outside\n")
    assert client.exec(box, "cat later").stdout == "from outside\n"
    raised(CommandTimeoutError, client.exec, box, "sleep 1001 & sleep 1001", timeout=timedelta(milliseconds=300))
    assert client.exec(box, "pgrep -x sleep").exit_code == 1, "the tree of a command that timed out lives"
    raised(InvalidConfigurationError, client.exec, box, "")
    raised(InvalidConfigurationError, client.exec, "", "true")
    raised(SandboxError, client.exec, "sbx_none", "true")
    large = client.exec(box, "head -c 9000000 /dev/zero | tr '\\0' x; head -c 9000000 /dev/zero | tr '\\0' y >&2")
    assert large.exit_code == 0 and "left out" in large.stdout and "left out" in large.stderr
    assert client.exec(box, "printf '\\377'").stdout == "\ufffd"


def sessions(client, box):
    session = client.create_session(box, "/bin/sh", {"COLOUR": "blue"})
    assert session.status == SessionStatus.ACTIVE and session.shell == "/bin/sh", session
    session.exec("cd /tmp; export NAME=kept; f() { echo f; }")
    result = session.exec("pwd; echo $NAME $COLOUR; f; echo err >&2; (exit 4)")
    assert (result.stdout, result.stderr, result.exit_code) == ("/tmp\nkept blue\nf\n", "err\n", 4), result
    assert [found.id for found in client.list_sessions(box)] == [session.id]
    assert client.get_session(session.id).sandbox_id == box
    raised(CommandTimeoutError, session.exec, "sleep 1001", timedelta(milliseconds=300))
    assert session.exec("echo $NAME").stdout == "kept\n", "a session outlives a command that timed out"
    stream = sandbox_pb2_grpc.SandboxServiceStub(client._channel).SessionExecStream
    frames = list(stream(sandbox_pb2.SessionExecRequest(session_id=session.id, command="echo one; echo two >&2")))
    assert {(f.type, f.data) for f in frames} == {(1, b"one\n"), (2, b"two\n")}, frames
    session.close()
    raised(SandboxError, client.get_session, session.id)
    with client.session(box) as other:
        other.exec("exit 0")
        raised(SandboxError, other.exec, "true")
        assert client.get_session(other.id).status == SessionStatus.CLOSED
    raised(InvalidConfigurationError, client.create_session, box, "/bin/fish")
    assert client.list_sessions(box) == []


def streams(client, codebase, box):
    # The first part arrives while the command waits for what comes after it.
    got = []
    for chunk in client.exec_stream(box, "echo begun; while [ ! -e go ]; do sleep 0.02; done; echo over"):
        got.append(chunk)
        if len(got) == 1:
            client.upload_file(codebase, "go", b"now")
    assert b"".join(got) == b"begun\nover\n" and len(got) >= 2, got
    assert b"".join(client.exec_stream(box, "echo said; exit 7")) == b"said\n"
    total = sum(len(chunk) for chunk in client.exec_stream(box, "head -c 20000000 /dev/zero"))
    assert total == 20_000_000, total
    stub = sandbox_pb2_grpc.SandboxServiceStub(client._channel)
    late = sandbox_pb2.ExecRequest(sandbox_id=box, command="sleep 1001")
    late.timeout.FromMilliseconds(300)
    refused(grpc.StatusCode.DEADLINE_EXCEEDED, stub.ExecStream, late)
    # A deadline of the call itself, and a caller who leaves: neither leaves the command behind.
    request = sandbox_pb2.ExecRequest(sandbox_id=box, command="sleep 1002")
    request.timeout.FromSeconds(60)
    refused(grpc.StatusCode.DEADLINE_EXCEEDED, lambda q: stub.Exec(q, timeout=0.5), request)
    endless = stub.ExecStream(sandbox_pb2.ExecRequest(sandbox_id=box, command="while echo tick; do sleep 0.05; done"))
    assert next(endless).data.startswith(b"tick")
    endless.cancel()
    gone = client.exec(box, "i=0; while pgrep -x sleep >/dev/null && [ $i -lt 500 ]; do i=$((i + 1)); read -t 0.02 x; done; pgrep -x sleep")
    assert gone.exit_code == 1, f"commands of callers who left run on: {gone}"


def schema(client):
    """What the client never sends."""
    stub = sandbox_pb2_grpc.SandboxServiceStub(client._channel)
    files = codebase_pb2_grpc.CodebaseServiceStub(client._channel)
    refused(grpc.StatusCode.INVALID_ARGUMENT, stub.CreateSandbox, sandbox_pb2.CreateSandboxRequest(runtime=9))
    codebase = client.create_codebase("schema", "")
    metadata = codebase_pb2.UploadChunk.Metadata(codebase_id=codebase.id, file_path="f", total_size=3)
    first, data = codebase_pb2.UploadChunk(metadata=metadata), codebase_pb2.UploadChunk(data=b"abc")
    for chunks in [[], [data], [first, first], [first, data, data], [first]]:
        refused(grpc.StatusCode.INVALID_ARGUMENT, files.UploadFiles, iter(chunks))
    raised(SandboxError, client.download_file, codebase.id, "f")
    boxes = [client.create_sandbox(codebase.id, ALL, runtime=RUNTIME).id for _ in range(3)]
    found, token = [], ""
    while True:
        page = stub.ListSandboxes(sandbox_pb2.ListSandboxesRequest(codebase_id=codebase.id, page_size=2, page_token=token))
        found += [box.id for box in page.sandboxes]
        token = page.next_page_token
        if not token:
            break
    assert sorted(found) == sorted(boxes), found
    refused(grpc.StatusCode.INVALID_ARGUMENT, stub.ListSandboxes, sandbox_pb2.ListSandboxesRequest(page_token="none"))
    for box in boxes:
        client.destroy_sandbox(box)
    client.delete_codebase(codebase.id)
    raw = client._channel.unary_unary("/sandbox.v1.SandboxService/NoSuchMethod")
    refused(grpc.StatusCode.UNIMPLEMENTED, raw, b"")
    raw = client._channel.unary_unary("/sandbox.v1.SandboxService/GetSandbox")
    refused(grpc.StatusCode.INVALID_ARGUMENT, raw, b"\xff\xff")
    health = client._channel.unary_unary("/grpc.health.v1.Health/Check")
    assert health(b"") == b"\x08\x01" and health(b"\x0a\x1a" + b"sandbox.v1.CodebaseService") == b"\x08\x01"
    refused(grpc.StatusCode.NOT_FOUND, health, b"\x0a\x04none")


def local(place):
    os.makedirs(f"{place}/src")
    with open(f"{place}/src/main.sh", "w") as file:
        file.write("echo from main\n")
    with Sandbox.from_local(place, preset="full-access", runtime=RUNTIME, endpoint=ADDRESS) as box:
        assert box.run("sh src/main.sh").stdout == "from main\n"
        box.write_file("/workspace/note", "text")
        assert box.read_file("note") == "text" and "src" in box.list_files()
        raised(CommandExecutionError, box.run, "exit 5", raise_on_error=True)
        again = Sandbox.connect(box.id, endpoint=ADDRESS)
        assert again.run("cat note").stdout == "text"
        again._client.close()
        with box.session() as session:
            session.exec("cd src")
            assert session.exec("ls").stdout == "main.sh\n"
        box.stop()
        box.start()
        assert box.refresh().status == SandboxStatus.RUNNING
        codebase = box.codebase_id
    with SandboxClient(ADDRESS) as client:
        raised(SandboxError, client.get_codebase, codebase)


async def asynchronous(place):
    async with AsyncSandboxClient(ADDRESS) as client:
        codebase = await client.create_codebase("async", "")
        await client.upload_file(codebase.id, "note", b"hello")
        assert await client.download_file(codebase.id, "note") == b"hello"
        assert [file.path for file in await client.list_files(codebase.id)] == ["note"]
        assert (await client.get_codebase(codebase.id)).file_count == 1
        assert codebase.id in [found.id for found in await client.list_codebases()]
        box = await client.create_sandbox(codebase.id, ALL, runtime=RUNTIME)
        await client.start_sandbox(box.id)
        results = await asyncio.gather(*(client.exec(box.id, f"echo {n}") for n in range(20)))
        assert [result.stdout for result in results] == [f"{n}\n" for n in range(20)]
        assert b"".join([chunk async for chunk in client.exec_stream(box.id, "cat note")]) == b"hello"
        try:
            async for _ in client.exec_stream(box.id, "sleep 1001", timeout=timedelta(milliseconds=200)):
                pass
            raise AssertionError("it was not late")
        except CommandTimeoutError:
            pass
        session = await client.create_session(box.id)
        assert (await client.get_session(session.id)).status == SessionStatus.ACTIVE
        assert (await session.exec("cd /; pwd")).stdout == "/\n"
        assert len(await client.list_sessions(box.id)) == 1
        await session.close()
        assert (await client.get_sandbox(box.id)).status == SandboxStatus.RUNNING
        assert box.id in [found.id for found in await client.list_sandboxes()]
        assert (await client.stop_sandbox(box.id)).status == SandboxStatus.STOPPED
        await client.destroy_sandbox(box.id)
        await client.delete_codebase(codebase.id)
    async with await AsyncSandbox.from_local(place, preset="read-only", runtime=RUNTIME, endpoint=ADDRESS) as box:
        assert (await box.run("sh src/main.sh")).stdout == "from main\n"
        assert (await box.run("echo x > src/main.sh")).exit_code != 0


def call(method, path, body=None):
    request = urllib.request.Request(REST + path, method=method)
    data = None if body is None else json.dumps(body).encode()
    try:
        with urllib.request.urlopen(request, data) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code, json.load(error)


def gateway():
    status, codebase = call("POST", "/v1/codebases", {"name": "rest", "owner_id": "user_rest"})
    assert status == 200 and codebase["ownerId"] == "user_rest" and codebase["size"] == "0", codebase
    assert call("GET", f"/v1/codebases/{codebase['id']}")[1] == codebase
    assert [cb["id"] for cb in call("GET", "/v1/codebases?owner_id=user_rest")[1]["codebases"]] == [codebase["id"]]
    assert call("GET", f"/v1/codebases/{codebase['id']}/files?path=&recursive=true")[1] == {"files": []}
    rules = [{"pattern": "**/*", "permission": "PERMISSION_WRITE"}]
    runtime = f"RUNTIME_TYPE_{RUNTIME.value.upper()}"
    status, box = call("POST", "/v1/sandboxes", {
        "codebaseId": codebase["id"], "permissions": rules, "expiresIn": "3600s", "runtime": runtime})
    assert status == 200 and box["status"] == "SANDBOX_STATUS_PENDING" and box["startedAt"] is None, box
    at = f"/v1/sandboxes/{box['id']}"
    assert call("POST", f"{at}/exec", {"command": "true"})[0] == 400
    assert call("POST", f"{at}/start")[1]["status"] == "SANDBOX_STATUS_RUNNING"
    status, result = call("POST", f"{at}/exec", {"command": "echo out; exit 2", "timeout": "10.5s"})
    assert (status, result["stdout"], result["exitCode"]) == (200, "out\n", 2), result
    status, late = call("POST", f"{at}/exec", {"command": "sleep 1001", "timeout": "0.2s"})
    assert (status, late["code"]) == (504, 4), late
    status, session = call("POST", f"{at}/sessions", {"shell": "/bin/sh"})
    assert status == 200 and session["status"] == "SESSION_STATUS_ACTIVE", session
    assert call("GET", f"{at}/sessions")[1]["sessions"] == [session]
    inside = f"/v1/sessions/{session['id']}"
    assert call("POST", f"{inside}/exec", {"command": "pwd"})[1]["stdout"] == "/workspace\n"
    assert call("GET", inside)[1] == session and call("DELETE", inside) == (200, {})
    assert call("GET", inside)[0] == 404
    assert call("GET", "/v1/sandboxes")[1]["sandboxes"][0]["id"] == box["id"]
    assert call("POST", f"{at}/stop")[1]["status"] == "SANDBOX_STATUS_STOPPED"
    assert call("GET", at)[0] == 200 and call("DELETE", at) == (200, {})
    assert call("DELETE", f"/v1/codebases/{codebase['id']}") == (200, {})
    for method, path, body, status, code in [
        ("GET", at, None, 404, 5), ("GET", "/v2/none", None, 404, 5),
        ("POST", "/v1/codebases", {"name": ""}, 400, 3), ("POST", "/v1/codebases", {"name": 5}, 400, 3),
    ]:
        answered, error = call(method, path, body)
        assert (answered, error["code"], error["details"]) == (status, code, []) and error["message"], error


with tempfile.TemporaryDirectory() as place, SandboxClient(ADDRESS) as client:
    for name, check in [
        ("codebases", lambda: codebases(client)), ("sandboxes", lambda: sandboxes(client)),
        ("schema", lambda: schema(client)), ("local", lambda: local(place)),
        ("async", lambda: asyncio.run(asynchronous(place))), ("gateway", gateway),
    ]:
        check()
        print("ok", name, flush=True)
    assert client.list_sandboxes() == [] and client.list_codebases() == []
print("all kept")
