//! Reads the command line. For a misspelt command clap suggests similar ones, also those that only programs call; they
//! are left out here.

use std::collections::BTreeSet;

use clap::error::{ContextKind, ContextValue};
use clap::{ArgMatches, Command, Error};

/// Ends the process if the command line is invalid.
pub fn matches(command: Command) -> ArgMatches {
    let hidden = hidden(&command);
    command.try_get_matches().unwrap_or_else(|mut error| {
        suggest_only_shown(&mut error, &hidden);
        error.exit()
    })
}

fn hidden(command: &Command) -> BTreeSet<String> {
    let hidden = command.get_subcommands().filter(|command| command.is_hide_set());
    hidden.map(|command| command.get_name().to_owned()).collect()
}

fn suggest_only_shown(error: &mut Error, hidden: &BTreeSet<String>) {
    let kind = ContextKind::SuggestedSubcommand;
    let Some(ContextValue::Strings(names)) = error.get(kind) else { return };
    let shown: Vec<String> = names.iter().filter(|name| !hidden.contains(*name)).cloned().collect();
    if shown.is_empty() {
        drop(error.remove(kind))
    } else {
        drop(error.insert(kind, ContextValue::Strings(shown)))
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;
    use crate::cli::Cli;

    #[test]
    fn what_is_hidden_is_never_suggested() {
        let hidden = hidden(&Cli::command());
        assert!(hidden.contains("launcher") && hidden.contains("stage"), "{hidden:?}");
        for misspelt in hidden.iter().map(|name| format!("{name}x")).chain(["stag".to_owned()]) {
            let parsed = Cli::command().try_get_matches_from(["sandkeep", &misspelt]);
            let mut error = parsed.expect_err("there is no such command");
            suggest_only_shown(&mut error, &hidden);
            let told = error.to_string();
            for name in &hidden {
                assert!(!told.contains(&format!("'{name}'")), "{told}");
            }
        }
    }
}
