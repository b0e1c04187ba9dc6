//! The temporary sandboxes of builds: one for each step that runs a command. It exists until its volume has become a
//! layer or the build has ended.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bytes::Bytes;
use tracing::warn;

use super::mounts::{Binds, StepMounts};
use super::network::Refusals;
use super::steps::{Builder, Built};
use crate::error::Error;
use crate::execs::{ExecDraft, OnDisconnect};
use crate::images::layers::id_of;
use crate::images::record::KeptLayer;
use crate::lifecycle::create::{Creation, NewSandbox, Origin, new_meta};
use crate::lifecycle::handle::Handle;
use crate::lifecycle::request::Command;
use crate::network::Values;
use crate::{Broker, policy::admission};
use sandkeep_core::api::{BUILD_SAID_LAST, StdinSource};
use sandkeep_core::network::NetworkTerms;
use sandkeep_core::{
    ExecId, FileLocation, ImageDefaults, ImportId, PinnedImage, Privilege, Spec, SpecDraft, Terms,
    Verb, failpoint, limits,
};
use sandkeep_guestlink::{ExecEnd, Outcome};
use sandkeep_image::recipe::{Running, Step};
use sandkeep_runtime::Capabilities;
use sandkeep_tree::digest::Digest;

/// The default user of a step.
const ROOT: &str = "0";

/// The build's current sandbox, if any, and what is mounted in it. It is stored outside of the steps, which may be
/// canceled at any moment.
#[derive(Default)]
pub struct Rooms(Mutex<Option<(Arc<Handle>, Arc<StepMounts>)>>);

impl Rooms {
    fn current(&self) -> MutexGuard<'_, Option<(Arc<Handle>, Arc<StepMounts>)>> {
        // No code panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Removes the current sandbox, if any. If that fails, reconcile removes it.
    pub async fn clear(&self, broker: &Broker) {
        // The mounts stay until it is gone.
        let Some((handle, _mounts)) = self.current().take() else { return };
        match handle.destroy(&broker.shared).await {
            // A sandbox that could not be created is gone already.
            Ok(()) | Err(Error::NotFound { .. }) => {}
            Err(error) => warn!(id = %handle.id, %error, "cannot remove the sandbox of a build"),
        }
    }
}

impl Builder<'_> {
    /// Runs a command on top of the layers so far; its changes become the next layer.
    pub async fn run(
        &mut self,
        built: &mut Built,
        running: &Running,
        binds: Binds,
        step: &Step,
    ) -> Result<(), Error> {
        let mounts = Arc::new(self.open_mounts(running, binds, step).await?);
        let room = |can: &Capabilities| room_of_layers(self, built, running, can);
        let handle = self.open_room(self.network.clone(), room, &mounts).await?;
        failpoint!("build.after_sandbox");
        let ran = self.carry_out(&handle, running, &mounts, step).await;
        self.note_caches(mounts.caches()).await?;
        ran?;
        failpoint!("build.after_run");
        let layer = self.keep_room(&handle, &mounts, built).await?;
        built.layers.push(layer);
        Ok(())
    }

    /// The content of a new sandbox of a built-in template.
    pub async fn of_built_in(&mut self, built: &mut Built, template: &str) -> Result<(), Error> {
        let template = template.to_owned();
        let mounts = Arc::default();
        let room = |can: &Capabilities| draft(&template, can).map(BuildBase::Plain);
        let handle = self.open_room(NetworkTerms::default(), room, &mounts).await?;
        let layer = self.keep_room(&handle, &mounts, built).await?;
        built.layers.push(layer);
        Ok(())
    }

    async fn open_room(
        &self,
        network: NetworkTerms,
        room: impl FnOnce(&Capabilities) -> Result<BuildBase, Error>,
        mounts: &Arc<StepMounts>,
    ) -> Result<Arc<Handle>, Error> {
        let shared = &self.broker.shared;
        let runtime = shared.usable_runtime(admission::usual_runtime(shared))?;
        let spec = match room(&runtime.capabilities())? {
            BuildBase::Plain(draft) => self.checked(draft, runtime.name())?,
            BuildBase::OfLayers(draft, image) => {
                self.checked(draft, runtime.name())?.of_image(*image)
            }
        };
        let spec = admission::with_files(shared, runtime.as_ref(), spec)?;
        if spec.keeper() == FileLocation::Runtime {
            let runtime = runtime.name().to_owned();
            return Err(Error::NoVolume { what: "a build", runtime });
        }
        if !mounts.is_empty() && !runtime.capabilities().mounts {
            let problem = format!(
                "RUN --mount needs a runtime that can mount, and {} cannot here; `sandkeep runtimes` lists which can",
                runtime.name()
            );
            return Err(Error::BuildFileInvalid { problem });
        }
        let terms = Terms { network, ..Terms::default() };
        let meta = new_meta(shared, self.owner.clone(), spec.of_build(), terms);
        admission::check_row(&meta)?;
        let template = shared.template_of(&meta.spec)?;
        let origin = Origin::Build(Arc::clone(mounts));
        let creation = Creation { template, origin, secrets: Values::new(), claim: None };
        let new = NewSandbox::new(shared, Arc::clone(runtime), meta, creation);
        shared.admit(std::slice::from_ref(&new.handle))?;
        let handle = Arc::clone(&new.handle);
        *self.rooms.current() = Some((Arc::clone(&handle), Arc::clone(mounts)));
        new.make(shared).await?;
        Ok(handle)
    }

    fn checked(&self, draft: SpecDraft, runtime: &str) -> Result<Spec, Error> {
        let shared = &self.broker.shared;
        let draft = SpecDraft { runtime: Some(runtime.to_owned()), ..draft };
        Ok(shared.policy.with_profile(draft)?.check(&shared.host)?)
    }

    /// Runs the command of a step to its end, and reports its output live.
    async fn carry_out(
        &self,
        handle: &Arc<Handle>,
        running: &Running,
        mounts: &StepMounts,
        step: &Step,
    ) -> Result<(), Error> {
        let draft = ExecDraft {
            argv: running.argv.clone(),
            env: running.env.iter().chain(&mounts.env).cloned().collect(),
            stdin: match running.stdin {
                Some(_) => StdinSource::Given,
                None => StdinSource::None,
            },
            cwd: Some(running.workdir.clone()),
            timeout: Some(limits::BUILD_STEP_MAX),
            on_disconnect: OnDisconnect::Kill,
            ..ExecDraft::default()
        };
        let refusals = Refusals::of(handle);
        let command = crate::execs::exec(&self.broker.shared, handle, draft, ExecId::random());
        let mut tail = Tail::default();
        let take = |stream, _, data: Bytes| {
            tail.push(&data);
            self.events.output(stream, data)
        };
        let command = command.await?;
        let input = command.input.clone();
        let feed = async {
            if let Some(script) = &running.stdin
                // It may end without reading everything.
                && input.write(&Bytes::from(script.clone())).await.is_ok()
            {
                let _ = input.close().await;
            }
        };
        let (end, ()) = tokio::join!(command.collect(take), feed);
        self.tell_refusals(refusals).await;
        judge(&end, &tail, step)
    }

    /// Makes a layer of the sandbox's own files, and removes the sandbox.
    async fn keep_room(
        &mut self,
        handle: &Arc<Handle>,
        mounts: &StepMounts,
        built: &Built,
    ) -> Result<KeptLayer, Error> {
        let (broker, images) = (self.broker, &self.broker.shared.images);
        handle.ask(&broker.shared, Verb::Stop, Command::Stop).await?;
        if !mounts.is_empty() {
            mounts.remove_targets(&broker.shared.storage.root(&handle.id).await?).await?;
        }
        self.remove_certificates(handle).await?;
        // There is no archive to derive a name from, and no two steps are the same.
        let id = id_of(&Digest::of(ImportId::random().as_str().as_bytes()));
        {
            let _kept = images.gate.read().await;
            let layers = [built.layer_ids(), vec![id.clone()]].concat();
            self.pins.push(images.pins.set(layers));
        }
        self.job.room.hold(handle.volume_bytes().await)?;
        handle.capture(&broker.shared, id.clone()).await?;
        failpoint!("build.after_layer");
        let bytes = handle.volume_bytes().await;
        self.rooms.clear(broker).await;
        failpoint!("build.after_room");
        Ok(KeptLayer { id, bytes })
    }
}

/// The base of a build sandbox.
enum BuildBase {
    /// A built-in template.
    Plain(SpecDraft),
    OfLayers(SpecDraft, Box<PinnedImage>),
}

fn draft(template: &str, can: &Capabilities) -> Result<SpecDraft, Error> {
    Ok(SpecDraft {
        template: Some(template.to_owned()),
        // If the runtime has no root inside, the build does the best it can.
        privilege: can.any_user.then_some(Privilege::Root),
        ..SpecDraft::default()
    })
}

fn room_of_layers(
    builder: &Builder<'_>,
    built: &Built,
    running: &Running,
    can: &Capabilities,
) -> Result<BuildBase, Error> {
    let draft = draft(builder.job.name.as_str(), can)?;
    let user = if can.any_user {
        running.user.as_deref().unwrap_or(ROOT)
    } else {
        crate::images::ONLY_USER
    };
    let image = PinnedImage {
        digest: built.key.digest().to_string(),
        layers: built.layers.iter().map(|layer| layer.id.to_string()).collect(),
        over: built.over.clone(),
        defaults: Some(ImageDefaults {
            user: user.to_owned(),
            workdir: running.workdir.clone(),
            env: BTreeMap::new(),
            command: Vec::new(),
            start: None,
        }),
    };
    Ok(BuildBase::OfLayers(draft, Box::new(image)))
}

/// The end of a command's output.
#[derive(Default)]
struct Tail(VecDeque<u8>);

impl Tail {
    fn push(&mut self, bytes: &[u8]) {
        self.0.extend(bytes);
        let over = self.0.len().saturating_sub(limits::BUILD_TAIL_BYTES);
        self.0.drain(..over);
    }

    fn text(&self) -> String {
        let bytes: Vec<u8> = self.0.iter().copied().collect();
        String::from_utf8_lossy(&bytes).trim().to_owned()
    }
}

fn judge(end: &ExecEnd, tail: &Tail, step: &Step) -> Result<(), Error> {
    let problem = match (&end.outcome, &end.error) {
        (Outcome::Exited(0), _) => return Ok(()),
        (_, Some(error)) => error.clone(),
        (Outcome::Exited(code), None) => format!("it ended with exit code {code}"),
        (Outcome::Signaled(signal), None) => format!("it was ended by signal {signal}"),
        (Outcome::TimedOut, None) => {
            format!("it took longer than {} s", limits::BUILD_STEP_MAX.as_secs())
        }
        (Outcome::OomKilled, None) => "it needed more memory than its sandbox has".to_owned(),
        (Outcome::Canceled | Outcome::Lost, None) => "its sandbox went away".to_owned(),
    };
    let problem = match tail.text().as_str() {
        "" => problem,
        said => format!("{problem}{BUILD_SAID_LAST}{said}"),
    };
    Err(Error::BuildFailed { line: step.line, instruction: step.written.clone(), problem })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_what_a_command_said_the_end_is_kept() {
        let mut tail = Tail::default();
        for _ in 0..limits::BUILD_TAIL_BYTES {
            tail.push(b"0123456789");
        }
        tail.push(b"the end\n");
        assert!(tail.text().ends_with("789the end"));
        assert_eq!(tail.0.len(), limits::BUILD_TAIL_BYTES);
    }
}
