//! Tokens of an OIDC issuer: JWTs signed with RS256 or ES256, and nothing else.
//!
//! ```text
//! token ──▶ jws      header, payload, signature; the algorithm is one of the two
//!       ──▶ source   the issuer's keys, cached; asked for again when one is unknown
//!       ──▶ jws      the signature holds under a key of the algorithm's own kind
//!       ──▶ claims   issuer, audience, times; who it is and what it may do
//! ```
//!
//! Nothing in a token is believed before its signature holds, except the name of the key to try.

mod claims;
mod jwks;
mod jws;
mod outgoing;
mod source;

use std::collections::BTreeMap;

use jiff::Timestamp;

use super::AuthError;
use jws::Token;
use sandkeep_core::{Principal, Scope, limits::TOKEN_MAX_BYTES};
use source::Source;

/// Whose tokens are accepted, and what their claims mean here: the table `[oidc]` of the configuration.
///
/// A claim is named by its own name, or by the names on the way to it: `realm_access.roles`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// Who issues them: exactly what their claim `iss` says.
    pub issuer: String,
    /// Whom they must be meant for: one of those in their claim `aud`.
    pub audience: String,
    /// Where the issuer's keys are; found out from the issuer if it is not given.
    pub jwks_url: Option<String>,
    pub organization_claim: String,
    pub user_claim: String,
    /// If it is given and a token has it, the token is bound to that project.
    pub project_claim: Option<String>,
    /// Where the scopes are, as a list or as words: `scope`, or `realm_access.roles` for Keycloak.
    /// `sandkeep:read` there is the scope `read`, and so on.
    pub scope_claim: String,
    /// Further words of that claim, and the scopes that each gives.
    pub roles: BTreeMap<String, Vec<Scope>>,
    /// What a token may do that gives no scope at all.
    pub default_scopes: Vec<Scope>,
}

impl OidcConfig {
    pub const ORGANIZATION_CLAIM: &str = "organization";
    pub const USER_CLAIM: &str = "sub";
    pub const SCOPE_CLAIM: &str = "scope";
    pub const DEFAULT_SCOPES: [Scope; 2] = [Scope::Read, Scope::Write];

    /// The usual meaning of the claims.
    pub fn new(issuer: &str, audience: &str) -> Self {
        Self {
            issuer: issuer.to_owned(),
            audience: audience.to_owned(),
            jwks_url: None,
            organization_claim: Self::ORGANIZATION_CLAIM.to_owned(),
            user_claim: Self::USER_CLAIM.to_owned(),
            project_claim: None,
            scope_claim: Self::SCOPE_CLAIM.to_owned(),
            roles: BTreeMap::new(),
            default_scopes: Self::DEFAULT_SCOPES.to_vec(),
        }
    }
}

/// A configuration under which no token could be trusted.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOidc {
    #[error("oidc.{field} must not be empty")]
    Empty { field: &'static str },
    #[error("oidc.{field}: {problem}")]
    Url { field: &'static str, problem: String },
}

/// One issuer, whose tokens are accepted.
pub struct Oidc {
    config: OidcConfig,
    source: Source,
}

impl Oidc {
    pub fn new(config: OidcConfig) -> Result<Self, InvalidOidc> {
        for (field, value) in [
            ("issuer", &config.issuer),
            ("audience", &config.audience),
            ("organization_claim", &config.organization_claim),
            ("user_claim", &config.user_claim),
            ("scope_claim", &config.scope_claim),
        ] {
            if value.is_empty() {
                return Err(InvalidOidc::Empty { field });
            }
        }
        jws::provide();
        let source = Source::new(&config)?;
        Ok(Self { config, source })
    }

    pub(super) async fn recognize(&self, credential: &str) -> Result<Principal, AuthError> {
        if credential.len() > TOKEN_MAX_BYTES {
            return Err(AuthError::refused("the token is too long"));
        }
        let token = Token::parse(credential)?;
        let keys = self.source.keys_for(token.algorithm(), token.kid()).await?;
        let mut candidates = keys.candidates(token.algorithm(), token.kid());
        let claims = match candidates.find_map(|key| token.verified(key)) {
            Some(claims) => claims,
            None => return Err(AuthError::refused("no key of the issuer signed the token")),
        };
        claims::principal(&claims, &self.config, Timestamp::now())
    }
}
