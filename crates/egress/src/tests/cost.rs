//! What the gateway costs, beside a direct connection. Run it alone: `cargo nextest run -p sandkeep-egress --run-ignored
//! only --no-capture what_it_costs`.

use std::time::{Duration, Instant};

use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::server::{echo, listen};
use super::world::*;

const BYTES: usize = 1 << 30;
const ROUNDS: u32 = 500;

async fn throughput(mut stream: TcpStream) -> f64 {
    let began = Instant::now();
    let mut buffer = vec![0; 256 * 1024];
    let mut left = BYTES;
    stream.write_all(b"x").await.expect("sent");
    while left > 0 {
        let read = stream.read(&mut buffer).await.expect("data");
        assert!(read > 0, "it ended");
        left = left.saturating_sub(read);
    }
    BYTES as f64 * 8.0 / began.elapsed().as_secs_f64() / 1e9
}

async fn round(mut stream: TcpStream) {
    stream.write_all(&[7; 1024]).await.expect("sent");
    let mut back = [0; 1024];
    stream.read_exact(&mut back).await.expect("an echo");
}

#[test]
#[ignore = "it measures"]
fn what_it_costs() {
    if !is_root("what_it_costs") {
        return;
    }
    // Made here, so that its threads are in the network of the test.
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    runtime.expect("a runtime").block_on(measure());
}

async fn measure() {
    let policy = json!({ "allow": ["a.example:7000", "a.example:7001"] });
    let world = setup(policy, &[("a.example", 0)]).build();
    let _echo = echo(0, 7001, "").await;
    let source = listen(0, 7000).await;
    tokio::spawn(async move {
        let data = vec![0; 256 * 1024];
        while let Ok((mut stream, _)) = source.accept().await {
            let data = data.clone();
            tokio::spawn(async move { while stream.write_all(&data).await.is_ok() {} });
        }
    });
    for _ in 0..3 {
        let direct = TcpStream::connect((address(0), 7000)).await.expect("connected");
        let direct = throughput(direct).await;
        let stream = world.to("a.example", 7000).await;
        let through = throughput(stream).await;
        println!(
            "one stream: {direct:.1} Gbit/s direct, {through:.1} through, {:.2}",
            through / direct
        );
        let began = Instant::now();
        for _ in 0..ROUNDS {
            round(TcpStream::connect((address(0), 7001)).await.expect("connected")).await;
        }
        let direct = began.elapsed() / ROUNDS;
        let mut through = Duration::ZERO;
        for _ in 0..ROUNDS {
            let stream = world.to("a.example", 7001).await;
            let began = Instant::now();
            round(stream).await;
            through += began.elapsed();
        }
        println!("connect and 1 KiB: {direct:?} direct, {:?} more through", through / ROUNDS);
    }
}
