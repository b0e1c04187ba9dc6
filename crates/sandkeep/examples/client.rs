//! The same as `embed.rs` over HTTP: asks the daemon that SANDKEEP_URL and SANDKEEP_API_KEY name.

use futures_util::TryStreamExt;
use sandkeep_client::{Client, Error, ExecEvent, ExecRequest, SpecDraft};

#[tokio::main]
async fn main() -> Result<(), Error> {
    let client = Client::from_env()?;
    let sandbox = client.create(&SpecDraft::default()).await?;

    let answer = client.exec(&sandbox.id, &ExecRequest::new(["echo", "hello"])).await?;
    print!("{}", answer.stdout.stdout.unwrap_or_default());

    let request = ExecRequest::new(["sh", "-c", "echo as it comes; exit 3"]);
    let mut events = std::pin::pin!(client.exec_events(&sandbox.id, &request).await?.into_stream());
    while let Some(event) = events.try_next().await? {
        match event {
            ExecEvent::Output { data, .. } => print!("{}", String::from_utf8_lossy(&data)),
            ExecEvent::Ended { ending, .. } => println!("exit code {:?}", ending.exit_code),
            _ => {}
        }
    }
    client.destroy(&sandbox.id).await
}
