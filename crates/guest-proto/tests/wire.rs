//! Every message survives encoding, and no bytes from a peer can make the reader panic or grow.

use guest_proto::*;
use proptest::collection::vec;
use proptest::prelude::*;

fn text() -> impl Strategy<Value = String> {
    vec(any::<char>(), 0..20).prop_map(|chars| chars.into_iter().collect())
}

fn blob() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..300)
}

fn offsets() -> impl Strategy<Value = Offsets> {
    any::<(u64, u64)>().prop_map(|(stdout, stderr)| Offsets { stdout, stderr })
}

fn leaf() -> impl Strategy<Value = LeafKind> {
    prop_oneof![Just(LeafKind::None), Just(LeafKind::V1), Just(LeafKind::V2)]
}

fn exec() -> impl Strategy<Value = Exec> {
    let command = (text(), vec(text(), 1..5), vec((text(), text()), 0..5), text());
    let options = (
        any::<Option<u64>>(),
        prop_oneof![Just(StdinMode::Null), Just(StdinMode::Piped)],
        prop_oneof![Just(Privilege::None), Just(Privilege::Root)],
        leaf(),
        text(),
        proptest::option::of(text()),
    );
    (command, options).prop_map(
        |((exec_id, argv, env, user), (timeout_ms, stdin, privilege, leaf, leaf_name, cwd))| Exec {
            exec_id,
            argv,
            env,
            cwd,
            user,
            stdin,
            timeout_ms,
            privilege,
            leaf,
            leaf_name,
        },
    )
}

fn size() -> impl Strategy<Value = TerminalSize> {
    any::<(u16, u16)>().prop_map(|(rows, cols)| TerminalSize { rows, cols })
}

fn program() -> impl Strategy<Value = ShellProgram> {
    prop_oneof![Just(ShellProgram::Any), Just(ShellProgram::Bash), Just(ShellProgram::Sh)]
}

fn shell_open() -> impl Strategy<Value = ShellOpen> {
    (exec(), program()).prop_map(|(exec, program)| ShellOpen {
        shell_id: exec.exec_id,
        program,
        env: exec.env,
        cwd: exec.cwd,
        user: exec.user,
        privilege: exec.privilege,
        leaf: exec.leaf,
        leaf_name: exec.leaf_name,
        created_ms: exec.timeout_ms.unwrap_or(0),
    })
}

fn shell_exec() -> impl Strategy<Value = ShellExec> {
    (exec(), text(), text()).prop_map(|(exec, shell_id, command)| ShellExec {
        shell_id,
        exec_id: exec.exec_id,
        command,
        stdin: exec.stdin,
        timeout_ms: exec.timeout_ms,
    })
}

fn listed_shell() -> impl Strategy<Value = ListedShell> {
    let state =
        prop_oneof![Just(ShellState::Ready), Just(ShellState::Busy), Just(ShellState::Ended)];
    (text(), text(), program(), state, any::<u32>(), any::<u32>()).prop_map(
        |(shell_id, leaf_name, program, state, pid, waiting)| ListedShell {
            shell_id,
            leaf_name,
            program,
            state,
            pid,
            waiting,
            created_ms: u64::from(pid),
        },
    )
}

fn shell_end() -> impl Strategy<Value = ShellEnd> {
    let fate = prop_oneof![Just(Fate::Kept), Just(Fate::Replaced), Just(Fate::Ended)];
    (end(), fate, offsets()).prop_map(|(end, fate, skipped)| ShellEnd { end, fate, skipped })
}

fn program_source() -> impl Strategy<Value = ProgramSource> {
    let bytes = any::<u64>().prop_map(|len| ProgramSource::Bytes { len });
    prop_oneof![Just(ProgramSource::Descriptor), bytes]
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        Just(Op::Ping),
        exec().prop_map(Op::Exec),
        (text(), offsets()).prop_map(|(exec_id, from)| Op::Attach { exec_id, from }),
        (text(), any::<i32>()).prop_map(|(exec_id, signal)| Op::Signal { exec_id, signal }),
        text().prop_map(|exec_id| Op::Cancel { exec_id }),
        Just(Op::List),
        any::<u64>().prop_map(|grace_ms| Op::Terminate { grace_ms }),
        any::<u16>().prop_map(|port| Op::Dial { port }),
        any::<u16>().prop_map(|port| Op::DialThrough { port }),
        (exec(), size()).prop_map(|(exec, size)| Op::Terminal { exec, size }),
        shell_open().prop_map(Op::ShellOpen),
        shell_exec().prop_map(Op::ShellExec),
        Just(Op::Shells),
        text().prop_map(|shell_id| Op::ShellClose { shell_id }),
        Just(Op::ShellUsers),
        (text(), any::<u64>()).prop_map(|(exec_id, grace_ms)| Op::End { exec_id, grace_ms }),
        (text(), program_source()).prop_map(|(program, source)| Op::Keep { program, source }),
        (text(), exec()).prop_map(|(program, exec)| Op::ExecKept { program, exec }),
    ]
}

fn to_guest() -> impl Strategy<Value = ToGuest> {
    prop_oneof![
        blob().prop_map(ToGuest::Stdin),
        Just(ToGuest::StdinEof),
        offsets().prop_map(ToGuest::Ack),
        Just(ToGuest::Forget),
        size().prop_map(ToGuest::Resize),
        blob().prop_map(ToGuest::Program),
    ]
}

fn end() -> impl Strategy<Value = End> {
    let how = prop_oneof![
        any::<i32>().prop_map(How::Exited),
        any::<i32>().prop_map(How::Signaled),
        Just(How::TimedOut),
        Just(How::Canceled),
    ];
    (how, proptest::option::of(text()), any::<u64>()).prop_map(|(how, error, duration_ms)| End {
        how,
        error,
        duration_ms,
    })
}

fn from_guest() -> impl Strategy<Value = FromGuest> {
    let listed = (text(), text(), any::<bool>())
        .prop_map(|(exec_id, leaf_name, running)| ListedExec { exec_id, leaf_name, running });
    prop_oneof![
        Just(FromGuest::Pong),
        text().prop_map(|reason| FromGuest::Refused { reason }),
        Just(FromGuest::Done),
        vec(listed, 0..5).prop_map(FromGuest::Execs),
        any::<(u32, u64)>()
            .prop_map(|(pid, stdin_offset)| FromGuest::Started { pid, stdin_offset }),
        (any::<u64>(), blob()).prop_map(|(offset, data)| FromGuest::Stdout { offset, data }),
        (any::<u64>(), blob()).prop_map(|(offset, data)| FromGuest::Stderr { offset, data }),
        any::<u64>().prop_map(|up_to| FromGuest::StdinWanted { up_to }),
        end().prop_map(FromGuest::Ended),
        Just(FromGuest::Dialed { carrier: Carrier::Descriptor }),
        Just(FromGuest::Dialed { carrier: Carrier::Connection }),
        Just(FromGuest::PortClosed),
        listed_shell().prop_map(FromGuest::ShellOpened),
        vec(listed_shell(), 0..5).prop_map(FromGuest::Shells),
        shell_end().prop_map(FromGuest::ShellEnded),
        Just(FromGuest::ShellRefused(ShellRefusal::Full)),
        vec((text(), text()), 0..5).prop_map(FromGuest::ShellUsers),
        Just(FromGuest::NotKept),
    ]
}

/// Sends the messages through a reader in pieces of `cut` bytes.
fn through<T>(messages: &[T], cut: usize) -> Vec<T>
where
    T: serde::Serialize + serde::de::DeserializeOwned,
{
    let mut wire = Vec::new();
    for message in messages {
        encode(message, &mut wire);
    }
    let mut reader = FrameReader::new();
    let mut out = Vec::new();
    for piece in wire.chunks(cut) {
        reader.feed(piece);
        while let Some(message) = reader.next_message().expect("our own frames decode") {
            out.push(message);
        }
    }
    assert!(reader.is_empty());
    out
}

proptest! {
    #[test]
    fn every_op_survives_the_wire(ops in vec(op(), 1..4), cut in 1usize..64) {
        prop_assert_eq!(through(&ops, cut), ops);
    }

    #[test]
    fn every_message_to_the_guest_survives_the_wire(messages in vec(to_guest(), 1..6), cut in 1usize..64) {
        prop_assert_eq!(through(&messages, cut), messages);
    }

    #[test]
    fn every_message_from_the_guest_survives_the_wire(messages in vec(from_guest(), 1..6), cut in 1usize..64) {
        prop_assert_eq!(through(&messages, cut), messages);
    }

    #[test]
    fn random_bytes_never_panic(bytes in vec(any::<u8>(), 0..2000), short in any::<bool>()) {
        // Half of the runs get a plausible length, so that the payload is looked at too.
        let mut wire = Vec::new();
        if short {
            wire.extend_from_slice(&(bytes.len() as u32).to_le_bytes());
        }
        wire.extend_from_slice(&bytes);
        drain::<Op>(&wire);
        drain::<ToGuest>(&wire);
        drain::<FromGuest>(&wire);
    }

    #[test]
    fn only_our_preface_is_taken(bytes in any::<[u8; PREFACE_LEN]>()) {
        match read_preface(bytes) {
            Ok(version) => prop_assert_eq!(preface(version), bytes),
            Err(error) => prop_assert_eq!(error, DecodeError::NotOurs),
        }
    }
}

fn drain<T: serde::de::DeserializeOwned>(wire: &[u8]) {
    let mut reader = FrameReader::new();
    reader.feed(wire);
    while let Ok(Some(_)) = reader.next_message::<T>() {}
}

#[test]
fn an_oversized_frame_is_refused_before_it_is_read() {
    let mut reader = FrameReader::new();
    reader.feed(&(FRAME_MAX as u32 + 1).to_le_bytes());
    assert_eq!(reader.next_message::<Op>(), Err(DecodeError::TooLong { len: FRAME_MAX + 1 }));
}

#[test]
fn bytes_after_a_message_in_its_frame_are_refused() {
    let mut wire = Vec::new();
    encode(&Op::Ping, &mut wire);
    wire[0] += 1;
    wire.push(0);
    let mut reader = FrameReader::new();
    reader.feed(&wire);
    assert_eq!(reader.next_message::<Op>(), Err(DecodeError::Malformed));
}

/// A block copy has the same bytes on the wire as an encoding field by field.
#[test]
fn blocks_are_encoded_as_messages_are() {
    for len in [0, 1, 127, 128, 300, 16_384, CHUNK_MAX] {
        let data: Vec<u8> = (0..len).map(|index| index as u8).collect();
        let (mut block, mut message) = (vec![7], vec![7]);
        encode_stdin(&data, &mut block);
        encode(&ToGuest::Stdin(data.clone()), &mut message);
        assert_eq!(block, message, "{len} bytes of stdin");
        for offset in [0, 127, 128, u64::from(u32::MAX), u64::MAX] {
            let messages = [
                (Stream::Stdout, FromGuest::Stdout { offset, data: data.clone() }),
                (Stream::Stderr, FromGuest::Stderr { offset, data: data.clone() }),
            ];
            for (stream, said) in messages {
                let (mut block, mut message) = (Vec::new(), Vec::new());
                encode_stream(stream, offset, &data, &mut block);
                encode(&said, &mut message);
                assert_eq!(block, message, "{len} bytes of {stream:?} at {offset}");
            }
        }
    }
}

/// Frames come whole however they are read, and a long one is not read through the small buffer.
#[test]
fn a_reader_that_reads_itself_finds_the_same_messages() {
    let long = ToGuest::Stdin(vec![9; CHUNK_MAX]);
    let messages = [ToGuest::StdinEof, long.clone(), ToGuest::Forget, long, ToGuest::StdinEof];
    let mut wire = Vec::new();
    messages.iter().for_each(|message| encode(message, &mut wire));
    for most in [1, 7, 1000, usize::MAX] {
        let (mut reader, mut rest, mut heard, mut reads) =
            (FrameReader::new(), &wire[..], Vec::new(), 0);
        while !rest.is_empty() {
            let count = reader.fill(&mut [0; 512], |space| {
                let count = space.len().min(rest.len()).min(most);
                space[..count].copy_from_slice(&rest[..count]);
                rest = &rest[count..];
                Ok::<_, ()>(count)
            });
            assert!(count.is_ok_and(|count| count > 0));
            reads += 1;
            while let Some(message) = reader.next_message::<ToGuest>().expect("whole frames") {
                heard.push(message);
            }
        }
        assert_eq!(heard, messages, "at most {most} at once");
        assert!(most < usize::MAX || reads < 8, "{reads} reads");
    }
    let mut reader = FrameReader::new();
    reader.feed(&wire[..20]);
    assert_eq!(reader.fill(&mut [0; 512], |_| Err::<usize, _>("gone")), Err("gone"));
    reader.feed(&wire[20..]);
    assert_eq!(reader.next_message(), Ok(Some(ToGuest::StdinEof)), "a failed read adds nothing");
}
