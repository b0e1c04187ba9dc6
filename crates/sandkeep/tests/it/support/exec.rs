//! Commands in a sandbox, through the API.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

use super::Daemon;

/// How a blocking exec answered.
#[derive(Clone, Debug)]
pub struct Finished {
    pub outcome: String,
    pub exit_code: Option<i64>,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
    pub answer: Value,
}

impl Finished {
    pub fn stdout_text(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }

    pub fn stderr_text(&self) -> String {
        String::from_utf8_lossy(&self.stderr).into_owned()
    }

    /// It exited with 0; its stdout without the last line end.
    pub fn ok(&self) -> String {
        assert_eq!(self.exit_code, Some(0), "{self:?}");
        self.stdout_text().trim_end_matches('\n').to_owned()
    }

    /// It exited with something else than 0; all that it printed.
    pub fn refused(&self) -> String {
        assert_eq!(self.outcome, "exited", "{self:?}");
        assert_ne!(self.exit_code, Some(0), "it was not refused: {self:?}");
        self.stdout_text() + &self.stderr_text()
    }
}

/// Bytes of an answer, whichever way they came.
pub fn bytes(answer: &Value, name: &str) -> Vec<u8> {
    if let Some(text) = answer[name].as_str() {
        return text.as_bytes().to_vec();
    }
    let encoded = answer[format!("{name}_b64")].as_str();
    let encoded = encoded.unwrap_or_else(|| panic!("neither {name} nor {name}_b64 in {answer}"));
    STANDARD.decode(encoded).expect("base64")
}

impl Daemon {
    /// A shell command as the default user.
    pub fn sh(&self, id: &str, command: &str) -> Finished {
        self.exec(id, &json!({ "command": command }))
    }

    /// A shell command as root inside.
    pub fn root_sh(&self, id: &str, command: &str) -> Finished {
        self.exec(id, &json!({ "command": command, "user": "root" }))
    }

    pub fn exec(&self, id: &str, body: &Value) -> Finished {
        let answer = self.expect(200, "POST", &format!("/api/v1/sandboxes/{id}/execs"), body);
        Finished {
            outcome: answer["outcome"].as_str().expect("an outcome").to_owned(),
            exit_code: answer["exit_code"].as_i64(),
            stdout: bytes(&answer, "stdout"),
            stderr: bytes(&answer, "stderr"),
            answer,
        }
    }

    /// The events of a live exec, as they come. It ends early if the daemon does.
    pub fn events(&self, id: &str, body: &Value) -> impl Iterator<Item = Value> + use<> {
        let connection = self.connection().expect("the daemon listens");
        let target = format!("/api/v1/sandboxes/{id}/execs");
        let (status, lines) =
            connection.stream("POST", &target, &body.to_string()).expect("an answer");
        assert_eq!(status, 200, "{:?}", lines.collect::<Vec<_>>());
        lines
            .map_while(Result::ok)
            .map(|line| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}")))
    }
}

/// Execs that go on without their client.
impl Daemon {
    pub fn exec_path(&self, id: &str, exec: &str) -> String {
        format!("/api/v1/sandboxes/{id}/execs/{exec}")
    }

    /// Starts a command and does not wait; its id.
    pub fn begin(&self, id: &str, body: &Value) -> String {
        let target = format!("/api/v1/sandboxes/{id}/execs?wait=false");
        let answer = self.expect(202, "POST", &target, body);
        answer["exec_id"].as_str().expect("an id").to_owned()
    }

    pub fn exec_view(&self, id: &str, exec: &str) -> Value {
        self.expect(200, "GET", &self.exec_path(id, exec), &Value::Null)
    }

    /// What an exec says, as it comes.
    pub fn output(&self, id: &str, exec: &str, query: &str) -> impl Iterator<Item = Value> + use<> {
        let connection = self.connection().expect("the daemon listens");
        let target = format!("{}/output?{query}", self.exec_path(id, exec));
        let (status, lines) = connection.stream("GET", &target, "").expect("an answer");
        assert_eq!(status, 200, "{:?}", lines.collect::<Vec<_>>());
        lines
            .map_while(Result::ok)
            .map(|line| serde_json::from_str(&line).unwrap_or_else(|e| panic!("{line:?}: {e}")))
    }
}

/// The bytes of one stream in events, from an offset on, without holes or repetitions.
pub fn joined(events: &[Value], stream: &str, start: u64) -> Vec<u8> {
    let mut all = Vec::new();
    for event in events.iter().filter(|event| event["type"] == stream) {
        assert_eq!(event["offset"], start + all.len() as u64, "a hole or a repetition");
        all.extend(bytes(event, "data"));
    }
    all
}

/// A process that serves the files of its directory, and is ready when it has answered.
pub fn file_server(port: u16) -> Value {
    json!({
        "argv": ["python3", "-u", "-m", "http.server", port.to_string(), "--bind", "127.0.0.1"],
        "port": port,
        "ready": { "http_path": "/", "timeout_secs": 60 },
    })
}
