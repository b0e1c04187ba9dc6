//! The network of a sandbox: its policy, what it reached, and what it asks for.

use sandkeep_core::SandboxId;
use sandkeep_core::api::{
    AskForNetwork, DecideNetworkRequest, NetworkLog, NetworkPresets, NetworkRequests,
    ReadNetworkLog, SandboxNetwork,
};
use sandkeep_core::network::{Choice, Decision, NetworkPatch, PendingRequest, Policy};

use crate::{Client, Error, Lines};

fn path(id: &SandboxId, rest: &str) -> String {
    format!("/api/v1/sandboxes/{id}/network{rest}")
}

impl Client {
    pub async fn network(&self, id: &SandboxId) -> Result<SandboxNetwork, Error> {
        self.get(&path(id, "")).await
    }

    pub async fn amend_network(
        &self,
        id: &SandboxId,
        patch: &NetworkPatch,
    ) -> Result<SandboxNetwork, Error> {
        self.patch(&path(id, ""), patch).await
    }

    /// The newest decisions, oldest first.
    pub async fn network_log(
        &self,
        id: &SandboxId,
        request: &ReadNetworkLog,
    ) -> Result<Vec<Decision>, Error> {
        Ok(self.get_query::<NetworkLog>(&path(id, "/log"), request).await?.items)
    }

    /// Decisions from now on, each line a [`Decision`], or one of kind `gap`.
    pub async fn follow_network_log(
        &self,
        id: &SandboxId,
        request: &ReadNetworkLog,
    ) -> Result<Lines, Error> {
        let request = ReadNetworkLog { follow: true, ..request.clone() };
        Ok(Lines::of(self, self.get_live(&path(id, "/log"), &request).await?))
    }

    /// What waits for a decision, oldest first.
    pub async fn network_requests(&self, id: &SandboxId) -> Result<Vec<PendingRequest>, Error> {
        Ok(self.get::<NetworkRequests>(&path(id, "/requests")).await?.items)
    }

    pub async fn decide_network_request(
        &self,
        id: &SandboxId,
        request: u64,
        choice: Choice,
    ) -> Result<(), Error> {
        let path = path(id, &format!("/requests/{request}"));
        self.tell(&path, &DecideNetworkRequest { choice }).await
    }

    /// Asks the owner for a destination.
    pub async fn ask_for_network(
        &self,
        id: &SandboxId,
        request: &AskForNetwork,
    ) -> Result<PendingRequest, Error> {
        self.post(&path(id, "/requests"), request).await
    }

    /// The smallest policy that covers what was used.
    pub async fn suggest_network(&self, id: &SandboxId) -> Result<Policy, Error> {
        self.get(&path(id, "/suggest")).await
    }

    pub async fn network_presets(&self) -> Result<NetworkPresets, Error> {
        self.get("/api/v1/network/presets").await
    }
}
