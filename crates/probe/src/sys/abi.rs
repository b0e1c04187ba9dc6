//! The two other system call entries of an x86-64 kernel, each with its own numbers.

use std::arch::asm;

use super::Errno;

/// A system call by the 32-bit entry.
pub fn i386_call(number: u32, first: u32, second: u32, third: u32) -> Result<u32, Errno> {
    let result: u32;
    // SAFETY: the calls that are made by it take numbers and no pointers. `rbx`, which the compiler keeps for itself, is
    // put back; the other registers that the entry may change are named.
    unsafe {
        asm!(
            "xchg {first:r}, rbx",
            "int 0x80",
            "xchg {first:r}, rbx",
            first = inout(reg) u64::from(first) => _,
            inlateout("eax") number => result,
            in("ecx") second,
            in("edx") third,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
        );
    }
    answer(i64::from(result.cast_signed()))
}

/// A system call by the 64-bit entry with the x32 bit.
pub fn x32_call(number: i64, first: i64, second: i64, third: i64) -> Result<u32, Errno> {
    const X32: i64 = 0x4000_0000;
    let result: i64;
    // SAFETY: the calls that are made by it take numbers and no pointers; the entry changes rcx and r11 only.
    unsafe {
        asm!(
            "syscall",
            inlateout("rax") number | X32 => result,
            in("rdi") first,
            in("rsi") second,
            in("rdx") third,
            out("rcx") _, out("r11") _,
        );
    }
    answer(result)
}

fn answer(result: i64) -> Result<u32, Errno> {
    const ERRNOS: std::ops::RangeInclusive<i64> = 1..=4095;
    if ERRNOS.contains(&-result) {
        Err(Errno::new(i32::try_from(-result).unwrap_or(libc::EINVAL)))
    } else {
        Ok(result as u32)
    }
}
