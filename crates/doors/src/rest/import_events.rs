//! Answers to the creation of a template: when it exists, or live.
//!
//! ```text
//! (progress | step | output)*   done | failed
//! ```

use axum::Json;
use axum::http::StatusCode;
use axum::http::header::LOCATION;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;

use super::output::{Carry, Piece};
use super::problem::Problem;
use crate::kit::Refusal;
use crate::kit::frames::Form;
use sandkeep_broker::{BuildStep, Import, ImportProgress, ImportTold, TemplateView};
use sandkeep_guestlink::OutputStream;

pub async fn answer(import: Import, live: Option<Form>) -> Result<Response, Refusal> {
    let Some(form) = live else {
        let view = *import.done().await?;
        let location = format!("/api/v1/templates/{}", encoded(&view.name));
        return Ok((StatusCode::CREATED, [(LOCATION, location)], Json(view)).into_response());
    };
    let teller = ImportEventWriter { form, carry: Carry::default() };
    let events = stream::unfold((import, teller), |(mut import, mut teller)| async move {
        let told = import.next().await?;
        Some((Ok::<_, std::convert::Infallible>(teller.tell(told)), (import, teller)))
    });
    Ok(form.response(events))
}

/// Percent-encoded as one path segment.
fn encoded(name: &str) -> String {
    name.replace('/', "%2F")
}

#[derive(Serialize)]
#[serde(tag = "type", rename_all = "snake_case")]
enum ImportEvent<'a> {
    Progress(ImportProgress),
    Step(BuildStep),
    Output {
        stream: OutputStream,
        #[serde(flatten, with = "sandkeep_core::api::data")]
        data: Bytes,
    },
    Done {
        template: &'a TemplateView,
    },
    Failed {
        problem: Problem,
    },
}

impl ImportEvent<'_> {
    fn name(&self) -> &'static str {
        match self {
            Self::Progress(_) => "progress",
            Self::Step(_) => "step",
            Self::Output { .. } => "output",
            Self::Done { .. } => "done",
            Self::Failed { .. } => "failed",
        }
    }
}

/// Writes events. If a character of a build's output is split between chunks, its bytes are sent with the next chunk.
struct ImportEventWriter {
    form: Form,
    carry: Carry,
}

impl ImportEventWriter {
    fn tell(&mut self, told: ImportTold) -> Bytes {
        let last = match told {
            ImportTold::Progress(progress) => return self.say(&ImportEvent::Progress(progress)),
            ImportTold::Output { stream, data } => {
                // Build output has no offsets.
                let piece = self.carry.push(stream, 0, data);
                return self.output(piece);
            }
            ImportTold::Step(step) => self.say(&ImportEvent::Step(step)),
            ImportTold::Done(Ok(template)) => self.say(&ImportEvent::Done { template: &template }),
            ImportTold::Done(Err(error)) => {
                let problem = Problem::from(&Refusal::from(error));
                self.say(&ImportEvent::Failed { problem })
            }
        };
        // Bytes held back of both streams come before it.
        let held = [OutputStream::Stdout, OutputStream::Stderr].map(|stream| {
            let rest = self.carry.finish(stream);
            self.output(rest)
        });
        [held.concat().as_slice(), &last].concat().into()
    }

    fn output(&self, piece: Option<Piece>) -> Bytes {
        let Some(Piece { stream, data, .. }) = piece else { return Bytes::new() };
        self.say(&ImportEvent::Output { stream, data })
    }

    fn say(&self, event: &ImportEvent<'_>) -> Bytes {
        self.form.frame(event.name(), None, event)
    }
}
