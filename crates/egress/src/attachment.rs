//! The gateway's end of one sandbox.

use std::convert::Infallible;
use std::io;
use std::net::{IpAddr, TcpListener as StdListener};
use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::time::sleep;

use sandkeep_core::limits::EGRESS_ACCEPT_PAUSE;
use sandkeep_core::network::{Choice, Entry, NetworkUsage, OnDeny, PendingRequest, Policy, Target};
use sandkeep_sys::egress::Sockets;

use crate::ask::{self, AskError};
use crate::connection;
use crate::policy::Host;
use crate::resolver;
use crate::rules::Rules;
use crate::sandbox::{Sandbox, lock};

/// The network of a sandbox, while it is open. Dropping it closes every socket and connection.
pub struct Attachment {
    pub(crate) sandbox: Arc<Sandbox>,
}

impl Attachment {
    pub(crate) fn open(sandbox: Arc<Sandbox>, sockets: Sockets) -> io::Result<Self> {
        let attachment = Self { sandbox };
        for listener in sockets.tcp {
            let listener = StdListener::from(listener);
            listener.set_nonblocking(true)?;
            let accepting =
                accept(Arc::clone(&attachment.sandbox), TcpListener::from_std(listener)?);
            attachment.spawn(accepting);
        }
        for socket in sockets.udp {
            let sandbox = Arc::clone(&attachment.sandbox);
            attachment.spawn(async move {
                if let Err(error) = resolver::serve_datagrams(Arc::clone(&sandbox), socket).await {
                    tracing::error!(sandbox = %sandbox.id, %error, "its resolver ended");
                }
            });
        }
        Ok(attachment)
    }

    /// Runs until the attachment is dropped.
    fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let stop = self.sandbox.stop.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = task => {}
                () = stop.cancelled() => {}
            }
        });
    }

    /// Puts other rules in force: for new connections at once. Open connections that are no longer allowed end.
    pub fn replace(&self, rules: Rules) {
        let Ok(()) = self.sandbox.change(|before| {
            *before = rules;
            Ok::<(), Infallible>(())
        });
    }

    /// Counts bytes that the sandbox used before this daemon started, for `limits.bytes_total`.
    pub fn add_earlier_bytes(&self, bytes: u64) {
        self.sandbox.meter.add_earlier(bytes);
    }

    /// All bytes that count to `limits.bytes_total`, if there is such a limit.
    pub fn counted_bytes(&self) -> Option<u64> {
        self.sandbox.meter.counted()
    }

    pub fn usage(&self) -> NetworkUsage {
        self.sandbox.usage()
    }

    /// What waits for the owner's decision, oldest first.
    pub fn requests(&self) -> Vec<PendingRequest> {
        lock(&self.sandbox.asks).pending()
    }

    /// Asks for a destination before a connection does, with a reason for the owner. If one waits already, it gets the
    /// reason. Needs a tokio runtime.
    pub fn request(&self, host: &str, port: u16, why: &str) -> Result<PendingRequest, AskError> {
        ask::request(&self.sandbox, host, port, why)
    }

    /// The owner's decision. After `Always` the returned entry is in force here; the caller adds it to the stored
    /// policy.
    pub fn decide(&self, request: u64, choice: Choice) -> Result<Option<Entry>, AskError> {
        ask::decide(&self.sandbox, request, choice)
    }

    /// The smallest policy that covers everything that was used since the attachment was opened: the entries of the
    /// present one that were used, except `*`, and the names and addresses that no such entry covers.
    pub fn suggest(&self) -> Policy {
        let present = lock(&self.sandbox.given).policy.clone();
        let used = lock(&self.sandbox.used).clone();
        let mut allow: Vec<Entry> = Vec::new();
        for (host, port) in used {
            let wanted = ask::entry_for(&host, port);
            let covers = |entry: &&Entry| self.covers(entry, &host, port);
            let entry = present.allow.iter().find(covers).cloned().unwrap_or(wanted);
            if !allow.contains(&entry) {
                allow.push(entry);
            }
        }
        Policy { allow, on_deny: OnDeny::Refuse, ..present }
    }

    fn covers(&self, entry: &Entry, host: &Host, port: u16) -> bool {
        let policy = Policy { allow: vec![entry.clone()], ..Policy::default() };
        let alone = self.sandbox.gateway.compile(&Rules { policy, ..Rules::default() });
        entry.target != Target::Any && alone.lists_host(host, port)
    }

    /// The name that has this address in the sandbox.
    pub fn name_of(&self, address: IpAddr) -> Option<String> {
        self.sandbox.names().name(address).map(|name| name.as_ref().to_owned())
    }
}

impl Drop for Attachment {
    fn drop(&mut self) {
        self.sandbox.cut_all();
        self.sandbox.stop.cancel();
    }
}

/// Accepts always: a full queue would hang the programs inside. Too many connections are reset.
async fn accept(sandbox: Arc<Sandbox>, listener: TcpListener) {
    loop {
        match listener.accept().await {
            Ok((stream, _)) => match stream.local_addr() {
                Ok(to) => {
                    tokio::spawn(connection::serve(Arc::clone(&sandbox), stream, to));
                }
                Err(error) => tracing::debug!(sandbox = %sandbox.id, %error, "no destination"),
            },
            Err(error) => {
                tracing::warn!(sandbox = %sandbox.id, %error, "cannot accept a connection");
                sleep(EGRESS_ACCEPT_PAUSE).await;
            }
        }
    }
}
