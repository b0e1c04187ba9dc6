//! The kernel interface: namespaces, mounts, cgroups, filters, and the launcher that combines them. The only place for
//! `unsafe` outside of the guest.

pub mod board;
pub mod btrfs;
pub mod capability;
pub mod cgroup;
pub mod container;
pub mod datagram;
pub mod dev;
pub mod egress;
pub mod enclosure;
pub mod fork;
pub mod fuse;
pub mod holders;
pub mod jail;
pub mod landlock;
pub mod launcher;
pub mod loopdev;
pub mod mount;
pub mod namespace;
pub mod overlay;
pub mod peer;
pub mod pidfd;
pub mod reactor;
pub mod sealed;
pub mod seccomp;
pub mod signal;
pub mod socket;
pub mod stage;
pub mod tcp;
