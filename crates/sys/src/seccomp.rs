//! The system calls that a sandbox may make, as a BPF program.
//!
//! The policy is a pure function from a system call number to an [`Action`]. Neighbours with the same action become one
//! range, and the ranges become a binary tree: about ten comparisons for any call and a small program to load, where a
//! linear list costs more than the rest of the launch.

#![expect(unsafe_code, reason = "loading a filter has no safe wrapper")]

mod names;
mod policy;

use std::io;

use libc::sock_filter;

pub use policy::Action;
use policy::{LAST_KNOWN, action};

#[cfg(target_arch = "x86_64")]
const AUDIT_ARCH: u32 = 0xC000_003E;
#[cfg(target_arch = "aarch64")]
const AUDIT_ARCH: u32 = 0xC000_00B7;

/// Offsets in `struct seccomp_data`; the low half of an argument comes first on little endian.
const OFFSET_NUMBER: u32 = 0;
const OFFSET_ARCH: u32 = 4;
const OFFSET_FIRST_ARGUMENT: u32 = 16;
const ARGUMENT_BYTES: u32 = 8;

const LOAD: u16 = (libc::BPF_LD | libc::BPF_W | libc::BPF_ABS) as u16;
const RETURN: u16 = (libc::BPF_RET | libc::BPF_K) as u16;
const JUMP: u16 = (libc::BPF_JMP | libc::BPF_JA) as u16;
const JUMP_EQUAL: u16 = (libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K) as u16;
const JUMP_AT_LEAST: u16 = (libc::BPF_JMP | libc::BPF_JGE | libc::BPF_K) as u16;
const JUMP_ANY_BIT: u16 = (libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K) as u16;

/// A filter, ready to be loaded many times.
pub struct Filter(Vec<sock_filter>);

impl Filter {
    /// The filter of every sandbox.
    pub fn new() -> Self {
        Self::of(action)
    }

    /// A filter that allows these calls and refuses all others with EPERM, for a process of ours with one purpose.
    pub fn only(calls: &[libc::c_long]) -> Self {
        Self::of(|number| {
            if calls.contains(&libc::c_long::from(number)) {
                Action::Allow
            } else {
                Action::Errno(libc::EPERM)
            }
        })
    }

    fn of(policy: impl Fn(u32) -> Action) -> Self {
        let mut program = vec![
            statement(LOAD, OFFSET_ARCH),
            jump(JUMP_EQUAL, AUDIT_ARCH, 1, 0),
            // i386 calls on x86_64 have other numbers and would need another policy; there is none.
            statement(RETURN, errno(libc::EPERM)),
            statement(LOAD, OFFSET_NUMBER),
        ];
        program.extend(tree(&ranges(policy)));
        Self(program)
    }

    /// The program in the kernel's format, for a tool that loads it.
    pub fn bytes(&self) -> Vec<u8> {
        let bytes = |i: &sock_filter| {
            let ([a, b], [c, d, e, f]) = (i.code.to_ne_bytes(), i.k.to_ne_bytes());
            [a, b, i.jt, i.jf, c, d, e, f]
        };
        self.0.iter().flat_map(bytes).collect()
    }

    /// Loads the filter for this thread and its descendants. Needs no_new_privs, or CAP_SYS_ADMIN in its user
    /// namespace. Makes one system call and allocates nothing.
    pub fn load(&self) -> io::Result<()> {
        let program = libc::sock_fprog {
            len: self.0.len() as libc::c_ushort,
            filter: self.0.as_ptr().cast_mut(),
        };
        // SAFETY: `program` points to as many live instructions as it says; the kernel copies them.
        let result = unsafe {
            libc::syscall(
                libc::SYS_seccomp,
                libc::SECCOMP_SET_MODE_FILTER,
                libc::SECCOMP_FILTER_FLAG_SPEC_ALLOW,
                &raw const program,
            )
        };
        match result {
            0 => Ok(()),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

/// The policy by call names, for tools with a filter format of their own. Calls that are not in it return ENOSYS.
pub fn named_actions() -> impl Iterator<Item = (&'static str, Action)> {
    let named = (0..=LAST_KNOWN).filter_map(|number| Some((names::name(number)?, action(number))));
    named.filter(|(_, action)| *action != Action::Errno(libc::ENOSYS))
}

impl Default for Filter {
    fn default() -> Self {
        Self::new()
    }
}

/// Numbers from `first` up to the next range share an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    first: u32,
    action: Action,
}

fn ranges(policy: impl Fn(u32) -> Action) -> Vec<Range> {
    let mut ranges: Vec<Range> = Vec::new();
    // One past the last known number represents all that follow, including x32 calls.
    for number in 0..=LAST_KNOWN + 1 {
        let action = policy(number);
        if ranges.last().is_none_or(|last| last.action != action) {
            ranges.push(Range { first: number, action });
        }
    }
    ranges
}

fn tree(ranges: &[Range]) -> Vec<sock_filter> {
    let [only] = ranges else {
        let (low, high) = ranges.split_at(ranges.len() / 2);
        let (left, right) = (tree(low), tree(high));
        let first = high[0].first;
        let mut program = match u8::try_from(left.len()) {
            Ok(skip) => vec![jump(JUMP_AT_LEAST, first, skip, 0)],
            // A conditional jump reaches 255 instructions, a plain one any number.
            Err(_) => {
                vec![jump(JUMP_AT_LEAST, first, 0, 1), statement(JUMP, left.len() as u32)]
            }
        };
        program.extend(left);
        program.extend(right);
        return program;
    };
    leaf(only.action)
}

fn leaf(action: Action) -> Vec<sock_filter> {
    let allow = statement(RETURN, libc::SECCOMP_RET_ALLOW);
    match action {
        Action::Allow => vec![allow],
        Action::Errno(number) => vec![statement(RETURN, errno(number))],
        Action::UnlessFlags { mask, refuse } => vec![
            statement(LOAD, OFFSET_FIRST_ARGUMENT),
            jump(JUMP_ANY_BIT, mask, 1, 0),
            allow,
            statement(RETURN, errno(refuse)),
        ],
        Action::Match { argument, arms, otherwise } => {
            let offset = OFFSET_FIRST_ARGUMENT + argument * ARGUMENT_BYTES;
            let mut program = vec![statement(LOAD, offset)];
            for (values, action) in arms {
                let arm = leaf(*action);
                program.extend(one_of(values));
                program.push(statement(JUMP, arm.len() as u32));
                // It ends with a return, so the next arm finds the same value loaded.
                program.extend(arm);
            }
            program.extend(leaf(*otherwise));
            program
        }
    }
}

/// Falls through if the loaded value is none of `values`, otherwise skips one instruction.
fn one_of(values: &'static [u32]) -> impl Iterator<Item = sock_filter> {
    let last = values.len();
    values.iter().enumerate().map(move |(at, value)| jump(JUMP_EQUAL, *value, (last - at) as u8, 0))
}

fn errno(number: i32) -> u32 {
    libc::SECCOMP_RET_ERRNO | number as u32
}

fn statement(code: u16, k: u32) -> sock_filter {
    sock_filter { code, jt: 0, jf: 0, k }
}

fn jump(code: u16, k: u32, jt: u8, jf: u8) -> sock_filter {
    sock_filter { code, jt, jf, k }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The kernel's decision, by interpreting the program.
    fn run(filter: &Filter, arch: u32, number: u32, arguments: [u32; 3]) -> u32 {
        let (mut at, mut accumulator) = (0usize, 0u32);
        loop {
            let i = filter.0[at];
            at += 1;
            let step = |taken: bool| usize::from(if taken { i.jt } else { i.jf });
            match i.code {
                LOAD => {
                    accumulator = match i.k {
                        OFFSET_NUMBER => number,
                        OFFSET_ARCH => arch,
                        at => {
                            let argument = (at - OFFSET_FIRST_ARGUMENT) / ARGUMENT_BYTES;
                            arguments[argument as usize]
                        }
                    }
                }
                RETURN => return i.k,
                JUMP => at += i.k as usize,
                JUMP_EQUAL => at += step(accumulator == i.k),
                JUMP_AT_LEAST => at += step(accumulator >= i.k),
                JUMP_ANY_BIT => at += step(accumulator & i.k != 0),
                other => panic!("unknown instruction {other}"),
            }
        }
    }

    fn expected(action: Action, arguments: [u32; 3]) -> u32 {
        match action {
            Action::UnlessFlags { mask, refuse } if arguments[0] & mask != 0 => errno(refuse),
            Action::Allow | Action::UnlessFlags { .. } => libc::SECCOMP_RET_ALLOW,
            Action::Errno(number) => errno(number),
            Action::Match { argument, arms, otherwise } => {
                let value = arguments[argument as usize];
                let arm = arms.iter().find(|(values, _)| values.contains(&value));
                expected(arm.map_or(*otherwise, |(_, action)| *action), arguments)
            }
        }
    }

    #[test]
    fn the_program_decides_every_call_as_the_policy_does() {
        let filter = Filter::new();
        let arguments =
            [0, 1, 2, 10, 16, 38, 40, 0x5412, 0x541C, 0x5423, 0x4008_941A, 0x1000_0000, 0x11];
        for number in (0..LAST_KNOWN + 200).chain([0x4000_0000, 0x4000_003B, u32::MAX]) {
            for first in arguments {
                for second in arguments {
                    for third in [0, 1, 4, 7, 8, 15, 17, 32, 132, 262] {
                        let given = [first, second, third];
                        let answer = run(&filter, AUDIT_ARCH, number, given);
                        let wanted = expected(action(number.min(LAST_KNOWN + 1)), given);
                        assert_eq!(answer, wanted, "call {number}({given:x?})");
                    }
                }
            }
        }
    }

    #[test]
    fn calls_of_another_architecture_are_refused() {
        let filter = Filter::new();
        assert_eq!(run(&filter, 0x4000_0003, 1, [0; 3]), errno(libc::EPERM));
    }

    #[test]
    fn the_program_stays_small() {
        assert!(Filter::new().0.len() < 256, "{} instructions", Filter::new().0.len());
    }
}
