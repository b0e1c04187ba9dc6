//! File operations. Each has the permissions of the user it runs as and the kernel's own path lookup, including
//! symbolic links: nothing here is a security boundary, and nothing here can reach beyond the sandbox.

mod change;
mod list;
mod pack;
mod read;
mod remove_tree;
mod replacement;
mod stat;
#[cfg(test)]
mod tests;
mod unpack;
mod watch;
mod write;

pub use change::{change_mode, make_directory, move_entry, remove};
pub use list::list;
pub use pack::{pack, pack_to, survey};
pub use read::read;
pub use replacement::{Before, Replacement};
pub use stat::stat;
pub use unpack::{
    ArchiveEntry, GONE, METADATA, archive_entries, restore, restore_all, unpack, unpack_into,
};
pub use watch::watch;
pub use write::write;
