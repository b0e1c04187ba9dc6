//! Between a client and a registry: a connection that breaks.

use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

pub struct Proxy {
    pub address: SocketAddr,
    carried_bytes: Arc<AtomicU64>,
    connections: Arc<AtomicUsize>,
}

impl Proxy {
    /// Carries what the registry says until a connection has said that much, and cuts it then.
    pub fn cutting_after(registry: u16, most_bytes: usize) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let address = listener.local_addr().expect("an address");
        let carried_bytes = Arc::new(AtomicU64::new(0));
        let connections = Arc::new(AtomicUsize::new(0));
        let (carried, counted) = (Arc::clone(&carried_bytes), Arc::clone(&connections));
        std::thread::spawn(move || {
            for client in listener.incoming() {
                let Ok(client) = client else { return };
                counted.fetch_add(1, Ordering::SeqCst);
                let carried = Arc::clone(&carried);
                std::thread::spawn(move || connect(client, registry, most_bytes, &carried));
            }
        });
        Self { address, carried_bytes, connections }
    }

    /// How many bytes went to clients, heads and all.
    pub fn carried_bytes(&self) -> u64 {
        self.carried_bytes.load(Ordering::SeqCst)
    }

    pub fn connections(&self) -> usize {
        self.connections.load(Ordering::SeqCst)
    }
}

fn connect(client: TcpStream, registry: u16, most_bytes: usize, carried: &AtomicU64) {
    let Ok(server) = TcpStream::connect(("127.0.0.1", registry)) else { return };
    let (mut from_client, mut to_server) =
        (client.try_clone().expect("a socket"), server.try_clone().expect("a socket"));
    std::thread::spawn(move || std::io::copy(&mut from_client, &mut to_server));
    carry(&server, &client, most_bytes, carried);
    let _ = client.shutdown(Shutdown::Both);
    let _ = server.shutdown(Shutdown::Both);
}

fn carry(mut server: &TcpStream, mut client: &TcpStream, most_bytes: usize, carried: &AtomicU64) {
    let mut left = most_bytes;
    let mut buffer = [0; 16 * 1024];
    while left > 0 {
        let wanted = buffer.len().min(left);
        match server.read(&mut buffer[..wanted]) {
            Ok(0) | Err(_) => return,
            Ok(read) => {
                if client.write_all(&buffer[..read]).is_err() {
                    return;
                }
                left -= read;
                carried.fetch_add(read as u64, Ordering::SeqCst);
            }
        }
    }
}
