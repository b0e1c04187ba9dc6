//! Functions of the service as handlers of both dialects.

use axum::Json;
use axum::body::Body;
use axum::extract::{FromRequestParts, Path};
use axum::http::HeaderMap;
use axum::http::request::Parts;
use axum::routing::{MethodFilter, MethodRouter, on, post};
use futures_util::Stream;
use prost::Message;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::status;
use crate::grpc::{self, Messages, Reply, Unary};
use crate::kit::query::{QueryResult, query};
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

impl FromRequestParts<Broker> for Scene {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, broker: &Broker) -> Result<Self, Refusal> {
        let Who(who) = Who::from_request_parts(parts, broker).await?;
        let Ok(deadline) = Deadline::from_request_parts(parts, broker).await;
        Ok(Self { broker: broker.clone(), who, deadline })
    }
}

/// A call with one message that is answered with one.
pub fn unary<Q, A, F>(call: fn(Scene, Q) -> F) -> MethodRouter<Broker>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Refusal>> + Send + 'static,
{
    post(move |scene: Scene, Unary(request): Unary<Q>| async move {
        call(scene, request).await.map(Reply)
    })
}

/// A call with a stream of messages that is answered with one.
pub fn taking<Q, A, F>(call: fn(Scene, Messages<Q>) -> F) -> MethodRouter<Broker>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    F: Future<Output = Result<A, Refusal>> + Send + 'static,
{
    post(move |scene: Scene, requests: Messages<Q>| async move {
        call(scene, requests).await.map(Reply)
    })
}

/// A call with one message that is answered with a stream of them.
pub fn streamed<Q, A, S, F>(call: fn(Scene, Q) -> F) -> MethodRouter<Broker>
where
    Q: Message + Default + 'static,
    A: Message + 'static,
    S: Stream<Item = Result<A, Refusal>> + Send + 'static,
    F: Future<Output = Result<S, Refusal>> + Send + 'static,
{
    post(move |scene: Scene, Unary(request): Unary<Q>| async move {
        let answers = call(scene, request).await?;
        Ok::<_, Refusal>(grpc::streamed(answers, status))
    })
}

/// A call as JSON, whose request is the body. Fields that the path names are added to it.
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
    let handler = move |scene: Scene, path: NamedPath, headers: HeaderMap, body: Body| async move {
        let request: Q = body::optional(&headers, body).await?;
        call(scene, named(request, path, name)).await.map(Json)
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
    let handler = move |scene: Scene, path: NamedPath, asked: QueryResult<Q>| async move {
        call(scene, named(query(asked)?, path, name)).await.map(Json)
    };
    on(method, handler)
}

/// What the path names, if it names anything.
type NamedPath = Option<Path<String>>;

fn named<Q>(mut request: Q, path: NamedPath, name: fn(&mut Q, String)) -> Q {
    if let Some(Path(text)) = path {
        name(&mut request, text);
    }
    request
}
