//! A directory as its rules show it: the rules, and the FUSE server that keeps them.
