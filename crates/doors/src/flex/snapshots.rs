//! Turns and snapshots. A turn has its number for ever: pruning renumbers nothing, and a rollback keeps later ones.

use axum::Json;
use axum::extract::State;

use super::messages::{
    CreateSnapshotRequest, Nothing, RollbackRequest, SessionRequest, SnapshotAnswer, SnapshotInfo,
    SnapshotsAnswer,
};
use super::sessions::find;
use crate::connect::Message;
use crate::kit::Refusal;
use crate::kit::path::parse;
use crate::kit::who::Who;
use sandkeep_broker::{Broker, OnExecs, SnapshotView, error::Error};
use sandkeep_core::{Code, SnapshotName};

fn answer(made: SnapshotView) -> SnapshotAnswer {
    SnapshotAnswer {
        snapshot_id: made.name.to_string(),
        turn_number: made.turn.unwrap_or_default(),
        space_used: made.bytes,
    }
}

/// Where there are no snapshots, a turn is nothing, as on Flex's local disk.
fn or_nothing(sealed: Result<SnapshotView, Error>) -> Result<SnapshotAnswer, Error> {
    match sealed {
        Ok(made) => Ok(answer(made)),
        Err(error) => match error.code() {
            Code::UnsupportedByStorage | Code::UnsupportedByRuntime => {
                Ok(SnapshotAnswer::default())
            }
            _ => Err(error),
        },
    }
}

pub async fn turn(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<SessionRequest>,
) -> Result<Json<SnapshotAnswer>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    Ok(Json(or_nothing(broker.seal_turn(&who, &id, None).await)?))
}

pub async fn create(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<CreateSnapshotRequest>,
) -> Result<Json<SnapshotAnswer>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    let name = Some(asked.name).filter(|name| !name.is_empty());
    let name: Option<SnapshotName> = name.map(|name| name.parse()).transpose().map_err(
        |wrong: sandkeep_core::InvalidSnapshotName| Error::InvalidField {
            field: "Name",
            problem: wrong.to_string(),
        },
    )?;
    Ok(Json(answer(broker.snapshot(&who, &id, name, None).await?)))
}

pub async fn rollback(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<RollbackRequest>,
) -> Result<Json<Nothing>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    let snapshot: SnapshotName = parse(&asked.snapshot_id)?;
    broker.rollback(&who, &id, &snapshot, OnExecs::Refuse).await?;
    Ok(Json(Nothing {}))
}

pub async fn list(
    State(broker): State<Broker>,
    Who(who): Who,
    Message(asked): Message<SessionRequest>,
) -> Result<Json<SnapshotsAnswer>, Refusal> {
    let id = find(&broker, &who, &asked.session_id).await?;
    let info = |view: SnapshotView| SnapshotInfo {
        name: view.name.to_string(),
        dataset: id.to_string(),
        used: view.bytes,
        refer: view.bytes,
        created_at: view.created_at,
        holds: 0,
    };
    let snapshots = broker.snapshots(&who, &id)?.into_iter().map(info).collect();
    Ok(Json(SnapshotsAnswer { snapshots }))
}
