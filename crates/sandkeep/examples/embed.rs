//! A broker in this very process: makes a sandbox, runs a command in it, and destroys it.

use std::process::ExitCode;

use sandkeep::embed::{self, Embedded};
use sandkeep_broker::{ExecDraft, error::Error};
use sandkeep_core::{Principal, SpecDraft};
use sandkeep_guestlink::ExecEvent;

fn main() -> ExitCode {
    if let Some(exit) = embed::helper() {
        return exit;
    }
    let runtime = tokio::runtime::Runtime::new().expect("threads");
    match runtime.block_on(run()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

async fn run() -> Result<(), Error> {
    let embedded = Embedded::open(Vec::new()).await?;
    let (broker, who) = (embedded.broker(), Principal::local());
    let sandbox = broker.create(&who, SpecDraft::default()).await?;
    let argv = ["echo", "hello from a sandbox"].map(str::to_owned).to_vec();
    let draft = ExecDraft { argv, ..ExecDraft::default() };
    let mut exec = broker.exec(&who, &sandbox.id, draft).await?;
    while let Some(event) = exec.next().await {
        match event {
            ExecEvent::Started | ExecEvent::Gap { .. } => {}
            ExecEvent::Output { data, .. } => print!("{}", String::from_utf8_lossy(&data)),
            ExecEvent::Ended(end) => println!("it {}", end.outcome.name()),
        }
    }
    broker.destroy(&who, &sandbox.id).await?;
    embedded.close().await
}
