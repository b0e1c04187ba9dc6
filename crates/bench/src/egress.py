"""Both ends of the benchmark of the way out: the same client on the host and in a sandbox, which measures itself.

    serve                     prints its port; the first byte of a connection says what it wants
    connect HOST PORT COUNT   the median of connecting, sending 1 KiB and getting it back, in ms
    stream HOST PORT BYTES    what one connection carries, in MB/s
"""

import socket
import statistics
import sys
import threading
import time

KIB = b"c" * 1024


def answer(peer):
    with peer:
        first = peer.recv(1024, socket.MSG_WAITALL)
        if first[:1] == b"c":
            peer.sendall(first)
            return
        block = bytes(1 << 20)
        try:
            while True:
                peer.sendall(block)
        except OSError:
            pass


def serve():
    server = socket.create_server(("127.0.0.1", 0), backlog=512)
    print(server.getsockname()[1], flush=True)
    while True:
        peer, _ = server.accept()
        threading.Thread(target=answer, args=(peer,), daemon=True).start()


def opened(address):
    stream = socket.socket(socket.AF_INET)
    stream.connect(address)
    return stream


def connect(address, count):
    taken = []
    for _ in range(count):
        began = time.perf_counter()
        with opened(address) as stream:
            stream.sendall(KIB)
            assert len(stream.recv(len(KIB), socket.MSG_WAITALL)) == len(KIB)
        taken.append(time.perf_counter() - began)
    print(statistics.median(taken) * 1000)


def stream(address, size):
    buffer, left = bytearray(1 << 18), size
    with opened(address) as source:
        source.sendall(b"s" * 1024)
        began = time.perf_counter()
        while left > 0:
            read = source.recv_into(buffer)
            assert read > 0
            left -= read
    print(size / 1e6 / (time.perf_counter() - began))


if sys.argv[1] == "serve":
    serve()
else:
    # A name is looked up once.
    address = socket.getaddrinfo(sys.argv[2], int(sys.argv[3]), socket.AF_INET)[0][4]
    {"connect": connect, "stream": stream}[sys.argv[1]](address, int(sys.argv[4]))
