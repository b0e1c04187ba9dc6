//! Documents for people: of limited length, and without phrases that make a reader start the sentence again.

/// Maximum size of a document in bytes, by path.
const SIZES: &[(&str, usize)] =
    &[("README.md", 9 * 1024), ("docs/architecture/overview.md", 12 * 1024)];

/// Each has an established word: out of memory, reported, the caller, frozen, trusted, fix.
const PHRASES: &[&str] = &[
    "for want of",
    " is told",
    " are told",
    "whoever",
    "stand still",
    "stands still",
    "vouch",
    "of its own making",
    " mend ",
    "gives way",
    "give way",
    "if need be",
];

pub fn problems(path: &str, text: &str) -> Vec<String> {
    let limit = SIZES.iter().find(|(limited, _)| *limited == path);
    let too_long = limit.filter(|(_, limit)| text.len() > *limit);
    let too_long =
        too_long.map(|(_, limit)| format!("{path}: {} bytes, limit {limit}", text.len()));
    let lower = text.to_lowercase();
    let phrases = PHRASES.iter().filter(|phrase| lower.contains(**phrase));
    let phrases = phrases.map(|phrase| format!("{path}: {phrase:?}: use the established word"));
    let relatives = paragraphs(text).into_iter().flat_map(|paragraph| free_relatives(&paragraph));
    let relatives = relatives.map(|sentence| format!("{path}: name the subject: {sentence:?}"));
    too_long.into_iter().chain(phrases).chain(relatives).collect()
}

/// Running text: paragraphs, list items and table cells, without headings and code.
fn paragraphs(text: &str) -> Vec<String> {
    let mut found = vec![String::new()];
    let mut code = false;
    for line in text.lines().map(str::trim) {
        code ^= line.starts_with("```");
        let item = line.strip_prefix("- ");
        if line.is_empty() || line.starts_with(['#', '|', '`']) || item.is_some() || code {
            found.push(String::new());
        }
        if line.starts_with('|') {
            found.extend(line.split(" | ").map(|cell| cell.trim_matches(['|', ' ']).to_owned()));
            found.push(String::new());
        } else if !code && !line.starts_with(['#', '`']) {
            let last = found.last_mut().expect("it begins with one");
            *last += item.unwrap_or(line);
            *last += " ";
        }
    }
    found
}

/// Sentences that start with "What" or "Who" and are not questions.
fn free_relatives(paragraph: &str) -> Vec<String> {
    let sentences = paragraph.split_inclusive(". ").map(str::trim);
    let begins = |sentence: &&str| ["What ", "Who "].iter().any(|word| sentence.starts_with(word));
    // A few words without a verb are a title, as in a table cell.
    let is_sentence = |sentence: &&str| sentence.ends_with('.') && !sentence.contains('?');
    sentences.filter(begins).filter(is_sentence).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_long_readme_is_found() {
        assert_eq!(problems("README.md", &"x ".repeat(5000)).len(), 1);
        assert_eq!(problems("docs/other.md", &"x ".repeat(5000)).len(), 0);
    }

    #[test]
    fn a_phrase_that_has_an_established_word_is_found() {
        assert_eq!(problems("a.md", "It was killed for want of memory.").len(), 1);
        assert_eq!(problems("a.md", "Whoever sends is told of it.").len(), 2);
    }

    #[test]
    fn a_sentence_without_a_named_subject_is_found() {
        for text in
            ["What is left goes.", "- It ends.\n  What is left\n  goes.", "| a | Who asks waits. |"]
        {
            assert_eq!(problems("a.md", text).len(), 1, "{text}");
        }
        for text in
            ["# What it has.", "What is it? Nothing.", "```\nWhat runs.\n```", "| What | it is |"]
        {
            assert_eq!(problems("a.md", text), [""; 0], "{text}");
        }
    }
}
