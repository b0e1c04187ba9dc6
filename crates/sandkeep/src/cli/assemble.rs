//! Assembles a broker from its parts: the only module that knows all implementations.

mod egress;

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::cli::serve::messaging::event_labels;
use crate::cli::version::VERSION;
use crate::config::{ConfigError, Loaded, Problem, Settings};
use crate::doctor::TestBroker;
use sandkeep_audit::{AuditLog, Options as AuditOptions};
use sandkeep_broker::{
    Broker, Filter, LocalDirectory, Parts, Policy, SystemClock, error::Error, telemetry::Telemetry,
};
use sandkeep_core::{Principal, limits};
use sandkeep_doors::auth::Auth;
use sandkeep_home::{DataDir, REGISTRY};
use sandkeep_image::{
    HostTemplate, Template,
    source::registry::{Registries, Spool},
};
use sandkeep_outgoing::{Outgoing, Roots};
use sandkeep_runtime::{
    Bwrap, Crun, Docker, Gvisor, HostResources, LateRuntime, Lifetime, MissingRuntime, MockRuntime,
    Native, NoHostResources, Podman, Runc, Runtime, Staged, Technique, Usable,
};
use sandkeep_storage::{self, BtrfsOptions, Storage};
use sandkeep_store::{MemoryStore, SqliteStore, StateStore};
use sandkeep_sys::stage::Stage;
use sandkeep_tree::Bind;

/// The names of [`local_runtimes`], in their order.
const LOCAL_RUNTIMES: [&str; 5] = [Native::NAME, Bwrap::NAME, Crun::NAME, Runc::NAME, Gvisor::NAME];

/// Which runtimes to detect besides the native one: asking a tool for its version takes as long as running it.
pub enum Wanted {
    All,
    Named(Vec<String>),
}

impl Wanted {
    /// The runtimes that a sandbox may get if it asks for this one, or for none.
    pub fn by(settings: &Settings, asked: Option<&str>) -> Self {
        let Some(name) = asked else {
            let of_profiles = settings.profiles.values();
            let named = of_profiles.filter_map(|profile| profile.runtime.clone());
            return Self::Named(named.chain([settings.default_runtime.clone()]).collect());
        };
        if LOCAL_RUNTIMES.contains(&name) {
            Self::Named(vec![name.to_owned()])
        } else {
            // An error about an unknown runtime should list all available ones.
            Self::All
        }
    }

    fn has(&self, name: &str) -> bool {
        match self {
            Self::All => true,
            Self::Named(names) => names.iter().any(|named| named == name),
        }
    }
}

/// The names of [`engines`], in their order.
const ENGINES: [&str; 2] = [Docker::NAME, Podman::NAME];

/// Where layers are stored, below a data directory, while they are pulled.
const SPOOL: &str = "spool";

/// A broker, and facts about it for people.
pub struct Assembled {
    pub broker: Broker,
    pub data_dir: PathBuf,
    pub storage: &'static str,
    pub runtime: &'static str,
}

impl Assembled {
    /// Closes the broker. Its sandboxes keep running, unless their lifetime is the broker's.
    pub async fn close(self) {
        self.broker.shutdown().await;
        if let Some(audit) = self.broker.audit() {
            audit.close();
        }
    }
}

/// Finds settings that name a runtime which this daemon would not have. Templates can be added later, so their names
/// are checked only when a sandbox asks for one.
pub fn check_names(loaded: &Loaded) -> Result<(), ConfigError> {
    let settings = &loaded.settings;
    let mut known = LOCAL_RUNTIMES.to_vec();
    known.extend(ENGINES);
    known.extend(settings.enable_mock.then_some(MockRuntime::NAME));
    let of_profiles = settings.profiles.iter().filter_map(|(name, profile)| {
        Some((format!("profiles.{name}.runtime"), profile.runtime.clone()?))
    });
    let named =
        of_profiles.chain([("default_runtime".to_owned(), settings.default_runtime.clone())]);
    let unknown = named.filter(|(_, name)| !known.contains(&name.as_str()));
    let problems: Vec<Problem> = unknown
        .map(|(key, name)| {
            let what =
                format!("there is no runtime {name:?} here; there are: {}", known.join(", "));
            Problem { source: loaded.source(&key), key: Some(key), what }
        })
        .collect();
    if problems.is_empty() { Ok(()) } else { Err(ConfigError::Invalid(problems)) }
}

/// The broker of a daemon, durable and on the configured storage, and its authentication.
pub async fn daemon(settings: &Settings, data: DataDir) -> Result<(Assembled, Auth), Error> {
    let store: Arc<dyn StateStore> = Arc::new(SqliteStore::open(&data.path().join(REGISTRY))?);
    let directory = LocalDirectory::new(Arc::clone(&store), data.instance().as_str());
    let auth = Auth::open(data.path(), Arc::new(directory), settings.oidc.issuer()).await?;
    let mebibytes = |size: u64| size.saturating_mul(limits::MIB);
    let options = BtrfsOptions {
        image_bytes: settings.storage_size_mb.map(mebibytes),
        image_max_bytes: settings.storage_max_mb.map(mebibytes),
    };
    let opened = sandkeep_storage::open(&settings.storage, data.path(), &options)?;
    if let Some(warning) = opened.warning {
        tracing::warn!("{warning}");
    }
    let host_resources = host_resources(&data);
    let mut runtimes = local_runtimes(&data, &host_resources, &[], &Wanted::All).await;
    runtimes.extend(engines(settings, &host_resources).await);
    if settings.enable_mock {
        runtimes.push(Arc::new(MockRuntime::new(data.instance().as_str())) as Arc<dyn Runtime>);
    }
    let assembled =
        open(settings, data, store, opened.storage, runtimes, Lifetime::Detached).await?;
    keep_audit(settings, &assembled);
    Ok((assembled, auth))
}

/// Opens the audit log, which no full disk prevents.
fn keep_audit(settings: &Settings, Assembled { broker, data_dir, .. }: &Assembled) {
    let options =
        AuditOptions { lost: broker.telemetry().audit_lost(), ..settings.audit.options() };
    let log = AuditLog::open(data_dir, options, VERSION);
    tokio::spawn(Arc::clone(&log).keep());
    broker.keep_audit(log);
}

/// What the operator allows, in the words of the broker.
fn policy(settings: &Settings) -> Policy {
    Policy {
        max_sandboxes: settings.limits.max_sandboxes,
        max_concurrent_tasks: settings.limits.max_concurrent_tasks,
        max_snapshots: settings.limits.max_snapshots,
        turn_prefix: settings.turn_prefix.clone(),
        snapshot_tool_calls: settings.snapshot_tool_calls,
        codebase_serving: settings.codebase_serving,
        event_commands: settings.event_commands,
        quotas: settings.quotas,
        timeouts: settings.timeouts,
        default_runtime: Some(settings.default_runtime.clone()),
        default_profile: settings.default_profile.clone(),
        profiles: settings.profiles.clone(),
        source_roots: settings.source_roots.clone(),
        source_datasets: settings.source_datasets.clone(),
        max_upload_bytes: settings.limits.max_upload_mb * limits::MIB,
        host_reserve_bytes: settings.limits.host_reserve_mb * limits::MIB,
        pool: settings.limits.pool,
        event_labels: event_labels(settings),
    }
}

/// The broker of one `run`: nothing in it outlives the process. If that is killed, its launcher
/// clears up.
pub async fn throwaway(
    settings: &Settings,
    data: DataDir,
    wanted: &Wanted,
) -> Result<Assembled, Error> {
    let host_resources = host_resources(&data);
    let reason = "its containers outlive the program that made them; use it with `sandkeep serve`";
    let engines = ENGINES.map(|name| MissingRuntime::listed(name, &reason));
    short_lived(settings, data, (host_resources, wanted), engines).await
}

/// The broker of a program that embeds one, optionally with runtimes of its own.
pub async fn embedded(
    settings: &Settings,
    data: DataDir,
    own: Vec<Arc<dyn Runtime>>,
) -> Result<Assembled, Error> {
    let host_resources = host_resources(&data);
    short_lived(settings, data, (host_resources, &Wanted::All), own).await
}

/// A temporary broker with an API for the user who started it.
#[cfg(feature = "mcp")]
pub async fn companion(
    settings: &Settings,
    data: DataDir,
    wanted: &Wanted,
) -> Result<(Assembled, Auth), Error> {
    let none = LocalDirectory::new(Arc::new(MemoryStore::new()), data.instance().as_str());
    let auth = Auth::open(data.path(), Arc::new(none), None).await?;
    Ok((throwaway(settings, data, wanted).await?, auth))
}

/// The broker that clears up after a killed `run` or `doctor`, which has every runtime that either could have used.
pub async fn clearer(settings: &Settings, data: DataDir) -> Result<Assembled, Error> {
    let host_resources = host_resources(&data);
    let engines = engines(settings, &host_resources).await;
    short_lived(settings, data, (host_resources, &Wanted::All), engines).await
}

async fn short_lived(
    settings: &Settings,
    data: DataDir,
    (host_resources, wanted): (Result<Arc<HostResources>, NoHostResources>, &Wanted),
    others: impl IntoIterator<Item = Arc<dyn Runtime>>,
) -> Result<Assembled, Error> {
    let choice = sandkeep_storage::begun(data.path());
    let opened = sandkeep_storage::open(&choice, data.path(), &BtrfsOptions::default())?;
    let sweep = [OsStr::new("--sweep"), data.path().as_os_str()];
    let mut runtimes = local_runtimes(&data, &host_resources, &sweep, wanted).await;
    runtimes.extend(others);
    let store = Arc::new(MemoryStore::new());
    open(settings, data, store, opened.storage, runtimes, Lifetime::WithDaemon).await
}

/// Where `doctor` tries things: every runtime there is, usable or not, on a small storage of the kind that the daemon
/// would have, under no policy. If it is killed, its launcher clears up.
pub async fn ward(
    settings: &Settings,
    data: DataDir,
) -> Result<(TestBroker, Option<String>), Error> {
    let options =
        BtrfsOptions { image_bytes: Some(limits::BATTERY_POOL_BYTES), image_max_bytes: None };
    let opened = sandkeep_storage::open(&settings.storage, data.path(), &options)?;
    let sweep = [OsStr::new("--sweep"), data.path().as_os_str()];
    let host_resources = host_resources(&data);
    let mut runtimes = local_runtimes(&data, &host_resources, &sweep, &Wanted::All).await;
    runtimes.extend(engines(settings, &host_resources).await);
    let unusable = |source| Error::DataDir { path: data.path().display().to_string(), source };
    let egress = egress::of_the_battery(&data).map_err(unusable)?;
    let settings = Settings {
        egress,
        limits: Default::default(),
        quotas: Default::default(),
        timeouts: Default::default(),
        default_profile: None,
        ..settings.clone()
    };
    let store = Arc::new(MemoryStore::new());
    let storage = Arc::clone(&opened.storage);
    let lifetime = Lifetime::Detached;
    let template = host_template(&data)?;
    let seen_as = |bind: &Bind| Path::new("/").join(&bind.target).display().to_string();
    let shared = template.binds().iter().map(seen_as).collect();
    let sources = template.binds().iter().map(|bind| bind.source.clone()).collect();
    let storage_of_all = opened.storage;
    let parts = parts(&settings, data, store, storage_of_all, runtimes, vec![template], lifetime)?;
    let broker = Broker::open(parts).await?;
    Ok((TestBroker { broker, storage, shared, sources }, opened.warning))
}

/// Destroys all sandboxes, and closes the broker.
pub async fn clear(broker: &Broker) -> Result<(), Error> {
    let who = Principal::local();
    // Our own broker has only a few.
    for view in broker.list(&who, &Filter::default()).await?.items {
        broker.destroy(&who, &view.id).await?;
    }
    broker.shutdown().await;
    Ok(())
}

/// The resources shared by all runtimes of this daemon.
fn host_resources(data: &DataDir) -> Result<Arc<HostResources>, NoHostResources> {
    HostResources::open(data.path().to_owned(), data.instance().as_str().to_owned())
}

/// The runtimes whose sandboxes are containers of a local engine. An absent engine is still listed, with the reason,
/// and detected when it is started later.
async fn engines(
    settings: &Settings,
    host_resources: &Result<Arc<HostResources>, NoHostResources>,
) -> [Arc<dyn Runtime>; ENGINES.len()] {
    let host_resources = match host_resources {
        Ok(host_resources) => host_resources,
        Err(reason) => return ENGINES.map(|name| MissingRuntime::listed(name, reason)),
    };
    let (at, of_docker) = (settings.docker_host.clone(), Arc::clone(host_resources));
    let docker = LateRuntime::sought(Docker::NAME, move || {
        let (at, host_resources) = (at.clone(), Arc::clone(&of_docker));
        async move { Docker::runtime(at.as_deref(), host_resources).await }
    });
    let (at, of_podman) = (settings.podman_host.clone(), Arc::clone(host_resources));
    let podman = LateRuntime::sought(Podman::NAME, move || {
        let (at, host_resources) = (at.clone(), Arc::clone(&of_podman));
        async move { Podman::runtime(at.as_deref(), host_resources).await }
    });
    tokio::join!(docker, podman).into()
}

/// The runtimes whose sandboxes are processes of this machine, the default first. One that is unusable here is still
/// listed, with the reason.
async fn local_runtimes(
    data: &DataDir,
    host_resources: &Result<Arc<HostResources>, NoHostResources>,
    launcher_options: &[&OsStr],
    wanted: &Wanted,
) -> Vec<Arc<dyn Runtime>> {
    let instance = data.instance().as_str();
    let host_resources = match host_resources {
        Ok(host_resources) => Arc::clone(host_resources),
        Err(reason) => {
            return LOCAL_RUNTIMES.map(|name| MissingRuntime::listed(name, reason)).to_vec();
        }
    };
    let launcher = ["/proc/self/exe", "launcher", "--instance", instance].map(OsStr::new);
    let launcher = launcher.iter().chain(launcher_options).map(OsString::from).collect();
    let stage = Stage::new(["/proc/self/exe", "stage"].map(OsString::from).to_vec());
    let native = Native::runtime(Arc::clone(&host_resources), launcher, &stage).await;
    let native = or_missing(Native::NAME, native);
    let host_resources = || Arc::clone(&host_resources);
    let (bwrap, crun, runc, gvisor) = tokio::join!(
        listed(Bwrap::NAME, wanted, Staged::runtime(Bwrap, host_resources(), stage.clone())),
        listed(Crun::NAME, wanted, Staged::runtime(Crun, host_resources(), stage.clone())),
        listed(Runc::NAME, wanted, Staged::runtime(Runc, host_resources(), stage.clone())),
        listed(Gvisor::NAME, wanted, Gvisor::runtime(host_resources(), stage.clone())),
    );
    [Some(native), bwrap, crun, runc, gvisor].into_iter().flatten().collect()
}

/// A runtime, if it is wanted.
async fn listed<R: Runtime + 'static, E: std::fmt::Display>(
    name: &'static str,
    wanted: &Wanted,
    runtime: impl Future<Output = Result<Arc<R>, E>>,
) -> Option<Arc<dyn Runtime>> {
    if wanted.has(name) { Some(or_missing(name, runtime.await)) } else { None }
}

/// A runtime, or a placeholder with the reason why it cannot be used.
fn or_missing<R: Runtime + 'static, E: std::fmt::Display>(
    name: &'static str,
    runtime: Result<Arc<R>, E>,
) -> Arc<dyn Runtime> {
    match runtime {
        Ok(runtime) => runtime,
        Err(reason) => MissingRuntime::listed(name, &reason),
    }
}

async fn open(
    settings: &Settings,
    data: DataDir,
    store: Arc<dyn StateStore>,
    storage: Arc<dyn Storage>,
    runtimes: Vec<Arc<dyn Runtime>>,
    lifetime: Lifetime,
) -> Result<Assembled, Error> {
    let runtime = default_runtime(&runtimes)?;
    let data_dir = data.path().to_owned();
    let templates = vec![host_template(&data)?];
    let name = storage.name();
    let parts = parts(settings, data, store, storage, runtimes, templates, lifetime)?;
    let broker = Broker::open(parts).await?;
    Ok(Assembled { broker, data_dir, storage: name, runtime })
}

fn host_template(data: &DataDir) -> Result<Arc<dyn Template>, Error> {
    let unusable = |source| Error::DataDir { path: data.path().display().to_string(), source };
    Ok(Arc::new(HostTemplate::prepare(data.path()).map_err(unusable)?))
}

fn parts(
    settings: &Settings,
    data: DataDir,
    store: Arc<dyn StateStore>,
    storage: Arc<dyn Storage>,
    runtimes: Vec<Arc<dyn Runtime>>,
    templates: Vec<Arc<dyn Template>>,
    lifetime: Lifetime,
) -> Result<Parts, Error> {
    Ok(Parts {
        registries: registries(settings, &data)?,
        data,
        store,
        storage,
        runtimes,
        templates,
        lifetime,
        journal: settings.journal,
        telemetry: Arc::new(Telemetry::default()),
        policy: policy(settings),
        egress: egress::egress(settings)?,
        clock: Arc::new(SystemClock),
    })
}

/// The registry client: allowed hosts, and downloads in progress.
fn registries(settings: &Settings, data: &DataDir) -> Result<Registries, Error> {
    let roots = match &settings.registry_ca {
        Some(path) => Roots::read(path).map_err(|error| Error::InvalidField {
            field: "registry_ca",
            problem: error.to_string(),
        })?,
        None => Roots::default(),
    };
    let spool = data.path().join(SPOOL);
    let unusable = |source| Error::DataDir { path: spool.display().to_string(), source };
    let opened = Arc::new(Spool::open(&spool).map_err(unusable)?);
    let outgoing = Outgoing::new(settings.outgoing_allow.clone(), roots);
    Ok(Registries::new(outgoing, opened, settings.registry_auth.clone()))
}

/// The name of the first runtime, unless none can be used.
fn default_runtime(runtimes: &[Arc<dyn Runtime>]) -> Result<&'static str, Error> {
    let first = runtimes.first().expect("the native runtime is always there");
    match (first.usable(), runtimes.iter().any(|runtime| runtime.usable() == Usable::Yes)) {
        (Usable::No { reason }, false) => {
            Err(Error::RuntimeUnusable { name: first.name().to_owned(), reason })
        }
        (Usable::Yes | Usable::No { .. }, _) => Ok(first.name()),
    }
}
