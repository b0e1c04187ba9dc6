//! Arbitrary bytes as the request of a tool's stream: refused, or a message within its bounds, whose arguments are read.

use axum::body::Body;
use axum::extract::{FromRequest, Request};

use super::arguments;
use super::failure;
use super::messages::ToolRequest;
use crate::connect::StreamMessage;
use sandkeep_broker::ToolName;
use sandkeep_core::limits::CONNECT_MESSAGE_MAX_BYTES;

/// Takes the bytes as the body of a request, plain and as one whose frames may be compressed.
pub fn stream_request(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime of one thread");
    for encoding in ["identity", "gzip"] {
        runtime.block_on(read(bytes, encoding));
    }
}

async fn read(bytes: &[u8], encoding: &str) {
    let request = Request::post("/")
        .header("content-type", "application/connect+json")
        .header("connect-content-encoding", encoding)
        .body(Body::from(bytes.to_vec()))
        .expect("a request");
    match StreamMessage::<ToolRequest>::from_request(request, &()).await {
        Err(refusal) => {
            let failure = failure(&refusal);
            assert!(!failure.message.is_empty(), "a refusal without a reason");
            assert!(!refusal.code().kind().is_fault(), "our fault: {}", failure.message);
        }
        Ok(StreamMessage(request)) => {
            let texts = [&request.session_id, &request.tool_call_id, &request.tool_name];
            let said: usize = texts.iter().map(|text| text.len()).sum();
            assert!(said <= CONNECT_MESSAGE_MAX_BYTES, "more was read than a message may hold");
            if let Ok(name) = request.tool_name.parse::<ToolName>() {
                let _ = arguments::ours(name, request.params);
            }
        }
    }
}

#[cfg(test)]
#[path = "../../../../fuzz/mutation.rs"]
mod mutation;

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::{Compression, write::GzEncoder};
    use serde_json::{Value, json};

    use super::mutation::{Mutations, corpus};
    use super::*;

    const ROUNDS: usize = 5_000;

    fn frame(flags: u8, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).expect("short");
        [&[flags][..], &length.to_be_bytes(), payload].concat()
    }

    fn request(tool: &str, params: Value) -> Vec<u8> {
        let request = json!({ "SessionID": "s", "ToolCallID": "c", "ToolName": tool, "Params": params, "Resources": null });
        request.to_string().into_bytes()
    }

    /// What a good client sends.
    fn requests() -> Vec<Vec<u8>> {
        let bash = request("bash", json!({ "cmd": "echo", "timeout_ms": 5 }));
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(&bash).expect("memory takes all");
        vec![
            frame(1, &packed.finish().expect("memory takes all")),
            frame(0, &bash),
            frame(
                0,
                &request("git_clone", json!({ "args": ["--depth", "1", "-b", "v1", "u", "d"] })),
            ),
            frame(0, &request("git_add", json!({ "path": "a" }))),
            frame(0, b"{}"),
        ]
    }

    #[test]
    fn no_bytes_of_a_request_are_our_fault() {
        let mut seeds = requests();
        seeds.extend(corpus("flex_stream_request", &seeds));
        seeds.iter().for_each(|seed| stream_request(seed));
        Mutations::of(seeds).take(ROUNDS).for_each(|bytes| stream_request(&bytes));
    }
}
