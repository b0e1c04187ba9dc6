//! How far an import is, for whoever wants to know. It goes on whether or not anybody does.

use tokio::sync::{oneshot, watch};
use tokio::time::Instant;

use super::view::TemplateView;
use crate::error::Error;
use crate::limits;
use crate::template::image::Progress;

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

/// What whoever follows an import is told.
#[derive(Debug)]
pub enum Told {
    Progress(ImportProgress),
    Done(Result<Box<TemplateView>, Error>),
}

/// An import that was begun.
pub struct Import {
    progress: watch::Receiver<ImportProgress>,
    outcome: Option<oneshot::Receiver<Result<Box<TemplateView>, Error>>>,
    next_at: Instant,
}

/// The end of an import, to be told once.
pub type Outcome = oneshot::Sender<Result<Box<TemplateView>, Error>>;

impl Import {
    pub fn begin() -> (Self, Reporter, Outcome) {
        let (sender, progress) = watch::channel(ImportProgress::default());
        let (outcome, done) = oneshot::channel();
        let import = Self { progress, outcome: Some(done), next_at: Instant::now() };
        (import, Reporter(sender), outcome)
    }

    /// Waits for the end.
    pub async fn done(mut self) -> Result<Box<TemplateView>, Error> {
        match self.outcome.take() {
            Some(outcome) => outcome.await.unwrap_or(Err(Error::ShuttingDown)),
            None => Err(Error::ShuttingDown),
        }
    }

    /// What is new, now and then; `None` after the end was told.
    pub async fn next(&mut self) -> Option<Told> {
        let outcome = self.outcome.as_mut()?;
        let progress = &mut self.progress;
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
