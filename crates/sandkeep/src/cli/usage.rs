//! `sandkeep usage`: what each owner has used, also in sandboxes that are gone.

use jiff::Timestamp;
use serde_json::json;

use crate::cli::exit::Exit;
use crate::cli::failure::Failure;
use crate::cli::{Format, argument, print};
use sandkeep_client::Client;
use sandkeep_core::api::{OwnerUsage, ReadUsage};

/// Show what each owner has used in a period: processor time, memory, disk space, network
///
/// The period is counted in whole hours, the first and the last included. With an administrator's key all owners are
/// shown, otherwise your own. Memory and disk space are multiplied with the hours for which they were used.
#[derive(Debug, clap::Args)]
pub struct UsageArgs {
    /// Start of the period: a duration before now such as 24h, or a time [default: 30 days before its end]
    #[arg(long, value_name = "WHEN", value_parser = argument::since)]
    from: Option<Timestamp>,
    /// End of the period [default: now]
    #[arg(long, value_name = "WHEN", value_parser = argument::since)]
    to: Option<Timestamp>,
    #[command(flatten)]
    format: Format,
}

pub async fn run(args: UsageArgs, client: &Client) -> Result<Exit, Failure> {
    let usage = client.usage(&ReadUsage { from: args.from, to: args.to }).await?;
    if args.format.json {
        print::json(&json!(usage))?;
        return Ok(Exit::Ok);
    }
    let rows = usage.items.iter().map(|used: &OwnerUsage| {
        let owner = &used.owner;
        [
            format!("{}/{}/{}", owner.organization, owner.user, owner.project),
            format!("{:.1}", used.cpu_secs),
            format!("{:.1}", used.memory_mb_hours),
            format!("{:.1}", used.disk_mb_hours),
            used.network_bytes.to_string(),
        ]
    });
    print::table(
        ["OWNER", "CPU SECONDS", "MEMORY MIB-HOURS", "DISK MIB-HOURS", "NETWORK BYTES"],
        rows,
    )?;
    print::note(&format!("from {} to {}", usage.from, usage.to));
    Ok(Exit::Ok)
}
