//! `sandkeep mcp`: the Model Context Protocol on stdio.
//!
//! With `--url` or SANDKEEP_URL it forwards to that daemon. Without, it has a broker of its own in a temporary
//! directory, whose ports are reachable on a free loopback port. Its sandboxes end with it, like those of `run`.

mod relay;

use std::sync::Arc;

use rmcp::service::serve_server;
use rmcp::transport::io::stdio;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cli::assemble::{self, Wanted};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::cli::run::place::{self, TempDataDir};
use crate::cli::run::signals::Signals;
use crate::config::{self, ConfigFile, Flags, Settings, Surroundings};
use relay::Relay;
use sandkeep_client::Client;
use sandkeep_doors::{Front, kit::Origins, mcp::Mcp};
use sandkeep_home::DataDir;

/// Serve the Model Context Protocol (MCP) on stdio
///
/// With --url (or SANDKEEP_URL) it uses that daemon, and sandboxes stay when it exits. Without, it needs no
/// daemon, and its sandboxes are destroyed when it exits.
#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    file: ConfigFile,
}

/// Forwards to a remote daemon.
pub async fn relay(client: Client) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        served = serve(Mcp::new(Relay::new(client))) => served?,
        _ = signals.next() => {}
    }
    Ok(Exit::Ok)
}

/// Acts as a daemon itself, until the client disconnects.
pub async fn alone(args: Args, around: &Surroundings) -> Result<Exit, Failure> {
    let settings = config::load(args.file.config.as_deref(), &Flags::default(), around)?.settings;
    let mut signals = Signals::listen()?;
    let parent = std::env::temp_dir();
    place::sweep(&parent, &settings).await;
    let data = place::make(&parent)?;
    let place = TempDataDir::of(&data);
    let result = in_place(&settings, data, signals.next()).await;
    if let Err(error) = place.remove() {
        let path = place.path().display();
        print::note(&format!("{path} could not be removed; the next run tries again: {error}"));
    }
    result
}

async fn in_place(
    settings: &Settings,
    data: DataDir,
    signal: impl Future,
) -> Result<Exit, Failure> {
    let address = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let cannot = |source| Failure::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    let (assembled, auth) =
        assemble::companion(settings, data, &Wanted::by(settings, None)).await?;
    let origins = Origins::new(Vec::new());
    let domain = settings.domain.clone();
    let front = Front { origins, domain, ..Front::new(Arc::new(auth)) };
    let server = front.mcp(assembled.broker.clone(), bound);
    let over = CancellationToken::new();
    let door = front.serve(listener, assembled.broker.clone(), over.cancelled());
    let speak = async {
        let served = tokio::select! {
            served = serve(server) => served,
            _ = signal => Ok(()),
        };
        over.cancel();
        served
    };
    let ((), served) = tokio::join!(door, speak);
    assemble::clear(&assembled.broker).await?;
    served.map(|()| Exit::Ok)
}

/// Until the other side closes stdin.
async fn serve(server: Mcp) -> Result<(), Failure> {
    let broken =
        |e: String| Failure::Usage { problem: format!("the other side does not speak MCP: {e}") };
    let service = serve_server(server, stdio()).await.map_err(|e| broken(e.to_string()))?;
    service.waiting().await.map_err(|e| broken(e.to_string()))?;
    Ok(())
}
