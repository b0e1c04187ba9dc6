//! Sandboxes as Docker containers (see `engine`), through Docker's own API.
//!
//! Docker accepts no directory as a root, only images. Ours is empty: it is imported once, for the first container, and
//! kept.

#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;

use async_trait::async_trait;
use bollard::errors::Error;
use bollard::models::{
    ContainerCreateBody, ContainerInspectResponse, ContainerSummary, ContainerSummaryStateEnum,
    HostConfig, HostConfigLogConfig, Mount, MountBindOptions, MountType, ResourcesUlimits,
    RestartPolicy, RestartPolicyNameEnum, SystemInfo,
};
use bollard::query_parameters::{
    CreateContainerOptionsBuilder, CreateImageOptionsBuilder, ListContainersOptionsBuilder,
    RemoveContainerOptionsBuilder,
};
use bollard::{API_DEFAULT_VERSION, body_full};
use futures_util::TryStreamExt;
use tokio::sync::Mutex;

use super::engine::{
    Access, Bound, Container, Engine, EngineError, EngineRuntime, Inspected, Listed, NoEngine,
    socket,
};
use super::grouped::HostResources;
use sandkeep_core::limits;
use sandkeep_sys::cgroup::{CPU_PERIOD_MICROS, Controllers, cpu_quota_micros};

/// The image of all containers; its tag changes with its content.
const IMAGE: (&str, &str) = ("sandkeep/empty", "1");
/// An empty archive is two blocks of zeros.
const IMAGE_TAR: &[u8] = &[0; 1024];

/// Docker 19.03, the first that can bind a directory without nested mounts.
const OLDEST_API: (usize, usize) = (1, 40);

pub struct Docker {
    api: bollard::Docker,
    limits: Controllers,
    /// Held while the image is looked up and imported, so that this happens once.
    image: Mutex<()>,
}

impl Docker {
    pub const NAME: &str = "docker";

    /// The default sockets.
    fn usual_sockets() -> Vec<PathBuf> {
        ["/var/run/docker.sock", "/run/docker.sock"].map(PathBuf::from).into()
    }

    /// Checks whether Docker is available and usable; if not, the error says why.
    pub async fn runtime(
        host: Option<&str>,
        host_resources: Arc<HostResources>,
    ) -> Result<Arc<EngineRuntime<Self>>, NoEngine> {
        let socket = socket::find(host, &Self::usual_sockets())?;
        let asked = tokio::time::timeout(limits::ENGINE_IS_THERE, Self::open(&socket)).await;
        let late = |_| EngineError::TimedOut { after: limits::ENGINE_IS_THERE };
        let (api, info) = asked.map_err(late).flatten().map_err(|error| {
            NoEngine(format!("Docker at {}: {error} (is it running?)", socket.display()))
        })?;
        refuse(&info)?;
        let limits = Controllers {
            memory: info.memory_limit.unwrap_or_default(),
            cpu: info.cpu_cfs_quota.unwrap_or_default(),
            pids: info.pids_limit.unwrap_or_default(),
            freezer: true,
        };
        let docker = Self { api, limits, image: Mutex::default() };
        EngineRuntime::new(docker, host_resources)
    }

    async fn open(socket: &std::path::Path) -> Result<(bollard::Docker, SystemInfo), EngineError> {
        let path = socket.to_string_lossy();
        let answer = limits::ENGINE_ANSWER.as_secs();
        let api = bollard::Docker::connect_with_unix(&path, answer, API_DEFAULT_VERSION);
        let api = api.map_err(failed)?.negotiate_version().await.map_err(failed)?;
        let version = api.client_version();
        if (version.major_version, version.minor_version) < OLDEST_API {
            let (major, minor) = OLDEST_API;
            return Err(EngineError::Strange(format!(
                "its API has version {version}; {major}.{minor} is needed"
            )));
        }
        let info = api.info().await.map_err(failed)?;
        Ok((api, info))
    }

    async fn make_image(&self) -> Result<(), EngineError> {
        let _once = self.image.lock().await;
        let (repository, tag) = IMAGE;
        match self.api.inspect_image(&format!("{repository}:{tag}")).await {
            Ok(_) => return Ok(()),
            Err(error) if status(&error) == Some(NOT_FOUND) => {}
            Err(error) => return Err(failed(error)),
        }
        let options = CreateImageOptionsBuilder::default().from_src("-").repo(repository).tag(tag);
        let tar = body_full(IMAGE_TAR.into());
        let progress = self.api.create_image(Some(options.build()), Some(tar), None);
        let read = progress.try_for_each(|_| std::future::ready(Ok(())));
        read.await.map_err(failed)
    }

    async fn try_create(&self, container: &Container) -> Result<(), Error> {
        let options = CreateContainerOptionsBuilder::default().name(&container.name).build();
        self.api.create_container(Some(options), body(container)).await.map(drop)
    }
}

const NOT_MODIFIED: u16 = 304;
const NOT_FOUND: u16 = 404;
const CONFLICT: u16 = 409;

fn status(error: &Error) -> Option<u16> {
    match error {
        Error::DockerResponseServerError { status_code, .. } => Some(*status_code),
        _ => None,
    }
}

fn failed(error: Error) -> EngineError {
    match error {
        Error::DockerResponseServerError { status_code, message } => {
            EngineError::Refused { status: status_code, message }
        }
        Error::RequestTimeoutError => EngineError::TimedOut { after: limits::ENGINE_ANSWER },
        Error::JsonDataError { message, .. } => EngineError::Strange(message),
        other => EngineError::Unreachable(io::Error::other(other)),
    }
}

/// Why sandboxes cannot be containers of this Docker.
fn refuse(info: &SystemInfo) -> Result<(), NoEngine> {
    let ours = rustix::system::uname();
    let (ours, theirs) = (ours.release().to_string_lossy(), info.kernel_version.as_deref());
    if theirs != Some(&ours) {
        let reason = "Docker runs on another kernel than this daemon, in a virtual machine maybe; \
                      install Docker Engine on this machine itself";
        return Err(NoEngine(reason.to_owned()));
    }
    let options = info.security_options.iter().flatten();
    for option in options {
        let reason = match option.split(',').next() {
            Some("name=userns") => "it shifts the ids of all containers (userns-remap)",
            Some("name=rootless") => "it runs without root",
            _ => continue,
        };
        return Err(NoEngine(format!(
            "{reason}, so containers could not use volumes; set SANDKEEP_DOCKER_HOST to a Docker that does not"
        )));
    }
    Ok(())
}

fn body(container: &Container) -> ContainerCreateBody {
    let (repository, tag) = IMAGE;
    ContainerCreateBody {
        image: Some(format!("{repository}:{tag}")),
        entrypoint: Some(container.command.clone()),
        cmd: Some(Vec::new()),
        hostname: Some(container.hostname.clone()),
        labels: Some(container.labels.clone().into_iter().collect()),
        host_config: Some(host_config(container)),
        ..ContainerCreateBody::default()
    }
}

/// Paths that Docker masks by default, in addition.
fn masked_in_sys() -> [String; 2] {
    ["/sys/firmware", "/sys/devices/virtual/powercap"].map(str::to_owned)
}

fn host_config(container: &Container) -> HostConfig {
    let mut security = vec![format!("seccomp={}", container.seccomp)];
    if container.no_new_privileges {
        security.push("no-new-privileges:true".to_owned());
    }
    let number = |number: u64| i64::try_from(number).ok();
    HostConfig {
        mounts: Some(container.binds.iter().map(mount).collect()),
        cap_drop: Some(vec!["ALL".to_owned()]),
        cap_add: Some(container.capabilities.clone()),
        security_opt: Some(security),
        sysctls: Some(container.network_limits.clone().into_iter().collect()),
        masked_paths: Some([container.masked_paths.as_slice(), &masked_in_sys()].concat()),
        readonly_rootfs: Some(true),
        network_mode: Some("none".to_owned()),
        ipc_mode: Some("private".to_owned()),
        init: Some(false),
        privileged: Some(false),
        log_config: Some(HostConfigLogConfig { typ: Some("none".to_owned()), config: None }),
        restart_policy: Some(RestartPolicy {
            name: Some(RestartPolicyNameEnum::NO),
            maximum_retry_count: None,
        }),
        memory: number(container.memory_bytes),
        // The sum of memory and swap: there is no swap.
        memory_swap: number(container.memory_bytes),
        pids_limit: number(container.pids),
        cpu_period: Some(CPU_PERIOD_MICROS.cast_signed()),
        cpu_quota: number(cpu_quota_micros(container.cpus)),
        shm_size: number(container.shm_bytes),
        ulimits: Some(vec![ResourcesUlimits {
            name: Some("nofile".to_owned()),
            soft: number(container.descriptors.0),
            hard: number(container.descriptors.1),
        }]),
        ..HostConfig::default()
    }
}

fn mount(bound: &Bound) -> Mount {
    Mount {
        typ: Some(MountType::BIND),
        source: Some(bound.source.to_string_lossy().into_owned()),
        target: Some(bound.target.clone()),
        read_only: Some(bound.access == Access::Read),
        bind_options: Some(MountBindOptions {
            non_recursive: Some(true),
            ..MountBindOptions::default()
        }),
        ..Mount::default()
    }
}

#[async_trait]
impl Engine for Docker {
    fn name(&self) -> &'static str {
        Self::NAME
    }

    fn limits(&self) -> Controllers {
        self.limits
    }

    async fn create(&self, container: &Container) -> Result<(), EngineError> {
        match self.try_create(container).await {
            // The image is missing.
            Err(error) if status(&error) == Some(NOT_FOUND) => {
                self.make_image().await?;
                self.try_create(container).await.map_err(failed)
            }
            created => created.map_err(failed),
        }
    }

    async fn start(&self, name: &str) -> Result<(), EngineError> {
        match self.api.start_container(name, None).await {
            Err(error) if status(&error) != Some(NOT_MODIFIED) => Err(failed(error)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    async fn inspect(&self, name: &str) -> Result<Option<Inspected>, EngineError> {
        match self.api.inspect_container(name, None).await {
            Ok(found) => Ok(Some(inspected(found))),
            Err(error) if status(&error) == Some(NOT_FOUND) => Ok(None),
            Err(error) => Err(failed(error)),
        }
    }

    async fn remove(&self, name: &str) -> Result<(), EngineError> {
        let options = RemoveContainerOptionsBuilder::default().force(true).v(true).build();
        match self.api.remove_container(name, Some(options)).await {
            Err(error) if !matches!(status(&error), Some(NOT_FOUND | CONFLICT)) => {
                Err(failed(error))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    async fn list(&self, label: &str, value: &str) -> Result<Vec<Listed>, EngineError> {
        let filters = HashMap::from([("label", vec![format!("{label}={value}")])]);
        let options = ListContainersOptionsBuilder::default().all(true).filters(&filters).build();
        let listed = self.api.list_containers(Some(options)).await.map_err(failed)?;
        Ok(listed.into_iter().map(summarized).collect())
    }
}

fn inspected(found: ContainerInspectResponse) -> Inspected {
    let running = found.state.filter(|state| state.running == Some(true));
    Inspected {
        id: found.id.unwrap_or_default(),
        labels: found.config.and_then(|config| config.labels).unwrap_or_default(),
        pid: running.and_then(|state| u32::try_from(state.pid?).ok()).filter(|pid| *pid != 0),
    }
}

fn summarized(summary: ContainerSummary) -> Listed {
    use ContainerSummaryStateEnum as State;
    let running = match summary.state {
        Some(State::RUNNING | State::PAUSED | State::STOPPING) => true,
        Some(
            State::EMPTY
            | State::CREATED
            | State::RESTARTING
            | State::EXITED
            | State::REMOVING
            | State::DEAD,
        )
        | None => false,
    };
    Listed { labels: summary.labels.unwrap_or_default(), running }
}
