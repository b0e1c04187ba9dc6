//! Typical operations of agents: file transfers compared with `cp`, a search of many files compared with ripgrep on the
//! host, a create with a network compared with one without, and tool calls compared with a bare exec. Alternating, in
//! one run.

use std::cell::Cell;
use std::fs;
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Instant;

use serde_json::{Value, json};

use super::http::Connection;
use super::place;
use super::rates::{Rate, Taken, in_turn, median, megabytes_a_second, not_measured};
use super::trees::Tree;
use sandkeep_core::{
    SandboxId,
    limits::{
        BENCH_GREP_FILES_MAX, BENCH_STORAGE_ANSWER, BENCH_TOOL_CALLS, BENCH_TRANSFER_MB_MAX, MIB,
    },
};

/// What a bare exec runs beside a tool that starts no shell, and beside one that does.
const PROGRAM: [&str; 1] = ["/bin/true"];
const SHELL: [&str; 3] = ["bash", "-c", "true"];

/// Below the home of the sandbox's user, and below a directory of the host.
const FILE: &str = "bench-file";
const TREE: &str = "bench-tree";
const NEEDLE: &str = "needle";
const NOTE: &str = "bench-note";

const NETWORK: &str = "create with a policy that allows one name, p50; x create without";
const FLEX_READ: &str = "read_file of a line over Flex's door, p50; x a bare exec";
const FLEX_BASH: &str = "bash true over Flex's door, p50; x a bare exec of bash -c true";

#[derive(Debug, clap::Args)]
pub struct ToolArgs {
    /// Skip files and tools
    #[arg(long)]
    no_tools: bool,
    /// Size of the file to upload and download, in MB
    #[arg(long, value_name = "MB", default_value_t = 64, value_parser = clap::value_parser!(u64).range(1..=BENCH_TRANSFER_MB_MAX))]
    transfer_mb: u64,
    /// Number of files to search
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..=BENCH_GREP_FILES_MAX))]
    grep_files: u64,
}

impl ToolArgs {
    /// Approximate space of all files in the sandbox.
    pub fn mebibytes(&self) -> u64 {
        if self.no_tools { 0 } else { self.transfer_mb + Tree::Files(self.grep_files).mebibytes() }
    }
}

/// Takes all of them, in a running sandbox.
pub fn all(args: &ToolArgs, address: SocketAddr, sandbox: &str) -> Vec<Rate> {
    if args.no_tools {
        return Vec::new();
    }
    let rate = |name, meaning, unit, taken: io::Result<Taken>| {
        let taken = taken.unwrap_or_else(not_measured);
        Rate { name, meaning, unit, taken }
    };
    let place = match Fixture::make(address, sandbox) {
        Ok(place) => place,
        Err(error) => return vec![rate("tools", "", "", Err(error))],
    };
    let size = args.transfer_mb * MIB;
    let (note, cmd) = (json!({ "path": NOTE }), json!({ "cmd": "true" }));
    vec![
        rate("upload", "a file into the sandbox; x cp on the host", "MB/s", place.upload(size)),
        rate("download", "the same file back; x cp on the host", "MB/s", place.download(size)),
        rate("grep", "a search of many files; x rg on the host", "files/s", place.search(args)),
        rate("network", NETWORK, "ms", place.created_with_network()),
        rate("tool", "ls as a tool over HTTP, p50; x a bare exec", "ms", place.called()),
        rate("mcp", "the same over MCP, p50; x a bare exec", "ms", place.called_by_mcp()),
        rate("flex_read", FLEX_READ, "ms", place.called_by_flex("read_file", &note, &PROGRAM)),
        rate("flex_bash", FLEX_BASH, "ms", place.called_by_flex("bash", &cmd, &SHELL)),
    ]
}

/// A sandbox, and a temporary directory of the host.
struct Fixture<'a> {
    address: SocketAddr,
    sandbox: &'a str,
    directory: PathBuf,
}

impl Drop for Fixture<'_> {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.directory) {
            eprintln!("{} is left behind: {error}", self.directory.display());
        }
    }
}

impl<'a> Fixture<'a> {
    fn make(address: SocketAddr, sandbox: &'a str) -> io::Result<Self> {
        let directory = place::path().join(format!("tools-{}", SandboxId::random()));
        fs::create_dir(&directory)?;
        Ok(Self { address, sandbox, directory })
    }

    fn target(&self, rest: &str) -> String {
        format!("/api/v1/sandboxes/{}/{rest}", self.sandbox)
    }

    fn connection(&self) -> io::Result<Connection> {
        Connection::open(self.address)?.with_patience(BENCH_STORAGE_ANSWER)
    }

    fn post(&self, connection: &mut Connection, rest: &str, body: &Value) -> io::Result<Value> {
        succeeded(connection.request("POST", &self.target(rest), &body.to_string())?)
    }

    /// A file of the host, with the size of the uploaded one.
    fn original(&self, size: u64) -> io::Result<PathBuf> {
        let path = self.directory.join(FILE);
        fs::write(&path, content(size))?;
        Ok(path)
    }

    fn copied(&self, size: u64) -> io::Result<f64> {
        let (from, to) = (self.directory.join(FILE), self.directory.join("copy"));
        let began = Instant::now();
        let done = Command::new("cp").arg(&from).arg(&to).status()?;
        let rate = megabytes_a_second(size, began);
        fs::remove_file(&to)?;
        if done.success() { Ok(rate) } else { Err(io::Error::other("cp failed")) }
    }

    /// The request headers for the file, on a separate connection.
    fn begin(&self, method: &str, headers: &str) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(self.address)?;
        stream.set_read_timeout(Some(BENCH_STORAGE_ANSWER))?;
        let (target, host) = (self.target(&format!("files?path={FILE}")), self.address);
        write!(
            stream,
            "{method} {target} HTTP/1.1\r\nhost: {host}\r\n{headers}connection: close\r\n\r\n"
        )?;
        Ok(stream)
    }

    fn upload(&self, size: u64) -> io::Result<Taken> {
        self.original(size)?;
        let (bytes, mut connection) = (content(size), self.connection()?);
        let up = || {
            // A new file, like the copy: replacing one would need twice the space.
            self.remove(&mut connection)?;
            let began = Instant::now();
            let mut stream = self.begin("PUT", &format!("content-length: {size}\r\n"))?;
            stream.write_all(&bytes)?;
            let mut answer = Vec::new();
            stream.read_to_end(&mut answer)?;
            if answer.starts_with(b"HTTP/1.1 2") {
                Ok(megabytes_a_second(size, began))
            } else {
                Err(io::Error::other(String::from_utf8_lossy(&answer).into_owned()))
            }
        };
        Ok(in_turn(up, || self.copied(size)))
    }

    fn remove(&self, connection: &mut Connection) -> io::Result<()> {
        let target = self.target(&format!("files?path={FILE}"));
        let answer = connection.request("DELETE", &target, "")?;
        match answer.status {
            200..300 | 404 => Ok(()),
            status => Err(io::Error::other(format!("removing a file is answered {status}"))),
        }
    }

    fn download(&self, size: u64) -> io::Result<Taken> {
        let mut buffer = vec![0; 256 * 1024];
        let down = || {
            let began = Instant::now();
            let mut stream = self.begin("GET", "")?;
            let mut bytes = 0;
            loop {
                match stream.read(&mut buffer)? {
                    0 => break,
                    count => bytes += count as u64,
                }
            }
            if bytes > size {
                Ok(megabytes_a_second(size, began))
            } else {
                Err(io::Error::other(format!("only {bytes} bytes came")))
            }
        };
        Ok(in_turn(down, || self.copied(size)))
    }

    fn search(&self, args: &ToolArgs) -> io::Result<Taken> {
        let files = args.grep_files;
        let found = Command::new("rg").arg("--version").stdout(Stdio::null()).status();
        found.map_err(|_| io::Error::other("rg is not installed"))?;
        let script = plant(files);
        let planted =
            Command::new("sh").args(["-c", &script]).current_dir(&self.directory).status()?;
        let mut connection = self.connection()?;
        let grown = self.post(&mut connection, "execs", &json!({ "command": script }))?;
        if !planted.success() || grown["exit_code"] != 0 {
            return Err(io::Error::other(format!("the files cannot be made: {grown}")));
        }
        let a_second = |began: Instant| files as f64 / began.elapsed().as_secs_f64();
        let ours = || {
            let began = Instant::now();
            let body = json!({ "pattern": NEEDLE, "path": TREE });
            let answer = self.post(&mut connection, "tools/grep", &body)?;
            let rate = a_second(began);
            if answer["content"].to_string().contains(NEEDLE) {
                Ok(rate)
            } else {
                Err(io::Error::other(format!("nothing was found: {answer}")))
            }
        };
        let theirs = || {
            let mut rg = Command::new("rg");
            rg.args(["--no-ignore", "--hidden", "--line-number", NEEDLE]);
            let began = Instant::now();
            let ran = rg.arg(self.directory.join(TREE)).stdout(Stdio::null()).status()?;
            if ran.success() {
                Ok(a_second(began))
            } else {
                Err(io::Error::other("rg found nothing"))
            }
        };
        Ok(in_turn(ours, theirs))
    }

    /// Every sandbox gets a new label, because a store may skip writing an unchanged row.
    fn created_with_network(&self) -> io::Result<Taken> {
        let (mut ours, mut theirs, number) = (self.connection()?, self.connection()?, Cell::new(0));
        let create = |connection: &mut Connection, network: &Value| {
            number.set(number.get() + 1);
            let labels = json!({ "bench": number.get().to_string() });
            let body = json!({ "labels": labels, "network": network }).to_string();
            let began = Instant::now();
            let created = succeeded(connection.request("POST", "/api/v1/sandboxes", &body)?)?;
            let took = began.elapsed().as_secs_f64() * 1_000.0;
            let id = created["id"].as_str().unwrap_or_default();
            connection.request("DELETE", &format!("/api/v1/sandboxes/{id}"), "")?;
            Ok(took)
        };
        let median_of = |connection: &mut Connection, network: Value| {
            let took = (0..BENCH_TOOL_CALLS).map(|_| create(connection, &network));
            took.collect::<io::Result<_>>().map(median)
        };
        let allow = || json!({ "allow": ["api.example.com"] });
        Ok(in_turn(|| median_of(&mut ours, allow()), || median_of(&mut theirs, json!("none"))))
    }

    fn called(&self) -> io::Result<Taken> {
        let (mut ours, mut theirs) = (self.connection()?, self.connection()?);
        let call = || self.post(&mut ours, "tools/ls", &json!({ "path": "/" })).map(drop);
        Ok(in_turn(p50_ms(call), p50_ms(|| self.bare(&mut theirs, &PROGRAM))))
    }

    fn called_by_mcp(&self) -> io::Result<Taken> {
        let (mut ours, mut theirs) = (self.connection()?, self.connection()?);
        let arguments = json!({ "sandbox": self.sandbox, "path": "/" });
        let message = json!({
            "jsonrpc": "2.0",
            "id": 1,
            "method": "tools/call",
            "params": { "name": "ls", "arguments": arguments },
        });
        let message = message.to_string();
        let call = || {
            let accept = "application/json, text/event-stream";
            let answer = ours.request_accepting("POST", "/mcp", accept, &message)?;
            let answer = succeeded(answer)?;
            if answer["result"]["isError"] == false {
                Ok(())
            } else {
                Err(io::Error::other(answer.to_string()))
            }
        };
        Ok(in_turn(p50_ms(call), p50_ms(|| self.bare(&mut theirs, &PROGRAM))))
    }

    /// A daemon that was built without that door has none.
    fn called_by_flex(&self, tool: &str, params: &Value, beside: &[&str]) -> io::Result<Taken> {
        let (mut ours, mut theirs) = (self.connection()?, self.connection()?);
        self.post(&mut theirs, "execs", &json!({ "command": format!("echo line > {NOTE}") }))?;
        let mut calls = 0;
        let call = || {
            calls += 1;
            // Under one id it would be called once, and answered from memory.
            let message = json!({
                "SessionID": self.sandbox,
                "ToolCallID": format!("bench-{tool}-{calls}"),
                "ToolName": tool,
                "Params": params,
            });
            let target = "/rpc.v1.SandboxService/ExecuteTool";
            let answer = succeeded(ours.request("POST", target, &message.to_string())?)?;
            let failed = answer["ExitCode"].as_i64().unwrap_or(0) != 0;
            if failed || answer["ToolName"] != tool {
                Err(io::Error::other(answer.to_string()))
            } else {
                Ok(())
            }
        };
        Ok(in_turn(p50_ms(call), p50_ms(|| self.bare(&mut theirs, beside))))
    }

    fn bare(&self, connection: &mut Connection, argv: &[&str]) -> io::Result<()> {
        self.post(connection, "execs", &json!({ "argv": argv })).map(drop)
    }
}

fn succeeded(answer: super::http::Response) -> io::Result<Value> {
    match answer.status {
        200..300 => Ok(serde_json::from_slice(&answer.body)?),
        status => {
            let body = String::from_utf8_lossy(&answer.body);
            Err(io::Error::other(format!("the answer is {status}: {body}")))
        }
    }
}

/// The median of several calls, in milliseconds.
fn p50_ms(mut call: impl FnMut() -> io::Result<()>) -> impl FnMut() -> io::Result<f64> {
    move || {
        let mut took = Vec::new();
        for _ in 0..BENCH_TOOL_CALLS {
            let began = Instant::now();
            call()?;
            took.push(began.elapsed().as_secs_f64() * 1_000.0);
        }
        Ok(median(took))
    }
}

/// Incompressible bytes.
fn content(size: u64) -> Vec<u8> {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    let words = (0..size.div_ceil(8)).flat_map(|_| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    });
    words.take(usize::try_from(size).unwrap_or(usize::MAX)).collect()
}

/// Creates this many small files, a hundred per directory, the last of which contains the searched text.
fn plant(files: u64) -> String {
    format!(
        "set -e; rm -rf {TREE}; mkdir {TREE}; cd {TREE}; i=0; while [ $i -lt {files} ]; do d=$((i / 100)); \
         [ $((i % 100)) -ne 0 ] || mkdir $d; \
         echo \"line one of file $i\nline two, which says little\nline three\" > $d/$i; i=$((i + 1)); done; \
         echo {NEEDLE} >> $d/$((i - 1))"
    )
}
