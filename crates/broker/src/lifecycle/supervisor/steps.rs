//! Steps shared by several verbs.

use std::io;

use tracing::warn;

use super::Supervisor;
use crate::codebases;
use crate::error::Error;
use sandkeep_core::{HostAccess, HostMount, failpoint};
use sandkeep_home::{DataDir, HomeState, Phase};
use sandkeep_image::Template;
use sandkeep_runtime::{MountAccess, MountSource, Plan, PlannedFiles, PlannedMount, StoredFiles};
use sandkeep_traces::{step, within};
use sandkeep_tree::{Ids, Root};

impl Supervisor {
    /// Records what a later daemon must know of a launch, before the launch.
    pub(crate) async fn prepare_launch(&mut self) -> Result<(), Error> {
        self.renew_meta().await?;
        self.expect_start_up().await
    }

    /// Counts what it has used, before its processes end.
    pub(crate) async fn count_use(&self) {
        let (who, runtime) = ((self.id(), &self.meta.owner), self.runtime.as_ref());
        self.shared.count_use(who, runtime, &self.network, None).await;
    }

    /// Writes down what is lost when its processes end: what they have used, and what rules have refused them.
    pub(crate) async fn before_its_processes_end(&self) {
        self.count_use().await;
        if self.meta.spec.codebase().is_some() {
            codebases::tell_refusals(&self.shared, self.id()).await;
        }
    }

    /// Launches a sandbox that already exists.
    pub(crate) async fn launch(&mut self, root: Option<Root>) -> Result<(), Error> {
        self.install_certificate(root.as_ref()).await?;
        let template = self.shared.template_of(&self.meta.spec)?;
        let plan = self.plan(template.as_ref(), root).await?;
        self.shared.usage.starts(self.id(), self.shared.clock.uptime());
        within(step!("runtime.create"), self.runtime.create(&plan)).await?;
        failpoint!("start.after_runtime_create");
        within(step!("runtime.start"), self.runtime.start(&plan)).await?;
        failpoint!("start.after_launch");
        self.open_network_or_end().await?;
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

    /// Ends the server of its codebase's rules, if it has one; the sandbox does not run.
    pub(crate) async fn end_server(&self) -> Result<(), Error> {
        match self.meta.spec.codebase() {
            Some(_) => codebases::end_server(&self.shared, self.id()).await,
            None => Ok(()),
        }
    }

    /// The same where nothing else depends on it: the next launch or the destroy ends it too.
    pub(crate) async fn end_server_or_warn(&self) {
        if let Err(error) = self.end_server().await {
            warn!(id = %self.id(), %error, "cannot end the server of a codebase's rules");
        }
    }

    /// `root` is that of its volume, if it has one.
    pub(crate) async fn plan(
        &self,
        template: &dyn Template,
        root: Option<Root>,
    ) -> Result<Plan, Error> {
        let mut mounts =
            codebases::mounts(&self.shared, self.id(), &self.meta.spec, &self.meta.terms).await?;
        mounts.extend(self.meta.spec.host_mounts().iter().map(planned));
        let stored = |root| StoredFiles { root, binds: template.binds() };
        Ok(Plan {
            id: self.meta.id.clone(),
            labels: self.meta.labels(),
            files: root.map_or(PlannedFiles::Remote, |root| PlannedFiles::Stored(stored(root))),
            resources: self.meta.spec.resources().clone(),
            privilege: self.meta.spec.privilege(),
            home: self.home.path().to_owned(),
            lifetime: self.shared.lifetime,
            network: self.meta.terms.network.prepared.network,
            mounts,
        })
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

fn planned(mount: &HostMount) -> PlannedMount {
    PlannedMount {
        source: MountSource::Dir(mount.dir.clone(), Ids::Plain),
        target: mount.path.trim_start_matches('/').to_owned(),
        access: match mount.access {
            HostAccess::Read => MountAccess::Read,
            HostAccess::ReadWrite => MountAccess::ReadWrite,
        },
    }
}
