//! Steps shared by several verbs.

use std::io;

use tracing::warn;

use super::Supervisor;
use crate::error::Error;
use sandkeep_core::failpoint;
use sandkeep_home::{DataDir, HomeState, Phase};
use sandkeep_image::Template;
use sandkeep_runtime::{Plan, PlannedFiles, StoredFiles};
use sandkeep_traces::{step, within};
use sandkeep_tree::Root;

impl Supervisor {
    /// Records what a later daemon must know of a launch, before the launch.
    pub(crate) async fn prepare_launch(&mut self) -> Result<(), Error> {
        self.renew_meta().await?;
        self.expect_start_up().await
    }

    /// Launches a sandbox that already exists.
    pub(crate) async fn launch(&mut self, root: Option<Root>) -> Result<(), Error> {
        let plan = self.plan(self.shared.template_of(&self.meta.spec)?.as_ref(), root);
        within(step!("runtime.create"), self.runtime.create(&plan)).await?;
        failpoint!("start.after_runtime_create");
        within(step!("runtime.start"), self.runtime.start(&plan)).await?;
        failpoint!("start.after_launch");
        self.enter().await.map(|_| ())
    }

    /// The metadata must be on disk and name this boot before anything is launched. Otherwise a daemon that starts
    /// after a crash would take the running sandbox for the remains of an earlier boot. The file itself is read,
    /// because an earlier start may have failed before it was written.
    async fn renew_meta(&mut self) -> Result<(), Error> {
        self.meta_mut().phase = Phase::Ready;
        let (home, meta) = (self.home.clone(), self.meta.clone());
        let renew = move |_: &DataDir| match home.read() {
            HomeState::Known(found)
                if found.boot_id == meta.boot_id && found.phase == meta.phase =>
            {
                // The row has the rest, so this need not be synced.
                home.write(&meta)
            }
            HomeState::Known(_)
            | HomeState::Missing
            | HomeState::Empty
            | HomeState::Unreadable(_) => {
                home.create(&meta)?;
                home.sync()
            }
        };
        self.shared.blocking(renew).await
    }

    /// `root` is that of its volume, if it has one.
    pub(crate) fn plan(&self, template: &dyn Template, root: Option<Root>) -> Plan {
        let stored = |root| StoredFiles { root, binds: template.binds() };
        Plan {
            id: self.meta.id.clone(),
            labels: self.meta.labels(),
            files: root.map_or(PlannedFiles::Remote, |root| PlannedFiles::Stored(stored(root))),
            resources: self.meta.spec.resources().clone(),
            privilege: self.meta.spec.privilege(),
            home: self.home.path().to_owned(),
            lifetime: self.shared.lifetime,
        }
    }

    /// Writes the current `meta.json`.
    pub(crate) async fn write_meta(&self) -> Result<(), Error> {
        let (home, meta) = (self.home.clone(), self.meta.clone());
        self.shared.blocking(move |_| home.create(&meta)).await
    }

    /// Syncs `meta.json` to disk; see [`Home`]'s module for why nothing waits for it.
    pub(crate) async fn sync_meta(&self) {
        let home = self.home.clone();
        if let Err(error) = self.shared.blocking(move |_| home.sync()).await {
            warn!(id = %self.id(), %error, "cannot sync metadata");
        }
    }

    /// Updates the metadata from the row. They are a second copy: what is missing after a crash, reconcile takes from
    /// the row.
    pub(crate) async fn rewrite_meta(&self) {
        let (home, meta) = (self.home.clone(), self.meta.clone());
        let write = move |_: &DataDir| match home.write(&meta) {
            // There is no home to store it in.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            written => written,
        };
        if let Err(error) = self.shared.blocking(write).await {
            warn!(id = %self.id(), %error, "cannot write metadata");
        }
    }

    /// Tells the reaper of the next deadline.
    pub(crate) fn set_alarm(&self) {
        let terms = &self.meta.terms;
        if let Some(first) = terms.timeout().into_iter().chain(terms.idle_timeout()).min() {
            self.shared.alarm.set(self.shared.clock.uptime().saturating_add(first));
        }
    }
}
