//! The rows of `[tls]` and `[oidc]`.

use serde_json::json;

use super::{Setting, Shape, value};

pub static TLS: &[Setting] = &[
    Setting::new(
        "tls.cert",
        Shape::Text,
        "FILE",
        "TLS certificate chain of the API, as PEM; reloaded on SIGHUP",
        set!(tls.cert, |text| value::path(text).map(Some)),
        show!(tls.cert),
    ),
    Setting::new(
        "tls.key",
        Shape::Text,
        "FILE",
        "Private key of the certificate, as PEM",
        set!(tls.key, |text| value::path(text).map(Some)),
        show!(tls.key),
    ),
    Setting::new(
        "tls.dev",
        Shape::Switch,
        "BOOL",
        "Serve TLS with a self-signed certificate, kept in the data directory",
        set!(tls.dev, value::switch),
        show!(tls.dev),
    ),
];

pub static OIDC: &[Setting] = &[
    Setting::new(
        "oidc.issuer",
        Shape::Text,
        "URL",
        "OIDC issuer whose tokens (JWT, RS256 or ES256) are accepted; must equal the claim `iss`",
        set!(oidc.issuer, |text| value::name(text).map(Some)),
        show!(oidc.issuer),
    ),
    Setting::new(
        "oidc.audience",
        Shape::Text,
        "NAME",
        "Required audience; must be in the claim `aud`",
        set!(oidc.audience, |text| value::name(text).map(Some)),
        show!(oidc.audience),
    ),
    Setting::new(
        "oidc.jwks_url",
        Shape::Text,
        "URL",
        "URL of the issuer's keys: https, or http on loopback",
        set!(oidc.jwks_url, |text| value::name(text).map(Some)),
        show!(oidc.jwks_url),
    )
    .default("from the issuer's /.well-known/openid-configuration"),
    Setting::new(
        "oidc.organization_claim",
        Shape::Text,
        "CLAIM",
        "Claim that names the organization; dots select nested objects",
        set!(oidc.organization_claim, value::name),
        show!(oidc.organization_claim),
    ),
    Setting::new(
        "oidc.user_claim",
        Shape::Text,
        "CLAIM",
        "Claim that names the user",
        set!(oidc.user_claim, value::name),
        show!(oidc.user_claim),
    ),
    Setting::new(
        "oidc.project_claim",
        Shape::Text,
        "CLAIM",
        "Claim that restricts a token to one project, if present",
        set!(oidc.project_claim, |text| value::name(text).map(Some)),
        show!(oidc.project_claim),
    ),
    Setting::new(
        "oidc.scope_claim",
        Shape::Text,
        "CLAIM",
        "Claim with the scopes, as words or a list: `sandkeep:read` and so on, or roles named below; `realm_access.roles` for Keycloak",
        set!(oidc.scope_claim, value::name),
        show!(oidc.scope_claim),
    ),
    Setting::new(
        "oidc.read_roles",
        Shape::List,
        "ROLES",
        "Additional values of that claim that grant the scope `read`",
        set!(oidc.read_roles, value::names),
        show!(oidc.read_roles),
    ),
    Setting::new(
        "oidc.write_roles",
        Shape::List,
        "ROLES",
        "Additional values that grant `write` and `read`",
        set!(oidc.write_roles, value::names),
        show!(oidc.write_roles),
    ),
    Setting::new(
        "oidc.organization_roles",
        Shape::List,
        "ROLES",
        "Additional values that grant `organization`: the sandboxes of all its users",
        set!(oidc.organization_roles, value::names),
        show!(oidc.organization_roles),
    ),
    Setting::new(
        "oidc.admin_roles",
        Shape::List,
        "ROLES",
        "Additional values that grant `admin`: everything",
        set!(oidc.admin_roles, value::names),
        show!(oidc.admin_roles),
    ),
    Setting::new(
        "oidc.default_scopes",
        Shape::List,
        "SCOPES",
        "Scopes of a token that grants none; with an empty list such a token may do nothing",
        set!(oidc.default_scopes, value::scopes),
        |of| json!(of.oidc.default_scopes),
    ),
];
