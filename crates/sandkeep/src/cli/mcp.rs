//! `sandkeep mcp`: the Model Context Protocol on stdio.
//!
//! With `--url` or SANDKEEP_URL it forwards to that daemon; its default sandbox is its own, and ends with it, unless
//! the caller names one. Without, it has a broker of its own in a temporary directory, whose ports are reachable on a
//! free loopback port. Its sandboxes end with it, like those of `run`.

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
use crate::cli::run::{spec_draft, with_source};
use crate::cli::spec_args::SpecArgs;
use crate::config::{self, ConfigFile, Flags, Settings, Surroundings};
use relay::{DefaultSandbox, Relay};
use sandkeep_client::Client;
use sandkeep_core::{SandboxName, SpecDraft};
use sandkeep_doors::{Front, kit::Origins, mcp::Mcp};
use sandkeep_home::DataDir;

/// Serve the Model Context Protocol (MCP) on stdio
///
/// Calls that name no sandbox use one that is made at its first use, as the options say, and destroyed when the session
/// ends; --sandbox uses a sandbox that stays. With --url (or SANDKEEP_URL) sandboxes are those of that daemon, and the
/// ones that the agent made itself stay. Without, no daemon is needed, and all end with the session.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox to use where a call names none, by name; it is made if there is none, and stays
    #[arg(long, value_name = "NAME")]
    sandbox: Option<SandboxName>,
    /// Offer only these tools, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    tools: Vec<String>,
    #[command(flatten)]
    spec: SpecArgs,
    #[command(flatten)]
    file: ConfigFile,
}

impl Args {
    /// Stdin is where the other side speaks.
    fn check(&self) -> Result<(), Failure> {
        if self.spec.source.takes_stdin() {
            let problem = "--source-tar -: stdin is for the protocol; name a file".to_owned();
            Err(Failure::Usage { problem })
        } else {
            Ok(())
        }
    }
}

/// The server, with the tools that are wanted.
fn offering(server: Mcp, tools: Vec<String>) -> Result<Mcp, Failure> {
    if tools.is_empty() {
        return Ok(server);
    }
    let names = tools.into_iter().map(|name| name.trim().to_owned()).collect();
    server.offering(names).map_err(|error| Failure::Usage { problem: format!("--tools: {error}") })
}

/// Forwards to a remote daemon.
pub async fn relay(mut args: Args, client: Client) -> Result<Exit, Failure> {
    args.check()?;
    let mut signals = Signals::listen()?;
    let source = std::mem::take(&mut args.spec.source).send(&client).await?;
    let mut spec = args.spec.into_json()?;
    if let Some(source) = source {
        spec["source"] = source;
    }
    let default = Arc::new(DefaultSandbox::new(spec_draft(spec)?, args.sandbox));
    let relay = Relay::new(client.clone(), Arc::clone(&default));
    let server = offering(Mcp::new(relay), args.tools)?;
    let served = tokio::select! {
        served = serve(server) => served,
        _ = signals.next() => Ok(()),
    };
    if let Some(own) = default.to_destroy() {
        match client.destroy(&own).await {
            Ok(()) => {}
            Err(error) if error.code() == Some("not_found") => {}
            Err(error) => return Err(error.into()),
        }
    }
    served.map(|()| Exit::Ok)
}

/// Acts as a daemon itself, until the client disconnects.
pub async fn alone(args: Args, around: &Surroundings) -> Result<Exit, Failure> {
    args.check()?;
    let settings = config::load(args.file.config.as_deref(), &Flags::default(), around)?.settings;
    let mut signals = Signals::listen()?;
    let parent = std::env::temp_dir();
    place::sweep(&parent, &settings).await;
    let data = place::make(&parent)?;
    let place = TempDataDir::of(&data);
    let result = in_place(&settings, data, args, signals.next()).await;
    if let Err(error) = place.remove() {
        let path = place.path().display();
        print::note(&format!("{path} could not be removed; the next run tries again: {error}"));
    }
    result
}

async fn in_place(
    settings: &Settings,
    data: DataDir,
    mut args: Args,
    signal: impl Future,
) -> Result<Exit, Failure> {
    let source = std::mem::take(&mut args.spec.source);
    let draft = SpecDraft { name: args.sandbox, ..spec_draft(args.spec.into_json()?)? };
    let address = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let cannot = |source| Failure::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let bound = listener.local_addr().map_err(cannot)?;
    let (assembled, auth) =
        assemble::companion(settings, data, &Wanted::by(settings, draft.runtime.as_deref()))
            .await?;
    let origins = Origins::new(Vec::new());
    let domain = settings.domain.clone();
    let front = Front { origins, domain, ..Front::new(Arc::new(auth)) };
    let draft = match with_source(&assembled.broker, draft, source).await {
        Ok(draft) => draft,
        Err(failure) => {
            assemble::clear(&assembled.broker).await?;
            return Err(failure);
        }
    };
    let server = front.mcp(assembled.broker.clone(), bound, draft);
    let server = match offering(server, args.tools) {
        Ok(server) => server,
        Err(failure) => {
            assemble::clear(&assembled.broker).await?;
            return Err(failure);
        }
    };
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
