//! How PURISTA makes a token of a subject from a name. From left to right, the first that fits:
//!
//! 1. the longest run of two or more capitals before a capital and a small letter, or before the end of a word;
//! 2. a capital or none, small letters, digits;
//! 3. one capital;
//! 4. digits.
//!
//! What fits none is left out. The parts are joined by `_` in small letters; a name without any stays as it is.

/// The token of a name.
pub fn snake(name: &str) -> String {
    let chars: Vec<char> = name.chars().collect();
    let (mut parts, mut at) = (Vec::new(), 0);
    while at < chars.len() {
        match part_len(&chars[at..]) {
            0 => at += 1,
            len => {
                parts.push(chars[at..at + len].iter().collect::<String>().to_ascii_lowercase());
                at += len;
            }
        }
    }
    if parts.is_empty() { name.to_owned() } else { parts.join("_") }
}

/// How many characters of the beginning are one part.
fn part_len(rest: &[char]) -> usize {
    let capitals = run(rest, |c| c.is_ascii_uppercase());
    if let Some(len) = (2..=capitals).rev().find(|len| ends_acronym(&rest[*len..])) {
        return len;
    }
    let first = capitals.min(1);
    let small = run(&rest[first..], |c| c.is_ascii_lowercase());
    if small > 0 {
        return first + small + run(&rest[first + small..], |c| c.is_ascii_digit());
    }
    if first == 1 { 1 } else { run(rest, |c| c.is_ascii_digit()) }
}

/// Whether capitals before this are a part of their own.
fn ends_acronym(rest: &[char]) -> bool {
    match rest {
        [capital, small, ..] if capital.is_ascii_uppercase() => small.is_ascii_lowercase(),
        [next, ..] => !(next.is_ascii_alphanumeric() || *next == '_'),
        [] => true,
    }
}

fn run(chars: &[char], of: impl Fn(char) -> bool) -> usize {
    chars.iter().take_while(|c| of(**c)).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_are_those_of_purista() {
        for (name, token) in [
            ("createSandbox", "create_sandbox"),
            ("HTTPServer", "http_server"),
            ("ABC1", "a_b_c_1"),
            ("ABCx", "ab_cx"),
            ("AB_C", "a_b_c"),
            ("AB-C", "ab_c"),
            ("userIDs", "user_i_ds"),
            ("1a", "1_a"),
            ("müller", "m_ller"),
            ("日本", "日本"),
            ("user@Example.com", "user_example_com"),
            ("726cd9414c", "726_cd9414_c"),
            ("__empty__", "empty"),
            ("Sandbox", "sandbox"),
            ("1", "1"),
            ("infoServiceFunctionAdded", "info_service_function_added"),
            ("a.b", "a_b"),
            ("", ""),
        ] {
            assert_eq!(snake(name), token, "{name}");
        }
    }
}
