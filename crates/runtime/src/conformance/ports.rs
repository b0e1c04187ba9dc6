//! Connections to servers inside. The only network of the sandbox here is its own loopback.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};

use futures_util::future::try_join_all;
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::lab::{Failure, Lab, command, ensure, hear, same, soon};
use sandkeep_guestlink::{ByteStream, Execution, Guest, GuestError};

const PORT: u16 = 8080;
const CLOSED: u16 = 8081;
const CONNECTIONS: usize = 100;
/// More than any socket's buffers hold.
const MUCH: usize = 16 * 1024 * 1024;

/// Echoes everything it receives, and writes one word after the end.
const ECHO: &str = "
import asyncio
async def serve(reader, writer):
    while data := await reader.read(65536):
        writer.write(data)
        await writer.drain()
    writer.write(b'over')
    await writer.drain()
    writer.close()
async def main():
    server = await asyncio.start_server(serve, '127.0.0.1', 8080, backlog=256)
    print('ready', flush=True)
    await server.serve_forever()
asyncio.run(main())
";

/// Whether the runtime supports ports; if not, it must say so.
async fn has_ports(lab: &Lab<'_>, guest: &dyn Guest) -> Result<bool, Failure> {
    if lab.runtime().capabilities().ports {
        return Ok(true);
    }
    let refused = guest.dial(PORT).await.err();
    let unsupported = matches!(refused, Some(GuestError::Unsupported { .. }));
    ensure!(unsupported, "a runtime without ports answers {refused:?}");
    Ok(false)
}

async fn echo_server(guest: &dyn Guest) -> Result<Execution, Failure> {
    let mut server = guest.exec(command(&["/usr/bin/python3", "-c", ECHO])).await?;
    hear(&mut server, "ready\n").await?;
    Ok(server)
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len / 8 + 1)
        .flat_map(|n| ((n ^ seed << 32) as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
        .take(len)
        .collect()
}

fn hash(bytes: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    bytes.hash(&mut hasher);
    hasher.finish()
}

/// Sends bytes and the end, and checks the echo, and the word after the end.
async fn echoes(connection: Box<dyn ByteStream>, mut bytes: Vec<u8>) -> Result<(), Failure> {
    let (mut reading, mut writing) = tokio::io::split(connection);
    let write = async {
        writing.write_all(&bytes).await?;
        writing.shutdown().await
    };
    let mut came = Vec::new();
    let (written, read) = tokio::join!(write, reading.read_to_end(&mut came));
    written.and(read.map(drop)).map_err(|error| Failure(format!("the port failed: {error}")))?;
    bytes.extend_from_slice(b"over");
    same("the number of bytes", came.len(), bytes.len())?;
    same("the hash of what came back", hash(&came), hash(&bytes))
}

pub(super) async fn a_port_inside_carries_bytes_both_ways_to_their_ends(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    if !has_ports(lab, &*guest).await? {
        return Ok(());
    }
    let _server = echo_server(&*guest).await?;
    echoes(guest.dial(PORT).await?, Vec::new()).await?;
    echoes(guest.dial(PORT).await?, pattern(0, MUCH)).await
}

pub(super) async fn a_closed_port_is_refused_at_once(lab: &Lab<'_>) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    if !has_ports(lab, &*guest).await? {
        return Ok(());
    }
    for port in [CLOSED, 0, u16::MAX] {
        let answer = soon("a refusal", guest.dial(port)).await?.err();
        let closed = matches!(answer, Some(GuestError::PortClosed { port: said }) if said == port);
        ensure!(closed, "closed port {port} answers {answer:?}");
    }
    Ok(())
}

pub(super) async fn a_hundred_connections_do_not_disturb_each_other(
    lab: &Lab<'_>,
) -> Result<(), Failure> {
    let guest = lab.guest().await?;
    if !has_ports(lab, &*guest).await? {
        return Ok(());
    }
    let _server = echo_server(&*guest).await?;
    // A connection that is not served: it is opened before the others and silent until they are done.
    let quiet = guest.dial(PORT).await?;
    let guest = &guest;
    let all = (1..=CONNECTIONS)
        .map(|seed| async move { echoes(guest.dial(PORT).await?, pattern(seed, 100_000)).await });
    try_join_all(all).await?;
    echoes(quiet, b"still here".to_vec()).await
}
