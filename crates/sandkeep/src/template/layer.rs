//! Applying a layer: an untrusted archive of changes to a tree of files.

/// How a layer's directory shows that something below it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whiteouts {
    /// The directory holds the tree below, so what is gone is deleted.
    Remove,
    /// The directory will lie upon others in an overlay: marks for the overlay are written, a character
    /// device 0/0 for what is gone and `user.overlay.opaque` on a directory that hides those below.
    Overlay,
}
