//! The private descriptors between the guest and a shell: the script that it reads, its reports, its commands' stdin,
//! and, for bash, the text of the next command.

use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd, RawFd};

use super::script::{self, Dialect, Prepared, Report};
use crate::sys;

/// The longest report: a number, a status, and all options.
const REPORT_MAX: usize = 256;
/// Above all numbers at which a shell gets descriptors, so that passing one cannot close another.
const ABOVE_GIVEN: RawFd = 16;

pub struct Channel {
    script: OwnedFd,
    unsent: Vec<u8>,
    sent: usize,
    status: OwnedFd,
    heard: Vec<u8>,
    text: Option<File>,
    /// The pipe that commands read from, opened by us alone.
    stdin: OwnedFd,
}

/// Descriptors for the child, each with its number there.
pub type Given = Vec<(OwnedFd, RawFd)>;

/// The content of the report pipe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    Nothing,
    Report(Report),
    /// Not a report: another process has written there.
    Junk,
    /// No process can report any more.
    Closed,
}

impl Channel {
    pub fn open(dialect: Dialect, user: u32) -> io::Result<(Self, Given)> {
        let (script_end, script) = sys::pipe_to_reopen(user)?;
        let (status, status_end) = sys::pipe_to_reopen(user)?;
        let (stdin_end, _) = sys::pipe_to_reopen(user)?;
        sys::set_nonblocking(script.as_fd())?;
        sys::set_nonblocking(status.as_fd())?;
        let mut ends = vec![
            (script_end, script::SCRIPT),
            (status_end, script::STATUS),
            (stdin_end, script::STDIN),
        ];
        let stdin = sys::reopen_to_read(ends[2].0.as_fd())?;
        let text = match dialect {
            Dialect::Sh => None,
            Dialect::Bash => {
                let text = sys::memory_file()?;
                ends.push((sys::open_again(text.as_fd())?, script::TEXT));
                Some(text)
            }
        };
        let given = ends
            .into_iter()
            .map(|(end, number)| Ok((sys::copy_above(end.as_fd(), ABOVE_GIVEN)?, number)))
            .collect::<io::Result<Given>>()?;
        let (unsent, heard) = (dialect.greeting().as_bytes().to_vec(), Vec::new());
        Ok((Self { script, unsent, sent: 0, status, heard, text, stdin }, given))
    }

    /// The descriptors that the loop watches.
    pub fn watched(&self) -> [&OwnedFd; 2] {
        [&self.script, &self.status]
    }

    pub fn say(&mut self, prepared: Prepared) -> io::Result<()> {
        if let (Some(file), Some(text)) = (&self.text, &prepared.text) {
            sys::replace_content(file, text.as_bytes())?;
        }
        self.say_line(prepared.line);
        Ok(())
    }

    pub fn say_line(&mut self, line: String) {
        if self.sent == self.unsent.len() {
            self.unsent = line.into_bytes();
            self.sent = 0;
        } else {
            self.unsent.extend_from_slice(line.as_bytes());
        }
        self.flush();
    }

    /// Writes as much of the script as the pipe takes. A shell that stops reading is detected by its end.
    pub fn flush(&mut self) {
        while self.sent < self.unsent.len() {
            match sys::write(self.script.as_fd(), &self.unsent[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(_) => return,
            }
        }
        self.unsent = Vec::new();
        self.sent = 0;
    }

    /// The next report, if one is there.
    pub fn hear(&mut self) -> Heard {
        loop {
            if let Some(end) = self.heard.iter().position(|&byte| byte == b'\n') {
                let line: Vec<u8> = self.heard.drain(..=end).collect();
                return script::parse(&line[..end]).map_or(Heard::Junk, Heard::Report);
            }
            if self.heard.len() >= REPORT_MAX {
                self.heard.clear();
                return Heard::Junk;
            }
            let room = REPORT_MAX - self.heard.len();
            match sys::read_append(self.status.as_fd(), &mut self.heard, room) {
                Ok(0) => return Heard::Closed,
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Heard::Nothing,
                Err(_) => return Heard::Closed,
            }
        }
    }

    /// Whether the process still reads a script: not after it has executed something else.
    pub fn is_read(&self) -> bool {
        sys::readers(&self.script) == sys::Readers::Some
    }

    /// The writing end of the next command's stdin. Unread input of an earlier command is discarded.
    pub fn new_stdin(&self) -> io::Result<OwnedFd> {
        sys::discard(self.stdin.as_fd());
        sys::reopen_to_write(self.stdin.as_fd())
    }
}
