//! Setting the clock to its present value.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::finding::{Finding, Judge, Ways};
use crate::sys::{self, Arg, ROOM};

const ADJ_FREQUENCY: u8 = 2;
/// Position of the frequency in `struct timex`, after the modes and the offset.
#[cfg(target_pointer_width = "64")]
const FREQUENCY: std::ops::Range<usize> = 16..24;

pub fn set() -> Finding {
    let mut ways = Ways::judged(Judge::ByRefusal);
    // The kernel's present time zone: setting it changes nothing.
    let mut zone = [0; ROOM];
    let _ = sys::call(libc::SYS_gettimeofday, [Arg::Number(0), Arg::Room(&mut zone)]);
    let arguments = [Arg::Number(0), Arg::Bytes(&zone)];
    ways.note("settimeofday", sys::call(libc::SYS_settimeofday, arguments));
    // The present frequency. If it cannot even be read, it is not set either.
    let mut state = [0; ROOM];
    if sys::call(libc::SYS_adjtimex, [Arg::Room(&mut state)]).is_ok() {
        let mut same = [0; ROOM];
        same[0] = ADJ_FREQUENCY;
        same[FREQUENCY].copy_from_slice(&state[FREQUENCY]);
        ways.note("adjtimex", sys::call(libc::SYS_adjtimex, [Arg::Room(&mut same)]));
    } else {
        ways.refuse("adjtimex: not even to read");
    }
    ways.note("clock_settime", clock_settime());
    ways.finding()
}

fn clock_settime() -> Result<i64, sys::Errno> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    let mut time = [0; 16];
    time[..8].copy_from_slice(&now.as_secs().to_ne_bytes());
    time[8..].copy_from_slice(&u64::from(now.subsec_nanos()).to_ne_bytes());
    let clock = Arg::Number(libc::CLOCK_REALTIME.into());
    sys::call(libc::SYS_clock_settime, [clock, Arg::Bytes(&time)])
}
