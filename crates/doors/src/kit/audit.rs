//! What is written to the audit log about requests: one [`Slip`] per request, which says who asks for what before its
//! handler runs, and is completed and written before the answer leaves.
//!
//! A handler can add what the request is about ([`Concerns`] on its answer). A door whose requests carry calls of their
//! own takes the slip from the request and writes down the call ([`Slip::call`]).

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use axum::extract::{MatchedPath, Request};
use axum::http::{Method, header};
use axum::response::{IntoResponse, Response};

use super::correlation::CorrelationId;
use super::gate::{Connection, SignedBy};
use super::refusal::Refusal;
use sandkeep_audit::{Actor, AuditLog, Effect, Full, Outcome, RecordSpace, Request as Record};
use sandkeep_core::{Code, Principal};
use sandkeep_traces::TraceContext;

/// The ids of all operations, by method and template of their route.
#[derive(Clone, Debug, Default)]
pub struct Operations(HashMap<(String, String), String>);

impl Operations {
    pub fn new(all: impl IntoIterator<Item = (Method, String, String)>) -> Self {
        let named = |(method, route, id): (Method, String, String)| {
            ((method.as_str().to_owned(), route), id)
        };
        Self(all.into_iter().map(named).collect())
    }

    fn id(&self, method: &Method, route: Option<&str>) -> Option<&String> {
        self.0.get(&(method.as_str().to_owned(), route?.to_owned()))
    }
}

/// What a request is about, where its path does not say it. An extension of the answer.
#[derive(Clone, Debug, Default)]
pub struct Concerns {
    pub sandbox: Option<String>,
    pub resource: Option<String>,
}

impl Concerns {
    pub fn sandbox(id: impl ToString) -> Self {
        Self { sandbox: Some(id.to_string()), resource: None }
    }

    pub fn resource(id: impl ToString) -> Self {
        Self { sandbox: None, resource: Some(id.to_string()) }
    }
}

/// One request, as far as it is known.
#[derive(Clone)]
pub struct Slip(Arc<AuditedRequest>);

struct AuditedRequest {
    log: Arc<AuditLog>,
    record: Record,
    began: Instant,
    /// A call that it carried was written down, so there is nothing more to say about the request itself.
    is_told: AtomicBool,
}

impl Slip {
    /// `door` is the name of the dialect.
    pub fn of(
        log: &Arc<AuditLog>,
        operations: &Operations,
        door: &'static str,
        effect: Effect,
        request: &Request,
    ) -> Self {
        let route = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
        let operation = operations.id(request.method(), route);
        let (sandbox, resource) = named_in(request.uri().path(), route.unwrap_or_default());
        let record = Record {
            door: door.to_owned(),
            operation: operation.cloned().unwrap_or_else(|| "unknown".to_owned()),
            method: Some(request.method().as_str().to_owned()),
            route: route.map(str::to_owned),
            address: client_of(request),
            correlation_id: request.extensions().get::<CorrelationId>().map(CorrelationId::text),
            trace_id: trace_of(request),
            sandbox,
            resource,
            effect,
            ..Record::default()
        };
        Self::new(log, record)
    }

    /// A request whose door knows what it is about.
    pub fn new(log: &Arc<AuditLog>, record: Record) -> Self {
        let known = AuditedRequest {
            log: Arc::clone(log),
            record,
            began: Instant::now(),
            is_told: false.into(),
        };
        Self(Arc::new(known))
    }

    /// Who asks, as soon as that is known.
    pub fn by(self, who: Option<&Principal>, key: Option<&SignedBy>) -> Self {
        let key = key.and_then(|SignedBy(key)| key.as_ref());
        let Some(actor) = who.map(|who| Actor::of(who, key)) else { return self };
        match Arc::try_unwrap(self.0) {
            Ok(known) => {
                let record = Record { actor: Some(actor), ..known.record };
                Self(Arc::new(AuditedRequest { record, ..known }))
            }
            Err(shared) => Self(shared),
        }
    }

    /// Before the handler of a request that may change something.
    pub fn admit(&self) -> Result<Option<RecordSpace>, Refusal> {
        match self.0.record.effect {
            Effect::Changes => Ok(Some(self.room()?)),
            Effect::Reads => Ok(None),
        }
    }

    /// Space for one record; none is no reason to refuse a read.
    pub fn room(&self) -> Result<RecordSpace, Refusal> {
        self.0.log.admit().map_err(unwritable)
    }

    /// Writes the request down. A change whose record cannot be written is answered with that failure.
    pub fn settle(&self, answer: Response) -> Response {
        if self.0.is_told.load(Ordering::Relaxed) {
            return answer;
        }
        let refusal = answer.extensions().get::<Arc<Refusal>>();
        let (code, status) = match refusal {
            Some(refusal) => (Some(refusal.code()), None),
            None => (None, Some(answer.status().as_u16())),
        };
        let mut record = self.completed(code, status);
        if record.actor.is_none()
            && let Some(Refusal::Forbidden { who, .. }) = refusal.map(AsRef::as_ref)
        {
            record.actor = Some(Actor::of(who, None));
        }
        if let Some(Concerns { sandbox, resource }) = answer.extensions().get::<Concerns>().cloned()
        {
            record.sandbox = sandbox.or(record.sandbox);
            record.resource = resource.or(record.resource);
        }
        record.sandbox = record.sandbox.or_else(|| created(&answer));
        let is_change = record.is_single();
        match self.0.log.record(record) {
            Err(full) if is_change && self.0.log.refuses_when_full() => {
                unwritable(full).into_response()
            }
            Ok(()) | Err(_) => answer,
        }
    }

    /// Writes down a call that the request carries. An error: it was a change, and its record cannot be written.
    pub fn call(
        &self,
        name: &str,
        effect: Effect,
        sandbox: Option<String>,
        code: Option<&str>,
    ) -> Result<(), Refusal> {
        let known = code.and_then(|code| Code::ALL.iter().find(|known| known.as_str() == code));
        let mut record = self.completed(known.copied(), None);
        if code.is_some() && known.is_none() {
            record.outcome = Outcome::Failed;
            record.code = code.map(str::to_owned);
        }
        record.effect = effect;
        name.clone_into(&mut record.operation);
        record.sandbox = sandbox;
        self.0.is_told.store(true, Ordering::Relaxed);
        let is_change = record.is_single();
        match self.0.log.record(record) {
            Err(full) if is_change && self.0.log.refuses_when_full() => Err(unwritable(full)),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    fn completed(&self, code: Option<Code>, status: Option<u16>) -> Record {
        let is_failure = status.is_some_and(|status| status >= 400);
        Record {
            outcome: match Outcome::of(code) {
                Outcome::Success if is_failure => Outcome::Failed,
                outcome => outcome,
            },
            status,
            code: code.map(|code| code.as_str().to_owned()),
            duration_us: u64::try_from(self.0.began.elapsed().as_micros()).unwrap_or(u64::MAX),
            ..self.0.record.clone()
        }
    }
}

fn unwritable(Full { problem }: Full) -> Refusal {
    Refusal::AuditFull { problem }
}

fn trace_of(request: &Request) -> Option<String> {
    request.extensions().get::<TraceContext>().map(|place| place.own.trace.to_string())
}

pub fn client_of(request: &Request) -> Option<IpAddr> {
    request.extensions().get::<Connection>().and_then(|connection| connection.client)
}

/// The sandbox that a path names, and what it names besides.
fn named_in(path: &str, route: &str) -> (Option<String>, Option<String>) {
    let (mut sandbox, mut rest) = (None, Vec::new());
    let mut before = "";
    for (part, template) in path.split('/').zip(route.split('/')) {
        // The rest is a path of a server inside, and may hold anything.
        if template.starts_with("{*") || template == "{path}" {
            break;
        }
        if template.starts_with('{') {
            match before {
                "sandboxes" | "sessions" => sandbox = Some(part.to_owned()),
                _ => rest.push(part),
            }
        }
        before = template;
    }
    (sandbox, Some(rest.join("/")).filter(|rest| !rest.is_empty()))
}

/// The sandbox that an answer says it created.
fn created(answer: &Response) -> Option<String> {
    let location = answer.headers().get(header::LOCATION)?.to_str().ok()?;
    Some(location.strip_prefix("/api/v1/sandboxes/")?.split('/').next()?.to_owned())
}

#[cfg(test)]
mod tests {
    use super::named_in;

    #[test]
    fn a_path_names_its_sandbox_and_what_is_in_it_but_no_path_of_a_server() {
        let own = |text: &str| Some(text.to_owned());
        for (path, route, expected) in [
            ("/api/v1/keys/k1", "/api/v1/keys/{id}", (None, own("k1"))),
            ("/api/v1/sandboxes/sb1", "/api/v1/sandboxes/{id}", (own("sb1"), None)),
            (
                "/api/v1/sandboxes/sb1/execs/ex1/signal",
                "/api/v1/sandboxes/{id}/execs/{exec_id}/signal",
                (own("sb1"), own("ex1")),
            ),
            (
                "/api/v1/sandboxes/sb1/ports/80/secret/path",
                "/api/v1/sandboxes/{id}/ports/{port}/{*path}",
                (own("sb1"), own("80")),
            ),
            ("/nowhere", "", (None, None)),
        ] {
            assert_eq!(named_in(path, route), expected, "{path}");
        }
    }
}
