//! gRPC.

/// The largest message, in and out: what clients take unless they are told otherwise.
pub const GRPC_MESSAGE_MAX_BYTES: usize = 4 * super::MIB as usize;
/// The digits of a deadline.
pub const GRPC_TIMEOUT_MAX_DIGITS: usize = 8;
/// How much of an error is said in trailers, which clients bound as they do headers.
pub const GRPC_STATUS_MAX_BYTES: usize = 4096;
