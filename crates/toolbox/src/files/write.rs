//! New content for a file, as it arrives.

use std::fs;
use std::path::Path;

use super::replacement::{Before, Replacement};
use super::stat::stat;
use crate::answer::{Failure, FailureKind, Written};
use crate::request::{Parents, WriteFile};
use crate::wire::{DATA_MAX, Input};

pub fn write(request: &WriteFile, input: &mut Input) -> Result<Written, Failure> {
    let path = request.path.as_path();
    if request.path.as_bytes().last() == Some(&b'/') {
        let message = "a path that ends with / is a directory, not a file";
        return Err(Failure::new(FailureKind::IsADirectory, message).at(path));
    }
    make_parents(path, request.parents)?;
    let mut replacement = Replacement::of(path)?;
    let mut buffer = vec![0; DATA_MAX];
    loop {
        match input.data(&mut buffer)? {
            0 => break,
            count => replacement.write(&buffer[..count])?,
        }
    }
    let before = replacement.finish(request.mode)?;
    Ok(Written { entry: stat(&request.path)?, created: before == Before::Absent })
}

/// Creates missing parent directories, if requested.
pub fn make_parents(path: &Path, parents: Parents) -> Result<(), Failure> {
    let above = path.parent().filter(|above| !above.as_os_str().is_empty());
    match (parents, above) {
        (Parents::Make, Some(above)) => {
            fs::create_dir_all(above).map_err(|error| Failure::from_io(&error, Some(above)))
        }
        (Parents::Make, None) | (Parents::Require, _) => Ok(()),
    }
}
