//! Identity of the API and of its callers: `[tls]` and `[oidc]`.

use std::collections::BTreeMap;
use std::path::PathBuf;

use sandkeep_core::Scope;
use sandkeep_doors::auth::{Oidc, OidcConfig};

/// The certificate of the API.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsSettings {
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
    /// A self-signed certificate.
    pub dev: bool,
}

/// The source of the certificate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TlsSource {
    Plain,
    Files { cert: PathBuf, key: PathBuf },
    Dev,
}

/// The accepted issuer; none without `issuer`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OidcSettings {
    pub issuer: Option<String>,
    pub audience: Option<String>,
    pub jwks_url: Option<String>,
    pub organization_claim: String,
    pub user_claim: String,
    pub project_claim: Option<String>,
    pub scope_claim: String,
    pub read_roles: Vec<String>,
    pub write_roles: Vec<String>,
    pub organization_roles: Vec<String>,
    pub admin_roles: Vec<String>,
    pub default_scopes: Vec<Scope>,
}

impl Default for OidcSettings {
    fn default() -> Self {
        Self {
            issuer: None,
            audience: None,
            jwks_url: None,
            organization_claim: OidcConfig::ORGANIZATION_CLAIM.to_owned(),
            user_claim: OidcConfig::USER_CLAIM.to_owned(),
            project_claim: None,
            scope_claim: OidcConfig::SCOPE_CLAIM.to_owned(),
            read_roles: Vec::new(),
            write_roles: Vec::new(),
            organization_roles: Vec::new(),
            admin_roles: Vec::new(),
            default_scopes: OidcConfig::DEFAULT_SCOPES.to_vec(),
        }
    }
}

impl TlsSettings {
    pub fn source(&self) -> TlsSource {
        match (&self.cert, &self.key, self.dev) {
            (Some(cert), Some(key), _) => TlsSource::Files { cert: cert.clone(), key: key.clone() },
            (_, _, true) => TlsSource::Dev,
            (_, _, false) => TlsSource::Plain,
        }
    }

    pub(super) fn contradiction(&self) -> Option<(String, String)> {
        let (key, problem) = match (&self.cert, &self.key, self.dev) {
            (Some(_), None, _) => ("tls.cert", "also needs tls.key"),
            (None, Some(_), _) => ("tls.key", "also needs tls.cert"),
            (Some(_), Some(_), true) => ("tls.dev", "cannot be combined with tls.cert"),
            (Some(_), Some(_), false) | (None, None, _) => return None,
        };
        Some((key.to_owned(), problem.to_owned()))
    }
}

impl OidcSettings {
    /// The issuer; `None` if none is configured.
    pub fn issuer(&self) -> Option<Oidc> {
        // A settings value is valid, so this fails only if no issuer is configured.
        Oidc::new(self.config()?).ok()
    }

    fn config(&self) -> Option<OidcConfig> {
        let words = [
            (&self.read_roles, Scope::Read),
            (&self.write_roles, Scope::Write),
            (&self.organization_roles, Scope::Organization),
            (&self.admin_roles, Scope::Admin),
        ];
        let mut roles: BTreeMap<String, Vec<Scope>> = BTreeMap::new();
        for (names, scope) in words {
            names.iter().for_each(|name| roles.entry(name.clone()).or_default().push(scope));
        }
        Some(OidcConfig {
            issuer: self.issuer.clone()?,
            audience: self.audience.clone()?,
            jwks_url: self.jwks_url.clone(),
            organization_claim: self.organization_claim.clone(),
            user_claim: self.user_claim.clone(),
            project_claim: self.project_claim.clone(),
            scope_claim: self.scope_claim.clone(),
            roles,
            default_scopes: self.default_scopes.clone(),
        })
    }

    pub(super) fn contradiction(&self) -> Option<(String, String)> {
        let (key, problem) = match (&self.issuer, &self.audience, &self.jwks_url) {
            (Some(_), None, _) => ("oidc.issuer", "also needs oidc.audience"),
            (None, Some(_), _) => ("oidc.audience", "also needs oidc.issuer"),
            (None, None, Some(_)) => ("oidc.jwks_url", "also needs oidc.issuer and oidc.audience"),
            (Some(_), Some(_), _) | (None, None, None) => {
                let invalid = self.config().and_then(|config| Oidc::new(config).err())?;
                return Some(("oidc.issuer".to_owned(), invalid.to_string()));
            }
        };
        Some((key.to_owned(), problem.to_owned()))
    }
}
