//! Filters of sandboxes, for `ls` and `rm --all`.

use crate::cli::argument::pair;

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Filter {
    /// Only sandboxes with this label; repeatable
    #[arg(long = "label", short = 'l', value_name = "NAME=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// Only sandboxes in this state, such as running or stopped; repeatable
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<String>,
    /// Only sandboxes of this project
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
}

impl Filter {
    /// As query parameters.
    pub fn query(&self) -> Vec<(&'static str, String)> {
        let labels = self.labels.iter().map(|(name, value)| ("label", format!("{name}={value}")));
        let states = self.states.iter().map(|state| ("state", state.clone()));
        let project = self.project.iter().map(|project| ("project", project.clone()));
        labels.chain(states).chain(project).collect()
    }

    pub fn is_empty(&self) -> bool {
        self.query().is_empty()
    }
}
