//! A way out of a sandbox without a network, for as long as the host keeps it open. A connection to the entrance, on
//! the sandbox's own loopback, is joined with a connection from the host to the exit, in order of arrival. The host
//! decides where it leads.

use std::io;
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use crate::answer::{Failure, Relaying};
use crate::wire::{Input, Output};

/// Maximum number of concurrent connections; more are closed.
const CONNECTIONS_MAX: usize = 16;

pub fn relay(input: &mut Input, output: &mut Output) -> Result<(), Failure> {
    let (entrance, exit) = (listen()?, listen()?);
    output.head(&Relaying { entrance: port_of(&entrance)?, exit: port_of(&exit)? })?;
    output.flush()?;
    thread::Builder::new().spawn(move || join_all(&entrance, &exit)).map_err(failed)?;
    // Until the host ends the request, or is gone.
    while input.data(&mut [0; 64])? > 0 {}
    Ok(())
}

fn failed(error: io::Error) -> Failure {
    Failure::from_io(&error, None)
}

fn listen() -> Result<TcpListener, Failure> {
    TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(failed)
}

fn port_of(listener: &TcpListener) -> Result<u16, Failure> {
    listener.local_addr().map(|address| address.port()).map_err(failed)
}

fn join_all(entrance: &TcpListener, exit: &TcpListener) {
    let carried = Arc::new(AtomicUsize::new(0));
    while let (Ok((inner, _)), Ok((outer, _))) = (entrance.accept(), exit.accept()) {
        if carried.load(Ordering::Relaxed) >= CONNECTIONS_MAX {
            continue;
        }
        carried.fetch_add(1, Ordering::Relaxed);
        let done = Arc::clone(&carried);
        let pair = move || {
            join(inner, outer);
            done.fetch_sub(1, Ordering::Relaxed);
        };
        // Without a thread both ends are closed, which both peers see.
        if thread::Builder::new().spawn(pair).is_err() {
            carried.fetch_sub(1, Ordering::Relaxed);
        }
    }
}

/// Copies bytes in both directions until both have ended.
fn join(inner: TcpStream, outer: TcpStream) {
    let ends = (inner.try_clone(), outer.try_clone());
    let (Ok(inner_again), Ok(outer_again)) = ends else { return };
    let back = thread::Builder::new().spawn(move || carry(&outer_again, &inner_again));
    if let Ok(back) = back {
        carry(&inner, &outer);
        let _ = back.join();
    }
}

fn carry(mut from: &TcpStream, mut to: &TcpStream) {
    // However it ended, nothing more comes in this direction.
    let _ = io::copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}

#[cfg(test)]
mod tests {
    use std::io::{Read as _, Write as _};

    use super::*;

    #[test]
    fn what_comes_to_the_entrance_is_joined_with_what_comes_to_the_exit() {
        let (entrance, exit) = (listen().expect("a port"), listen().expect("a port"));
        let ports = [port_of(&entrance), port_of(&exit)].map(|port| port.expect("a port"));
        thread::spawn(move || join_all(&entrance, &exit));
        let connect = |port| TcpStream::connect((Ipv4Addr::LOCALHOST, port)).expect("it listens");
        for word in [b"one", b"two"] {
            let (mut outer, mut inner) = (connect(ports[1]), connect(ports[0]));
            inner.write_all(word).expect("it is open");
            inner.shutdown(Shutdown::Write).expect("it is open");
            let mut said = Vec::new();
            outer.read_to_end(&mut said).expect("all of it");
            assert_eq!(said, word);
            outer.write_all(b"back").expect("the other way is open");
            drop(outer);
            let mut answered = Vec::new();
            inner.read_to_end(&mut answered).expect("all of it");
            assert_eq!(answered, b"back");
        }
    }
}
