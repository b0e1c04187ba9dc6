//! `grpc.health.v1.Health`: the server serves until it stops.

use axum::Extension;
use axum::response::{IntoResponse, Response};
use futures_util::{StreamExt, future, stream};
use tokio_util::sync::CancellationToken;

use crate::grpc::{Reply, Status, Unary, streamed};
use crate::rpc::Code;

/// With its leading slash.
pub const SERVICE: &str = "/grpc.health.v1.Health";
pub const CHECK: &str = "/grpc.health.v1.Health/Check";
pub const WATCH: &str = "/grpc.health.v1.Health/Watch";

/// The whole server, and its services.
const SERVICES: [&str; 4] =
    ["", "sandbox.v1.CodebaseService", "sandbox.v1.SandboxService", "grpc.health.v1.Health"];

#[derive(Clone, PartialEq, prost::Message)]
pub struct HealthRequest {
    #[prost(string, tag = "1")]
    service: String,
}

#[derive(Clone, Copy, PartialEq, prost::Message)]
pub struct HealthAnswer {
    #[prost(enumeration = "Reported", tag = "1")]
    status: i32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, prost::Enumeration)]
#[repr(i32)]
enum Reported {
    Unknown = 0,
    Serving = 1,
    NotServing = 2,
    ServiceUnknown = 3,
}

impl From<Reported> for HealthAnswer {
    fn from(status: Reported) -> Self {
        Self { status: status.into() }
    }
}

pub async fn check(Unary(asked): Unary<HealthRequest>) -> Response {
    if SERVICES.contains(&asked.service.as_str()) {
        Reply(HealthAnswer::from(Reported::Serving)).into_response()
    } else {
        let message = format!("there is no service {:?}", asked.service);
        Status { code: Code::NotFound, message }.answer()
    }
}

pub async fn watch(
    Extension(stop): Extension<CancellationToken>,
    Unary(asked): Unary<HealthRequest>,
) -> Response {
    let known = SERVICES.contains(&asked.service.as_str());
    let first = if known { Reported::Serving } else { Reported::ServiceUnknown };
    let last = stream::once(async move {
        stop.cancelled_owned().await;
        HealthAnswer::from(Reported::NotServing)
    });
    let told = stream::once(future::ready(HealthAnswer::from(first))).chain(last);
    streamed(told.map(Ok), super::status)
}
