//! The built-in commands of a mock sandbox.

use std::time::Duration;

use bytes::Bytes;
use tokio::sync::mpsc;

use sandkeep_guestlink::{ExecRequest, Input, OutputStream};

/// How a command exited.
pub(super) struct Exit {
    pub code: i32,
    pub error: Option<String>,
}

/// Whether a script continues after a command.
enum Flow {
    Next(i32),
    Exit(i32),
}

/// The streams of a command, and facts about itself.
pub(super) struct Stdio<F: Fn(OutputStream, Bytes)> {
    /// The sandbox's host name.
    pub host_name: String,
    pub stdin: Option<mpsc::Receiver<Input>>,
    pub output: F,
}

const NOT_FOUND: i32 = 127;
const NOT_EXECUTABLE: i32 = 126;
const USAGE: i32 = 2;

pub(super) async fn run<F: Fn(OutputStream, Bytes)>(
    request: &ExecRequest,
    mut stdio: Stdio<F>,
) -> Exit {
    let argv: Vec<&str> = request.argv.iter().map(String::as_str).collect();
    match argv.as_slice() {
        // A file that exists everywhere and is never executable.
        ["/etc/passwd", ..] => {
            let error = Some("/etc/passwd: permission denied".to_owned());
            Exit { code: NOT_EXECUTABLE, error }
        }
        ["sh" | "/bin/sh", "-c", script] => {
            Exit { code: run_script(request, script, &mut stdio).await, error: None }
        }
        [name, ..] if !is_known(name) => {
            Exit { code: NOT_FOUND, error: Some(format!("{name}: not found")) }
        }
        words => {
            let code = run_words(request, words, OutputStream::Stdout, &mut stdio).await;
            Exit { code, error: None }
        }
    }
}

fn is_known(name: &str) -> bool {
    const KNOWN: [&str; 10] =
        ["true", "false", "echo", "cat", "env", "pwd", "sleep", "id", "whoami", "uname"];
    let name = name.strip_prefix("/bin/").or(name.strip_prefix("/usr/bin/")).unwrap_or(name);
    KNOWN.contains(&name)
}

/// Commands separated by `;`, each of which may end in `>&2`, and `exit N`.
async fn run_script<F: Fn(OutputStream, Bytes)>(
    request: &ExecRequest,
    script: &str,
    stdio: &mut Stdio<F>,
) -> i32 {
    let mut code = 0;
    for statement in script.split(';').map(str::trim).filter(|text| !text.is_empty()) {
        match run_statement(request, statement, code, stdio).await {
            Flow::Next(last) => code = last,
            Flow::Exit(last) => return last,
        }
    }
    code
}

async fn run_statement<F: Fn(OutputStream, Bytes)>(
    request: &ExecRequest,
    statement: &str,
    last: i32,
    stdio: &mut Stdio<F>,
) -> Flow {
    let (statement, stream) = match statement.strip_suffix(">&2") {
        Some(rest) => (rest, OutputStream::Stderr),
        None => (statement, OutputStream::Stdout),
    };
    let words: Vec<&str> = statement.split_whitespace().collect();
    match words.as_slice() {
        ["exit"] => Flow::Exit(last),
        ["exit", code] => Flow::Exit(code.parse().unwrap_or(USAGE)),
        [name, ..] if !is_known(name) => {
            let complaint = Bytes::from(format!("sh: {name}: not found\n"));
            (stdio.output)(OutputStream::Stderr, complaint);
            Flow::Next(NOT_FOUND)
        }
        words => Flow::Next(run_words(request, words, stream, stdio).await),
    }
}

async fn run_words<F: Fn(OutputStream, Bytes)>(
    request: &ExecRequest,
    words: &[&str],
    stream: OutputStream,
    stdio: &mut Stdio<F>,
) -> i32 {
    let say = |text: String| {
        (stdio.output)(stream, Bytes::from(text));
        0
    };
    let [name, arguments @ ..] = words else { return 0 };
    match (name.rsplit('/').next().unwrap_or(name), arguments) {
        ("true", _) => 0,
        ("false", _) => 1,
        ("echo", words) => say(format!("{}\n", words.join(" "))),
        ("env", _) => {
            say(request.env.iter().map(|(name, value)| format!("{name}={value}\n")).collect())
        }
        ("pwd", _) => say(format!("{}\n", request.cwd.as_deref().unwrap_or("/home/user"))),
        ("id", ["-u"]) => say(format!("{}\n", uid(&request.user))),
        ("uname", ["-n"]) => say(format!("{}\n", stdio.host_name)),
        ("whoami", _) => say(format!("{}\n", request.user)),
        ("sleep", [seconds]) => match seconds.parse().map(Duration::try_from_secs_f64) {
            Ok(Ok(duration)) => {
                tokio::time::sleep(duration).await;
                0
            }
            Ok(Err(_)) | Err(_) => 1,
        },
        ("cat", []) => cat(stream, stdio).await,
        _ => USAGE,
    }
}

async fn cat<F: Fn(OutputStream, Bytes)>(stream: OutputStream, stdio: &mut Stdio<F>) -> i32 {
    let Some(stdin) = &mut stdio.stdin else { return 0 };
    while let Some(Input::Bytes(data)) = stdin.recv().await {
        (stdio.output)(stream, data);
    }
    0
}

fn uid(user: &str) -> &str {
    match user {
        "root" => "0",
        "user" => "1000",
        other => other.split(':').next().unwrap_or(other),
    }
}
