//! What of other rooms can be tried only on real volumes and layers.

mod unread;
mod views;
