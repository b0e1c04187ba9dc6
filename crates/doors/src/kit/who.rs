//! The caller of a request. The gate stores the principal in the request; a handler that extracts it cannot forget the
//! check.

use std::convert::Infallible;

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

use super::refusal::Refusal;
use sandkeep_core::{HostPaths, Principal, Scope};

/// The principal of a request.
pub struct Who(pub Principal);

/// The principal of a request that only an admin may make.
pub struct Admin(pub Principal);

impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Refusal> {
        let nobody = || Refusal::Unauthenticated {
            problem: "the request does not say who makes it".to_owned(),
        };
        parts.extensions.get::<Principal>().cloned().map(Self).ok_or_else(nobody)
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Admin {
    type Rejection = Refusal;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Refusal> {
        let Who(principal) = Who::from_request_parts(parts, state).await?;
        require(&principal, Scope::Admin)?;
        Ok(Self(principal))
    }
}

/// The principal of a request that needs no credentials.
pub struct MaybeWho(pub Option<Principal>);

impl<S: Send + Sync> FromRequestParts<S> for MaybeWho {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get::<Principal>().cloned()))
    }
}

/// Which host paths the caller may name.
pub struct MayName(pub HostPaths);

impl<S: Send + Sync> FromRequestParts<S> for MayName {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Infallible> {
        Ok(Self(parts.extensions.get().copied().unwrap_or_default()))
    }
}

/// Refuses a principal that lacks this scope.
pub fn require(who: &Principal, needed: Scope) -> Result<(), Refusal> {
    if who.scopes.allow(needed) {
        Ok(())
    } else {
        Err(Refusal::Forbidden { needed, who: who.clone() })
    }
}
