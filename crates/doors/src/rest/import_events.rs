//! How the making of a template is answered: when it is there, or live.
//!
//! ```text
//! (progress | step | output)*   done | failed
//! ```

use axum::Json;
use axum::body::Body;
use axum::http::StatusCode;
use axum::http::header::{self, LOCATION};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use futures_util::stream;
use serde::Serialize;

use super::exec_stream::{Form, framed};
use super::output::{Carry, Encoded, Piece};
use super::problem::Problem;
use crate::kit::Refusal;
use sandkeep_broker::{BuildStep, Import, ImportProgress, ImportTold, TemplateView};
use sandkeep_guestlink::OutputStream;

pub async fn answer(import: Import, live: Option<Form>) -> Result<Response, Refusal> {
    let Some(form) = live else {
        let view = *import.done().await?;
        let location = format!("/api/v1/templates/{}", encoded(&view.name));
        return Ok((StatusCode::CREATED, [(LOCATION, location)], Json(view)).into_response());
    };
    let headers = [(header::CONTENT_TYPE, form.media_type()), (header::CACHE_CONTROL, "no-store")];
    let teller = Teller { form, stdout: Carry::default(), stderr: Carry::default() };
    let events = stream::unfold((import, teller), |(mut import, mut teller)| async move {
        let told = import.next().await?;
        Some((Ok::<_, std::convert::Infallible>(teller.tell(told)), (import, teller)))
    });
    Ok((headers, Body::from_stream(events)).into_response())
}

/// As one part of a path.
fn encoded(name: &str) -> String {
    name.replace('/', "%2F")
}

#[derive(Default, Serialize)]
struct Event<'a> {
    r#type: &'static str,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    progress: Option<ImportProgress>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    step: Option<BuildStep>,
    #[serde(skip_serializing_if = "Option::is_none")]
    stream: Option<OutputStream>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data_b64: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    template: Option<&'a TemplateView>,
    #[serde(skip_serializing_if = "Option::is_none")]
    problem: Option<Problem>,
}

/// Writes events. A character of a build's output that is cut in two is told when the rest of it is there.
struct Teller {
    form: Form,
    stdout: Carry,
    stderr: Carry,
}

impl Teller {
    fn tell(&mut self, told: ImportTold) -> Bytes {
        let event = |r#type| Event { r#type, ..Event::default() };
        match told {
            ImportTold::Progress(progress) => {
                self.say(&Event { progress: Some(progress), ..event("progress") })
            }
            ImportTold::Output { stream, data } => {
                let carry = match stream {
                    OutputStream::Stdout => &mut self.stdout,
                    OutputStream::Stderr => &mut self.stderr,
                };
                // Where in its stream a piece is, nobody asks of a build.
                let piece = carry.push(0, &data);
                self.piece(stream, piece)
            }
            ImportTold::Step(step) => {
                let rest = self.rest();
                [rest, self.say(&Event { step: Some(step), ..event("step") })].concat().into()
            }
            ImportTold::Done(done) => {
                let rest = self.rest();
                let last = match done {
                    Ok(view) => self.say(&Event { template: Some(&view), ..event("done") }),
                    Err(error) => {
                        let problem = Problem::from(&Refusal::from(error));
                        self.say(&Event { problem: Some(problem), ..event("failed") })
                    }
                };
                [rest, last].concat().into()
            }
        }
    }

    /// What was held back of both streams.
    fn rest(&mut self) -> Bytes {
        let (stdout, stderr) = (self.stdout.finish(), self.stderr.finish());
        let told = [(OutputStream::Stdout, stdout), (OutputStream::Stderr, stderr)];
        told.map(|(stream, piece)| self.piece(stream, piece)).concat().into()
    }

    fn piece(&self, stream: OutputStream, piece: Option<Piece>) -> Bytes {
        let Some(Piece { data, .. }) = piece else { return Bytes::new() };
        let (data, data_b64) = match data {
            Encoded::Text(text) => (Some(text), None),
            Encoded::Base64(text) => (None, Some(text)),
        };
        let stream = Some(stream);
        self.say(&Event { r#type: "output", stream, data, data_b64, ..Event::default() })
    }

    fn say(&self, event: &Event<'_>) -> Bytes {
        framed(self.form, event.r#type, None, event)
    }
}
