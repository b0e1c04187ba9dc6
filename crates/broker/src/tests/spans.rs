use std::io;
use std::sync::{Arc, Mutex};

use tracing::{Instrument, Level, info_span};

use super::world::{World, create, me};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().expect("nobody panics").write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test]
async fn a_supervisor_logs_a_command_under_the_request_that_asked_for_it() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(Level::DEBUG)
        .with_ansi(false)
        .with_writer(move || writer.clone());
    let _here = tracing::subscriber::set_default(subscriber.finish());
    let world = World::new();
    let broker = world.open().await;
    let id = create(&broker).instrument(info_span!("request", number = 1)).await.id;
    let second = info_span!("request", number = 2);
    broker.stop(&me(), &id).instrument(second).await.expect("stops");
    let log = String::from_utf8(log.0.lock().expect("nobody panics").clone()).expect("text");
    for (command, request) in [("create", "request{number=1}"), ("stop", "request{number=2}")] {
        for step in ["asking the supervisor", "carrying out a command", "a command succeeded"] {
            let logged = |line: &str| line.contains(step) && line.contains(request);
            assert!(log.lines().any(logged), "no line {step:?} for {command}:\n{log}");
        }
    }
}
