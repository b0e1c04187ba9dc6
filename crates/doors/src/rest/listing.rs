//! `GET /sandboxes`: what can be asked for, and what a page looks like.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;
use serde::Serialize;
use utoipa::ToSchema;

use crate::kit::Refusal;
use crate::kit::query::query;
use sandkeep_broker::{Cursor, Filter, Order, Page, View};
use sandkeep_core::{State, limits};

/// One page of sandboxes, in the order that was asked for.
#[derive(Serialize, ToSchema)]
#[schema(as = Sandboxes)]
pub struct Listing {
    items: Vec<View>,
    /// Where the next page begins, if there is one: pass it as `cursor`.
    #[serde(skip_serializing_if = "Option::is_none")]
    next_cursor: Option<String>,
}

impl From<Page> for Listing {
    fn from(Page { items, next }: Page) -> Self {
        Self { items, next_cursor: next.map(|cursor| cursor.to_string()) }
    }
}

/// The filter that a query string asks for. It is read by hand, because one parameter may come several
/// times.
pub struct Asked(pub Filter);

impl<S: Send + Sync> FromRequestParts<S> for Asked {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        read(query(Query::try_from_uri(&parts.uri))?).map(Self)
    }
}

fn read(pairs: Vec<(String, String)>) -> Result<Filter, Refusal> {
    let wrong = |name: &str, problem: String| {
        Err(Refusal::QueryMalformed { problem: format!("{name}: {problem}") })
    };
    let mut filter = Filter::default();
    let mut seen = Vec::new();
    for (name, value) in pairs {
        if !["label", "state"].contains(&name.as_str()) && seen.contains(&name) {
            return wrong(&name, "it is given twice".to_owned());
        }
        match name.as_str() {
            "label" => match value.split_once('=') {
                Some((name, value)) => filter.labels.push((name.to_owned(), value.to_owned())),
                None => return wrong("label", format!("{value:?} is not name=value")),
            },
            "state" => {
                for wanted in value.split(',') {
                    let Some(state) =
                        State::ALL.into_iter().find(|state| state.to_string() == wanted)
                    else {
                        let states = State::ALL.map(|state| state.to_string()).join(", ");
                        return wrong("state", format!("{wanted:?} is none of {states}"));
                    };
                    filter.states.push(state);
                }
            }
            "sort" => match value.as_str() {
                "created_at" => filter.order = Order::OldestFirst,
                "-created_at" => filter.order = Order::NewestFirst,
                _ => return wrong("sort", format!("{value:?} is none of created_at, -created_at")),
            },
            "project" => filter.project = Some(value),
            "limit" => match value.parse() {
                Ok(limit) if (1..=limits::PAGE_MAX).contains(&limit) => filter.limit = limit,
                Ok(_) | Err(_) => {
                    let max = limits::PAGE_MAX;
                    return wrong("limit", format!("{value:?} is not between 1 and {max}"));
                }
            },
            "cursor" => match value.parse::<Cursor>() {
                Ok(cursor) => filter.after = Some(cursor),
                Err(error) => return wrong("cursor", error.to_string()),
            },
            other => {
                let known = "label, state, project, sort, limit and cursor";
                return wrong(other, format!("there is no such parameter; there are {known}"));
            }
        }
        seen.push(name);
    }
    Ok(filter)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Result<Filter, Refusal> {
        read(pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect())
    }

    #[test]
    fn everything_that_can_be_asked_for_is_understood() {
        let filter = query(&[
            ("label", "a=1"),
            ("label", "b=x=y"),
            ("state", "stopped,paused"),
            ("state", "running"),
            ("sort", "-created_at"),
            ("project", "web"),
            ("limit", "7"),
        ]);
        let filter = filter.expect("valid");
        let label = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(filter.labels, [label("a", "1"), label("b", "x=y")]);
        assert_eq!(filter.states, [State::Stopped, State::Paused, State::Running]);
        assert_eq!((filter.order, filter.limit), (Order::NewestFirst, 7));
        assert_eq!(filter.project.as_deref(), Some("web"));
        assert_eq!(query(&[]).expect("valid"), Filter::default());
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (name, value) in [
            ("label", "a"),
            ("state", "asleep"),
            ("state", ""),
            ("state", "running,asleep"),
            ("sort", "id"),
            ("sort", "+created_at"),
            ("limit", "0"),
            ("limit", "1001"),
            ("limit", "many"),
            ("cursor", "x"),
            ("lable", "a=1"),
        ] {
            let refusal = query(&[(name, value)]).expect_err(name);
            assert!(refusal.to_string().contains(&format!("{name}: ")), "{refusal}");
        }
        assert!(query(&[("limit", "1"), ("limit", "2")]).is_err());
    }
}
