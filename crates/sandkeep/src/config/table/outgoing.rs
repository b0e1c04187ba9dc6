//! The rows about whom the daemon calls, and how it is known there.

use serde_json::json;

use super::{Setting, Shape, value};

pub static OUTGOING: &[Setting] = &[
    Setting::new(
        "outgoing_allow",
        Shape::List,
        "PLACES",
        "What may be called for callers (registries, their token realms and what they redirect to, hosts of git repositories) though its address is not public: registry.internal, 127.0.0.1:5000, 10.0.0.0/8",
        set!(outgoing_allow, value::allowed),
        show!(outgoing_allow),
    ),
    Setting::new(
        "registry_ca",
        Shape::Text,
        "FILE",
        "Certificates, as PEM, that vouch for registries and hosts of git repositories besides those that this machine trusts",
        set!(registry_ca, |text| value::path(text).map(Some)),
        show!(registry_ca),
    ),
    Setting::new(
        "registry_auth",
        Shape::Text,
        "FILE",
        "Credentials of registries, as `docker login` writes them to config.json; for everybody who may pull",
        set!(registry_auth, |text| value::path(text).map(Some)),
        show!(registry_auth),
    ),
];
