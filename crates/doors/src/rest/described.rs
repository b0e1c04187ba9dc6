//! What an operation does not understand is refused and not ignored: parameters that its description does not have, a
//! form where it takes raw bytes, and an idempotency key that would have no effect. One place compares every request
//! with the description, so that no handler can forget to.

use std::collections::HashMap;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::{MatchedPath, Query, Request, State};
use axum::http::header::CONTENT_TYPE;
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};
use utoipa::openapi::path::{Operation, ParameterIn};
use utoipa::openapi::{OpenApi, RefOr};

use super::ports;
use super::sandboxes::IDEMPOTENCY_KEY;
use crate::kit::Refusal;
use crate::kit::body::read_away;
use sandkeep_broker::error::Error;

const RAW: &str = "application/octet-stream";

/// All operations, by route and method.
pub struct Described {
    operations: HashMap<String, HashMap<Method, Shape>>,
    /// Those that an idempotency key works for, as `POST /route`.
    keyed: Vec<String>,
}

/// What one operation takes.
struct Shape {
    query: Vec<String>,
    body: BodyKind,
    key: KeyUse,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum BodyKind {
    /// Bytes for a file or an archive.
    Raw,
    Other,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum KeyUse {
    Taken,
    Useless,
}

impl Described {
    pub fn by(api: &OpenApi) -> Self {
        let mut operations: HashMap<String, HashMap<Method, Shape>> = HashMap::new();
        let mut keyed = Vec::new();
        for (path, item) in &api.paths.paths {
            let of_path = operations.entry(path.clone()).or_default();
            for (method, operation) in [
                (Method::GET, &item.get),
                (Method::PUT, &item.put),
                (Method::POST, &item.post),
                (Method::PATCH, &item.patch),
                (Method::DELETE, &item.delete),
            ] {
                let Some(operation) = operation else { continue };
                let shape = Shape::of(operation);
                if shape.key == KeyUse::Taken {
                    keyed.push(format!("{method} {path}"));
                }
                of_path.insert(method, shape);
            }
        }
        keyed.sort();
        Self { operations, keyed }
    }

    fn check(
        &self,
        method: &Method,
        route: &str,
        uri: &Uri,
        headers: &HeaderMap,
    ) -> Result<(), Refusal> {
        // Whatever is sent to a server inside a sandbox is that server's.
        if is_proxied(route) {
            return Ok(());
        }
        let method = if *method == Method::HEAD { &Method::GET } else { method };
        let shape = self.operations.get(route).and_then(|of_route| of_route.get(method));
        let Some(shape) = shape else { return Ok(()) };
        if headers.contains_key(IDEMPOTENCY_KEY)
            && *method == Method::POST
            && shape.key == KeyUse::Useless
        {
            let problem = format!("only {} take one; leave it out", self.keyed.join(" and "));
            return Err(Error::InvalidField { field: "Idempotency-Key", problem }.into());
        }
        if shape.body == BodyKind::Raw
            && let Some(given) = form(headers)
        {
            return Err(Refusal::NotRaw { given });
        }
        shape.check_query(uri)
    }
}

impl Shape {
    fn of(operation: &Operation) -> Self {
        let parameters =
            operation.parameters.iter().flatten().filter_map(|parameter| match parameter {
                RefOr::T(parameter) => Some(parameter),
                RefOr::Ref(_) => None,
            });
        let (mut query, mut key) = (Vec::new(), KeyUse::Useless);
        for parameter in parameters {
            match parameter.parameter_in {
                ParameterIn::Query => query.push(parameter.name.clone()),
                ParameterIn::Header if parameter.name.eq_ignore_ascii_case(IDEMPOTENCY_KEY) => {
                    key = KeyUse::Taken;
                }
                ParameterIn::QueryString
                | ParameterIn::Header
                | ParameterIn::Path
                | ParameterIn::Cookie => {}
            }
        }
        let body = match &operation.request_body {
            Some(RefOr::T(body)) if body.content.contains_key(RAW) => BodyKind::Raw,
            Some(_) | None => BodyKind::Other,
        };
        Self { query, body, key }
    }

    /// Values are the handler's matter; it may also allow some parameters more than once.
    fn check_query(&self, uri: &Uri) -> Result<(), Refusal> {
        let Ok(Query(pairs)) = Query::<Vec<(String, String)>>::try_from_uri(uri) else {
            return Ok(());
        };
        let unknown = pairs.into_iter().find(|(name, _)| !self.query.contains(name));
        let Some((name, _)) = unknown else { return Ok(()) };
        let known = match &self.query[..] {
            [] => "this takes none".to_owned(),
            known => format!("there are {}", known.join(", ")),
        };
        let problem = format!("{name}: there is no such parameter; {known}");
        Err(Refusal::QueryMalformed { problem })
    }
}

/// Whether a route leads into a sandbox.
pub fn is_proxied(route: &str) -> bool {
    route.starts_with(ports::PREFIX) && !route.ends_with("/listen") && !route.ends_with("/url")
}

/// The media type, if it is that of a form. The bytes of one would become the file together with its boundaries.
fn form(headers: &HeaderMap) -> Option<String> {
    let given = String::from_utf8_lossy(headers.get(CONTENT_TYPE)?.as_bytes()).into_owned();
    given.trim_start().to_ascii_lowercase().starts_with("multipart/").then_some(given)
}

pub async fn refuse_unknown(
    State(described): State<Arc<Described>>,
    request: Request,
    next: Next,
) -> Response {
    let route = request.extensions().get::<MatchedPath>().map_or("", MatchedPath::as_str);
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    match described.check(method, route, uri, headers) {
        Ok(()) => next.run(request).await,
        Err(refused) => {
            let body: Body = request.into_body();
            read_away(body).await;
            refused.into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of_route_pairs<'a>(
        route: &'a String,
        of_route: &'a HashMap<Method, Shape>,
    ) -> impl Iterator<Item = (&'a String, &'a Method, &'a Shape)> {
        of_route.iter().map(move |(method, shape)| (route, method, shape))
    }

    fn described() -> Described {
        Described::by(&super::super::routes().split_for_parts().1)
    }

    fn check(method: &Method, route: &str, query: &str, headers: &[(&str, &str)]) -> String {
        let uri: Uri = format!("/x{query}").parse().expect("a path");
        let mut all = HeaderMap::new();
        for (name, value) in headers {
            let name: axum::http::HeaderName = name.parse().expect("a name");
            all.insert(name, value.parse().expect("a value"));
        }
        let checked = described().check(method, route, &uri, &all);
        checked.err().map(|refused| refused.to_string()).unwrap_or_default()
    }

    #[test]
    fn a_parameter_that_nothing_reads_is_refused_with_those_that_there_are() {
        let of_one = "/api/v1/sandboxes/{id}";
        let refused = check(&Method::GET, of_one, "?verbose=true", &[]);
        assert!(
            refused.contains("verbose: there is no such parameter; this takes none"),
            "{refused}"
        );
        let files = "/api/v1/sandboxes/{id}/files";
        assert_eq!(check(&Method::PUT, files, "?path=a&mode=644&parents=true", &[]), "");
        let refused = check(&Method::PUT, files, "?path=a&parent=true", &[]);
        assert!(
            refused.contains("parent: ") && refused.contains("path, mode, parents"),
            "{refused}"
        );
        assert_eq!(check(&Method::HEAD, of_one, "", &[]), "");
        assert!(!check(&Method::HEAD, of_one, "?x", &[]).is_empty());
        assert_eq!(
            check(&Method::GET, "/api/v1/sandboxes/{id}/ports/{port}/{*path}", "?x=1", &[]),
            ""
        );
        assert_eq!(check(&Method::GET, "/docs/style.css", "?x=1", &[]), "", "it is not described");
    }

    #[test]
    fn no_raw_upload_takes_a_form_and_every_other_post_refuses_a_key_or_takes_it() {
        let described = described();
        let (mut raw, mut taken) = (0, 0);
        let each = |(route, of_route)| of_route_pairs(route, of_route);
        for (route, method, shape) in described.operations.iter().flat_map(each) {
            let form = [("content-type", "multipart/form-data; boundary=x")];
            let refused = check(method, route, "", &form);
            if shape.body == BodyKind::Raw && !is_proxied(route) {
                raw += 1;
                assert!(!refused.is_empty(), "{method} {route}");
            }
            let refused = check(method, route, "", &[("idempotency-key", "k")]);
            let is_taken = shape.key == KeyUse::Taken;
            taken += usize::from(is_taken);
            let is_refused = *method == Method::POST && !is_taken && !is_proxied(route);
            assert_eq!(refused.contains("Idempotency-Key"), is_refused, "{method} {route}");
        }
        assert!(raw >= 5 && taken >= 2, "{raw} {taken}");
    }
}
