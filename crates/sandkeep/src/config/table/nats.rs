//! The rows of `[nats]` and `[urule]`.

use serde_json::json;

use super::super::nats::Secret;
use super::{AliasMeaning, Setting, Shape, alias, value};
use sandkeep_core::limits;

pub static NATS: &[Setting] = &[
    Setting::new(
        "nats.url",
        Shape::Text,
        "URL",
        "NATS server on which events are published: nats://HOST:PORT or tls://HOST:PORT; several are separated by commas",
        set!(nats.url, |text| value::nats_url(text).map(|text| Some(Secret::new(&text)))),
        |of| json!(of.nats.url.as_ref().map(|url| value::without_credentials(url.reveal()))),
    )
    .aliases(&[alias("NATS_URL", AliasMeaning::Value)]),
    Setting::new(
        "nats.user",
        Shape::Text,
        "NAME",
        "User name on the NATS server",
        set!(nats.user, |text| value::name(text).map(Some)),
        show!(nats.user),
    ),
    Setting::new(
        "nats.password",
        Shape::Text,
        "PASSWORD",
        "Password of that user; never shown",
        set!(nats.password, secret),
        |of| json!(of.nats.password.as_ref().map(|_| "***")),
    ),
    Setting::new(
        "nats.token",
        Shape::Text,
        "TOKEN",
        "Token for a NATS server that asks for one; never shown",
        set!(nats.token, secret),
        |of| json!(of.nats.token.as_ref().map(|_| "***")),
    ),
    Setting::new(
        "nats.nkey",
        Shape::Text,
        "FILE",
        "File with the seed of an nkey, to log in to the NATS server",
        set!(nats.nkey, |text| value::path(text).map(Some)),
        show!(nats.nkey),
    ),
    Setting::new(
        "nats.credentials",
        Shape::Text,
        "FILE",
        "File with a JWT and its seed (.creds), to log in to the NATS server",
        set!(nats.credentials, |text| value::path(text).map(Some)),
        show!(nats.credentials),
    ),
    Setting::new(
        "nats.tls.ca",
        Shape::Text,
        "FILE",
        "PEM file with the certificates that the NATS server's may lead back to; the system's if absent",
        set!(nats.tls.ca, |text| value::path(text).map(Some)),
        show!(nats.tls.ca),
    ),
    Setting::new(
        "nats.tls.cert",
        Shape::Text,
        "FILE",
        "Client certificate for the NATS server, as PEM",
        set!(nats.tls.cert, |text| value::path(text).map(Some)),
        show!(nats.tls.cert),
    ),
    Setting::new(
        "nats.tls.key",
        Shape::Text,
        "FILE",
        "Private key of the client certificate, as PEM",
        set!(nats.tls.key, |text| value::path(text).map(Some)),
        show!(nats.tls.key),
    ),
    Setting::new(
        "nats.prefix",
        Shape::Text,
        "SUBJECT",
        "What all our subjects begin with: PREFIX.events.ORGANIZATION.PROJECT.KIND",
        set!(nats.prefix, value::subject_prefix),
        show!(nats.prefix),
    ),
    Setting::new(
        "nats.stream",
        Shape::Text,
        "NAME",
        "JetStream stream that acknowledges events. Without a stream, events are published at most once: those of the time without a connection arrive later, those that are lost on the way do not",
        set!(nats.stream, |text| value::stream_name(text).map(Some)),
        show!(nats.stream),
    ),
    Setting::new(
        "nats.create_stream",
        Shape::Switch,
        "BOOL",
        "Create the stream if it does not exist. An existing stream is never changed",
        set!(nats.create_stream, value::switch),
        show!(nats.create_stream),
    ),
    Setting::new(
        "nats.stream_max_mb",
        Shape::Integer,
        "MIB",
        "Maximum size of a stream that is created, in MiB; its oldest messages are removed first",
        set!(nats.stream_max_mb, |text| value::within(text, 1..=limits::DISK_MAX_MB)),
        show!(nats.stream_max_mb),
    ),
];

pub static URULE: &[Setting] = &[
    Setting::new(
        "urule.events",
        Shape::Text,
        "WHICH",
        "Sandboxes for which urule.runtime.session.* is published on NATS: sessions (created through Urule's API), all, or off",
        set!(urule.events, value::urule_events),
        |of| json!(of.urule.events.as_str()),
    ),
    Setting::new(
        "urule.stream",
        Shape::Text,
        "NAME",
        "JetStream stream that acknowledges Urule's events, if nats.stream is set",
        set!(urule.stream, value::stream_name),
        show!(urule.stream),
    ),
    Setting::new(
        "urule.registry_url",
        Shape::Text,
        "URL",
        "Urule's registry, where the runtimes of this daemon are registered: https, or http on loopback",
        set!(urule.registry_url, |text| value::outgoing_url(text).map(Some)),
        |of| json!(of.urule.registry_url.as_deref().map(value::without_credentials)),
    )
    .aliases(&[alias("REGISTRY_URL", AliasMeaning::Value)]),
    Setting::new(
        "urule.registry_token",
        Shape::Text,
        "TOKEN",
        "Bearer token for Urule's registry; never shown",
        set!(urule.registry_token, secret),
        |of| json!(of.urule.registry_token.as_ref().map(|_| "***")),
    ),
    Setting::new(
        "urule.registry_workspaces",
        Shape::List,
        "IDS",
        "Workspaces of Urule for which the runtimes are registered",
        set!(urule.registry_workspaces, value::names),
        show!(urule.registry_workspaces),
    ),
];

/// Its text never gets into a message.
fn secret(text: &str) -> Result<Option<Secret>, value::Invalid> {
    if text.trim().is_empty() {
        Err(value::Invalid::new("is empty"))
    } else {
        Ok(Some(Secret::new(text)))
    }
}
