//! Sessions: sandboxes by the name that their client chose.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use serde_json::json;

use super::messages::{
    CreateSessionAnswer, CreateSessionRequest, HealthAnswer, Nothing, NothingRequest, PoolSpace,
    ServerCapabilities, Session, SessionAnswer, SessionRequest, SessionsAnswer,
};
use crate::connect::Message;
use crate::kit::Refusal;
use crate::kit::who::Who;
use sandkeep_broker::{
    Broker, Filter, ForkDraft, Health, InFlight, PoolState, Readiness, View, error::Error,
};
use sandkeep_core::limits::{FLEX_PAUSE_DRAIN, MIB};
use sandkeep_core::{
    Kind, Principal, ResourcesDraft, SandboxId, SandboxName, SpecDraft, State as SandboxState, Verb,
};
use sandkeep_storage::DatasetSnapshot;

/// The sandbox of a session.
pub async fn find(broker: &Broker, who: &Principal, session: &str) -> Result<SandboxId, Refusal> {
    Ok(broker.resolve(who, session).await?)
}

pub fn session(view: View) -> Session {
    let chosen = view.name != SandboxName::derived(&view.id);
    Session {
        id: if chosen { view.name.to_string() } else { view.id.to_string() },
        state: state(view.state),
        mountpoint: "",
        turn_count: view.turn_count,
        snap_count: view.snapshot_count,
        created: view.created_at,
        labels: view.labels,
        space_used: view.space_used.unwrap_or_default(),
    }
}

/// Flex knows no stopped sessions. Resume leads out of both.
fn state(state: SandboxState) -> &'static str {
    match state {
        SandboxState::Creating => "creating",
        SandboxState::Running => "active",
        SandboxState::Paused | SandboxState::Stopped => "paused",
        SandboxState::Failed => "failed",
        SandboxState::Destroying => "destroying",
    }
}

/// What a session begins with.
enum SessionBase<'a> {
    Template(Option<String>),
    Snapshot { source: SandboxId, snapshot: &'a str },
}

impl<'a> SessionBase<'a> {
    /// `NAME@SNAPSHOT` is the snapshot of a sandbox, if there is such a sandbox; otherwise it is that of a dataset.
    async fn of(broker: &Broker, who: &Principal, text: &'a str) -> Result<Self, Refusal> {
        let Some((source, snapshot)) = text.split_once('@') else {
            return Ok(Self::Template(Some(text.to_owned()).filter(|name| !name.is_empty())));
        };
        let unknown = match find(broker, who, source).await {
            Ok(source) => return Ok(Self::Snapshot { source, snapshot }),
            Err(refusal) if refusal.code().kind() == Kind::NotFound => refusal,
            Err(refusal) if source.contains('/') => refusal,
            Err(refusal) => return Err(refusal),
        };
        match text.parse::<DatasetSnapshot>() {
            // No sandbox has a slash in its name, and without any dataset there is nothing else that it could mean.
            Ok(of) if source.contains('/') || broker.has_source_datasets() => {
                let template = broker.template_of_dataset(who, &of).await?;
                Ok(Self::Template(Some(template.to_string())))
            }
            Ok(_) | Err(_) => Err(unknown),
        }
    }
}

fn invalid(field: &'static str, problem: impl Into<String>) -> Refusal {
    Error::InvalidField { field, problem: problem.into() }.into()
}

fn disk_mb(quota: i64) -> Result<Option<u64>, Refusal> {
    match u64::try_from(quota) {
        Ok(0) => Ok(None),
        Ok(bytes) => Ok(Some(bytes.div_ceil(MIB))),
        Err(_) => Err(invalid("Quota", "it is negative")),
    }
}

pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<CreateSessionRequest>,
) -> Result<Json<CreateSessionAnswer>, Refusal> {
    let CreateSessionRequest { base_snapshot, session_id, quota, labels } = asked;
    let name = Some(session_id).filter(|id| !id.is_empty());
    let name: Option<SandboxName> = name.map(|id| id.parse()).transpose().map_err(
        |wrong: sandkeep_core::InvalidSandboxName| invalid("SessionID", wrong.to_string()),
    )?;
    let disk_mb = disk_mb(quota)?;
    let view = match SessionBase::of(&broker, &who, &base_snapshot).await? {
        SessionBase::Template(template) => {
            let resources = disk_mb
                .map(|disk| ResourcesDraft { disk_mb: Some(disk), ..ResourcesDraft::default() });
            let labels = Some(labels);
            let draft = SpecDraft { template, name, labels, resources, ..SpecDraft::default() };
            broker.create(&who, draft).await?
        }
        SessionBase::Snapshot { source, snapshot } => {
            let own = broker.get(&who, &source).await?.resources.disk_mb;
            if disk_mb.is_some() && disk_mb != own {
                return Err(invalid("Quota", "a session from a snapshot has that of its source"));
            }
            let snapshot = snapshot
                .parse()
                .map_err(|_| Refusal::NotASnapshotName { text: snapshot.to_owned() })?;
            let labels = labels.into_iter().map(|(key, value)| (key, Some(value))).collect();
            let draft = ForkDraft { snapshot: Some(snapshot), count: 1, labels, name };
            let mut forks = broker.fork(&who, &source, draft, None).await?;
            forks.pop().expect("one was asked for")
        }
    };
    let server_capabilities = capabilities(&broker, &view.runtime);
    Ok(Json(CreateSessionAnswer { session: session(view), server_capabilities }))
}

fn capabilities(broker: &Broker, runtime: &str) -> ServerCapabilities {
    let runtimes = broker.runtimes();
    let has = runtimes.iter().find(|known| known.name == runtime).map(|known| &known.abilities);
    ServerCapabilities {
        snapshots: has.is_some_and(|has| has.snapshots),
        rollback: has.is_some_and(|has| has.rollback),
        pause: has.is_some_and(|has| has.runtime.pause),
        streaming_progress: true,
        tier_routing: true,
    }
}

pub async fn get(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<SessionRequest>,
) -> Result<Json<SessionAnswer>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    Ok(Json(SessionAnswer { session: session(broker.get(&who, &id).await?) }))
}

pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(NothingRequest {}): Message<NothingRequest>,
) -> Result<Json<SessionsAnswer>, Refusal> {
    let all = Filter { limit: usize::MAX, ..Filter::default() };
    let views = broker.list(&who, &all).await?.items;
    Ok(Json(SessionsAnswer { sessions: views.into_iter().map(session).collect() }))
}

pub async fn pause(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<SessionRequest>,
) -> Result<Json<Nothing>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    refuse_in(&broker, &who, &id, Verb::Pause, SandboxState::Paused).await?;
    broker.pause(&who, &id, InFlight::DrainShut(FLEX_PAUSE_DRAIN)).await?;
    Ok(Json(Nothing {}))
}

pub async fn resume(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<SessionRequest>,
) -> Result<Json<Nothing>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    match refuse_in(&broker, &who, &id, Verb::Resume, SandboxState::Running).await? {
        SandboxState::Stopped => broker.start(&who, &id).await?,
        _ => broker.resume(&who, &id).await?,
    };
    Ok(Json(Nothing {}))
}

/// In Flex a verb that changes nothing is refused; in the broker it succeeds.
async fn refuse_in(
    broker: &Broker,
    who: &Principal,
    id: &SandboxId,
    verb: Verb,
    wrong: SandboxState,
) -> Result<SandboxState, Refusal> {
    let state = broker.get(who, id).await?.state;
    if state == wrong {
        Err(Error::WrongState { id: id.clone(), state, verb, helps: None }.into())
    } else {
        Ok(state)
    }
}

pub async fn destroy(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<SessionRequest>,
) -> Result<Json<Nothing>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    broker.destroy(&who, &id).await?;
    Ok(Json(Nothing {}))
}

pub async fn health(
    State(broker): State<Broker>,
    Message(NothingRequest {}): Message<NothingRequest>,
) -> Json<HealthAnswer> {
    let Health { status, uptime_secs, pool, sandboxes, active_execs, errors, .. } =
        broker.health().await;
    let status = match (status, pool.state) {
        (Readiness::NotReady, _) => "unhealthy",
        (Readiness::Ready, PoolState::Ok) if errors.is_empty() => "healthy",
        (Readiness::Ready, _) => "degraded",
    };
    Json(HealthAnswer {
        status,
        pool_state: json!(pool.state),
        pool_space: PoolSpace {
            total: pool.total_bytes,
            used: pool.used_bytes,
            free: pool.free_bytes,
        },
        session_count: sandboxes.total,
        active_tools: active_execs,
        uptime: Duration::from_secs(uptime_secs),
        errors,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quota_is_whole_mebibytes_and_zero_is_none() {
        let mb = |quota| disk_mb(quota).ok();
        assert_eq!(mb(0), Some(None));
        assert_eq!((mb(1), mb(MIB as i64 + 1)), (Some(Some(1)), Some(Some(2))));
        assert_eq!(mb(-1), None);
    }
}
