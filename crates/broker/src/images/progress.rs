//! How far an import is, for whoever wants to know. It goes on whether or not anybody does.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::view::TemplateView;
use crate::error::Error;
use sandkeep_core::limits;
use sandkeep_guestlink::OutputStream;
use sandkeep_image::image::Progress;

/// What an import does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportStep {
    /// Another import under the same name, or of the same layer, comes first.
    #[default]
    Waiting,
    /// Finds out what the image is.
    Reading,
    /// Brings a layer here.
    Fetching,
    /// Unpacks a layer.
    Unpacking,
    /// Makes a layer of what a sandbox has.
    Capturing,
    /// Writes it down.
    Recording,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = TemplateImportProgress)]
pub struct ImportProgress {
    pub step: ImportStep,
    /// Which layer it is at, from 1; 0 before the first.
    pub layer: usize,
    /// How many there are; 0 before that is known.
    pub layers: usize,
    /// Of this step and this layer.
    pub done_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
}

/// The one who tells.
#[derive(Clone)]
pub struct Reporter(watch::Sender<ImportProgress>);

impl Reporter {
    pub fn step(&self, step: ImportStep) {
        self.0.send_modify(|progress| {
            let ImportProgress { layer, layers, .. } = *progress;
            *progress = ImportProgress { step, layer, layers, ..ImportProgress::default() };
        });
    }

    pub fn layer(&self, layer: usize, layers: usize) {
        let progress = ImportProgress { layer, layers, ..ImportProgress::default() };
        self.0.send_replace(progress);
    }

    /// How much of all layers together is here. It is told only while somebody waits for one.
    pub fn fetched(&self, done_bytes: u64, total_bytes: u64) {
        self.0.send_if_modified(|progress| {
            if progress.step == ImportStep::Fetching {
                (progress.done_bytes, progress.total_bytes) = (done_bytes, Some(total_bytes));
            }
            progress.step == ImportStep::Fetching
        });
    }

    /// Begins a step of so many bytes, and gives what is to be told of them.
    pub fn bytes(&self, step: ImportStep, total_bytes: Option<u64>) -> Progress {
        self.step(step);
        self.0.send_modify(|progress| progress.total_bytes = total_bytes);
        let sender = self.0.clone();
        Progress::to(move |done_bytes| {
            sender.send_modify(|progress| progress.done_bytes = done_bytes);
        })
    }
}

/// That a build has come to a step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct BuildStep {
    /// From 1.
    pub step: usize,
    pub steps: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Of the build file.
    pub line: usize,
    /// As it was written, in one line.
    pub instruction: String,
    /// Whether its outcome is that of an earlier build.
    pub cached: bool,
}

/// What a build says besides how far it is. Whoever follows it sets its pace.
#[derive(Debug)]
enum BuildEvent {
    Step(BuildStep),
    Output { stream: OutputStream, data: Bytes },
}

/// The one who tells of a build.
pub struct Events(mpsc::Sender<BuildEvent>);

impl Events {
    pub async fn step(&self, step: BuildStep) {
        self.say(BuildEvent::Step(step)).await;
    }

    pub async fn output(&self, stream: OutputStream, data: Bytes) {
        self.say(BuildEvent::Output { stream, data }).await;
    }

    async fn say(&self, event: BuildEvent) {
        // If nobody listens, the build is about to be stopped.
        let _ = self.0.send(event).await;
    }
}

/// What whoever follows an import or a build is told.
#[derive(Debug)]
pub enum Told {
    Progress(ImportProgress),
    Step(BuildStep),
    Output { stream: OutputStream, data: Bytes },
    Done(Result<Box<TemplateView>, Error>),
}

/// An import that was begun.
pub struct Import {
    progress: watch::Receiver<ImportProgress>,
    outcome: Option<oneshot::Receiver<Result<Box<TemplateView>, Error>>>,
    next_at: Instant,
    /// Of a build, which ends if nobody has this any more.
    build: Option<(mpsc::Receiver<BuildEvent>, DropGuard)>,
}

/// The end of an import, to be told once.
pub type Outcome = oneshot::Sender<Result<Box<TemplateView>, Error>>;

impl Import {
    pub fn begin() -> (Self, Reporter, Outcome) {
        let (sender, progress) = watch::channel(ImportProgress::default());
        let (outcome, done) = oneshot::channel();
        let next_at = Instant::now();
        let import = Self { progress, outcome: Some(done), next_at, build: None };
        (import, Reporter(sender), outcome)
    }

    /// A build: the same, with what it says, and with what tells it that nobody listens.
    pub fn begin_build() -> (Self, Reporter, Outcome, Events, CancellationToken) {
        let (import, reporter, outcome) = Self::begin();
        let (events, listener) = mpsc::channel(limits::BUILD_EVENTS_MAX);
        let unwanted = CancellationToken::new();
        let build = Some((listener, unwanted.clone().drop_guard()));
        (Self { build, ..import }, reporter, outcome, Events(events), unwanted)
    }

    /// Waits for the end.
    pub async fn done(mut self) -> Result<Box<TemplateView>, Error> {
        loop {
            match self.next().await {
                Some(Told::Done(done)) => return done,
                Some(Told::Progress(_) | Told::Step(_) | Told::Output { .. }) => {}
                None => return Err(Error::ShuttingDown),
            }
        }
    }

    /// What is new, now and then; `None` after the end was told.
    pub async fn next(&mut self) -> Option<Told> {
        let outcome = self.outcome.as_mut()?;
        let progress = &mut self.progress;
        let said = async {
            match &mut self.build {
                Some((events, _)) => events.recv().await,
                None => None,
            }
        };
        let pause = tokio::time::sleep_until(self.next_at);
        let changed = async {
            pause.await;
            if progress.changed().await.is_err() {
                // The end is told by the other half.
                std::future::pending::<()>().await;
            }
            *progress.borrow_and_update()
        };
        tokio::select! {
            biased;
            // All that a build says it says before its end.
            Some(event) = said => Some(match event {
                BuildEvent::Step(step) => Told::Step(step),
                BuildEvent::Output { stream, data } => Told::Output { stream, data },
            }),
            done = outcome => {
                self.outcome = None;
                Some(Told::Done(done.unwrap_or(Err(Error::ShuttingDown))))
            }
            progress = changed => {
                self.next_at = Instant::now() + limits::IMPORT_PROGRESS_PAUSE;
                Some(Told::Progress(progress))
            }
        }
    }
}
