//! Listing directories: names that are hidden are left out.

use rustix::fs::FileType;
use rustix::io::Errno;
use sandkeep_core::rules::Permission;

use super::find::{Entry, entries_from, stat_listed};
use super::{Answer, Filesystem, Handled, Locked};
use crate::wire::{Fields, HEADER_OUT_BYTES, Header, Reply, op};

/// The fields of a node, before those of an entry.
const NODE_BYTES: usize = 128;

impl Filesystem {
    pub(super) fn list(&self, header: &Header, mut fields: Fields<'_>) -> Handled {
        fields.u64()?;
        let (offset, room) = (fields.u64()?, fields.u32()? as usize);
        let mut locked = self.lock();
        if locked.is_closed(header.node)? {
            return Err(Errno::ACCESS);
        }
        let dir = locked.directory(header.node)?;
        let mut reply = Reply::default();
        let mut from = offset;
        // A page may consist of hidden names alone; an empty answer would be the end of the listing.
        while reply.len() == 0 {
            let entries = entries_from(&dir, from, room)?;
            let Some(last) = entries.last() else { break };
            from = last.next;
            for entry in entries {
                let Some(item) = self.item(&mut locked, header, &dir, &entry)? else { continue };
                if reply.len() + item.len() > room {
                    self.take_back(&mut locked, header, &item);
                    return match reply.len() {
                        0 => Err(Errno::INVAL),
                        _ => Ok(Answer::Reply(reply)),
                    };
                }
                reply.append(&item);
            }
        }
        Ok(Answer::Reply(reply))
    }

    /// One entry of the answer, if it is visible.
    fn item(
        &self,
        locked: &mut Locked,
        header: &Header,
        dir: &std::os::fd::OwnedFd,
        entry: &Entry,
    ) -> Result<Option<Reply>, Errno> {
        let is_plus = header.opcode == op::READDIRPLUS;
        let name = &*entry.name;
        if name == b"." || name == b".." {
            let node =
                if is_plus { Reply::default().bytes(&[0; NODE_BYTES]) } else { Reply::default() };
            return Ok(Some(named(node, entry)));
        }
        let place = locked.place(header.node, name)?;
        let is_known = place.permission > Permission::None && entry.kind != FileType::Unknown;
        if is_known && !is_plus {
            return Ok(Some(named(Reply::default(), entry)));
        }
        let may_show = place.permission > Permission::None
            || locked.rules.may_reach(&place.state, Permission::View);
        if !may_show {
            return Ok(None);
        }
        let Some(stat) = stat_listed(dir, name)? else { return Ok(None) };
        if !locked.shows(&place, &stat)? {
            return Ok(None);
        }
        let node = if is_plus { self.entry(locked, &place, &stat) } else { Reply::default() };
        Ok(Some(named(node, entry)))
    }

    /// The kernel never sees the node of an entry for which there was no room.
    fn take_back(&self, locked: &mut Locked, header: &Header, item: &Reply) {
        if header.opcode != op::READDIRPLUS {
            return;
        }
        let mut node = [0; 8];
        node.copy_from_slice(&item.as_bytes()[HEADER_OUT_BYTES..HEADER_OUT_BYTES + 8]);
        locked.forget(u64::from_ne_bytes(node), 1);
    }
}

impl Locked {
    /// Whether a directory that the kernel knows from earlier rules shows nothing any more.
    pub(super) fn is_closed(&self, id: u64) -> Result<bool, Errno> {
        let state = self.table.directory(id)?;
        let permission = self.table.get(id)?.key.permission;
        Ok(permission == Permission::None && !self.rules.may_reach(state, Permission::View))
    }
}

fn named(node: Reply, entry: &Entry) -> Reply {
    const TYPE_SHIFT: u32 = 12;
    let kind = entry.kind.as_raw_mode() >> TYPE_SHIFT;
    let reply = node.u64(entry.inode).u64(entry.next);
    reply.u32(entry.name.len() as u32).u32(kind).bytes(&entry.name).align()
}
