//! How many requests a caller may make of the API, asked once it is known who it is. Health and metrics
//! are not counted: who watches must see most when there is most to do. Without configured rates it costs one
//! look at two options.

use axum::extract::{Request, State};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use super::problem::Refusal;
use sandkeep_broker::Broker;
use sandkeep_core::Principal;

/// Lets a request through if its principal may make one more now. Who is not known yet is not asked
/// here: it is refused where its name is needed, or asks for something that is for everybody.
pub async fn admit(State(broker): State<Broker>, request: Request, next: Next) -> Response {
    let who = request.extensions().get::<Principal>();
    let admitted = match who.filter(|_| request.uri().path().starts_with("/api/")) {
        Some(who) => broker.admit_request(who),
        None => Ok(()),
    };
    match admitted {
        Ok(()) => next.run(request).await,
        Err(error) => Refusal::from(error).into_response(),
    }
}
