//! Before every handler of a door: who comes in, how often, and in which words what was refused leaves.

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
    let (visit, answer) = match desk.kit.gate.admit(&mut request, dialect).await {
        Admitted::Served(visit) => match desk.limit(&request) {
            Ok(()) => (visit, next.run(request).await),
            Err(refusal) => (visit, refusal.into_response()),
        },
        Admitted::Refused(visit, refusal) => (visit, refusal.into_response()),
        Admitted::Answered(answer) => return answer,
    };
    visit.finish(in_words(dialect, answer, &path), dialect.schemes())
}

impl Desk {
    /// Whether the principal of a request may make one more now. One that is not known is not asked here:
    /// it is refused where its name is needed, or asks for something that is for everybody. Without
    /// configured rates it costs one look at two options.
    fn limit(&self, request: &Request) -> Result<(), Refusal> {
        match request.extensions().get::<Principal>() {
            Some(who) if self.dialect.is_counted(request) => {
                Ok(self.kit.broker.admit_request(who)?)
            }
            Some(_) | None => Ok(()),
        }
    }
}
