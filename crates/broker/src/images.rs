//! Templates created here: imported images, captured sandboxes, and builds.
//!
//! ```text
//!  source ─▶ image ─▶ layers, one after the other ─▶ record        rm: record ─▶ unused layers
//!     ▲                 draft ─▶ apply ─▶ keep                           (collect, also at reconcile)
//!   intent
//! ```
//!
//! A template is its record: it exists when the record does, and all layers that a record names are kept. An intent
//! marks an import in progress; reconcile removes an intent that a crash left, with its unused layers. A sandbox pins
//! the layers and the config of its template when it is created, so a record may be removed or replaced while the
//! sandbox exists, but not while it is still needed by name.

mod builds;
mod capture;
mod claim;
mod collect;
mod datasets;
mod draft;
mod import;
mod intent;
mod layers;
mod opening;
mod pins;
mod progress;
mod quota;
mod record;
mod resolve;
mod upload;
mod view;
pub(crate) mod workspace;

use std::sync::Arc;

use tokio::sync::{Mutex, RwLock};

use super::Broker;
use super::flight::Flights;
use super::policy::Quotas;
use super::policy::slots::{Slot, Slots, check_share};
use super::shared::Shared;
use crate::error::Error;
use sandkeep_core::api::Order;
use sandkeep_core::event::{EventKind, Subject};
use sandkeep_core::ledger::{Ledger, Shares};
use sandkeep_core::network::Network;
use sandkeep_core::{Owner, Principal, SandboxId, Scope, TemplateName, failpoint, limits};
use sandkeep_store::StateStore;

pub use builds::{BuildDraft, Cache, recorded_build_caches};
pub(crate) use builds::{StepMounts, cache_volumes};
pub use opening::{PathKind, TemplateSource};
pub use progress::{BuildStep, Import, ImportProgress, ImportStep, Told};
pub use upload::Upload;
pub use view::{TemplateConfig, TemplateView};

pub(crate) use collect::collect;
pub(crate) use intent::sweep;
pub(crate) use layers::Abandoned;
pub(crate) use layers::id_of as layer_id;
pub(crate) use opening::open_host_path;
pub(crate) use resolve::{Chosen, ONLY_USER, base};

use draft::DraftRoom;
use pins::Pins;
use quota::Coming;
use record::{Record, Records, Whose};

/// A template as requested.
pub struct TemplateDraft {
    pub name: TemplateName,
    pub project: Option<String>,
    pub audience: Audience,
    pub source: TemplateSource,
    /// The policy of sandboxes that name none.
    pub network: Option<Network>,
}

/// Who may use a new template.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    Owner,
    /// Only an admin can create such a template.
    Everybody,
}

/// The broker's in-memory state about templates.
pub(crate) struct Templates {
    records: Records,
    /// Held shared by a task that is about to use a layer, until that use is recorded; held exclusively to remove a
    /// layer.
    gate: RwLock<()>,
    pins: Pins,
    /// One import per name, and one creation per layer, at a time.
    names: Flights<()>,
    layers: Flights<()>,
    /// Held from checking a quota to writing the record that counts towards it.
    ledger: Mutex<()>,
    /// Space held by templates in progress.
    drafts: Arc<Ledger>,
    imports: Slots,
    uploads: Slots,
    builds: Slots,
    cache_holds: builds::CacheHolds,
}

impl Templates {
    pub fn new(store: Arc<dyn StateStore>, quotas: &Quotas) -> Self {
        let shares = Shares {
            organization_mb: quotas.organization.template_mb,
            user_mb: quotas.user.template_mb,
        };
        Self {
            records: Records::new(store),
            gate: RwLock::new(()),
            pins: Pins::default(),
            names: Flights::default(),
            layers: Flights::default(),
            ledger: Mutex::new(()),
            drafts: Ledger::new("template_mb", shares, |_| Ok(())),
            imports: Slots::new("imports at once of one organization", limits::IMPORTS_MAX),
            uploads: Slots::new("uploads at once of one organization", limits::UPLOADS_MAX),
            builds: Slots::new("builds at once of one organization", limits::BUILDS_MAX),
            cache_holds: builds::CacheHolds::default(),
        }
    }

    /// Takes one of the `slots` for creating a template of this name, and checks the quota.
    async fn place(
        &self,
        shared: &Arc<Shared>,
        slots: &Slots,
        owner: &Owner,
        whose: &Whose,
        name: &TemplateName,
    ) -> Result<(Slot, Arc<DraftRoom>), Error> {
        let all = self.records.all().await?;
        let organization = &owner.organization;
        let is_own =
            |whose: &Whose| matches!(whose, Whose::Own(of) if of.organization == *organization);
        let own = all.iter().filter(|(whose, _)| is_own(whose)).count();
        check_share(("templates of one organization", limits::TEMPLATES_MAX), all.len(), own)?;
        // Checked now, so that a refused template is not transferred for nothing.
        if let Whose::Own(owner) = whose {
            quota::check(&shared.policy.quotas, &all, Coming { owner, name, record: None })?;
        }
        Ok((slots.take(&owner.organization)?, DraftRoom::new(shared, whose, name, &all)))
    }
}

impl Broker {
    /// All templates that this principal can use, those that are built in first.
    pub async fn templates(
        &self,
        who: &Principal,
        sort: Option<Order>,
    ) -> Result<Vec<TemplateView>, Error> {
        let built_in = self.shared.templates.iter().map(|template| view::built_in(template.name()));
        let mut views: Vec<TemplateView> = built_in.collect();
        let records = self.shared.images.records.all().await?.into_iter();
        let visible = records.filter(|(whose, _)| whose.is_visible_to(who));
        views.extend(visible.map(|(whose, record)| view::view(&whose, record)));
        if let Some(order) = sort {
            // A built-in one has no time, and comes before all others.
            let place = |view: &TemplateView| (view.created_at, view.name.clone());
            views.sort_by(|one, other| order.compare(&place(one), &place(other)));
        }
        Ok(views)
    }

    /// The template that this name means to this principal.
    pub async fn template(
        &self,
        who: &Principal,
        name: &str,
        project: Option<&str>,
    ) -> Result<TemplateView, Error> {
        if self.shared.templates.iter().any(|template| template.name() == name) {
            return Ok(view::built_in(name));
        }
        let owner = owner(who, project)?;
        match self.shared.record_of(&owner, name).await? {
            Some((whose, record)) => Ok(view::view(&whose, record)),
            None => Err(Error::TemplateNotFound { name: name.to_owned() }),
        }
    }

    /// Removes a template, and layers that are no longer used.
    pub async fn remove_template(
        &self,
        who: &Principal,
        name: &str,
        project: Option<&str>,
    ) -> Result<(), Error> {
        self.shared.refuse_built_in(name)?;
        let owner = owner(who, project)?;
        let found = self.shared.record_of(&owner, name).await?;
        let not_found = || Error::TemplateNotFound { name: name.to_owned() };
        let (whose, record) = found.ok_or_else(not_found)?;
        if whose == Whose::Shared && !who.scopes.allow(Scope::Admin) {
            return Err(Error::TemplateShared { name: name.to_owned() });
        }
        // Excludes a concurrent import under the same name.
        let key = record::key(&whose, &record.name);
        let _alone = self.shared.images.names.join(key).await;
        self.shared.forget(&whose, &record).await?;
        failpoint!("template.after_forgotten");
        let (name, shared) = (record.name.to_string(), whose == Whose::Shared);
        let subject = Subject { owner, sandbox: None };
        self.shared.emit(&subject, &EventKind::TemplateRemoved { name, shared });
        collect::soon(&self.shared);
        Ok(())
    }
}

impl Shared {
    /// Writes a record, within its owner's quota.
    async fn keep(&self, whose: &Whose, record: &Record) -> Result<(), Error> {
        let records = &self.images.records;
        let _alone = self.images.ledger.lock().await;
        if let Whose::Own(owner) = whose {
            let coming = Coming { owner, name: &record.name, record: Some(record) };
            quota::check(&self.policy.quotas, &records.all().await?, coming)?;
        }
        Ok(records.put(whose, record).await?)
    }

    /// Removes the record, unless a sandbox was created from it.
    async fn forget(&self, whose: &Whose, record: &Record) -> Result<(), Error> {
        let _nobody_is_about_to = self.images.gate.write().await;
        let users = self.users(whose, record);
        if !users.is_empty() {
            return Err(Error::TemplateInUse { name: record.name.to_string(), users });
        }
        Ok(self.images.records.remove(whose, &record.name).await?)
    }

    /// The sandboxes that were created from its current version.
    fn users(&self, whose: &Whose, record: &Record) -> Vec<SandboxId> {
        let uses = |handle: &&Arc<crate::lifecycle::handle::Handle>| {
            let meta = handle.meta();
            let same_image = meta.spec.image().is_some_and(|image| image.digest == record.digest);
            let same_name = meta.spec.template() == record.name.as_str();
            same_image && same_name && whose.includes(&meta.owner)
        };
        let mut users: Vec<SandboxId> =
            self.handles().iter().filter(uses).map(|handle| handle.id.clone()).collect();
        users.sort();
        users
    }

    /// Refuses the names of built-in templates.
    fn refuse_built_in(&self, name: &str) -> Result<(), Error> {
        if self.templates.iter().any(|template| template.name() == name) {
            let problem = format!("{name} is built in: it is always there");
            Err(Error::InvalidField { field: "name", problem })
        } else {
            Ok(())
        }
    }
}

fn owner(who: &Principal, project: Option<&str>) -> Result<Owner, Error> {
    let wrong = |problem| Error::InvalidField { field: "project", problem };
    who.owner(project).map_err(|other| wrong(other.to_string()))
}
