//! Taking as much as possible: processes, open files, disk, files, inotify watchers, unread data, memory. Each stops
//! when it is refused, or at the host's limit, prints `reached N REASON`, and holds its resources until its stdin ends,
//! so that the host can measure from outside.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::net::{Ipv4Addr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::path::Path;
use std::process::ExitCode;

use probe::Attempt;

use crate::sys::{self, Arg, Errno};

const CHUNK_BYTES: usize = 1024 * 1024;
const FILES_PER_DIRECTORY: u64 = 1_000;
/// Below a process's descriptor limit, and enough to be noticed.
const CONNECTIONS: usize = 256;
/// Below every system's listen backlog.
const CONNECTIONS_PER_LISTENER: usize = 64;

/// How far it got, and why no further.
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
        Attempt::InotifyBomb => watchers(max, &mut held),
        Attempt::TcpBomb => tcp(max, &mut held),
        Attempt::MemoryBomb => memory(max),
        _ => return ExitCode::from(2),
    };
    let reason = reached.reason.map_or("bound".to_owned(), |errno| errno.to_string());
    println!("reached {} {reason}", reached.count);
    // The end of stdin, or of its holder.
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    held.children.into_iter().for_each(sys::Child::kill);
    ExitCode::SUCCESS
}

/// Resources that are released only at the end.
#[derive(Default)]
struct Held {
    children: Vec<sys::Child>,
    files: Vec<File>,
    streams: Vec<TcpStream>,
    listeners: Vec<TcpListener>,
    /// Untracked descriptors.
    numbers: Vec<i64>,
}

/// Counts until a refusal or the limit.
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

fn watchers(max: u64, held: &mut Held) -> Reached {
    until(max, |_| {
        let made = sys::call(libc::SYS_inotify_init1, [Arg::Number(libc::O_CLOEXEC.into())])?;
        held.numbers.push(made);
        Ok(())
    })
}

/// MiB in connections that are not accepted, with buffers as large as possible.
fn tcp(max: u64, held: &mut Held) -> Reached {
    let chunk = vec![0x5A; CHUNK_BYTES];
    until(max, |_| {
        let mut left = chunk.as_slice();
        while !left.is_empty() {
            let sent = held.streams.last_mut().map_or(Ok(0), |stream| stream.write(left));
            match sent {
                Ok(sent) if sent > 0 => left = &left[sent..],
                Err(error) if error.kind() != ErrorKind::WouldBlock => return Err(error.into()),
                Ok(_) | Err(_) if held.streams.len() == CONNECTIONS => {
                    return Err(Errno::new(libc::EAGAIN));
                }
                Ok(_) | Err(_) => connect_one_more(held)?,
            }
        }
        Ok(())
    })
}

/// Whether a larger buffer is refused or ignored is checked by another attempt.
fn connect_one_more(held: &mut Held) -> Result<(), Errno> {
    if held.streams.len().is_multiple_of(CONNECTIONS_PER_LISTENER) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let _ = enlarge(&listener, libc::SO_RCVBUF);
        held.listeners.push(listener);
    }
    let listener = held.listeners.last().ok_or(Errno::new(libc::EIO))?;
    let stream = TcpStream::connect(listener.local_addr()?)?;
    let _ = enlarge(&stream, libc::SO_SNDBUF);
    stream.set_nonblocking(true)?;
    held.streams.push(stream);
    Ok(())
}

fn enlarge(socket: &impl AsRawFd, option: i32) -> Result<i64, Errno> {
    let wanted = (64 * 1024 * 1024i32).to_ne_bytes();
    let arguments = [
        Arg::Number(socket.as_raw_fd().into()),
        Arg::Number(libc::SOL_SOCKET.into()),
        Arg::Number(option.into()),
        Arg::Bytes(&wanted),
        Arg::Number(4),
    ];
    sys::call(libc::SYS_setsockopt, arguments)
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
