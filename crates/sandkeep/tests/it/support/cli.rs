//! The `sandkeep` binary as a person calls it.

use std::ffi::OsStr;
use std::io::Write;
use std::process::{Command, Output, Stdio};

/// What a call printed and how it ended.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub stdout: String,
    pub stderr: String,
}

impl From<Output> for Ran {
    fn from(output: Output) -> Self {
        Self {
            code: output.status.code().unwrap_or(-1),
            stdout: String::from_utf8_lossy(&output.stdout).into_owned(),
            stderr: String::from_utf8_lossy(&output.stderr).into_owned(),
        }
    }
}

pub fn binary() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_sandkeep"));
    // Variables of the caller's shell must not decide a test.
    for (name, _) in std::env::vars_os() {
        if name.to_string_lossy().starts_with("SANDKEEP_") {
            command.env_remove(name);
        }
    }
    for name in ["PORT", "LOG_LEVEL", "CORS_ORIGINS", "NATS_URL", "REGISTRY_URL"] {
        command.env_remove(name);
    }
    // Nor may a file of this machine.
    command.env("SANDKEEP_CONFIG", "/dev/null").stdin(Stdio::null());
    command
}

/// Runs `sandkeep <arguments> <last>` to its end.
pub fn sandkeep<const N: usize>(arguments: [&str; N], last: impl AsRef<OsStr>) -> Ran {
    binary().args(arguments).arg(last).output().expect("the binary runs").into()
}

/// Runs a call with these bytes on its stdin.
pub fn run_with_stdin(command: &mut Command, stdin: &[u8]) -> Ran {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary runs");
    let mut pipe = child.stdin.take().expect("it is piped");
    let bytes = stdin.to_vec();
    let writer = std::thread::spawn(move || {
        // A command may end without reading all of its input.
        let _ = pipe.write_all(&bytes);
    });
    let output = child.wait_with_output().expect("it ends");
    writer.join().expect("the writer does not panic");
    output.into()
}

impl Ran {
    /// The last line of stderr, which is where a refusal says what to do.
    pub fn complaint(&self) -> &str {
        self.stderr.trim_end().lines().last().unwrap_or_default()
    }

    pub fn assert_no_panic(&self) -> &Self {
        assert!(!self.stderr.contains("panicked"), "it panicked: {self:?}");
        self
    }
}
