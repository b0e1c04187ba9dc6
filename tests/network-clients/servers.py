"""Servers of protocols that a web server does not speak, each on an address of its own.

    servers.py CERTIFICATE KEY TREE

WebSocket on 127.0.1.2:443, gRPC on 127.0.1.3:443, ssh with git on 127.0.1.1:22.
"""

import asyncio
import ssl
import subprocess
import sys

import asyncssh
import grpc
import websockets

CERTIFICATE, KEY, TREE = sys.argv[1:]


async def echo(connection):
    async for message in connection:
        await connection.send(message)


class Echo(grpc.GenericRpcHandler):
    """A call, and a stream of which each answer follows its question."""

    def service(self, details):
        async def once(request, _context):
            return request

        async def each(requests, _context):
            async for request in requests:
                yield request

        if details.method == "/demo.Echo/Once":
            return grpc.unary_unary_rpc_method_handler(once)
        if details.method == "/demo.Echo/Each":
            return grpc.stream_stream_rpc_method_handler(each)
        return None


class AnyKey(asyncssh.SSHServer):
    def begin_auth(self, _username):
        return False


async def shell(process):
    """Runs what git asks for, and nothing else."""
    program, path = process.command.split(" ", 1)
    assert program in ("git-upload-pack", "git-receive-pack"), program
    path = TREE + "/github.com/" + path.strip("'").lstrip("/")
    child = subprocess.Popen(
        [program, path], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    await process.redirect(stdin=child.stdin, stdout=child.stdout)
    await process.stdout.drain()
    process.exit(await asyncio.to_thread(child.wait))


async def main():
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CERTIFICATE, KEY)
    server = grpc.aio.server()
    server.add_generic_rpc_handlers((Echo(),))
    pair = (open(KEY, "rb").read(), open(CERTIFICATE, "rb").read())
    server.add_secure_port("127.0.1.3:443", grpc.ssl_server_credentials([pair]))
    await server.start()
    host_key = asyncssh.generate_private_key("ssh-ed25519")
    options = {"server_host_keys": [host_key], "server_factory": AnyKey, "process_factory": shell, "encoding": None}
    async with websockets.serve(echo, "127.0.1.2", 443, ssl=context):
        async with asyncssh.listen("127.0.1.1", 22, **options):
            print("ready", flush=True)
            await asyncio.Event().wait()


asyncio.run(main())
