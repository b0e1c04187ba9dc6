//! The query of a request, unparsed, because some handlers refuse a request for other reasons first.

use axum::extract::Query;
use axum::extract::rejection::QueryRejection;

use super::refusal::Refusal;

pub type QueryResult<T> = Result<Query<T>, QueryRejection>;

/// Parses the query, or names the parameter that is wrong.
pub fn query<T>(asked: QueryResult<T>) -> Result<T, Refusal> {
    match asked {
        Ok(Query(query)) => Ok(query),
        Err(error) => Err(Refusal::QueryMalformed { problem: error.body_text() }),
    }
}
