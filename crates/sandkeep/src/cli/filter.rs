//! Which sandboxes: what `ls` and `rm --all` can ask for.

use crate::cli::argument::pair;

#[derive(Clone, Debug, Default, clap::Args)]
pub struct Filter {
    /// Only those with this label; may be given several times
    #[arg(long = "label", short = 'l', value_name = "NAME=VALUE", value_parser = pair)]
    pub labels: Vec<(String, String)>,
    /// Only those in this state, such as running or stopped; may be given several times
    #[arg(long = "state", value_name = "STATE")]
    pub states: Vec<String>,
    /// Only those of this project
    #[arg(long, value_name = "NAME")]
    pub project: Option<String>,
}

impl Filter {
    /// As the API takes it.
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
