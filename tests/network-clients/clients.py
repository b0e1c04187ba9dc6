"""Python's clients, as programs use them: nothing is configured. Prints a word for what worked.

    clients.py NAME
"""

import asyncio
import queue
import sys


def requests_():
    import requests

    assert requests.get("https://web.test/hello").text == "hello\n"
    assert requests.post("https://web.test/echo", data="hi").text.endswith(" hi")


def httpx_():
    import httpx

    for http2, version in ((False, "HTTP/1.1"), (True, "HTTP/2")):
        with httpx.Client(http2=http2) as client:
            answer = client.post("https://web.test/echo", content="hi")
            assert (answer.http_version, answer.status_code) == (version, 200), answer


def aiohttp_():
    import aiohttp

    async def main():
        async with aiohttp.ClientSession() as session:
            many = [session.post("https://web.test/echo", data=str(n)) for n in range(50)]
            for number, answer in enumerate(await asyncio.gather(*many)):
                assert (await answer.text()).endswith(f" {number}")

    asyncio.run(main())


def websockets_():
    import websockets

    async def main():
        async with websockets.connect("wss://ws.test/") as connection:
            for size in (5, 100_000):
                await connection.send("x" * size)
                assert await connection.recv() == "x" * size

    asyncio.run(main())


def grpc_():
    import grpc

    channel = grpc.secure_channel("grpc.test:443", grpc.ssl_channel_credentials())
    once = channel.unary_unary("/demo.Echo/Once")
    assert once(b"hello", timeout=60) == b"hello"
    assert once(b"x" * 1_000_000, timeout=60) == b"x" * 1_000_000
    waiting = queue.Queue()
    answers = channel.stream_stream("/demo.Echo/Each")(iter(waiting.get, None), timeout=60)
    for number in range(5):
        waiting.put(b"%d" % number)
        assert next(answers) == b"%d" % number
    waiting.put(None)
    assert list(answers) == []
    try:
        channel.unary_unary("/demo.Echo/None")(b"", timeout=60)
    except grpc.RpcError as error:
        # In trailers, which have to arrive.
        assert error.code() is grpc.StatusCode.UNIMPLEMENTED, error
    else:
        raise AssertionError("an unknown method was answered")


def events():
    """The next event comes when this one was read."""
    import httpx

    for http2 in (False, True):
        with httpx.Client(http2=http2, timeout=60) as client:
            number = 0
            with client.stream("GET", f"https://web.test/events?stream={http2}") as answer:
                for line in answer.iter_lines():
                    if line:
                        assert line == f"data: {number}", line
                        number += 1
                        httpx.get(f"https://web.test/read?stream={http2}")
            assert number == 5, number


globals()[sys.argv[1]]()
print("worked")
