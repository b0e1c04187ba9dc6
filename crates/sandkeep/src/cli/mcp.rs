//! `sandkeep mcp`: the Model Context Protocol on stdio.
//!
//! With `--url` or SANDKEEP_URL it speaks for that daemon. Without, it is one itself, in a temporary directory and
//! on a free port of loopback: its sandboxes end with it, as those of `run` do.

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use futures_util::{StreamExt as _, TryStreamExt as _};
use reqwest::Url;
use rmcp::model::Extensions;
use rmcp::service::serve_server;
use rmcp::transport::io::stdio;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use crate::cli::assemble::{self, Wanted};
use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::print;
use crate::cli::run::place::{self, Place};
use crate::cli::run::signals::Signals;
use crate::config::{self, ConfigFile, Flags, Settings, Surroundings};
use sandkeep_client::{Client, Error};
use sandkeep_doors::{
    Front,
    kit::Origins,
    mcp::{ACCEPTED, Answering, Mcp, Outgoing, Rest, Unreachable, content_type},
};
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

/// Speaks for a daemon elsewhere.
pub async fn relay(client: Client) -> Result<Exit, Failure> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        served = serve(Relay(client)) => served?,
        _ = signals.next() => {}
    }
    Ok(Exit::Ok)
}

/// Is a daemon itself, for as long as somebody speaks to it.
pub async fn alone(args: Args, around: &Surroundings) -> Result<Exit, Failure> {
    let settings = config::load(args.file.config.as_deref(), &Flags::default(), around)?.settings;
    let mut signals = Signals::listen()?;
    let parent = std::env::temp_dir();
    place::sweep(&parent, &settings).await;
    let data = place::make(&parent)?;
    let place = Place::of(&data);
    let result = in_place(&settings, data, &parent, signals.next()).await;
    if let Err(error) = place.remove() {
        let path = place.path().display();
        print::note(&format!("{path} could not be removed; the next run tries again: {error}"));
    }
    result
}

async fn in_place(
    settings: &Settings,
    data: DataDir,
    parent: &Path,
    signal: impl Future,
) -> Result<Exit, Failure> {
    let address = (std::net::Ipv4Addr::LOCALHOST, 0).into();
    let cannot = |source| Failure::Listen { address, source };
    let listener = TcpListener::bind(address).await.map_err(cannot)?;
    let url = format!("http://{}", listener.local_addr().map_err(cannot)?);
    let url: Url = url.parse().expect("an address makes a URL");
    let client = Client::new(&url, None, None)?;
    let (assembled, auth) =
        assemble::companion(settings, data, parent, &Wanted::by(settings, None)).await?;
    let front = Front {
        auth: Arc::new(auth),
        origins: Origins::new(Vec::new()),
        tls: None,
        domain: settings.domain.clone(),
    };
    let over = CancellationToken::new();
    let door = front.serve(listener, assembled.broker.clone(), over.cancelled());
    let speak = async {
        let served = tokio::select! {
            served = serve(Relay(client)) => served,
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
async fn serve(relay: Relay) -> Result<(), Failure> {
    let broken =
        |e: String| Failure::Usage { problem: format!("the other side does not speak MCP: {e}") };
    let service = serve_server(Mcp::new(Arc::new(relay)), stdio())
        .await
        .map_err(|e| broken(e.to_string()))?;
    service.waiting().await.map_err(|e| broken(e.to_string()))?;
    Ok(())
}

/// A daemon elsewhere, asked over HTTP.
struct Relay(Client);

#[async_trait]
impl Rest for Relay {
    /// Who calls is whoever has the key of this client.
    async fn begin(&self, request: Outgoing, _: &Extensions) -> Result<Answering, Unreachable> {
        let Outgoing { method, path, body } = request;
        let unreachable = |error: Error| Unreachable { problem: Failure::from(error).line() };
        let response = self.0.relay(method, &path, ACCEPTED, body).await.map_err(unreachable)?;
        let (status, content_type) = (response.status(), content_type(response.headers()));
        let broken = |e: reqwest::Error| Unreachable { problem: e.to_string() };
        let chunks = response.bytes_stream().map_err(broken).boxed();
        Ok(Answering { status, content_type, chunks })
    }
}
