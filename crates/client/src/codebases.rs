//! Codebases, and the rules of sandboxes that have them.

use reqwest::Response;
use sandkeep_core::api::{
    CheckRules, CheckedRules, Codebase, CodebaseSize, Codebases, ReplaceRules, SandboxRules,
};
use sandkeep_core::{CodebaseRef, SandboxId};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::{Client, Error};

const CODEBASES: &str = "/api/v1/codebases";

impl Client {
    /// Creates a codebase from a `CreateCodebase`, or from its JSON.
    pub async fn create_codebase(
        &self,
        draft: &(impl Serialize + ?Sized),
    ) -> Result<Codebase, Error> {
        self.post(CODEBASES, draft).await
    }

    /// All codebases that the caller may see, by name.
    pub async fn codebases(&self) -> Result<Vec<Codebase>, Error> {
        Ok(self.get::<Codebases>(CODEBASES).await?.items)
    }

    pub async fn codebase(&self, codebase: &CodebaseRef) -> Result<Codebase, Error> {
        self.get(&format!("{CODEBASES}/{codebase}")).await
    }

    /// Counts what is in a codebase at the moment.
    pub async fn codebase_size(&self, codebase: &CodebaseRef) -> Result<CodebaseSize, Error> {
        self.get(&format!("{CODEBASES}/{codebase}/size")).await
    }

    pub async fn delete_codebase(&self, codebase: &CodebaseRef) -> Result<(), Error> {
        self.delete(&format!("{CODEBASES}/{codebase}")).await
    }

    /// The path of a codebase's files: all requests for files of a sandbox work below it.
    pub fn codebase_files(&self, codebase: &CodebaseRef) -> String {
        format!("{CODEBASES}/{codebase}/files")
    }

    /// What has changed since a codebase was created from its source.
    pub async fn codebase_diff<T: DeserializeOwned>(
        &self,
        codebase: &CodebaseRef,
    ) -> Result<T, Error> {
        self.get(&format!("{CODEBASES}/{codebase}/diff")).await
    }

    /// The same with the new files, as a tar that is read piece by piece.
    pub async fn codebase_bundle(&self, codebase: &CodebaseRef) -> Result<Response, Error> {
        self.get_live(&format!("{CODEBASES}/{codebase}/diff"), &[("format", "tar")]).await
    }

    /// What rules would allow for paths of a codebase.
    pub async fn check_codebase(
        &self,
        codebase: &CodebaseRef,
        request: &CheckRules,
    ) -> Result<CheckedRules, Error> {
        self.post(&format!("{CODEBASES}/{codebase}/check"), request).await
    }

    /// The rules of a sandbox's codebase.
    pub async fn rules(&self, id: &SandboxId) -> Result<SandboxRules, Error> {
        self.get(&format!("/api/v1/sandboxes/{id}/rules")).await
    }

    pub async fn replace_rules(
        &self,
        id: &SandboxId,
        request: &ReplaceRules,
    ) -> Result<SandboxRules, Error> {
        self.put(&format!("/api/v1/sandboxes/{id}/rules"), request).await
    }

    /// What the rules of a sandbox allow for paths of its codebase.
    pub async fn check_rules(
        &self,
        id: &SandboxId,
        request: &CheckRules,
    ) -> Result<CheckedRules, Error> {
        self.post(&format!("/api/v1/sandboxes/{id}/rules/check"), request).await
    }
}
