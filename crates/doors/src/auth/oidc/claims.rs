//! The claims of a verified token: whether it is meant for us and currently valid, whom it identifies, and what it
//! permits.

use jiff::Timestamp;
use serde_json::Value;

use super::OidcConfig;
use crate::auth::key_ring::name_problem;
use crate::auth::{AuthError, with_implied};
use sandkeep_core::{Principal, Scope, Scopes, limits::TOKEN_LEEWAY};

/// Prefix of our own scopes among those of other services.
const SCOPE_PREFIX: &str = "sandkeep:";

/// The principal that verified claims identify.
pub fn principal(
    claims: &Value,
    config: &OidcConfig,
    now: Timestamp,
) -> Result<Principal, AuthError> {
    check_purpose(claims, config)?;
    check_times(claims, now)?;
    let project = match &config.project_claim {
        Some(claim) if find(claims, claim).is_some() => Some(name(claims, claim)?),
        Some(_) | None => None,
    };
    Ok(Principal {
        organization: name(claims, &config.organization_claim)?,
        user: name(claims, &config.user_claim)?,
        project,
        scopes: scopes(claims, config),
    })
}

fn check_purpose(claims: &Value, config: &OidcConfig) -> Result<(), AuthError> {
    if claims["iss"].as_str() != Some(config.issuer.as_str()) {
        return Err(AuthError::refused("the token is of another issuer"));
    }
    if !strings(&claims["aud"]).any(|audience| audience == config.audience) {
        return Err(AuthError::refused("the token is meant for another audience"));
    }
    Ok(())
}

fn check_times(claims: &Value, now: Timestamp) -> Result<(), AuthError> {
    let (now, leeway) = (now.as_second() as f64, TOKEN_LEEWAY.as_secs_f64());
    // NumericDate values: seconds, possibly with a fraction.
    match &claims["exp"] {
        Value::Number(end) if end.as_f64().is_some_and(|end| now < end + leeway) => {}
        Value::Number(_) => return Err(AuthError::refused("the token has expired")),
        _ => return Err(AuthError::refused("the token does not say when it expires")),
    }
    match &claims["nbf"] {
        Value::Null => Ok(()),
        Value::Number(start) if start.as_f64().is_some_and(|start| start - leeway <= now) => Ok(()),
        _ => Err(AuthError::refused("the token is not valid yet")),
    }
}

/// Finds a claim by name or dotted path. The whole name is tried first: it may be a URL, which has dots of its own.
fn find<'a>(claims: &'a Value, claim: &str) -> Option<&'a Value> {
    let found = claims.get(claim).or_else(|| claim.split('.').try_fold(claims, |at, n| at.get(n)));
    found.filter(|value| !value.is_null())
}

/// A claim with a single name: a string, a list of one, or an object with one field, which is how Keycloak represents
/// organizations.
fn name(claims: &Value, claim: &str) -> Result<String, AuthError> {
    let refused =
        |problem: &str| AuthError::refused(format!("the token's claim {claim} {problem}"));
    let value = match find(claims, claim) {
        None => return Err(refused("is missing")),
        Some(Value::String(text)) => text,
        Some(Value::Array(list)) => match list.as_slice() {
            [Value::String(text)] => text,
            _ => return Err(refused("does not name exactly one")),
        },
        Some(Value::Object(map)) if map.len() == 1 => {
            map.keys().next().ok_or_else(|| refused("is empty"))?
        }
        Some(_) => return Err(refused("does not name exactly one")),
    };
    match name_problem(value) {
        Some(problem) => Err(refused(&problem)),
        None => Ok(value.clone()),
    }
}

/// The strings of a claim that is a string or a list of strings.
fn strings(value: &Value) -> impl Iterator<Item = &str> {
    let list = value.as_array().map(Vec::as_slice).unwrap_or_default();
    value.as_str().into_iter().chain(list.iter().filter_map(Value::as_str))
}

fn scopes(claims: &Value, config: &OidcConfig) -> Scopes {
    let claim = find(claims, &config.scope_claim).unwrap_or(&Value::Null);
    let words = strings(claim).flat_map(str::split_whitespace);
    let own = |word: &str| {
        let name = word.strip_prefix(SCOPE_PREFIX)?;
        Scope::ALL.into_iter().find(|scope| scope.as_str() == name)
    };
    let given: Vec<Scope> = words
        .flat_map(|word| {
            own(word).into_iter().chain(config.roles.get(word).into_iter().flatten().copied())
        })
        .collect();
    if given.is_empty() {
        with_implied(config.default_scopes.iter().copied())
    } else {
        with_implied(given)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: i64 = 1_800_000_000;

    fn config() -> OidcConfig {
        OidcConfig::new("https://id.example", "sandkeep")
    }

    fn good() -> Value {
        json!({
            "iss": "https://id.example", "aud": ["other", "sandkeep"], "exp": NOW + 60,
            "sub": "ann", "organization": "acme",
        })
    }

    fn judge(claims: &Value, config: &OidcConfig) -> Result<Principal, AuthError> {
        let now = Timestamp::from_second(NOW).expect("in range");
        principal(claims, config, now)
    }

    /// A valid token with one claim changed; `null` removes the claim.
    fn with(claim: &str, value: Value) -> Value {
        let mut claims = good();
        claims[claim] = value;
        claims
    }

    fn scopes_of(claims: &Value, config: &OidcConfig) -> Vec<Scope> {
        judge(claims, config).expect("a good token").scopes.iter().collect()
    }

    #[test]
    fn a_token_says_who_it_is() {
        let who = judge(&good(), &config()).expect("a good token");
        assert_eq!(
            (who.organization.as_str(), who.user.as_str(), who.project),
            ("acme", "ann", None)
        );
        assert_eq!(who.scopes.iter().collect::<Vec<_>>(), [Scope::Read, Scope::Write]);
    }

    #[test]
    fn a_token_for_another_time_or_purpose_is_refused() {
        for (claim, value) in [
            ("iss", json!("https://id.example/")),
            ("iss", Value::Null),
            ("aud", json!("sandkeep2")),
            ("aud", Value::Null),
            ("aud", json!([])),
            ("exp", json!(NOW - 31)),
            ("exp", Value::Null),
            ("exp", json!("9999999999")),
            ("nbf", json!(NOW + 31)),
            ("nbf", json!("0")),
            ("sub", Value::Null),
            ("sub", json!("")),
            ("sub", json!(7)),
            ("organization", Value::Null),
            ("organization", json!([])),
            ("organization", json!(["acme", "evil"])),
            ("organization", json!({ "acme": {}, "evil": {} })),
            ("organization", json!("x".repeat(257))),
        ] {
            assert!(judge(&with(claim, value.clone()), &config()).is_err(), "{claim}: {value}");
        }
        assert!(judge(&with("exp", json!(NOW - 29)), &config()).is_ok(), "clocks differ a little");
        assert!(judge(&with("nbf", json!(NOW + 29)), &config()).is_ok(), "clocks differ a little");
    }

    #[test]
    fn keycloaks_roles_and_organizations_are_understood() {
        let mut config = config();
        config.scope_claim = "realm_access.roles".to_owned();
        config.roles.insert("sandbox-admins".to_owned(), vec![Scope::Admin]);
        let mut claims = with("organization", json!({ "acme": { "id": "7" } }));
        assert_eq!(judge(&claims, &config).expect("a good token").organization, "acme");
        claims["realm_access"] = json!({ "roles": ["offline_access", "sandbox-admins"] });
        assert_eq!(scopes_of(&claims, &config), [Scope::Read, Scope::Admin]);
        claims["realm_access"] = json!({ "roles": ["admin", "write"] });
        let defaults = [Scope::Read, Scope::Write];
        assert_eq!(scopes_of(&claims, &config), defaults, "a role of others is none of ours");
    }

    #[test]
    fn scopes_are_words_or_a_list_and_less_than_the_default_is_less() {
        let words = with("scope", json!("openid sandkeep:read email"));
        assert_eq!(scopes_of(&words, &config()), [Scope::Read]);
        let list = with("scope", json!(["openid", "sandkeep:organization"]));
        assert_eq!(scopes_of(&list, &config()), [Scope::Read, Scope::Organization]);
        let nothing = OidcConfig { default_scopes: vec![], ..config() };
        assert_eq!(scopes_of(&good(), &nothing), []);
    }

    #[test]
    fn a_claim_with_dots_in_its_name_and_a_project_are_found() {
        let mut config = config();
        config.organization_claim = "https://example.com/org".to_owned();
        config.project_claim = Some("team.project".to_owned());
        let mut claims = with("https://example.com/org", json!("acme"));
        assert_eq!(judge(&claims, &config).expect("a good token").project, None);
        claims["team"] = json!({ "project": "web" });
        let who = judge(&claims, &config).expect("a good token");
        assert_eq!((who.organization.as_str(), who.project.as_deref()), ("acme", Some("web")));
        claims["team"] = json!({ "project": "" });
        assert!(judge(&claims, &config).is_err(), "an empty project binds to nothing");
    }
}
