//! `sandkeep serve`: the daemon.
//!
//! config → lock the data directory → listen → assemble the broker → serve until a signal → drain.
//! The lock comes first, so that a second daemon touches nothing; the port comes before the storage,
//! so that a taken port costs nothing.

mod notify;

use std::ffi::OsString;
use std::net::SocketAddr;

use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};

use crate::api::rest;
use crate::cli::assemble::{self, Assembled};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::cli::version::VERSION;
use crate::config::{self, ConfigError, ConfigFile, Flags, Loaded, PORT_DEFAULT, Surroundings};
use crate::home::DataDir;
use notify::{Stage, Supervisor};

/// Start the broker and serve its API
///
/// It runs until SIGTERM or Ctrl-C. Its sandboxes go on running without it, and the next daemon on
/// the same data directory takes them over.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    file: ConfigFile,
    #[command(flatten)]
    flags: Flags,
}

impl Args {
    /// All that this daemon is told, from all sides.
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

pub async fn run(loaded: Loaded, around: &Surroundings) -> Result<Exit, Failure> {
    let settings = loaded.settings;
    let supervisor = Supervisor::at(around.var(Supervisor::VARIABLE).map(OsString::as_os_str));
    supervisor.tell(Stage::Starting, "starting");
    loaded.warnings.iter().for_each(|warning| tracing::warn!("{warning}"));
    if !settings.listen.ip().to_canonical().is_loopback() {
        return Err(Failure::NotLoopback { address: settings.listen });
    }
    // Before anything that takes long, so that an early Ctrl-C is as graceful as a late one.
    let stop = stop_signal()?;
    raise_descriptor_limit();
    let data = DataDir::open(&settings.data_dir)?;
    let (listener, address) = listen(settings.listen).await?;
    let assembled = assemble::daemon(&settings, data).await?;
    greet(&assembled, address);
    // Whoever connects from now on is answered: the listener has been there since before the broker.
    supervisor.tell(Stage::Ready, &format!("listens on http://{address}"));
    let stop = async {
        stop.await;
        supervisor.tell(Stage::Stopping, "shutting down; sandboxes go on running");
    };
    rest::serve(listener, assembled.broker.clone(), stop).await;
    assembled.close().await;
    Ok(Exit::Ok)
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

/// Every connection, exec and sandbox takes descriptors, and the usual soft limit of 1,024 is there
/// for programs that use `select`.
fn raise_descriptor_limit() {
    use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
    let limit = getrlimit(Resource::Nofile);
    if let Err(e) = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }) {
        tracing::warn!("the limit of open files stays at {:?}: {e}", limit.current);
    }
}

/// Tells where it is and what to try. A daemon whose stdout is closed serves all the same.
fn greet(assembled: &Assembled, address: SocketAddr) {
    let Assembled { data_dir, storage, runtime, .. } = assembled;
    let url = format!("http://{address}");
    let option =
        if address.port() == PORT_DEFAULT { String::new() } else { format!("--url {url} ") };
    let _ = print::line(&format!(
        "sandkeep {VERSION} listens on {url}\n\
         data {} · storage {storage} · runtime {runtime}\n\
         \n\
         try:\n\
         \x20 sandkeep {option}create\n\
         \x20 sandkeep {option}exec ID -- uname -a\n\
         \x20 curl -X POST {url}/api/v1/sandboxes\n\
         \x20 curl {url}/api/v1/sandboxes/ID/execs -d '{{\"command\": \"echo hello\"}}'",
        data_dir.display(),
    ));
}
