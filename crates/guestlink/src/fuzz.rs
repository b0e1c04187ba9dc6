//! Arbitrary bytes from a guest, through the real client. An exec always keeps its event order: started, output without
//! gaps, one end, nothing.

#[path = "../../../fuzz/mutation.rs"]
pub mod mutation;

use std::io::Write;
use std::os::unix::net::UnixStream;
use std::sync::Arc;

use super::client::GuestClient;
use super::leaf::NoLeaves;
use super::{ExecEvent, Execution, OutputStream};

/// Takes the bytes as everything that a guest ever answers to an exec.
pub fn hear_guest(bytes: &[u8]) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.expect("a runtime of one thread");
    runtime.block_on(async {
        let (ours, mut theirs) = UnixStream::pair().expect("a pair of sockets");
        ours.set_nonblocking(true).expect("a socket can be made non-blocking");
        theirs.set_nonblocking(true).expect("a socket can be made non-blocking");
        // Bytes that do not fit the socket are cut off, which a guest may do as well.
        let _ = theirs.write(bytes);
        drop(theirs);
        let home = std::fs::File::open("/").expect("there is a root");
        let client = GuestClient::new(home.into(), Arc::new(NoLeaves)).expect("a client");
        if let Ok(execution) = client.hear(ours).await {
            listen(execution, bytes.len()).await;
        }
    });
}

async fn listen(mut execution: Execution, said_max: usize) {
    let first = execution.next().await;
    assert_eq!(first, Some(ExecEvent::Started), "the first event");
    let (mut ends, mut said) = ([None, None], 0);
    loop {
        match execution.next().await.expect("an end comes before the events are over") {
            ExecEvent::Started => panic!("it started twice"),
            gap @ ExecEvent::Gap { .. } => panic!("{gap:?} from a guest"),
            ExecEvent::Output { stream, offset, data } => {
                let end = match stream {
                    OutputStream::Stdout => &mut ends[0],
                    OutputStream::Stderr => &mut ends[1],
                };
                assert!(end.is_none_or(|end| end == offset), "output with a gap");
                *end = Some(offset + data.len() as u64);
                said += data.len();
                assert!(said <= said_max, "more output than bytes");
            }
            ExecEvent::Ended(_) => break,
        }
    }
    assert!(execution.input().write(b"late").await.is_err(), "stdin ends with the exec");
    assert_eq!(execution.next().await, None, "something follows the end");
}

#[cfg(test)]
mod tests {
    use guest_proto::{End, FromGuest, How, ListedExec, VERSION, encode, preface};

    use super::mutation::{Mutations, corpus};
    use super::*;

    const ROUNDS: usize = 10_000;

    /// Valid conversations of a guest.
    fn conversations() -> Vec<Vec<u8>> {
        let end = |how| FromGuest::Ended(End { how, error: None, duration_ms: 7 });
        let out = |offset, text: &[u8]| FromGuest::Stdout { offset, data: text.to_vec() };
        let err = |offset, text: &[u8]| FromGuest::Stderr { offset, data: text.to_vec() };
        let started = || FromGuest::Started { pid: 2, stdin_offset: 0 };
        let conversations = [
            vec![started(), out(0, b"one"), err(0, b"two"), out(3, b"more"), end(How::Exited(3))],
            vec![started(), FromGuest::StdinWanted { up_to: 1 << 17 }, end(How::Signaled(9))],
            vec![started(), out(5, b"later"), out(10, b""), end(How::TimedOut)],
            vec![end(How::Canceled)],
            vec![FromGuest::Refused { reason: "no".to_owned() }],
            vec![FromGuest::Execs(vec![ListedExec {
                exec_id: "exec".to_owned(),
                leaf_name: "leaf".to_owned(),
                running: true,
            }])],
        ];
        let wire = |messages: Vec<FromGuest>| {
            let mut wire = preface(VERSION).to_vec();
            messages.iter().for_each(|message| encode(message, &mut wire));
            wire
        };
        conversations.into_iter().map(wire).collect()
    }

    #[test]
    fn no_bytes_from_a_guest_break_the_grammar_of_an_exec() {
        let mut seeds = conversations();
        seeds.extend(corpus("guest_to_host", &seeds));
        seeds.iter().for_each(|seed| hear_guest(seed));
        Mutations::of(seeds).take(ROUNDS).for_each(|bytes| hear_guest(&bytes));
    }
}
