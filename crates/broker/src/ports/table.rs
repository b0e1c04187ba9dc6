//! The ports on which processes inside listen, from the sandbox's own kernel tables. A momentary view: a server may
//! come or go at any time. Reading it needs no program in the sandbox.

use std::collections::BTreeSet;
use std::sync::Arc;

use toolbox::{Listening, Operation};

use crate::error::Error;
use crate::inside::toolbox::{Presence, ToolboxRequest, begin};
use crate::lifecycle::handle::Handle;
use crate::shared::Shared;
use sandkeep_core::{Port, limits};

pub(super) async fn open_ports(
    shared: &Arc<Shared>,
    handle: &Arc<Handle>,
) -> Result<BTreeSet<Port>, Error> {
    let timeout = Some(limits::GUEST_ANSWER);
    let short = ToolboxRequest::short(Operation::Ports);
    let request = ToolboxRequest { timeout, presence: Presence::Onlooker, ..short };
    let Listening { ports } = begin(shared, handle, request).await?.answer().await?;
    Ok(ports.into_iter().filter_map(Port::new).collect())
}
