"""A server for the tests, run inside a sandbox: says what it was asked, and speaks the parts of HTTP/1.1
that a proxy can get wrong."""

import base64
import hashlib
import http.server
import json
import socketserver
import sys
import threading
import time

RELEASED = threading.Event()
REPORTS = []


class App(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def answer(self, status, body=b"", **headers):
        self.send_response(status)
        for name, value in headers.items():
            for one in value if isinstance(value, list) else [value]:
                self.send_header(name.replace("_", "-"), one)
        if status not in (204, 304):
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def body(self):
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while True:
                size = int(self.rfile.readline().split(b";")[0], 16)
                piece = self.rfile.read(size)
                self.rfile.readline()
                if not size:
                    return
                yield piece
        left = int(self.headers.get("Content-Length", 0))
        while left:
            piece = self.rfile.read1(min(left, 65536))
            if not piece:
                return
            left -= len(piece)
            yield piece

    def chunk(self, data):
        self.wfile.write(b"%x\r\n%s\r\n" % (len(data), data))
        self.wfile.flush()

    def echo(self):
        digest, size = hashlib.sha256(), 0
        for piece in self.body():
            digest.update(piece)
            size += len(piece)
        headers = [[name.lower(), value] for name, value in self.headers.items()]
        said = {"method": self.command, "target": self.path, "headers": headers}
        said.update(size=size, sha256=digest.hexdigest())
        self.answer(200, json.dumps(said).encode(), Content_Type="application/json")

    def stream(self):
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.chunk(b"data: one\n\n")
        RELEASED.wait()
        self.chunk(b"data: two\n\n")
        self.wfile.write(b"0\r\n\r\n")

    def ticks(self):
        """Says something ten times a second, for a number of seconds."""
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for _ in range(10 * int(self.path.rpartition("/")[2])):
            self.chunk(b"data: tick\n\n")
            time.sleep(0.1)
        self.wfile.write(b"0\r\n\r\n")

    def flood(self):
        size = int(self.path.rpartition("/")[2])
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()
        block = bytes(range(256)) * 256
        while size:
            piece = block[:size]
            self.wfile.write(piece)
            size -= len(piece)

    def switch(self):
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", self.headers["Upgrade"])
        if self.path.endswith("?loud"):
            self.send_header("Set-Cookie", "mine=1; Domain=localhost; Path=/")
            self.send_header("Set-Cookie", "__Host-sandkeep_port=forged")
            self.send_header("Clear-Site-Data", '"cookies"')
            self.send_header("Strict-Transport-Security", "max-age=1; includeSubDomains")
        self.end_headers()
        while data := self.rfile.read1(65536):
            self.wfile.write(data.swapcase())
        self.close_connection = True

    def websocket(self):
        """Greets, then answers each short text with the same text."""
        key = self.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        self.send_response(101)
        self.send_header("Connection", "Upgrade")
        self.send_header("Upgrade", "websocket")
        self.send_header("Sec-WebSocket-Accept", base64.b64encode(hashlib.sha1(key.encode()).digest()).decode())
        self.end_headers()
        self.wfile.write(b"\x81\x05hello")
        while (head := self.rfile.read(2)) and head[0] & 15 == 1:
            mask, data = self.rfile.read(4), self.rfile.read(head[1] & 127)
            text = bytes(byte ^ mask[at % 4] for at, byte in enumerate(data))
            self.wfile.write(bytes([0x81, len(text)]) + text)
        self.close_connection = True

    def report(self):
        """Takes what a page in a browser has to say, and tells it to the test."""
        if self.command == "POST":
            REPORTS.append(b"".join(self.body()).decode())
            self.answer(204)
        else:
            self.answer(200, json.dumps(REPORTS).encode(), Content_Type="application/json")

    def file(self):
        with open(self.path.split("?")[0].rpartition("/")[2], "rb") as page:
            self.answer(200, page.read(), Content_Type="text/html")

    def handle_any(self):
        path = self.path.split("?")[0]
        if path == "/stream":
            self.stream()
        elif path == "/release":
            RELEASED.set()
            self.answer(200, b"released")
        elif path.startswith("/ticks/"):
            self.ticks()
        elif path.startswith("/flood/"):
            self.flood()
        elif path == "/ws":
            self.websocket()
        elif path == "/report":
            self.report()
        elif path.startswith("/files/"):
            self.file()
        elif path == "/switch":
            self.switch()
        elif path == "/cookies":
            cookies = ["mine=1; Path=/; Domain=localhost", "sandkeep_port=forged", "plain=2"]
            self.answer(200, b"", Set_Cookie=cookies, Content_Security_Policy="script-src *")
        elif path == "/redirect":
            self.answer(302, b"", Location="/echo")
        elif path.startswith("/status/"):
            self.answer(int(path.rpartition("/")[2]), b"some body", ETag='"x"')
        elif path == "/break":
            self.wfile.write(b"nothing like HTTP\r\n\r\n")
            self.close_connection = True
        else:
            self.echo()

    do_GET = do_HEAD = do_POST = do_PUT = do_DELETE = do_PATCH = do_OPTIONS = handle_any
    do_PROPFIND = handle_any


class Server(socketserver.ThreadingMixIn, http.server.HTTPServer):
    daemon_threads = True
    request_queue_size = 256


Server(("127.0.0.1", int(sys.argv[1])), App).serve_forever()
