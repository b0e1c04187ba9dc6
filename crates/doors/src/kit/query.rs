//! The query of a request. A handler takes it as it came, because some refuse a request for better reasons
//! before they look at it.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;

use super::refusal::Refusal;

pub type Asked<T> = Result<Query<T>, QueryRejection>;

/// What is asked for, or which parameter is wrong.
pub fn query<T>(asked: Asked<T>) -> Result<T, Refusal> {
    match asked {
        Ok(Query(query)) => Ok(query),
        Err(error) => Err(Refusal::QueryMalformed { problem: error.body_text() }),
    }
}
