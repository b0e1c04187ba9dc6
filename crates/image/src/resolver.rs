//! The resolver of a sandbox: `/etc/resolv.conf`.
//!
//! It is the same with a network and without one, so that the policy can change. Without one nothing is there, and a
//! look-up fails at once. With one, queries to every other address arrive there as well, except those to loopback.

/// The address that a sandbox with a network has.
pub(super) const RESOLV_CONF: &str = "nameserver 198.18.0.1\n";

/// Whether a file of an image names no resolver that a sandbox could reach: none, or only a stub on the loopback of the
/// machine that it was made on.
pub(super) fn is_useless(text: &str) -> bool {
    let servers = text.lines().filter_map(|line| line.trim().strip_prefix("nameserver"));
    let servers = servers.map(str::trim);
    servers.clone().all(|server| server.starts_with("127.") || server == "::1")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_resolver_that_can_be_reached_is_kept() {
        assert!(is_useless(""));
        assert!(is_useless("# nothing\nsearch example.com\n"));
        assert!(is_useless("nameserver 127.0.0.53\noptions edns0\n"));
        assert!(!is_useless("nameserver 127.0.0.53\nnameserver 192.0.2.1\n"));
        assert!(!is_useless(RESOLV_CONF));
    }
}
