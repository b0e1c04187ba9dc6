//! `sandkeep port`.

use serde_json::{Value, json};

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, argument, print};
use sandkeep_client::Client;
use sandkeep_core::{Port, api::Ports};

/// List the open ports of a sandbox, or print the address of one
///
/// Without PORT, lists the open ports. With PORT, prints its URL. --raw opens a host:port for any TCP
/// protocol; --sign prints a URL that works for anyone until it expires.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Sandbox name, id or unique prefix of an id
    pub id: String,
    /// Port inside the sandbox
    pub port: Option<Port>,
    /// Open a host:port on this machine that forwards to the port
    #[arg(long, requires = "port", conflicts_with = "sign")]
    pub raw: bool,
    /// Print a signed URL that works for anyone
    #[arg(long, requires = "port")]
    pub sign: bool,
    /// How long the signed URL is valid [default: 1h]
    #[arg(long, requires = "sign", value_name = "DURATION", value_parser = argument::seconds)]
    pub expires: Option<u64>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: Args, client: &Client) -> Result<Exit, Failure> {
    let id = client.resolve(&args.id).await?;
    let ports = format!("/api/v1/sandboxes/{id}/ports");
    let Some(port) = args.port else { return list(&ports, args.format, client).await };
    let (answer, field) = match (args.raw, args.sign) {
        (true, _) => (client.post(&format!("{ports}/{port}/listen"), &json!({})).await?, "address"),
        (false, true) => {
            let body = args.expires.map_or(json!({}), |secs| json!({ "expires_secs": secs }));
            (client.post(&format!("{ports}/{port}/url"), &body).await?, "url")
        }
        (false, false) => (whereabouts(&ports, port, client).await?, "url"),
    };
    if args.format.json {
        print::json(&answer)?
    } else {
        print::line(answer[field].as_str().unwrap_or_default())?
    }
    Ok(Exit::Ok)
}

/// The URLs of a port, whether or not a server listens on it now.
async fn whereabouts(ports: &str, port: Port, client: &Client) -> Result<Value, Failure> {
    let all: Ports = client.get(ports).await?;
    Ok(json!({ "port": port, "url": all.url_template.replace("{port}", &port.to_string()) }))
}

async fn list(ports: &str, format: Format, client: &Client) -> Result<Exit, Failure> {
    let answer = client.get(ports).await?;
    if format.json {
        print::json(&answer)?;
        return Ok(Exit::Ok);
    }
    let Ports { items, .. } = client.read(answer)?;
    let rows = items.into_iter().map(|item| {
        let open = if item.open { "open" } else { "closed" };
        let address = item.address.map_or("-".to_owned(), |address| address.to_string());
        [item.port.to_string(), open.to_owned(), address, item.url]
    });
    print::table(["PORT", "STATE", "ADDRESS", "URL"], rows)?;
    Ok(Exit::Ok)
}
