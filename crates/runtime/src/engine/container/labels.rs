//! Labels of a container: they alone identify its sandbox and the plan it was created for.

use std::collections::{BTreeMap, HashMap};

use super::Container;
use sandkeep_core::{Labels, Owner, SandboxId};

pub const INSTANCE: &str = "sandkeep.instance";
const SANDBOX: &str = "sandkeep.sandbox";
const ORGANIZATION: &str = "sandkeep.organization";
const USER: &str = "sandkeep.user";
const PROJECT: &str = "sandkeep.project";
/// A digest of the container's settings.
pub const PLAN: &str = "sandkeep.plan";

pub fn write(id: &SandboxId, labels: &Labels, container: &Container) -> BTreeMap<String, String> {
    let Labels { instance, owner: Owner { organization, user, project } } = labels;
    let plan = digest(container);
    let pairs = [
        (INSTANCE, instance.as_str()),
        (SANDBOX, id.as_str()),
        (ORGANIZATION, organization),
        (USER, user),
        (PROJECT, project),
        (PLAN, &plan),
    ];
    pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).into()
}

/// `None` if any label is missing.
pub fn read(labels: &HashMap<String, String>) -> Option<(SandboxId, Labels)> {
    let get = |name: &str| labels.get(name).cloned();
    let owner =
        Owner { organization: get(ORGANIZATION)?, user: get(USER)?, project: get(PROJECT)? };
    Some((get(SANDBOX)?.parse().ok()?, Labels { instance: get(INSTANCE)?, owner }))
}

fn digest(container: &Container) -> String {
    let text = serde_json::to_vec(container).expect("it holds only strings, numbers and lists");
    hex::encode(ring::digest::digest(&ring::digest::SHA256, &text))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Plan;

    #[test]
    fn labels_come_back_whole_or_not_at_all() {
        let plan = Plan { labels: odd(), ..crate::engine::tests::plan() };
        let written = container(&plan).labels;
        let found: HashMap<String, String> = written.into_iter().collect();
        assert_eq!(read(&found), Some((plan.id, odd())));
        for name in [INSTANCE, SANDBOX, ORGANIZATION, USER, PROJECT] {
            let mut partial = found.clone();
            partial.remove(name);
            assert_eq!(read(&partial), None, "without {name}");
        }
    }

    #[test]
    fn another_plan_is_another_digest() {
        let plan = crate::engine::tests::plan();
        let mut other = plan.clone();
        assert_eq!(digest(&container(&plan)), digest(&container(&other)));
        other.resources.pids += 1;
        assert_ne!(digest(&container(&plan)), digest(&container(&other)));
    }

    fn container(plan: &Plan) -> Container {
        Container::of(plan).expect("a volume")
    }

    fn odd() -> Labels {
        let owner = Owner {
            organization: "a=b,c".to_owned(),
            user: " \n\"".to_owned(),
            project: String::new(),
        };
        Labels { instance: "0123".to_owned(), owner }
    }
}
