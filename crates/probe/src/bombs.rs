//! Taking as much as there is: processes, open files, disk, files, memory. Each stops where it is refused, or at the
//! bound that the host gave it, says `reached N REASON`, and holds on to what it has until its stdin ends, so that the
//! host can look from outside.

use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::process::ExitCode;

use probe::Attempt;

use crate::sys::{self, Errno};

const CHUNK_BYTES: usize = 1024 * 1024;
const FILES_PER_DIRECTORY: u64 = 1_000;

/// How far it came, and why no further.
struct Reached {
    count: u64,
    reason: Option<Errno>,
}

pub fn run(bomb: Attempt, max: u64) -> ExitCode {
    let place = std::env::temp_dir().join(format!("bomb-{}", std::process::id()));
    let mut held = Held::default();
    let reached = match bomb {
        Attempt::ForkBomb => forks(max, &mut held),
        Attempt::DescriptorBomb => descriptors(max, &mut held),
        Attempt::DiskBomb => disk(max, &place, &mut held),
        Attempt::InodeBomb => inodes(max, &place),
        Attempt::MemoryBomb => memory(max),
        _ => return ExitCode::from(2),
    };
    let reason = reached.reason.map_or("bound".to_owned(), |errno| errno.to_string());
    println!("reached {} {reason}", reached.count);
    // The end of stdin, or of whoever holds it.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    held.children.into_iter().for_each(sys::Child::kill);
    ExitCode::SUCCESS
}

/// What is let go only at the end.
#[derive(Default)]
struct Held {
    children: Vec<sys::Child>,
    files: Vec<File>,
}

/// Counts until it is refused or has enough.
fn until(max: u64, mut take: impl FnMut(u64) -> Result<(), Errno>) -> Reached {
    for count in 0..max {
        if let Err(errno) = take(count) {
            return Reached { count, reason: Some(errno) };
        }
    }
    Reached { count: max, reason: None }
}

fn forks(max: u64, held: &mut Held) -> Reached {
    until(max, |_| sys::fork(sys::pause).map(|child| held.children.push(child)))
}

fn descriptors(max: u64, held: &mut Held) -> Reached {
    until(max, |_| {
        held.files.push(File::open("/dev/null")?);
        Ok(())
    })
}

fn disk(max: u64, place: &Path, held: &mut Held) -> Reached {
    let chunk = vec![0x5A; CHUNK_BYTES];
    until(max, |count| {
        if count == 0 {
            held.files.push(File::create_new(place)?);
        }
        let file = held.files.last_mut().ok_or(Errno::new(libc::EIO))?;
        file.write_all(&chunk)?;
        Ok(file.sync_data()?)
    })
}

fn inodes(max: u64, place: &Path) -> Reached {
    until(max, |count| {
        let dir = place.join((count / FILES_PER_DIRECTORY).to_string());
        if count % FILES_PER_DIRECTORY == 0 {
            std::fs::create_dir_all(&dir)?;
        }
        File::create_new(dir.join(count.to_string()))?;
        Ok(())
    })
}

fn memory(max: u64) -> Reached {
    until(max, |_| sys::take_memory(CHUNK_BYTES).ok_or(Errno::new(libc::ENOMEM)))
}
