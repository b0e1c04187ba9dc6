//! The rows about outgoing connections and their credentials.

use serde_json::json;

use super::{Setting, Shape, value};

pub static OUTGOING: &[Setting] = &[
    Setting::new(
        "outgoing_allow",
        Shape::List,
        "PLACES",
        "Hosts and networks that the daemon may connect to although they are not public, for registries (with their token realms and redirects) and webhooks: registry.internal, 127.0.0.1:5000, 10.0.0.0/8",
        set!(outgoing_allow, value::allowed),
        show!(outgoing_allow),
    ),
    Setting::new(
        "registry_ca",
        Shape::Text,
        "FILE",
        "PEM file with certificates to trust for registries and webhooks, in addition to the system's",
        set!(registry_ca, |text| value::path(text).map(Some)),
        show!(registry_ca),
    ),
    Setting::new(
        "registry_auth",
        Shape::Text,
        "FILE",
        "Registry credentials, in the format of Docker's config.json; used for everyone who may pull",
        set!(registry_auth, |text| value::path(text).map(Some)),
        show!(registry_auth),
    ),
];
