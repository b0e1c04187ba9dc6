//! The progress of an import. The import continues whether or not anybody listens.

use bytes::Bytes;
use tokio::sync::{mpsc, oneshot, watch};
use tokio::time::Instant;
use tokio_util::sync::{CancellationToken, DropGuard};

use super::view::TemplateView;
use crate::error::Error;
use sandkeep_core::limits;
use sandkeep_guestlink::OutputStream;
use sandkeep_image::image::Progress;

/// What an import is doing.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ImportStep {
    /// Waiting for another import under the same name, or of the same layer.
    #[default]
    Waiting,
    /// Reading the image's metadata.
    Reading,
    /// Fetching a layer.
    Fetching,
    /// Unpacking a layer.
    Unpacking,
    /// Capturing a sandbox's files as a layer.
    Capturing,
    /// Writing the record.
    Recording,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
#[schema(as = TemplateImportProgress)]
pub struct ImportProgress {
    pub step: ImportStep,
    /// The current layer, from 1; 0 before the first.
    pub layer: usize,
    /// The number of layers; 0 while unknown.
    pub layers: usize,
    /// Bytes done of this step and this layer.
    pub done_bytes: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub total_bytes: Option<u64>,
}

/// The sending side.
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

    /// How much of all layers is here. Reported only while the import waits for one.
    pub fn fetched(&self, done_bytes: u64, total_bytes: u64) {
        self.0.send_if_modified(|progress| {
            if progress.step == ImportStep::Fetching {
                (progress.done_bytes, progress.total_bytes) = (done_bytes, Some(total_bytes));
            }
            progress.step == ImportStep::Fetching
        });
    }

    /// Starts a step of this many bytes, and returns the counter for them.
    pub fn bytes(&self, step: ImportStep, total_bytes: Option<u64>) -> Progress {
        self.step(step);
        self.0.send_modify(|progress| progress.total_bytes = total_bytes);
        let sender = self.0.clone();
        Progress::to(move |done_bytes| {
            sender.send_modify(|progress| progress.done_bytes = done_bytes);
        })
    }
}

/// A build has reached a step.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, utoipa::ToSchema)]
pub struct BuildStep {
    /// From 1.
    pub step: usize,
    pub steps: usize,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stage: Option<String>,
    /// Line in the build file.
    pub line: usize,
    /// As written, on one line.
    pub instruction: String,
    /// Whether the result comes from an earlier build.
    pub cached: bool,
}

/// Events of a build besides its progress. The receiver sets the pace.
#[derive(Debug)]
enum BuildEvent {
    Step(BuildStep),
    Output { stream: OutputStream, data: Bytes },
}

/// The sending side of a build's events.
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

/// An item of an import's or a build's event stream.
#[derive(Debug)]
pub enum Told {
    Progress(ImportProgress),
    Step(BuildStep),
    Output { stream: OutputStream, data: Bytes },
    Done(Result<Box<TemplateView>, Error>),
}

/// An import that was started.
pub struct Import {
    progress: watch::Receiver<ImportProgress>,
    outcome: Option<oneshot::Receiver<Result<Box<TemplateView>, Error>>>,
    next_at: Instant,
    /// For builds, which stop when this is dropped.
    build: Option<(mpsc::Receiver<BuildEvent>, DropGuard)>,
}

/// The result of an import, sent once.
pub type Outcome = oneshot::Sender<Result<Box<TemplateView>, Error>>;

impl Import {
    pub fn begin() -> (Self, Reporter, Outcome) {
        let (sender, progress) = watch::channel(ImportProgress::default());
        let (outcome, done) = oneshot::channel();
        let next_at = Instant::now();
        let import = Self { progress, outcome: Some(done), next_at, build: None };
        (import, Reporter(sender), outcome)
    }

    /// A build: the same, with its events, and a token that is canceled when nobody listens.
    pub fn begin_build() -> (Self, Reporter, Outcome, Events, CancellationToken) {
        let (import, reporter, outcome) = Self::begin();
        let (events, listener) = mpsc::channel(limits::BUILD_EVENTS_MAX);
        let unwanted = CancellationToken::new();
        let build = Some((listener, unwanted.clone().drop_guard()));
        (Self { build, ..import }, reporter, outcome, Events(events), unwanted)
    }

    /// Waits for the result.
    pub async fn done(mut self) -> Result<Box<TemplateView>, Error> {
        loop {
            match self.next().await {
                Some(Told::Done(done)) => return done,
                Some(Told::Progress(_) | Told::Step(_) | Told::Output { .. }) => {}
                None => return Err(Error::ShuttingDown),
            }
        }
    }

    /// The next event; `None` after the result.
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
                // The other branch reports the end.
                std::future::pending::<()>().await;
            }
            *progress.borrow_and_update()
        };
        tokio::select! {
            biased;
            // A build sends all its events before its result.
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
