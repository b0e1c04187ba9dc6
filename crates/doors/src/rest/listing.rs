//! `GET /sandboxes`: filters and pages.

use axum::extract::{FromRequestParts, Query};
use axum::http::request::Parts;

use crate::kit::Refusal;
use crate::kit::query::query;
use sandkeep_broker::{Cursor, Filter, Order, Page};
use sandkeep_core::api::{ListSandboxes, Sandboxes};
use sandkeep_core::{State, limits};

pub fn page(Page { items, next }: Page) -> Sandboxes {
    Sandboxes { items, next_cursor: next.map(|cursor| cursor.to_string()) }
}

/// The filter of a query string. It is parsed by hand, because one parameter may occur several times.
pub struct ListFilter(pub Filter);

impl<S: Send + Sync> FromRequestParts<S> for ListFilter {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        filter(read(query(Query::try_from_uri(&parts.uri))?)?).map(Self)
    }
}

fn wrong<T>(name: &str, problem: String) -> Result<T, Refusal> {
    Err(Refusal::QueryMalformed { problem: format!("{name}: {problem}") })
}

fn read(pairs: Vec<(String, String)>) -> Result<ListSandboxes, Refusal> {
    let mut asked = ListSandboxes::default();
    let mut seen = Vec::new();
    for (name, value) in pairs {
        if !["label", "state"].contains(&name.as_str()) && seen.contains(&name) {
            return wrong(&name, "it is given twice".to_owned());
        }
        match name.as_str() {
            "label" => asked.label.push(value),
            "state" => {
                for wanted in value.split(',') {
                    let Some(state) =
                        State::ALL.into_iter().find(|state| state.to_string() == wanted)
                    else {
                        let states = State::ALL.map(|state| state.to_string()).join(", ");
                        return wrong("state", format!("{wanted:?} is none of {states}"));
                    };
                    asked.state.push(state);
                }
            }
            "sort" => {
                let orders = [Order::OldestFirst, Order::NewestFirst];
                match orders.into_iter().find(|order| order.as_str() == value) {
                    Some(order) => asked.sort = order,
                    None => {
                        let known = orders.map(Order::as_str).join(", ");
                        return wrong("sort", format!("{value:?} is none of {known}"));
                    }
                }
            }
            "project" => asked.project = Some(value),
            "limit" => match value.parse() {
                Ok(limit) => asked.limit = Some(limit),
                Err(_) => return wrong("limit", format!("{value:?} is no number")),
            },
            "cursor" => asked.cursor = Some(value),
            other => {
                let known = "label, state, project, sort, limit and cursor";
                return wrong(other, format!("there is no such parameter; there are {known}"));
            }
        }
        seen.push(name);
    }
    Ok(asked)
}

/// The filter for the broker.
pub fn filter(asked: ListSandboxes) -> Result<Filter, Refusal> {
    let ListSandboxes { label, state: states, project, sort: order, limit, cursor } = asked;
    let labels = label.iter().map(|label| match label.split_once('=') {
        Some((name, value)) => Ok((name.to_owned(), value.to_owned())),
        None => wrong("label", format!("{label:?} is not name=value")),
    });
    let labels = labels.collect::<Result<_, _>>()?;
    let limit = limit.unwrap_or(limits::PAGE_DEFAULT);
    if !(1..=limits::PAGE_MAX).contains(&limit) {
        return wrong("limit", format!("{limit} is not between 1 and {}", limits::PAGE_MAX));
    }
    let after = match cursor.map(|cursor| cursor.parse::<Cursor>()).transpose() {
        Ok(after) => after,
        Err(error) => return wrong("cursor", error.to_string()),
    };
    Ok(Filter { labels, states, project, order, limit, after })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn query(pairs: &[(&str, &str)]) -> Result<Filter, Refusal> {
        let pairs = pairs.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned()));
        filter(read(pairs.collect())?)
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
