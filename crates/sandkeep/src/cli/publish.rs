//! `--port` of a new sandbox: a host:port on this machine for each port, at once.

use serde_json::{Value, json};

use crate::cli::failure::Failure;
use crate::cli::print;
use sandkeep_client::Client;
use sandkeep_core::{Port, SandboxId};

#[derive(Clone, Debug, Default, clap::Args)]
pub struct PublishArgs {
    /// Port inside the sandbox that gets a host:port on the daemon's machine, printed to stderr; repeatable
    #[arg(long = "port", short = 'p', value_name = "PORT")]
    ports: Vec<Port>,
}

impl PublishArgs {
    /// Opens them. If one cannot be opened, the new sandbox is destroyed again: half of what was asked for is nothing
    /// that a script could use.
    pub async fn open(&self, id: &SandboxId, client: &Client) -> Result<(), Failure> {
        for port in &self.ports {
            let path = format!("/api/v1/sandboxes/{id}/ports/{port}/listen");
            let answer: Value = match client.post(&path, &json!({})).await {
                Ok(answer) => answer,
                Err(error) => {
                    if let Err(kept) = client.destroy(id).await {
                        print::note(&format!("{id} could not be destroyed again: {kept}"));
                    }
                    return Err(error.into());
                }
            };
            print::note(&format!("port {port}: {}", answer["address"].as_str().unwrap_or("-")));
        }
        Ok(())
    }

    pub fn is_empty(&self) -> bool {
        self.ports.is_empty()
    }
}
