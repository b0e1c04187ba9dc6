//! Before every handler of a door: authentication, the rate limit, and the format of refusals.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Kit;
use super::audit::Slip;
use super::dialect::{Dialect, in_words};
use super::gate::{Connection, GateDecision, Peer, SignedBy};
use super::refusal::Refusal;
use super::request_memory::RequestMemory;
use sandkeep_audit::RecordSpace;
use sandkeep_broker::CommandPlace;
use sandkeep_core::Principal;

pub struct Desk {
    pub kit: Kit,
    pub dialect: Box<dyn Dialect>,
}

pub async fn receive(State(desk): State<Arc<Desk>>, mut request: Request, next: Next) -> Response {
    let (dialect, path) = (desk.dialect.as_ref(), request.uri().path().to_owned());
    let slip = desk.slip(&request);
    let admitted = desk.kit.gate.admit(&mut request, dialect).await;
    let who = request.extensions().get::<Principal>().cloned();
    let slip = slip.map(|slip| slip.by(who.as_ref(), request.extensions().get::<SignedBy>()));
    let mut room = None;
    let (visit, answer) = match admitted {
        GateDecision::Served(visit) => match desk.begin(&mut request, slip.as_ref()) {
            Ok(Begun { place, space, memory }) => {
                room = space;
                let answer = answered(memory, next.run(request)).await;
                (visit, hold(place, answer))
            }
            Err(refusal) => (visit, refusal.into_response()),
        },
        GateDecision::Refused(visit, refusal) => (visit, refusal.into_response()),
        GateDecision::Answered(answer) => return answer,
    };
    desk.note_refusal(&answer, who.as_ref());
    let answer = match slip {
        Some(slip) => slip.settle(answer),
        None => answer,
    };
    drop(room);
    visit.finish(in_words(dialect, answer, &path), dialect.schemes())
}

/// What a request has taken when its handler begins.
struct Begun {
    place: Option<CommandPlace>,
    space: Option<RecordSpace>,
    /// `None` for callers that are not known.
    memory: Option<RequestMemory>,
}

/// Runs the handler. What the request holds in memory counts until its answer is sent.
async fn answered(
    memory: Option<RequestMemory>,
    handler: impl Future<Output = Response>,
) -> Response {
    match memory {
        Some(memory) => {
            let answer = memory.during(handler).await;
            memory.until_sent(answer).unwrap_or_else(IntoResponse::into_response)
        }
        None => handler.await,
    }
}

/// Keeps the place of a message until its answer is out.
fn hold(place: Option<CommandPlace>, mut answer: Response) -> Response {
    if let Some(place) = place {
        answer.extensions_mut().insert(Arc::new(place));
    }
    answer
}

impl Desk {
    /// What is to be written down about a request; `None` without an audit log.
    fn slip(&self, request: &Request) -> Option<Slip> {
        let (Kit { broker, operations, .. }, dialect) = (&self.kit, &self.dialect);
        let effect = dialect.effect(request);
        Some(Slip::of(broker.audit()?, operations, dialect.name(), effect, request))
    }

    /// Whether the handler may begin. The place is held until the answer is out, the room until the record is written.
    fn begin(&self, request: &mut Request, slip: Option<&Slip>) -> Result<Begun, Refusal> {
        let place = self.limit(request)?;
        let who = request.extensions().get::<Principal>();
        let memory = match who {
            Some(who) => Some(RequestMemory::take(&self.kit.broker, who, request)?),
            None => None,
        };
        let Some(slip) = slip else { return Ok(Begun { place, space: None, memory }) };
        request.extensions_mut().insert(slip.clone());
        Ok(Begun { place, space: slip.admit()?, memory })
    }

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
        if connection.is_some_and(|connection| connection.peer == Peer::Message) {
            // Connections are bounded, and messages have none.
            Ok(Some(self.kit.broker.admit_command(who)?))
        } else {
            Ok(None)
        }
    }
}
