//! Before every handler of a door: who comes in, how often, and in which words what was refused leaves.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Kit;
use super::dialect::{Dialect, in_words};
use super::gate::{Admitted, Connection, Peer};
use super::refusal::Refusal;
use sandkeep_broker::CommandPlace;
use sandkeep_core::Principal;

pub struct Desk {
    pub kit: Kit,
    pub dialect: Box<dyn Dialect>,
}

pub async fn receive(State(desk): State<Arc<Desk>>, mut request: Request, next: Next) -> Response {
    let (dialect, path) = (desk.dialect.as_ref(), request.uri().path().to_owned());
    let admitted = desk.kit.gate.admit(&mut request, dialect).await;
    let who = request.extensions().get::<Principal>().cloned();
    let (visit, answer) = match admitted {
        Admitted::Served(visit) => match desk.limit(&request) {
            Ok(place) => (visit, hold(place, next.run(request).await)),
            Err(refusal) => (visit, refusal.into_response()),
        },
        Admitted::Refused(visit, refusal) => (visit, refusal.into_response()),
        Admitted::Answered(answer) => return answer,
    };
    desk.note_refusal(&answer, who.as_ref());
    visit.finish(in_words(dialect, answer, &path), dialect.schemes())
}

/// Keeps the place of a message until its answer is out.
fn hold(place: Option<CommandPlace>, mut answer: Response) -> Response {
    if let Some(place) = place {
        answer.extensions_mut().insert(Arc::new(place));
    }
    answer
}

impl Desk {
    /// The broker is told what was refused, and to whom if that is known.
    fn note_refusal(&self, answer: &Response, who: Option<&Principal>) {
        let Some(refusal) = answer.extensions().get::<Arc<Refusal>>() else { return };
        let who = match refusal.as_ref() {
            Refusal::Forbidden { who, .. } => Some(who),
            _ => who,
        };
        if let Some(who) = who {
            self.kit.broker.note_refusal(who, refusal.code());
        }
    }

    /// Whether the principal of a request may make one more now. One that is not known is not asked here:
    /// it is refused where its name is needed, or asks for something that is for everybody. Without
    /// configured rates it costs one look at two options.
    fn limit(&self, request: &Request) -> Result<Option<CommandPlace>, Refusal> {
        let Some(who) = request.extensions().get::<Principal>() else { return Ok(None) };
        if self.dialect.is_counted(request) {
            self.kit.broker.admit_request(who)?;
        }
        let connection = request.extensions().get::<Connection>();
        match connection.is_some_and(|connection| connection.peer == Peer::Message) {
            // Connections are bounded, and messages have none.
            true => Ok(Some(self.kit.broker.admit_command(who)?)),
            false => Ok(None),
        }
    }
}
