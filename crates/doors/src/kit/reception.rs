//! Before every handler of a door: authentication, the rate limit, and the format of refusals.

use std::sync::Arc;

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::Kit;
use super::dialect::{Dialect, in_words};
use super::gate::Admitted;
use super::refusal::Refusal;
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
            Ok(()) => (visit, next.run(request).await),
            Err(refusal) => (visit, refusal.into_response()),
        },
        Admitted::Refused(visit, refusal) => (visit, refusal.into_response()),
        Admitted::Answered(answer) => return answer,
    };
    desk.note_refusal(&answer, who.as_ref());
    visit.finish(in_words(dialect, answer, &path), dialect.schemes())
}

impl Desk {
    /// Reports a refusal to the broker, with the principal if known.
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

    /// Applies the rate limit of the request's principal. An anonymous request is not limited here: it is either
    /// refused where a principal is needed, or asks for something public. Without configured rates this costs two
    /// checks of an `Option`.
    fn limit(&self, request: &Request) -> Result<(), Refusal> {
        match request.extensions().get::<Principal>() {
            Some(who) if self.dialect.is_counted(request) => {
                Ok(self.kit.broker.admit_request(who)?)
            }
            Some(_) | None => Ok(()),
        }
    }
}
