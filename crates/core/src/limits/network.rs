//! Limits of network policies and secrets, as a caller may write them.

/// Entries of `allow`, and of `deny`.
pub const NETWORK_ENTRIES_MAX: usize = 256;
/// Maximum length of an entry: a name of 253 bytes, `*.` and a port.
pub const NETWORK_ENTRY_MAX_BYTES: usize = 272;
/// Maximum length of a host name, and of one label of it, as in DNS.
pub const HOST_NAME_MAX_BYTES: usize = 253;
pub const HOST_LABEL_MAX_BYTES: usize = 63;
/// Methods and paths of one entry.
pub const NETWORK_METHODS_MAX: usize = 16;
pub const NETWORK_METHOD_MAX_BYTES: usize = 32;
pub const NETWORK_PATHS_MAX: usize = 64;
pub const NETWORK_PATH_MAX_BYTES: usize = 1024;
/// Presets, and entries of one preset.
pub const NETWORK_PRESETS_MAX: usize = 64;
pub const NETWORK_PRESET_ENTRIES_MAX: usize = 64;
pub const NETWORK_PRESET_NAME_MAX_BYTES: usize = 32;
/// Maximum that a policy may ask for in `limits.connections`.
pub const NETWORK_CONNECTIONS_MAX: u32 = 4_096;
/// Secrets of one sandbox, hosts of one secret, and the sizes of its name and value.
pub const SECRETS_MAX: usize = 32;
pub const SECRET_HOSTS_MAX: usize = 16;
pub const SECRET_NAME_MAX_BYTES: usize = 128;
pub const SECRET_VALUE_MAX_BYTES: usize = 16 * 1024;
