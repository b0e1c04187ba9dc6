//! Properties of every engine's containers, tested without an engine.

use std::path::PathBuf;
use std::sync::Arc;

use crate::{Lifetime, Plan, PlannedFiles, StoredFiles};
use sandkeep_core::{Labels, Owner, Privilege, Resources, SandboxId};
use sandkeep_tree::Root;

pub fn plan() -> Plan {
    Plan {
        id: SandboxId::random(),
        labels: Labels { instance: "0123".to_owned(), owner: Owner::local() },
        files: PlannedFiles::Stored(StoredFiles {
            root: Root::Dir(PathBuf::from("/volumes/one")),
            binds: Arc::new([]),
        }),
        resources: Resources {
            memory_mb: 64,
            cpus: 1.0,
            pids: 32,
            disk_mb: None,
            disk_total_mb: None,
        },
        privilege: Privilege::None,
        home: PathBuf::from("/homes/one"),
        lifetime: Lifetime::Detached,
        network: false,
        mounts: Vec::new(),
    }
}
