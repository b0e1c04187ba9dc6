//! Owners of sandboxes, and principals.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The project of a caller that names none.
pub const DEFAULT_PROJECT: &str = "default";

/// The full owner of a sandbox. All three parts are arbitrary strings; they must never be joined without escaping (see
/// `store::Key`).
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema)]
pub struct Owner {
    pub organization: String,
    pub user: String,
    pub project: String,
}

impl Owner {
    /// The owner of everything on a machine without keys.
    pub fn local() -> Self {
        Self {
            organization: "local".to_owned(),
            user: "local".to_owned(),
            project: DEFAULT_PROJECT.to_owned(),
        }
    }
}

/// Permission of a principal.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, ToSchema,
)]
#[serde(rename_all = "snake_case")]
pub enum Scope {
    /// Read its own sandboxes and their output.
    Read,
    /// Create, change and destroy its own sandboxes, and run commands in them.
    Write,
    /// The same for sandboxes of all users of its organization.
    Organization,
    /// Everything, for all owners, including keys and metrics.
    Admin,
}

impl Scope {
    pub const ALL: [Self; 4] = [Self::Read, Self::Write, Self::Organization, Self::Admin];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Organization => "organization",
            Self::Admin => "admin",
        }
    }

    fn bit(self) -> u8 {
        match self {
            Self::Read => 1,
            Self::Write => 1 << 1,
            Self::Organization => 1 << 2,
            Self::Admin => 1 << 3,
        }
    }
}

/// A set of scopes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Scopes(u8);

impl Scopes {
    /// `Admin` includes every other scope.
    pub fn allow(self, scope: Scope) -> bool {
        self.0 & (scope.bit() | Scope::Admin.bit()) != 0
    }

    /// The granted scopes, in order.
    pub fn iter(self) -> impl Iterator<Item = Scope> {
        Scope::ALL.into_iter().filter(move |scope| self.0 & scope.bit() != 0)
    }
}

impl FromIterator<Scope> for Scopes {
    fn from_iter<T: IntoIterator<Item = Scope>>(scopes: T) -> Self {
        Self(scopes.into_iter().fold(0, |bits, scope| bits | scope.bit()))
    }
}

/// The authenticated caller of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Principal {
    pub organization: String,
    pub user: String,
    /// The project it is bound to; without one it may act in all of its user's projects.
    pub project: Option<String>,
    pub scopes: Scopes,
}

/// A principal that is bound to one project asked for another.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the key is restricted to project {bound:?}")]
pub struct OtherProject {
    pub bound: String,
}

impl Principal {
    /// The one user of a machine without keys.
    pub fn local() -> Self {
        let Owner { organization, user, project: _ } = Owner::local();
        Self { organization, user, project: None, scopes: Scopes::from_iter([Scope::Admin]) }
    }

    /// Sandboxes of other owners do not exist for this principal.
    pub fn may_see(&self, owner: &Owner) -> bool {
        if self.scopes.allow(Scope::Admin) {
            return true;
        }
        let bound = self.project.as_ref().is_none_or(|project| *project == owner.project);
        let user = self.user == owner.user || self.scopes.allow(Scope::Organization);
        self.organization == owner.organization && user && bound
    }

    /// The owner of what this principal creates in a project, or in the one it is bound to.
    pub fn owner(&self, project: Option<&str>) -> Result<Owner, OtherProject> {
        let project = match (&self.project, project) {
            (Some(bound), Some(asked)) if bound != asked => {
                return Err(OtherProject { bound: bound.clone() });
            }
            (Some(bound), _) => bound,
            (None, asked) => asked.unwrap_or(DEFAULT_PROJECT),
        };
        Ok(Owner {
            organization: self.organization.clone(),
            user: self.user.clone(),
            project: project.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn principal(scopes: &[Scope], project: Option<&str>) -> Principal {
        Principal {
            organization: "acme".to_owned(),
            user: "ann".to_owned(),
            project: project.map(str::to_owned),
            scopes: scopes.iter().copied().collect(),
        }
    }

    fn owner(organization: &str, user: &str, project: &str) -> Owner {
        let own = str::to_owned;
        Owner { organization: own(organization), user: own(user), project: own(project) }
    }

    #[test]
    fn nobody_sees_more_than_their_scopes_say() {
        let mine = owner("acme", "ann", "web");
        let colleague = owner("acme", "bob", "web");
        let stranger = owner("evil", "ann", "web");
        let cases: [(&[Scope], Option<&str>, [bool; 3]); 5] = [
            (&[Scope::Write], None, [true, false, false]),
            (&[Scope::Write], Some("other"), [false, false, false]),
            (&[Scope::Organization], None, [true, true, false]),
            (&[Scope::Organization], Some("web"), [true, true, false]),
            (&[Scope::Admin], Some("other"), [true, true, true]),
        ];
        for (scopes, project, expected) in cases {
            let who = principal(scopes, project);
            let seen = [&mine, &colleague, &stranger].map(|owner| who.may_see(owner));
            assert_eq!(seen, expected, "{who:?}");
        }
    }

    #[test]
    fn a_bound_principal_makes_nothing_elsewhere() {
        let bound = principal(&[Scope::Write], Some("web"));
        assert_eq!(bound.owner(None).map(|owner| owner.project), Ok("web".to_owned()));
        assert!(bound.owner(Some("other")).is_err());
        let free = principal(&[Scope::Write], None);
        assert_eq!(free.owner(None).map(|owner| owner.project), Ok("default".to_owned()));
    }
}

/// Labels from which a runtime alone can later tell the owner of a sandbox.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Labels {
    /// The id of the data directory: sandboxes of other instances must not be touched.
    pub instance: String,
    pub owner: Owner,
}
