//! Limits of the networks of builds.

/// Refused destinations that a build names after a step.
pub const BUILD_REFUSED_TOLD_MAX: usize = 10;
