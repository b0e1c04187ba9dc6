//! Sandkeep: isolated computers for AI agents.
//!
//! Read it in the order of a request: [`api`] decodes and authenticates, [`broker`] admits and
//! records the intent in the [`store`], the sandbox's supervisor has the [`storage`] make its volume
//! and a [`runtime`] launch it through [`sys`], [`guest`] carries out what is asked inside, and a
//! [`journal`] keeps what came of it.
//! [`sandbox`] is the pure core that all of them share.

pub mod api;
pub mod auth;
pub mod broker;
pub mod cli;
pub mod config;
pub mod crypto;
pub mod diff;
pub mod doctor;
pub mod error;
mod excerpt;
pub mod failpoint;
pub mod guest;
pub mod home;
pub mod journal;
pub mod limits;
pub mod outgoing;
#[cfg(test)]
mod promises;
pub mod runtime;
pub mod sandbox;
pub mod storage;
pub mod store;
pub mod sys;
pub mod telemetry;
pub mod template;
