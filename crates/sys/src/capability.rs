//! The capabilities of a sandbox's guest, in every runtime. All of them apply only inside its own user namespace.

use guest_proto::Privilege;
use rustix::thread::CapabilitySet;

/// The capabilities of `privilege: root`: what package managers, sudo and servers need.
const ROOT: CapabilitySet = CapabilitySet::CHOWN
    .union(CapabilitySet::DAC_OVERRIDE)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP)
    .union(CapabilitySet::NET_BIND_SERVICE)
    .union(CapabilitySet::SYS_CHROOT);

/// For the guest itself: to run commands as other users and to end them; with `privilege: none` no other process inside
/// gets any.
const GUEST: CapabilitySet = CapabilitySet::KILL
    .union(CapabilitySet::SETUID)
    .union(CapabilitySet::SETGID)
    .union(CapabilitySet::SETPCAP);

/// What the guest of a sandbox keeps.
pub fn of_guest(privilege: Privilege) -> CapabilitySet {
    match privilege {
        Privilege::None => GUEST,
        Privilege::Root => ROOT,
    }
}

/// The same by name, as tools want them: `CAP_KILL`.
pub fn names_of_guest(privilege: Privilege) -> Vec<String> {
    of_guest(privilege).iter_names().map(|(name, _)| format!("CAP_{name}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn capabilities_have_the_names_that_tools_know() {
        let names = names_of_guest(Privilege::None);
        assert_eq!(names, ["CAP_KILL", "CAP_SETGID", "CAP_SETUID", "CAP_SETPCAP"]);
    }
}
