//! An external tool run by a non-root daemon: it has one id to give, its own, which is `user` inside; root does not
//! exist there.

use std::io;

use super::{Staged, Technique, guest, refused};
use crate::grouped::{Host, HostResources, Parts, Starter, pieces};
use crate::{Plan, RuntimeError};
use sandkeep_sys::{
    launcher::{Lifeline, RootKind},
    stage::{self, BareStaging, NamedOverlay},
};

/// What a tool needs to know of a sandbox without root.
pub struct UserScene<'a> {
    pub plan: &'a Plan,
    lifeline: Lifeline,
    badge: String,
}

impl UserScene<'_> {
    /// The guest's command line, as the tool has to execute it. The badge identifies it.
    pub fn guest(&self) -> Vec<String> {
        let mut words = guest(self.lifeline);
        words.extend(["--badge".to_owned(), self.badge.clone()]);
        words
    }
}

impl<T: Technique + 'static> Staged<T> {
    pub(super) async fn perform_as_user(
        &self,
        host_resources: &HostResources,
        plan: &Plan,
    ) -> Result<stage::Tool, RuntimeError> {
        let parts = Parts::open(T::NAME, host_resources, plan, self.place(), Host::Connects)?;
        let scene =
            UserScene { plan, lifeline: parts.lifeline, badge: host_resources.badge(&plan.id) };
        let directed = self.technique.direct_as_user(&scene);
        let staging = BareStaging {
            lifeline: parts.lifeline,
            overlay: named_overlay(plan).map_err(Self::failed("name its root"))?,
            program: self.program.path().to_owned(),
            arguments: directed.map_err(Self::failed("name its files"))?,
        };
        let fds = parts.before_entry(host_resources);
        self.stage.perform_bare(&staging, &fds).await.map_err(refused::<T>)
    }
}

/// A root that is a single directory is bound by the tool itself.
fn named_overlay(plan: &Plan) -> io::Result<Option<NamedOverlay>> {
    let (kind, paths) = pieces(&plan.stored()?.root)?;
    match (kind, paths.as_slice()) {
        (RootKind::Overlay(names), [volume, layers]) => {
            let (volume, layers) = ((*volume).to_owned(), (*layers).to_owned());
            Ok(Some(NamedOverlay { volume, layers, names }))
        }
        (RootKind::Overlay(_) | RootKind::Dir | RootKind::Shifted, _) => Ok(None),
    }
}

/// A path as an argument of a tool.
pub fn argument(path: &std::path::Path) -> io::Result<&str> {
    let unreadable = || io::Error::other(format!("{} is no text", path.display()));
    path.to_str().ok_or_else(unreadable)
}
