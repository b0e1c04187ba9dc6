//! Sandboxes as Podman containers (see `engine`), through its own API and not the Docker-compatible one: only there a
//! container's root can be a directory, which needs no image.
//!
//! Podman creates its own mount points in that directory. So it is an empty one of ours that all containers share,
//! read-only for them, and not the volume.

mod client;
mod spec;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use async_trait::async_trait;
use percent_encoding::{NON_ALPHANUMERIC, utf8_percent_encode};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;

use super::engine::{
    Container, Engine, EngineError, EngineRuntime, Inspected, Listed, NoEngine, seccomp, socket,
};
use super::grouped::HostResources;
use client::{Answer, Client, Method};
use sandkeep_core::limits;
use sandkeep_sys::cgroup::Controllers;

/// The directory that is every container's root, in the data directory.
const ROOT: &str = "podman-root";
/// The seccomp filter, in the data directory.
const SECCOMP: &str = "podman-seccomp.json";

pub struct Podman {
    client: Client,
    files: Files,
    limits: Controllers,
}

/// Files that Podman reads.
pub struct Files {
    root: PathBuf,
    seccomp: PathBuf,
}

impl Files {
    fn make(data: &Path) -> io::Result<Self> {
        let files = Self { root: data.join(ROOT), seccomp: data.join(SECCOMP) };
        // The places at which something is mounted in every container; Podman adds its own.
        let places = ["volume", "sandkeep", "proc", "dev", "sys", "etc", "run"];
        for place in places.map(|place| files.root.join(place)) {
            fs::create_dir_all(&place)?;
            // Not by mkdir's mode, which the umask narrows.
            fs::set_permissions(place, Permissions::from_mode(0o755))?;
        }
        fs::set_permissions(&files.root, Permissions::from_mode(0o755))?;
        fs::write(&files.seccomp, seccomp())?;
        Ok(files)
    }
}

impl Podman {
    pub const NAME: &str = "podman";

    /// The default sockets.
    fn usual_sockets() -> Vec<PathBuf> {
        let users = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
        let users = users.map(|dir| dir.join("podman/podman.sock"));
        [PathBuf::from("/run/podman/podman.sock")].into_iter().chain(users).collect()
    }

    /// Checks whether Podman is available and usable; if not, the error says why.
    pub async fn runtime(
        host: Option<&str>,
        host_resources: Arc<HostResources>,
    ) -> Result<Arc<EngineRuntime<Self>>, NoEngine> {
        let socket = socket::find(host, &Self::usual_sockets())?;
        let client = Client::new(socket.clone());
        let info = client.call(Method::Get, "/info", None, limits::ENGINE_IS_THERE).await;
        let info = info.and_then(|answer| answer.expect::<Info>(&[OK])).map_err(|error| {
            let socket = socket.display();
            NoEngine(format!(
                "Podman at {socket}: {error} (start it with `podman system service -t 0`)"
            ))
        })?;
        refuse(&info)?;
        let has = |name: &str| info.host.controllers.iter().any(|controller| controller == name);
        let (memory, cpu, pids) = (has("memory"), has("cpu"), has("pids"));
        let limits = Controllers { memory, cpu, pids, freezer: true };
        let files = Files::make(host_resources.data_dir())
            .map_err(|error| NoEngine(format!("cannot make its files: {error}")))?;
        EngineRuntime::new(Self { client, files, limits }, host_resources)
    }

    async fn ask(&self, method: Method, path: &str) -> Result<Answer, EngineError> {
        self.client.call(method, path, None, limits::ENGINE_ANSWER).await
    }

    /// Podman's description of a container. It cannot describe one that has just ended while it still considers it
    /// running, because it reads from a process that is gone. It notices soon.
    async fn describe(&self, name: &str) -> Result<Answer, EngineError> {
        let path = format!("/containers/{name}/json");
        let given_up = Instant::now() + limits::ENGINE_SETTLES;
        loop {
            let answer = self.ask(Method::Get, &path).await?;
            if !stumbled(&answer) || Instant::now() >= given_up {
                return Ok(answer);
            }
            tokio::time::sleep(limits::ENGINE_LOOK_AGAIN).await;
        }
    }
}

/// Whether Podman failed because a process had just ended.
fn stumbled(answer: &Answer) -> bool {
    const GONE: &[u8] = b"no such process";
    answer.status == INTERNAL_ERROR && answer.body.windows(GONE.len()).any(|part| part == GONE)
}

/// Why sandboxes cannot be containers of this Podman.
fn refuse(info: &Info) -> Result<(), NoEngine> {
    if info.host.security.rootless {
        let reason = "Podman runs without root, so containers could not use volumes; set \
                      SANDKEEP_PODMAN_HOST to one that runs as root";
        return Err(NoEngine(reason.to_owned()));
    }
    let ours = rustix::system::uname();
    if info.host.kernel != ours.release().to_string_lossy() {
        let reason = "Podman runs on another kernel than this daemon, in a virtual machine maybe; \
                      install it on this machine itself";
        return Err(NoEngine(reason.to_owned()));
    }
    Ok(())
}

#[derive(Deserialize)]
struct Info {
    host: HostInfo,
}

#[derive(Deserialize)]
struct HostInfo {
    kernel: String,
    #[serde(rename = "cgroupControllers", default)]
    controllers: Vec<String>,
    security: SecurityInfo,
}

#[derive(Deserialize)]
struct SecurityInfo {
    rootless: bool,
}

/// The relevant part of Podman's description. States are strings, because new ones may be added.
#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Described {
    id: String,
    state: DescribedState,
    config: DescribedConfig,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DescribedState {
    running: bool,
    paused: bool,
    pid: u32,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct DescribedConfig {
    labels: Option<HashMap<String, String>>,
}

#[derive(Deserialize)]
#[serde(rename_all = "PascalCase")]
struct Summary {
    labels: Option<HashMap<String, String>>,
    state: String,
}

const OK: u16 = 200;
const CREATED: u16 = 201;
const NO_CONTENT: u16 = 204;
const NOT_MODIFIED: u16 = 304;
const NOT_FOUND: u16 = 404;
const INTERNAL_ERROR: u16 = 500;
const CONFLICT: u16 = 409;

impl Answer {
    fn check(&self, fine: &[u16]) -> Result<(), EngineError> {
        #[derive(Deserialize)]
        struct Problem {
            message: String,
        }
        if fine.contains(&self.status) {
            return Ok(());
        }
        let message = match serde_json::from_slice::<Problem>(&self.body) {
            Ok(problem) => problem.message,
            Err(_) => String::from_utf8_lossy(&self.body).into_owned(),
        };
        Err(EngineError::Refused { status: self.status, message })
    }

    fn expect<T: DeserializeOwned>(&self, fine: &[u16]) -> Result<T, EngineError> {
        self.check(fine)?;
        serde_json::from_slice(&self.body).map_err(|error| EngineError::Strange(error.to_string()))
    }
}

#[async_trait]
impl Engine for Podman {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn limits(&self) -> Controllers {
        self.limits
    }

    async fn create(&self, container: &Container) -> Result<(), EngineError> {
        let body = spec::of(container, &self.files);
        let path = "/containers/create";
        let answer =
            self.client.call(Method::Post, path, Some(&body), limits::ENGINE_ANSWER).await?;
        answer.check(&[CREATED])
    }

    async fn start(&self, name: &str) -> Result<(), EngineError> {
        let answer = self.ask(Method::Post, &format!("/containers/{name}/start")).await?;
        answer.check(&[NO_CONTENT, NOT_MODIFIED])
    }

    async fn inspect(&self, name: &str) -> Result<Option<Inspected>, EngineError> {
        let answer = self.describe(name).await?;
        if answer.status == NOT_FOUND {
            return Ok(None);
        }
        let Described { id, state, config } = answer.expect(&[OK])?;
        let runs = (state.running || state.paused) && state.pid != 0;
        let labels = config.labels.unwrap_or_default();
        Ok(Some(Inspected { id, labels, pid: runs.then_some(state.pid) }))
    }

    async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let path = format!("/containers/{name}?force=true&v=true&timeout=0");
        self.ask(Method::Delete, &path).await?.check(&[OK, NO_CONTENT, NOT_FOUND, CONFLICT])
    }

    async fn list(&self, label: &str, value: &str) -> Result<Vec<Listed>, EngineError> {
        let filters = format!(r#"{{"label":["{label}={value}"]}}"#);
        let filters = utf8_percent_encode(&filters, NON_ALPHANUMERIC);
        let path = format!("/containers/json?all=true&filters={filters}");
        // Podman returns null for an empty list.
        let all: Option<Vec<Summary>> = self.ask(Method::Get, &path).await?.expect(&[OK])?;
        let listed = |summary: Summary| Listed {
            labels: summary.labels.unwrap_or_default(),
            running: ["running", "paused", "stopping"].contains(&summary.state.as_str()),
        };
        Ok(all.unwrap_or_default().into_iter().map(listed).collect())
    }
}
