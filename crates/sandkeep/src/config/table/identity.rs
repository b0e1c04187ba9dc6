//! The rows of `[tls]` and `[oidc]`.

use serde_json::json;

use super::{Setting, Shape, value};

pub static TLS: &[Setting] = &[
    Setting::new(
        "tls.cert",
        Shape::Text,
        "FILE",
        "The certificate of the API, with those that vouch for it, as PEM; read again on SIGHUP",
        set!(tls.cert, |text| value::path(text).map(Some)),
        show!(tls.cert),
    ),
    Setting::new(
        "tls.key",
        Shape::Text,
        "FILE",
        "The private key of that certificate, as PEM",
        set!(tls.key, |text| value::path(text).map(Some)),
        show!(tls.key),
    ),
    Setting::new(
        "tls.dev",
        Shape::Switch,
        "BOOL",
        "Serve TLS with a certificate that the daemon makes itself and keeps in the data directory",
        set!(tls.dev, value::switch),
        show!(tls.dev),
    ),
];

pub static OIDC: &[Setting] = &[
    Setting::new(
        "oidc.issuer",
        Shape::Text,
        "URL",
        "Whose tokens (JWT, RS256 or ES256) are accepted: exactly what their claim `iss` says",
        set!(oidc.issuer, |text| value::name(text).map(Some)),
        show!(oidc.issuer),
    ),
    Setting::new(
        "oidc.audience",
        Shape::Text,
        "NAME",
        "Whom they must be meant for: one of those in their claim `aud`",
        set!(oidc.audience, |text| value::name(text).map(Some)),
        show!(oidc.audience),
    ),
    Setting::new(
        "oidc.jwks_url",
        Shape::Text,
        "URL",
        "Where the issuer's keys are: https, or http on loopback",
        set!(oidc.jwks_url, |text| value::name(text).map(Some)),
        show!(oidc.jwks_url),
    )
    .default("what the issuer's /.well-known/openid-configuration says"),
    Setting::new(
        "oidc.organization_claim",
        Shape::Text,
        "CLAIM",
        "The claim that names the organization; dots lead into objects",
        set!(oidc.organization_claim, value::name),
        show!(oidc.organization_claim),
    ),
    Setting::new(
        "oidc.user_claim",
        Shape::Text,
        "CLAIM",
        "The claim that names the user",
        set!(oidc.user_claim, value::name),
        show!(oidc.user_claim),
    ),
    Setting::new(
        "oidc.project_claim",
        Shape::Text,
        "CLAIM",
        "The claim that names the one project a token is bound to, where it has it",
        set!(oidc.project_claim, |text| value::name(text).map(Some)),
        show!(oidc.project_claim),
    ),
    Setting::new(
        "oidc.scope_claim",
        Shape::Text,
        "CLAIM",
        "The claim with the scopes, as words or a list: `sandkeep:read` and so on, or roles that are named below; `realm_access.roles` for Keycloak",
        set!(oidc.scope_claim, value::name),
        show!(oidc.scope_claim),
    ),
    Setting::new(
        "oidc.read_roles",
        Shape::List,
        "ROLES",
        "Further words of that claim that give the scope `read`",
        set!(oidc.read_roles, value::names),
        show!(oidc.read_roles),
    ),
    Setting::new(
        "oidc.write_roles",
        Shape::List,
        "ROLES",
        "Further words that give `write`, and `read` with it",
        set!(oidc.write_roles, value::names),
        show!(oidc.write_roles),
    ),
    Setting::new(
        "oidc.organization_roles",
        Shape::List,
        "ROLES",
        "Further words that give `organization`: the sandboxes of all users of it",
        set!(oidc.organization_roles, value::names),
        show!(oidc.organization_roles),
    ),
    Setting::new(
        "oidc.admin_roles",
        Shape::List,
        "ROLES",
        "Further words that give `admin`: everything",
        set!(oidc.admin_roles, value::names),
        show!(oidc.admin_roles),
    ),
    Setting::new(
        "oidc.default_scopes",
        Shape::List,
        "SCOPES",
        "The scopes of a token that gives none; an empty list lets such a token do nothing",
        set!(oidc.default_scopes, value::scopes),
        |of| json!(of.oidc.default_scopes),
    ),
];
