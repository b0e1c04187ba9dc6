"""An OTLP receiver: prints its port, then each span that it gets as a line of JSON.

Messages are decoded with the classes that OpenTelemetry publishes. What they do not know is an error. The header
`x-secret: open sesame` is required.
"""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status


def value_of(value):
    return getattr(value, value.WhichOneof("value"))


def attributes_of(item):
    return {pair.key: value_of(pair.value) for pair in item.attributes}


class Receiver(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["content-length"]))
        expected = ("/v1/traces", "application/x-protobuf", "open sesame")
        found = (self.path, self.headers["content-type"], self.headers["x-secret"])
        if found != expected:
            return self.answer(400, f"{found}".encode())
        request = ExportTraceServiceRequest.FromString(body)
        # What was not understood would be missing now.
        assert request.SerializeToString(deterministic=True) is not None
        assert request.ByteSize() == len(body), "there are fields that nobody knows"
        lines = []
        for of_resource in request.resource_spans:
            for of_scope in of_resource.scope_spans:
                for span in of_scope.spans:
                    line = {
                        "resource": attributes_of(of_resource.resource),
                        "scope": of_scope.scope.name,
                        "trace": span.trace_id.hex(),
                        "span": span.span_id.hex(),
                        "parent": span.parent_span_id.hex(),
                        "name": span.name,
                        "kind": Span.SpanKind.Name(span.kind),
                        "began": span.start_time_unix_nano,
                        "ended": span.end_time_unix_nano,
                        "attributes": attributes_of(span),
                        "status": Status.StatusCode.Name(span.status.code),
                        "message": span.status.message,
                        "flags": span.flags,
                    }
                    lines.append(json.dumps(line) + "\n")
        sys.stdout.write("".join(lines))
        sys.stdout.flush()
        self.answer(200, ExportTraceServiceResponse().SerializeToString())

    def answer(self, status, body):
        self.send_response(status)
        self.send_header("content-type", "application/x-protobuf")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = ThreadingHTTPServer(("127.0.0.1", 0), Receiver)
print(server.server_address[1], flush=True)
server.serve_forever()
