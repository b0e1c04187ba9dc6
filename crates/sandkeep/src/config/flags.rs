//! The settings as flags of a command. They are generated from the table, so each has the same check, help and name
//! everywhere.

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::{Arg, ArgAction, ArgMatches, Command};

use super::settings::Settings;
use super::table::{self, Setting, Shape};
use super::{Surroundings, User, words};

/// Which configuration file to read.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct ConfigFile {
    /// The configuration file, also SANDKEEP_CONFIG [default: /etc/sandkeep/sandkeep.toml as root,
    /// else ~/.config/sandkeep/sandkeep.toml, if it is there]
    #[arg(long, value_name = "FILE")]
    pub config: Option<PathBuf>,
}

/// The settings given on the command line, by key.
#[derive(Clone, Debug, Default)]
pub struct Flags {
    pub given: BTreeMap<&'static str, String>,
}

/// `--log` is a global flag, and so not one of these.
const GLOBAL: &str = "log";

impl Flags {
    pub fn set(&mut self, key: &'static str, value: Option<String>) {
        self.given.extend(value.map(|value| (key, value)));
    }
}

impl clap::FromArgMatches for Flags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let mut flags = Self::default();
        flags.update_from_arg_matches(matches)?;
        Ok(flags)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        for row in table::rows().filter(|row| row.key != GLOBAL) {
            self.set(row.key, matches.get_one::<String>(row.key).cloned());
        }
        Ok(())
    }
}

impl clap::Args for Flags {
    fn augment_args(command: Command) -> Command {
        command.args(table::rows().filter(|row| row.key != GLOBAL).map(arg))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

fn arg(row: &'static Setting) -> Arg {
    let defaults = || Settings::defaults(&no_surroundings());
    let check = move |text: &str| (row.set)(&mut defaults(), text).map(|()| text.to_owned());
    let arg = Arg::new(row.key)
        .long(row.flag())
        .value_name(row.value_name)
        .action(ArgAction::Set)
        .value_parser(check)
        .help(format!("{} [default: {}]", row.help, words::default_in_words(row, &defaults())));
    let arg = match row.shape {
        Shape::Switch => arg.num_args(0..=1).require_equals(true).default_missing_value("true"),
        Shape::Text | Shape::Integer | Shape::Decimal | Shape::List => arg,
    };
    match row.key.split_once('.') {
        // Too many for the short help, and rarely used.
        Some((group, _)) => arg.help_heading(heading(group)).hide_short_help(true),
        None => arg,
    }
}

fn heading(group: &str) -> String {
    let mut letters = group.chars();
    letters.next().map_or_else(String::new, |first| first.to_uppercase().chain(letters).collect())
}

/// Checking a value and showing a default need no environment.
fn no_surroundings() -> Surroundings {
    Surroundings { env: BTreeMap::new(), user: User::Root }
}
