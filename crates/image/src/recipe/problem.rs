//! Problems of a build file, with their locations.

use sandkeep_core::limits::{
    BUILD_MOUNTS_MAX, RECIPE_EXPANDED_MAX_BYTES, RECIPE_LINES_MAX, RECIPE_MAX_BYTES,
    RECIPE_PORTS_MAX, RECIPE_STEPS_MAX,
};

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}: {problem}")]
pub struct RecipeError {
    /// Counted from 1.
    pub line: usize,
    pub problem: Problem,
}

impl RecipeError {
    pub(super) fn at(line: usize) -> impl Fn(Problem) -> Self {
        move |problem| Self { line, problem }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Problem {
    #[error("the file is larger than {RECIPE_MAX_BYTES} bytes")]
    TooLarge,
    #[error("there are more than {RECIPE_LINES_MAX} lines")]
    TooManyLines,
    #[error("there are more than {RECIPE_STEPS_MAX} steps")]
    TooManySteps,
    #[error(
        "with their variables expanded, texts are longer or more than there may be; \
         {RECIPE_EXPANDED_MAX_BYTES} bytes is the most for one instruction, and less for ENV and ARG"
    )]
    TooLong,
    #[error("there are more than {RECIPE_PORTS_MAX} ports")]
    TooManyPorts,
    #[error("there is nothing to build: say FROM what")]
    Nothing,
    #[error("{instruction} is not supported here; supported are {supported}")]
    Unknown { instruction: String, supported: String },
    #[error("{instruction} comes before FROM; only ARG may")]
    BeforeFrom { instruction: String },
    #[error("{instruction} needs {needs}")]
    Needs { instruction: &'static str, needs: &'static str },
    #[error("{instruction} does not take {what}")]
    DoesNotTake { instruction: &'static str, what: String },
    #[error("{text:?} cannot be read: {reason}")]
    Text { text: String, reason: &'static str },
    #[error("there is no stage {name:?} before this one")]
    NoStage { name: String },
    #[error(
        "{name:?} is not the name of a stage: it must begin with a letter and go on with letters, digits, - _ and ."
    )]
    StageName { name: String },
    #[error("there is a stage {name:?} already")]
    StageTwice { name: String },
    #[error("the image has no name: {written:?} comes to nothing")]
    NoImage { written: String },
    #[error("this is for {wanted}, and this machine is {here}")]
    Platform { wanted: String, here: String },
    #[error("{url} would have to be fetched; a build has no network: copy a local file instead")]
    Url { url: String },
    #[error("--mount={mount}: {problem}")]
    Mount { mount: String, problem: String },
    #[error("there are more than {BUILD_MOUNTS_MAX} mounts")]
    TooManyMounts,
    #[error("the here-document {name:?} has no end")]
    NoEnd { name: String },
    #[error("{value:?} is not {wanted}")]
    Value { value: String, wanted: &'static str },
    #[error("{name}: {message}")]
    Unset { name: String, message: String },
}
