//! `sandkeep serve`: the daemon.
//!
//! config → lock the data directory → listen → assemble the broker → serve until a signal → drain. The lock comes
//! first, so that a second daemon touches nothing; the port comes before the storage, so that a port in use costs
//! nothing.

mod certificate;
mod commands;
mod entrances;
pub mod messaging;
mod notify;
pub mod traces;

use std::ffi::OsString;
use std::net::SocketAddr;
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::cli::assemble::{self, Assembled};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::cli::version::VERSION;
use crate::config::{
    self, ConfigError, ConfigFile, Flags, Loaded, PORT_DEFAULT, Settings, Surroundings, TlsSource,
};
use certificate::Served;
use commands::Commands;
use messaging::Messaging;
use notify::{Stage, Supervisor};
use sandkeep_broker::error::Error;
use sandkeep_doors::{Front, auth::Latch, kit::Origins};
use sandkeep_home::DataDir;
use traces::Traces;

/// Start the daemon
///
/// Serves the API until SIGTERM or Ctrl-C. Sandboxes keep running without the daemon; the next one on the same
/// data directory takes them over.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    flags: Flags,
}

impl Args {
    /// All settings of this daemon, from all sources.
    pub fn load(
        mut self,
        log: Option<String>,
        around: &Surroundings,
    ) -> Result<Loaded, ConfigError> {
        self.flags.set("log", log);
        let loaded = config::load(self.file.config.as_deref(), &self.flags, around)?;
        assemble::check_names(&loaded)?;
        Ok(loaded)
    }
}

pub async fn run(loaded: Loaded, traces: Traces, around: &Surroundings) -> Result<Exit, Failure> {
    let settings = loaded.settings;
    let supervisor = Supervisor::at(around.var(Supervisor::VARIABLE).map(OsString::as_os_str));
    supervisor.tell(Stage::Starting, "starting");
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    refuse_open_doors(&settings)?;
    messaging::check_files(&settings)?;
    // Before anything that takes long, so that an early Ctrl-C is as graceful as a late one.
    let stop = stop_signal()?;
    raise_descriptor_limit();
    let data = DataDir::open(&settings.data_dir).map_err(Error::from)?;
    let tls = certificate::open(&settings, data.path())?;
    let (listener, address) = listen(settings.listen).await?;
    let own = entrances::open(&settings).await?;
    let (assembled, auth) = assemble::daemon(&settings, data).await?;
    let exporting = traces.export(&settings.otel, &assembled.broker);
    let mut commands = Commands::wanted(&settings)?;
    let messaging = Messaging::start(&settings, &assembled.broker)?;
    let url = url(address, tls.as_ref());
    greet(&assembled, &url, address, tls.as_ref());
    own.iter().for_each(entrances::Entrance::announce);
    // Connections are answered from now on: the listener was opened before the broker.
    supervisor.tell(Stage::Ready, &format!("listens on {url}"));
    let front = Front {
        auth: Arc::new(auth),
        origins: Origins::new(settings.cors_origins),
        tls: tls.map(|served| served.tls),
        domain: settings.domain,
        launch_address: settings.flex.advertise_addr,
        own: own.into_iter().map(|entrance| (entrance.door, entrance.listener)).collect(),
    };
    commands.start(&front, &assembled.broker);
    let stop = async {
        stop.await;
        commands.begin_to_stop();
        supervisor.tell(Stage::Stopping, "shutting down; sandboxes go on running");
    };
    front.serve(listener, assembled.broker.clone(), stop).await;
    commands.stop().await;
    messaging.stop().await;
    assembled.close().await;
    exporting.stop().await;
    Ok(Exit::Ok)
}

/// If others can reach the daemon, it must require credentials from the first moment on; that a key may be created
/// later does not count.
fn refuse_open_doors(settings: &Settings) -> Result<(), Failure> {
    let all = [settings.listen].into_iter().chain(entrances::addresses(settings));
    all.into_iter().try_for_each(|address| refuse_open_door(settings, address))
}

fn refuse_open_door(settings: &Settings, address: SocketAddr) -> Result<(), Failure> {
    if address.ip().to_canonical().is_loopback() {
        return Ok(());
    }
    if settings.oidc.issuer().is_none() && !Latch::of(&settings.data_dir).is_closed() {
        return Err(Failure::NotLoopback { address });
    }
    if settings.tls.source() == TlsSource::Plain {
        tracing::warn!(
            "{address} can be reached by others, and without TLS so can the keys that are sent to it; \
             set tls.cert and tls.key, or put a proxy that has a certificate before it"
        );
    }
    Ok(())
}

async fn listen(address: SocketAddr) -> Result<(TcpListener, SocketAddr), Failure> {
    let cannot = |source| Failure::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    Ok((listener, bound))
}

fn stop_signal() -> Result<impl Future<Output = ()>, Failure> {
    let cannot = || Failure::system("handle signals");
    let mut terminate = signal(SignalKind::terminate()).map_err(cannot())?;
    let mut interrupt = signal(SignalKind::interrupt()).map_err(cannot())?;
    Ok(async move {
        let name = tokio::select! {
            _ = terminate.recv() => "SIGTERM",
            _ = interrupt.recv() => "SIGINT",
        };
        tracing::info!("{name}: shutting down; sandboxes go on running");
    })
}

/// Every connection, exec and sandbox needs file descriptors, and the usual soft limit of 1,024 exists for programs
/// that use `select`.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit of open files stays at {:?}: {e}", limit.current);
    }
}

fn url(address: SocketAddr, tls: Option<&Served>) -> String {
    match tls {
        Some(_) => format!("https://{address}"),
        None => format!("http://{address}"),
    }
}

/// Prints the address and what to try. A daemon whose stdout is closed serves all the same.
fn greet(assembled: &Assembled, url: &str, address: SocketAddr, tls: Option<&Served>) {
    let Assembled { data_dir, storage, runtime, .. } = assembled;
    let mut option = match (address.port(), tls) {
        (PORT_DEFAULT, None) => String::new(),
        _ => format!("--url {url} "),
    };
    let (mut told, mut curl) = (String::new(), "curl".to_owned());
    if let Some(Served { own: Some(own), .. }) = tls {
        told = format!("\ncertificate {} · SHA-256 {}", own.path.display(), own.fingerprint);
        option += &format!("--ca-file {} ", own.path.display());
        curl += &format!(" --cacert {}", own.path.display());
    }
    let _ = print::line(&format!(
        "sandkeep {VERSION} listens on {url}\n\
         data {} · storage {storage} · runtime {runtime}{told}\n\
         \n\
         try:\n\
         \x20 sandkeep {option}create\n\
         \x20 sandkeep {option}exec ID -- uname -a\n\
         \x20 {curl} -X POST {url}/api/v1/sandboxes\n\
         \x20 {curl} {url}/api/v1/sandboxes/ID/execs -d '{{\"command\": \"echo hello\"}}'",
        data_dir.display(),
    ));
}
