"""A small HTTP/1.1 server for the benchmark: the same on the host and in a sandbox."""

import asyncio
import sys

ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 6\r\n\r\nhello\n"


class Server(asyncio.Protocol):
    def connection_made(self, transport):
        self.transport, self.pending = transport, b""

    def data_received(self, data):
        *requests, self.pending = (self.pending + data).split(b"\r\n\r\n")
        if requests:
            self.transport.write(ANSWER * len(requests))


async def main():
    server = await asyncio.get_running_loop().create_server(Server, "127.0.0.1", int(sys.argv[1]))
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


asyncio.run(main())
