//! Whether the rules for a host allow a request.
//!
//! A rule is about the path that the server understands. Servers differ in how they read unusual paths, so a path that
//! two of them could read differently is refused where a rule names paths: it is not repaired.

use std::borrow::Cow;

use hyper::header::{self, HeaderMap};
use hyper::http::request::Parts;
use hyper::{Method, Uri};
use percent_encoding::percent_decode_str;

use sandkeep_core::network::{Methods, Requests};

use super::headers::asks_for_websocket;
use crate::connection::Refusal;

/// By these headers a server may take another method or path than the request's.
const OVERRIDES: [&str; 8] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-method",
    "x-original-url",
    "x-original-uri",
    "x-rewrite-url",
    "x-override-url",
];
/// The same as a parameter of the query.
const OVERRIDE_PARAMETERS: [&str; 3] = ["_method", "x-http-method-override", "x-method-override"];

/// Whether a request passes: every group must have a rule that allows it.
pub(super) fn check(groups: &[Vec<Requests>], request: &Parts) -> Result<(), Refusal> {
    if groups.is_empty() {
        return Ok(());
    }
    no_overrides(&request.headers, &request.uri)?;
    for group in groups {
        let refused: Vec<Refused> =
            group.iter().filter_map(|rule| allows(rule, request).err()).collect();
        if refused.len() == group.len() {
            let rules: Vec<String> = group.iter().map(ToString::to_string).collect();
            // The last rule was as near as any.
            let reason = refused.last().map_or("no rule allows it", Refused::reason);
            return Err(Refusal { rule: Some(rules.join(", ")), reason: reason.to_owned() });
        }
    }
    Ok(())
}

fn no_overrides(headers: &HeaderMap, uri: &Uri) -> Result<(), Refusal> {
    // Some servers read `_` as `-`.
    let found = headers.keys().find(|name| {
        let name = name.as_str().replace('_', "-");
        OVERRIDES.contains(&name.as_str())
    });
    if let Some(name) = found {
        let reason = format!("the header {name} could make it another request; leave it out");
        return Err(Refusal::because(reason));
    }
    let parameters = uri.query().unwrap_or_default().split(['&', ';']);
    let mut names = parameters.map(|parameter| parameter.split('=').next().unwrap_or_default());
    let is_override = |name: &str| {
        let name = percent_decode_str(name).decode_utf8_lossy().to_ascii_lowercase();
        OVERRIDE_PARAMETERS.contains(&name.as_str())
    };
    match names.find(|name| is_override(name)) {
        Some(name) => Err(Refusal::because(format!(
            "the parameter {name} could make it another request; leave it out"
        ))),
        None => Ok(()),
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Refused {
    Method,
    Write(Write),
    Path,
    OddPath,
}

impl Refused {
    fn reason(&self) -> &'static str {
        match self {
            Self::Method => "its rule does not allow this method",
            Self::Write(Write::WebSocket) => {
                "a WebSocket counts as a write, which its rule does not allow"
            }
            Self::Write(Write::GraphQl) => {
                "GraphQL counts as a write, which its rule does not allow"
            }
            Self::Path => "its rule does not allow this path",
            Self::OddPath => {
                "its path is not in its plain form, and servers differ in how they read it: write it without \
                 encoded slashes, empty segments, `.`, `..`, `;`, `\\` and control characters"
            }
        }
    }
}

/// Requests that change something whatever their method.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Write {
    WebSocket,
    GraphQl,
}

fn allows(rule: &Requests, request: &Parts) -> Result<(), Refused> {
    if !rule.methods.allows(request.method.as_str()) {
        return Err(Refused::Method);
    }
    if let Some(write) = is_write(request)
        && !may_write(&rule.methods)
    {
        return Err(Refused::Write(write));
    }
    if rule.paths.is_empty() {
        return Ok(());
    }
    let path = plain_path(request.uri.path()).ok_or(Refused::OddPath)?;
    if rule.paths.iter().any(|glob| matches(glob, &path)) { Ok(()) } else { Err(Refused::Path) }
}

fn may_write(methods: &Methods) -> bool {
    methods.allows(Method::POST.as_str())
}

fn is_write(request: &Parts) -> Option<Write> {
    if asks_for_websocket(&request.headers) {
        return Some(Write::WebSocket);
    }
    let path = percent_decode_str(request.uri.path()).decode_utf8_lossy().to_ascii_lowercase();
    let kind = request.headers.get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok());
    let is_typed = kind.is_some_and(|kind| kind.to_ascii_lowercase().contains("graphql"));
    let is_named = path.split('/').any(|segment| segment == "graphql" || segment == "gql");
    (is_typed || is_named).then_some(Write::GraphQl)
}

/// The decoded path, if every server reads it so.
fn plain_path(path: &str) -> Option<Cow<'_, str>> {
    let decoded = percent_decode_str(path).decode_utf8().ok()?;
    let slashes = |text: &str| text.matches('/').count();
    let is_odd = |c: char| c.is_control() || matches!(c, '\\' | ';' | '%' | '?' | '#');
    if slashes(&decoded) != slashes(path) || decoded.contains(is_odd) {
        return None;
    }
    let mut segments = decoded.strip_prefix('/')?.split('/').peekable();
    while let Some(segment) = segments.next() {
        let is_last = segments.peek().is_none();
        if matches!(segment, "." | "..") || (segment.is_empty() && !is_last) {
            return None;
        }
    }
    Some(decoded)
}

/// `*` is a part of one segment, `**` any number of segments; at the end it is one at least.
fn matches(glob: &str, path: &str) -> bool {
    let segments = |text: &str| -> Vec<String> {
        text.trim_start_matches('/').split('/').map(str::to_owned).collect()
    };
    segments_match(&segments(glob), &segments(path))
}

/// Which prefixes of the pattern match which prefixes of the path, in a table: the time does not explode with the number of `**`.
fn segments_match(glob: &[String], path: &[String]) -> bool {
    let mut reached = vec![false; path.len() + 1];
    reached[0] = true;
    for (at, segment) in glob.iter().enumerate() {
        let is_last = at + 1 == glob.len();
        let mut next = vec![false; path.len() + 1];
        let mut open = false;
        for (done, was_reached) in reached.iter().enumerate() {
            if segment == "**" {
                next[done] = open || (*was_reached && !is_last);
                // The last one needs a segment that is not empty: `/a/**` is neither `/a` nor `/a/`.
                open |= *was_reached && !(is_last && path[done..] == [""]);
            } else if *was_reached && done < path.len() && segment_matches(segment, &path[done]) {
                next[done + 1] = true;
            }
        }
        reached = next;
    }
    reached[path.len()]
}

fn segment_matches(glob: &str, segment: &str) -> bool {
    let mut parts = glob.split('*');
    let Some(rest) = parts.next().and_then(|first| segment.strip_prefix(first)) else {
        return false;
    };
    let mut rest = rest;
    let mut is_open = false;
    let parts: Vec<&str> = parts.collect();
    for (at, part) in parts.iter().enumerate() {
        is_open = true;
        if at + 1 == parts.len() {
            return rest.ends_with(part);
        }
        match rest.find(part) {
            Some(found) => rest = &rest[found + part.len()..],
            None => return false,
        }
    }
    is_open || rest.is_empty()
}

#[cfg(test)]
mod tests;
