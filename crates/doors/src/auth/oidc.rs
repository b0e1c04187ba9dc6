//! Tokens of an OIDC issuer. Only JWTs signed with RS256 or ES256 are accepted.
//!
//! ```text
//! token ──▶ jws      header, payload, signature; the algorithm is one of the two
//!       ──▶ source   the issuer's keys, cached; asked for again when one is unknown
//!       ──▶ jws      the signature holds under a key of the algorithm's own kind
//!       ──▶ claims   issuer, audience, times; who it is and what it may do
//! ```
//!
//! Nothing in a token is trusted before its signature is verified, except the name of the key to try.

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

/// The accepted issuer, and what its claims mean here: the table `[oidc]` of the configuration.
///
/// A claim is given by its name, or by a dotted path: `realm_access.roles`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcConfig {
    /// The issuer: exactly the value of the claim `iss`.
    pub issuer: String,
    /// The audience: one of the values of the claim `aud`.
    pub audience: String,
    /// The URL of the issuer's keys; discovered from the issuer if left out.
    pub jwks_url: Option<String>,
    pub organization_claim: String,
    pub user_claim: String,
    /// If set and present in a token, this claim binds the token to that project.
    pub project_claim: Option<String>,
    /// The claim that holds the scopes, as a list or as words: `scope`, or `realm_access.roles` for Keycloak. The value
    /// `sandkeep:read` grants the scope `read`, and so on.
    pub scope_claim: String,
    /// Further values of that claim, and the scopes that each one grants.
    pub roles: BTreeMap<String, Vec<Scope>>,
    /// Scopes of a token that grants none itself.
    pub default_scopes: Vec<Scope>,
}

impl OidcConfig {
    pub const ORGANIZATION_CLAIM: &str = "organization";
    pub const USER_CLAIM: &str = "sub";
    pub const SCOPE_CLAIM: &str = "scope";
    pub const DEFAULT_SCOPES: [Scope; 2] = [Scope::Read, Scope::Write];

    /// Standard claim names.
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

/// Why a configuration cannot be used to verify tokens.
#[derive(Debug, thiserror::Error)]
pub enum InvalidOidc {
    #[error("oidc.{field} must not be empty")]
    Empty { field: &'static str },
    #[error("oidc.{field}: {problem}")]
    Url { field: &'static str, problem: String },
}

/// The accepted issuer.
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
