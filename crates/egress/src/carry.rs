//! Carries an allowed connection to its destination, according to its port.
//!
//! | port | what passes |
//! |---|---|
//! | 443 | TLS whose name (SNI) is that of the destination |
//! | 80 | HTTP whose requests are all for the destination |
//! | other | everything; if it is TLS, its name is that of the destination |
//!
//! Where requests have to be read, because the host has rules for them or gets a secret, TLS is terminated and only
//! HTTP passes.

use std::io;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::time::timeout;

use sandkeep_core::limits::EGRESS_BUFFER_BYTES;
use sandkeep_outgoing::hello::{self, ClientHello};

use crate::connection::{Flow, Refusal, Site};
use crate::http;
use crate::policy::{Finding, Host};
use crate::stream::{Replayed, Stream};
use crate::{terminate, upstream};

const HTTP: u16 = 80;
const HTTPS: u16 = 443;

/// TLS alerts that say why a connection is refused.
const UNRECOGNIZED_NAME: u8 = 112;

pub(crate) async fn carry(flow: Flow, mut inside: Stream, site: Site) {
    let is_read = flow.sandbox.rules().reads(&site.host, site.port);
    match site.port {
        HTTPS => tls(flow, inside, site, Vec::new()).await,
        HTTP => http::serve_plain(flow, inside, site).await,
        _ if is_read => {
            let wait = flow.sandbox.times().handshake;
            let first = timeout(wait, first_bytes(&mut inside)).await;
            match first {
                Ok(Ok(first)) if hello::may_be_client(&first) => {
                    tls(flow, inside, site, first).await;
                }
                Ok(Ok(first)) => {
                    let inside = Box::new(Replayed::new(first, inside));
                    http::serve_plain(flow, inside, site).await;
                }
                Ok(Err(_)) | Err(_) => flow.reset(),
            }
        }
        _ => relay(flow, inside, site).await,
    }
}

/// The first two bytes, or more. Fails if there are none.
async fn first_bytes(inside: &mut Stream) -> io::Result<Vec<u8>> {
    let mut first = Vec::with_capacity(EGRESS_BUFFER_BYTES);
    while first.len() < 2 {
        if inside.read_buf(&mut first).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(first)
}

/// TLS, of which `first` has arrived.
async fn tls(flow: Flow, mut inside: Stream, site: Site, first: Vec<u8>) {
    let wait = flow.sandbox.times().handshake;
    let hello = match timeout(wait, hello::read_client(&mut inside, first)).await {
        Ok(Ok(Some(hello))) => hello,
        Ok(Ok(None)) => {
            let refusal = Refusal::because(format!("port {} is for TLS only", site.port));
            return flow.refuse(&site.host, site.port, &refusal);
        }
        Ok(Err(_)) => return,
        Err(_) => {
            let refusal = Refusal::because("its TLS handshake took too long");
            return flow.refuse(&site.host, site.port, &refusal);
        }
    };
    if let Err(refusal) = check_name(&flow, &site, &hello) {
        flow.record_refused(&site.host, site.port, &refusal);
        return alert(&mut inside, UNRECOGNIZED_NAME).await;
    }
    match &site.host {
        Host::Name(name) if flow.sandbox.rules().reads(&site.host, site.port) => {
            let name = name.clone();
            terminate::serve(flow, inside, site, name, hello).await;
        }
        Host::Name(_) | Host::Address(_) => {
            if hello.has_hidden_hello {
                flow.hides_its_name();
            }
            let Some(mut outside) = dial(&flow, &site).await else { return };
            if outside.write_all(&hello.bytes).await.is_ok() {
                drop(hello);
                copy(&flow, &mut inside, &mut outside).await;
            }
        }
    }
}

/// Whether a ClientHello is for the destination. An encrypted ClientHello cannot be read: without termination, a server
/// that serves several hosts may serve another one. So the name that is not encrypted must be right.
fn check_name(flow: &Flow, site: &Site, hello: &ClientHello) -> Result<(), Refusal> {
    let said = hello.name.as_deref();
    match (&site.host, said) {
        (Host::Name(name), Some(said)) if said == name => Ok(()),
        (Host::Name(name), Some(said)) => {
            Err(Refusal::because(format!("its TLS is for {said}, and not for {name}")))
        }
        (Host::Name(name), None) => {
            Err(Refusal::because(format!("its TLS has no name (SNI); it must be {name}")))
        }
        (Host::Address(_), None) => Ok(()),
        (Host::Address(_), Some(said)) => check_named(flow, said, site.port),
    }
}

/// Whether a program that connected to an address may say that it means this host.
pub(crate) fn check_named(flow: &Flow, said: &str, port: u16) -> Result<(), Refusal> {
    let (rules, host) = (flow.sandbox.rules(), Host::Name(said.to_owned()));
    match rules.find(&host, port) {
        Finding::Denied { rule, reason } => {
            Err(Refusal { rule: Some(rule), reason: format!("it is for {said}: {reason}") })
        }
        _ if rules.reads(&host, port) => {
            let reason = "has rules for its requests or gets a secret: connect to its name";
            Err(Refusal::because(format!("{said} {reason}")))
        }
        Finding::Allowed(_) | Finding::Unlisted => Ok(()),
    }
}

/// Ends TLS before it began, so that the program can say why.
pub(crate) async fn alert(inside: &mut Stream, description: u8) {
    const ALERT: u8 = 21;
    const TLS_1_2: [u8; 2] = [3, 3];
    const FATAL: u8 = 2;
    let [major, minor] = TLS_1_2;
    // The program may be gone.
    let _ = inside.write_all(&[ALERT, major, minor, 0, 2, FATAL, description]).await;
    let _ = inside.shutdown().await;
}

/// Whatever the two say to each other. A server may speak first.
async fn relay(flow: Flow, mut inside: Stream, site: Site) {
    let Some(mut outside) = dial(&flow, &site).await else { return };
    let mut first = Vec::with_capacity(EGRESS_BUFFER_BYTES);
    let mut greeting = Vec::with_capacity(EGRESS_BUFFER_BYTES);
    loop {
        greeting.clear();
        tokio::select! {
            read = inside.read_buf(&mut first) => match read {
                Ok(_) => break,
                Err(_) => return,
            },
            read = outside.read_buf(&mut greeting) => match read {
                Ok(0) | Err(_) => break,
                Ok(_) if inside.write_all(&greeting).await.is_err() => return,
                Ok(_) => {}
            },
        }
    }
    drop(greeting);
    if !first.is_empty() && hello::may_be_client(&first) {
        let wait = flow.sandbox.times().handshake;
        let hello = match timeout(wait, hello::read_client(&mut inside, first)).await {
            Ok(Ok(Some(hello))) => hello,
            _ => {
                let refusal = Refusal::because("it begins like TLS, and is none");
                return flow.refuse(&site.host, site.port, &refusal);
            }
        };
        if let Err(refusal) = check_name(&flow, &site, &hello) {
            flow.record_refused(&site.host, site.port, &refusal);
            return alert(&mut inside, UNRECOGNIZED_NAME).await;
        }
        if hello.has_hidden_hello {
            flow.hides_its_name();
        }
        first = hello.bytes;
    }
    if outside.write_all(&first).await.is_ok() {
        drop(first);
        copy(&flow, &mut inside, &mut outside).await;
    }
}

async fn copy(flow: &Flow, inside: &mut Stream, outside: &mut TcpStream) {
    let size = EGRESS_BUFFER_BYTES;
    if copy_bidirectional_with_sizes(inside, outside, size, size).await.is_err() {
        // A connection that broke must not look like one that ended.
        flow.reset();
    }
}

/// Connects, or says in the log why not and resets.
async fn dial(flow: &Flow, site: &Site) -> Option<TcpStream> {
    let Site { host, port, reach } = site;
    let connection = &flow.admitted.connection;
    match upstream::connect(&flow.sandbox, connection, host, *port, *reach).await {
        Ok(outside) => Some(outside),
        Err(error) => {
            flow.failed(site, error.to_string());
            flow.reset();
            None
        }
    }
}
