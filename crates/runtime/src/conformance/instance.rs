//! One instance for testing a runtime: a data directory, a template, and plans of sandboxes in it.

use std::path::Path;
use std::sync::Arc;

use tempfile::TempDir;

use crate::{HostResources, Lifetime, Plan, PlannedFiles, Runtime, StoredFiles};
use sandkeep_core::{HostLimits, Labels, Owner, Resources, SandboxId, SpecDraft};
use sandkeep_home::{Home, Meta};
use sandkeep_image::{HostTemplate, Template};
use sandkeep_sys::cgroup::Hierarchy;
use sandkeep_tree::Root;

pub(crate) struct Instance<R> {
    name: String,
    data: TempDir,
    template: HostTemplate,
    pub runtime: Arc<R>,
}

impl<R: Runtime> Instance<R> {
    pub async fn start<F>(
        groups: impl FnOnce(&Path, &str) -> anyhow::Result<Box<dyn Hierarchy>>,
        make: impl FnOnce(Arc<HostResources>) -> F,
    ) -> anyhow::Result<Self>
    where
        F: Future<Output = anyhow::Result<Arc<R>>>,
    {
        let data = tempfile::tempdir()?;
        std::fs::create_dir(data.path().join("sandboxes"))?;
        let name = SandboxId::random().as_str()[2..18].to_owned();
        let groups = groups(data.path(), &name)?;
        let host_resources = HostResources::with(data.path().to_owned(), name.clone(), groups)?;
        let runtime = make(host_resources).await?;
        let template = HostTemplate::prepare(data.path())?;
        Ok(Self { name, data, template, runtime })
    }

    pub async fn plan(&self, resources: Resources) -> Plan {
        let id = SandboxId::random();
        let labels = Labels { instance: self.name.clone(), owner: Owner::local() };
        let host = HostLimits { memory_mb: 1024 * 1024, cpus: 64.0, disk_default_mb: None };
        let runtime = Some(self.runtime.name().to_owned());
        let draft = SpecDraft { runtime, ..SpecDraft::default() };
        let spec = draft.check(&host).expect("defaults are valid");
        let meta = Meta::new(id.clone(), labels.clone(), spec, "this boot".to_owned());
        let home = Home::new(self.data.path(), id.clone(), self.name.clone());
        home.create(&meta).expect("a home");
        let root = self.data.path().join("volumes").join(id.as_str());
        std::fs::create_dir_all(&root).expect("a volume");
        let root = Root::Dir(root);
        self.template.lay_out(&root, &id).await.expect("a skeleton");
        Plan {
            id,
            labels,
            files: PlannedFiles::Stored(StoredFiles { root, binds: self.template.binds() }),
            resources,
            privilege: self.template.default_privilege(),
            home: home.path().to_owned(),
            lifetime: Lifetime::Detached,
            network: false,
            mounts: Vec::new(),
        }
    }
}

/// Removes the files of a plan; the sandbox itself is already gone.
pub(crate) fn discard(plan: &Plan) {
    let files = plan.stored().expect("an instance has volumes");
    for dir in [files.root.own_dir(), plan.home.as_path()] {
        remove(dir);
    }
}

fn remove(dir: &Path) {
    std::fs::remove_dir_all(dir).expect("nothing uses it any more");
}
