//! Functions of the service as handlers of both dialects.

use axum::Json;
use axum::body::Body;
use axum::extract::rejection::QueryRejection;
use axum::extract::{Path, Query, State};
use axum::http::HeaderMap;
use axum::routing::{MethodFilter, MethodRouter, on, post};
use futures_util::Stream;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::status;
use crate::grpc::{self, Messages, Reply, Unary};
use crate::kit::who::Who;
use crate::kit::{Refusal, body};
use crate::rpc::Deadline;
use sandkeep_broker::Broker;
use sandkeep_core::Principal;

/// What every function has.
pub struct Scene {
    pub broker: Broker,
    pub who: Principal,
    /// Of a stream, which goes on after its call was answered.
    pub deadline: Deadline,
}

/// A call with one message that is answered with one.
pub fn unary<Q, A, F>(call: fn(Scene, Q) -> F) -> MethodRouter<Broker>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Refusal>> + Send + 'static,
{
    let handler = move |State(broker): State<Broker>,
                        Who(who): Who,
                        deadline: Deadline,
                        Unary(request): Unary<Q>| async move {
        call(Scene { broker, who, deadline }, request).await.map(Reply)
    };
    post(handler)
}

/// A call with a stream of messages that is answered with one.
pub fn taking<Q, A, F>(call: fn(Scene, Messages<Q>) -> F) -> MethodRouter<Broker>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Refusal>> + Send + 'static,
{
    let handler = move |State(broker): State<Broker>,
                        Who(who): Who,
                        deadline: Deadline,
                        requests: Messages<Q>| async move {
        call(Scene { broker, who, deadline }, requests).await.map(Reply)
    };
    post(handler)
}

/// A call with one message that is answered with a stream of them.
pub fn streamed<Q, A, S, F>(call: fn(Scene, Q) -> F) -> MethodRouter<Broker>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    S: Stream<Item = Result<A, Refusal>> + Send + 'static,
    F: Future<Output = Result<S, Refusal>> + Send + 'static,
{
    let handler = move |State(broker): State<Broker>,
                        Who(who): Who,
                        deadline: Deadline,
                        Unary(request): Unary<Q>| async move {
        let answers = call(Scene { broker, who, deadline }, request).await?;
        Ok::<_, Refusal>(grpc::streamed(answers, status))
    };
    post(handler)
}

/// A call as JSON, whose request is the body. What the path names is put into it.
pub fn asked<Q, A, F>(
    method: MethodFilter,
    call: fn(Scene, Q) -> F,
    name: fn(&mut Q, String),
) -> MethodRouter<Broker>
where
    Q: DeserializeOwned + Default + Send + 'static,
    A: Serialize + 'static,
    F: Future<Output = Result<A, Refusal>> + Send + 'static,
{
    let handler = move |State(broker): State<Broker>,
                        Who(who): Who,
                        path: Option<Path<String>>,
                        headers: HeaderMap,
                        body: Body| async move {
        let request: Q = body::optional(&headers, body).await?;
        carry_out(broker, who, call, named(request, path, name)).await
    };
    on(method, handler)
}

/// The same with the request in the query.
pub fn looked_up<Q, A, F>(
    method: MethodFilter,
    call: fn(Scene, Q) -> F,
    name: fn(&mut Q, String),
) -> MethodRouter<Broker>
where
    Q: DeserializeOwned + Default + Send + 'static,
    A: Serialize + 'static,
    F: Future<Output = Result<A, Refusal>> + Send + 'static,
{
    let handler = move |State(broker): State<Broker>,
                        Who(who): Who,
                        path: Option<Path<String>>,
                        query: Result<Query<Q>, QueryRejection>| async move {
        let malformed =
            |wrong: QueryRejection| Refusal::QueryMalformed { problem: wrong.to_string() };
        let Query(request) = query.map_err(malformed)?;
        carry_out(broker, who, call, named(request, path, name)).await
    };
    on(method, handler)
}

fn named<Q>(mut request: Q, path: Option<Path<String>>, name: fn(&mut Q, String)) -> Q {
    if let Some(Path(text)) = path {
        name(&mut request, text);
    }
    request
}

async fn carry_out<Q, A, F>(
    broker: Broker,
    who: Principal,
    call: fn(Scene, Q) -> F,
    request: Q,
) -> Result<Json<A>, Refusal>
where
    F: Future<Output = Result<A, Refusal>>,
{
    let scene = Scene { broker, who, deadline: Deadline::none() };
    call(scene, request).await.map(Json)
}
