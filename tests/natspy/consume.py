"""Prints all messages of a JetStream stream as lines of JSON: consume.py URL STREAM

Reads them with a pull consumer of nats-py, acknowledges each, and ends when the stream has no more.
"""

import asyncio
import json
import sys

import nats
from nats.errors import TimeoutError
from nats.js.api import ConsumerConfig

BATCH = 200


async def main(url: str, stream: str) -> None:
    client = await nats.connect(url, connect_timeout=30)
    jetstream = client.jetstream(timeout=30)
    left = (await jetstream.stream_info(stream)).state.messages
    subscription = await jetstream.pull_subscribe(
        "", durable="reader", stream=stream, config=ConsumerConfig(ack_wait=60)
    )
    while left > 0:
        try:
            messages = await subscription.fetch(min(BATCH, left), timeout=30)
        except TimeoutError:
            sys.exit(f"{left} messages of {stream} were not delivered")
        for message in messages:
            await message.ack()
            line = {
                "subject": message.subject,
                "headers": dict(message.headers or {}),
                "event": json.loads(message.data),
            }
            print(json.dumps(line))
        left -= len(messages)
    await client.drain()


asyncio.run(main(sys.argv[1], sys.argv[2]))
