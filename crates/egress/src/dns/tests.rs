use super::*;

/// A query as programs send it.
pub(crate) fn query(name: &str, kind: u16) -> Vec<u8> {
    let mut bytes = vec![0x12, 0x34, 1, 0, 0, 1, 0, 0, 0, 0, 0, 0];
    bytes.extend(encoded(name));
    bytes.extend(kind.to_be_bytes());
    bytes.extend(CLASS_IN.to_be_bytes());
    bytes
}

fn code(answer: &[u8]) -> u8 {
    answer[3] & 0x0f
}

fn addresses() -> Answer {
    Answer::Addresses(vec![Ipv4Addr::new(198, 18, 0, 9)], vec![Ipv6Addr::LOCALHOST])
}

#[test]
fn an_answer_repeats_the_question_as_it_was_written() {
    let asked = query("Api.EXAMPLE.com", A);
    let answer = answer(&asked, |question| {
        assert_eq!(question.name.as_deref(), Some("api.example.com"));
        assert_eq!(question.kind, Kind::A);
        addresses()
    });
    let answer = answer.expect("an answer");
    assert_eq!(answer[..4], [0x12, 0x34, 0x81, 0x80]);
    assert_eq!(answer[4..12], [0, 1, 0, 1, 0, 0, 0, 0]);
    assert_eq!(answer[12..asked.len()], asked[12..]);
    assert_eq!(answer[asked.len()..], [0xc0, 12, 0, 1, 0, 1, 0, 0, 0, 60, 0, 4, 198, 18, 0, 9]);
}

#[test]
fn kinds_get_their_records_and_others_none() {
    for (kind, records) in [(A, 1), (AAAA, 1), (ANY, 2), (65, 0), (64, 0), (16, 0), (257, 0)] {
        let answer = answer(&query("a.example", kind), |_| addresses()).expect("an answer");
        assert_eq!((code(&answer), answer[7]), (NO_ERROR, records), "{kind}");
    }
}

#[test]
fn what_is_no_question_is_answered_with_an_error_or_not_at_all() {
    let never = |_: &Question| -> Answer { panic!("it was decided") };
    let good = query("a.example", A);
    let changed = |at: usize, byte: u8| {
        let mut changed = good.clone();
        changed[at] = byte;
        changed
    };
    for (message, expected) in [
        (changed(2, 0x81), None),
        (good[..11].to_vec(), None),
        (changed(2, 0x28), Some(NOT_IMPLEMENTED)),
        (changed(5, 0), Some(FORMAT_ERROR)),
        (changed(5, 2), Some(FORMAT_ERROR)),
        (changed(12, 0xc0), Some(FORMAT_ERROR)),
        (changed(12, 63), Some(FORMAT_ERROR)),
        (good[..good.len() - 1].to_vec(), Some(FORMAT_ERROR)),
        (query(&"abcdefg.".repeat(40), A), Some(FORMAT_ERROR)),
        (changed(good.len() - 1, 3), Some(REFUSED)),
    ] {
        let answer = answer(&message, never);
        assert_eq!(answer.as_deref().map(code), expected, "{message:?}");
    }
    // Labels that no host name has are decided, so that they are refused as names.
    let odd = changed(13, b' ');
    let answer = answer(&odd, |question| {
        assert_eq!(question.name, None);
        Answer::Refused
    });
    assert_eq!(answer.as_deref().map(code), Some(REFUSED));
}
