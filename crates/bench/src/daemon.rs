//! A separate daemon to measure: this same binary, on a free port, in a temporary data directory.

use std::fs;
use std::io::{self, BufRead, BufReader};
use std::net::SocketAddr;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use super::egress;
use super::http::Connection;
use super::place;
use sandkeep_core::limits::{BENCH_STORAGE_ANSWER, DISK_DEFAULT_POOL_SHARE};
use sandkeep_storage::StorageChoice;

/// Size of a pool beyond its content.
const SPARE_MB: u64 = 1024;

#[derive(Debug)]
pub struct OwnDaemon {
    process: Child,
    data_dir: PathBuf,
    pub address: SocketAddr,
}

impl OwnDaemon {
    /// With this much space for a sandbox that sets no limit.
    pub fn start_on(storage: &StorageChoice, room_mb: u64) -> io::Result<Self> {
        let data_dir = place::data_dir();
        // The daemon must not outlive a killed benchmark.
        let mut process = Command::new("setpriv")
            .args(["--pdeathsig", "TERM"])
            .arg(std::env::current_exe()?)
            .args([
                "--log",
                "warn",
                "serve",
                "--listen",
                "127.0.0.1:0",
                "--storage-size-mb",
                &(SPARE_MB + DISK_DEFAULT_POOL_SHARE * room_mb).to_string(),
            ])
            .arg(format!("--storage={storage}"))
            .args(egress::settings()?)
            .arg("--data-dir")
            .arg(&data_dir)
            // The configuration of this machine's own daemon must not affect the figures.
            .env("SANDKEEP_CONFIG", "/dev/null")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            // An interrupt from the terminal is for the benchmark, which then ends the daemon.
            .process_group(0)
            .spawn()?;
        let stdout = process.stdout.take().expect("stdout was asked to be piped");
        let mut lines = BufReader::new(stdout).lines();
        let address = lines.by_ref().map_while(Result::ok).find_map(|line| announced(&line));
        let Some(address) = address else {
            let status = process.wait()?;
            return Err(io::Error::other(format!("the daemon did not start: {status}")));
        };
        // Further output must not fill the pipe.
        std::thread::spawn(move || lines.for_each(drop));
        Ok(Self { process, data_dir, address })
    }
}

impl OwnDaemon {
    /// Destroys the leftovers of an interrupted benchmark: sandboxes outlive their daemon.
    fn clear(&self) -> io::Result<()> {
        let mut connection = Connection::open(self.address)?.with_patience(BENCH_STORAGE_ANSWER)?;
        let listed = connection.request("GET", "/api/v1/sandboxes?limit=1000", "")?;
        let listed: Value = serde_json::from_slice(&listed.body)?;
        for sandbox in listed["items"].as_array().into_iter().flatten() {
            let id = sandbox["id"].as_str().unwrap_or_default();
            connection.request("DELETE", &format!("/api/v1/sandboxes/{id}"), "")?;
        }
        Ok(())
    }
}

impl Drop for OwnDaemon {
    fn drop(&mut self) {
        if let Err(error) = self.clear() {
            eprintln!("sandboxes are left behind: {error}");
        }
        let stopped = kill_process(Pid::from_child(&self.process), Signal::TERM)
            .map_err(io::Error::from)
            .and_then(|()| self.process.wait().map(drop))
            .and_then(|()| fs::remove_dir_all(&self.data_dir));
        if let Err(error) = stopped {
            eprintln!("{} is left behind: {error}", self.data_dir.display());
        }
    }
}

/// The address in the line by which a daemon announces it.
pub fn announced(line: &str) -> Option<SocketAddr> {
    let rest = line.split("://").nth(1)?;
    let end = rest.find(|c: char| !(c.is_ascii_hexdigit() || ".:[]".contains(c)));
    rest[..end.unwrap_or(rest.len())].parse().ok()
}

#[test]
fn the_address_is_found_in_a_sentence() {
    let expected = Some(SocketAddr::from(([127, 0, 0, 1], 4500)));
    assert_eq!(announced("sandkeep listens on http://127.0.0.1:4500"), expected);
    assert_eq!(announced("  curl http://127.0.0.1:4500/api/v1/sandboxes"), expected);
    assert_eq!(announced("storage: btrfs"), None);
}
