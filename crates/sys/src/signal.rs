//! The end of a process by a signal that it handles.

#![expect(unsafe_code, reason = "the default action of a signal has no safe wrapper")]

/// Ends this process as the signal would have, had it not been handled: a shell that started us must see that, to end
/// its loop or script as well.
#[expect(
    clippy::disallowed_methods,
    reason = "a process that a signal ends runs no destructors either"
)]
pub fn end_by(signal: i32) -> ! {
    // SAFETY: neither call takes a pointer; the default action of the signal replaces the handler.
    unsafe {
        libc::signal(signal, libc::SIG_DFL);
        libc::raise(signal);
    }
    // The signal is blocked or ignored by default.
    std::process::exit(128 + signal)
}
