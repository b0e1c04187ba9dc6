"""git http-backend behind TLS, on loopback. Says its port first, then what happens; a line on stdin releases who waits.

  /repo.git      a repository          /private  asks for a password
  /moved         leads to another host /renamed  leads to /repo.git
  /slow.git      the same repository, but whoever fetches waits to be released
"""

import http.server
import os
import ssl
import subprocess
import sys
import threading

root, certificate, key = sys.argv[1:4]
released = threading.Event()


def say(line):
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args):
        pass

    def plain(self, status, *headers):
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", "0")
        self.end_headers()

    def body(self):
        if self.headers.get("transfer-encoding", "") != "chunked":
            return self.rfile.read(int(self.headers.get("content-length", 0)))
        whole = b""
        while True:
            size = int(self.rfile.readline().strip(), 16)
            whole += self.rfile.read(size)
            self.rfile.readline()
            if size == 0:
                return whole

    def answer(self):
        path, _, query = self.path.partition("?")
        body = self.body()
        rest = path.split("/", 2)[2] if path.count("/") > 1 else ""
        if path.startswith("/private"):
            return self.plain(401, ("www-authenticate", 'Basic realm="x"'))
        if path.startswith("/moved"):
            return self.plain(302, ("location", f"https://elsewhere.test/{rest}?{query}"))
        if path.startswith("/renamed"):
            return self.plain(302, ("location", f"/repo.git/{rest}?{query}"))
        if path.startswith("/slow.git"):
            path = "/repo.git/" + rest
            if self.command == "POST":
                say("waits")
                released.wait()
        env = {
            "PATH": os.environ["PATH"],
            "GIT_PROJECT_ROOT": root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "REQUEST_METHOD": self.command,
            "CONTENT_TYPE": self.headers.get("content-type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("content-encoding", ""),
            "HTTP_GIT_PROTOCOL": self.headers.get("git-protocol", ""),
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
        }
        ran = subprocess.run(["git", "http-backend"], input=body, env=env, capture_output=True)
        head, _, content = ran.stdout.partition(b"\r\n\r\n")
        status, headers = 200, []
        for line in head.decode().split("\r\n"):
            name, _, value = line.partition(": ")
            if name.lower() == "status":
                status = int(value.split()[0])
            elif name:
                headers.append((name, value))
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer


class Server(http.server.ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request, address):
        say("broken")


server = Server(("127.0.0.1", 0), Handler)
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(certificate, key)
# The handshake is each connection's own thread's, so that nobody holds up the others.
server.socket = context.wrap_socket(server.socket, server_side=True, do_handshake_on_connect=False)
threading.Thread(target=server.serve_forever, daemon=True).start()
say(f"port {server.server_port}")
while sys.stdin.readline():
    released.set()
