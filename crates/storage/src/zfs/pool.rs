//! The data directory's part of a pool. It is recorded before anything is created there, so nothing is ever created
//! without a record.

use std::fs::{DirBuilder, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use super::command::{Reach, Tool, argument};
use super::names::{Dataset, Names, OWN};
use super::{DatasetOrigin, Zfs, io_error, place, random, unusable};
use crate::StorageError;
use sandkeep_sys::mount;
use sandkeep_tree::Ids;

const FILE: &str = "pool";

/// The record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    own: Dataset,
    /// Determined once: existing files have one kind of ids or the other permanently.
    ids: Option<Ids>,
}

impl Claim {
    /// `None` if there is no record yet.
    pub fn read(place: &Path) -> io::Result<Option<Self>> {
        let text = match std::fs::read_to_string(place.join(FILE)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            text => text?,
        };
        let strange = || io::Error::other(format!("{FILE} of {} is damaged", place.display()));
        let mut lines = text.lines();
        let own = lines.next().and_then(|line| line.strip_prefix("dataset "));
        let own = own.and_then(|own| own.parse().ok()).ok_or_else(strange)?;
        let ids = match lines.next() {
            None => None,
            Some("ids plain") => Some(Ids::Plain),
            Some("ids shifted") => Some(Ids::Shifted),
            Some(_) => return Err(strange()),
        };
        Ok(Some(Self { own, ids }))
    }

    pub fn own(&self) -> &str {
        self.own.as_str()
    }

    /// The dataset that contains ours.
    pub fn given(&self) -> Option<Dataset> {
        self.own.as_str().rsplit_once('/').and_then(|(given, _)| given.parse().ok())
    }

    fn write(&self, place: &Path) -> io::Result<()> {
        let ids = match self.ids {
            None => "",
            Some(Ids::Plain) => "ids plain\n",
            Some(Ids::Shifted) => "ids shifted\n",
        };
        let draft = place.join(format!("{FILE}.new"));
        let mut file = File::create(&draft)?;
        file.write_all(format!("dataset {}\n{ids}", self.own).as_bytes())?;
        file.sync_all()?;
        std::fs::rename(draft, place.join(FILE))?;
        File::open(place)?.sync_all()
    }
}

impl Zfs {
    pub(super) fn open(data_dir: &Path, given: &Dataset) -> Result<Self, StorageError> {
        if !rustix::process::geteuid().is_root() {
            return Err(unusable("mounting datasets needs root"));
        }
        let tool = Tool::find()?;
        let kind = tool.get(given.as_str(), "type", Reach::Itself);
        match kind.map_err(|error| unusable(error.to_string()))?.first() {
            Some(row) if row.value == "filesystem" => {}
            Some(_) | None => return Err(unusable(format!("{given} is no filesystem"))),
        }
        let place = place::of(data_dir);
        let failed = |source| io_error("open its directory", source);
        argument(&place).map_err(failed)?;
        DirBuilder::new().recursive(true).mode(0o700).create(&place).map_err(failed)?;
        let claim = claim(&place, given)?;
        let names = Names::new(claim.own.as_str().to_owned());
        let ids = claim.ids.unwrap_or(Ids::Plain);
        let mut zfs = Self {
            tool,
            names,
            place,
            ids,
            changing: Mutex::new(()),
            in_use: Mutex::default(),
            lenient: Mutex::default(),
        };
        zfs.make_rooms().map_err(|source| io_error("make its datasets", source))?;
        if claim.ids.is_none() {
            zfs.ids = zfs.try_ids().map_err(|source| io_error("try to map ids", source))?;
            let claim = Claim { ids: Some(zfs.ids), ..claim };
            claim.write(&zfs.place).map_err(failed)?;
        }
        zfs.find_lenient().map_err(|source| io_error("read the limits of its volumes", source))?;
        Ok(zfs)
    }

    fn make_rooms(&self) -> io::Result<()> {
        let own = self.names.own();
        let common = ["mountpoint=none", "setuid=off", "devices=off", "atime=off"];
        let common: Vec<_> = common.iter().flat_map(|property| ["-o", property]).collect();
        let names = &self.names;
        for room in [own, &names.volumes(), &names.layers()] {
            let mut arguments = vec!["create", "-o", "canmount=off"];
            if room == own {
                arguments.extend(&common);
            }
            arguments.push(room);
            match self.tool.run(&arguments) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                made => drop(made?),
            }
        }
        Ok(())
    }

    /// Removes our part of the given dataset, if it is empty.
    pub(super) fn leave(&self) -> io::Result<()> {
        // No later call would retry them.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner).clear();
        let (left, rooms) = (self.collect()?, self.names.rooms());
        if left.iter().any(|it| !rooms.contains(&it.name)) {
            return Ok(());
        }
        for room in &rooms {
            match self.tool.run(&["destroy", room]) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                destroyed => drop(destroyed?),
            }
        }
        // Last: afterwards, opening the storage starts over.
        std::fs::remove_file(self.place.join(FILE))
    }

    /// Tries whether this mount can be id-mapped.
    fn try_ids(&self) -> io::Result<Ids> {
        let draft = self.names.new_trial(&random());
        let path = self.make(&draft, place::DRAFT, DatasetOrigin::Empty, &[])?;
        let tried = mount::can_be_id_mapped(&path);
        self.remove_dataset(&draft)?;
        Ok(if tried? { Ids::Plain } else { Ids::Shifted })
    }
}

/// The data directory's existing part, or a new one.
fn claim(place: &Path, given: &Dataset) -> Result<Claim, StorageError> {
    let failed = |source| io_error("read which dataset is its own", source);
    if let Some(claim) = Claim::read(place).map_err(failed)? {
        return if claim.given().as_ref() == Some(given) {
            Ok(claim)
        } else {
            Err(unusable(format!(
                "its volumes are in {}, not in {given}; configure zfs:{}",
                claim.own,
                claim.given().map_or_else(String::new, |given| given.to_string()),
            )))
        };
    }
    let own = given.join(&format!("{OWN}{}", &random()[..16]));
    let own = own.parse().map_err(|error| unusable(format!("{error}")))?;
    let claim = Claim { own, ids: None };
    claim.write(place).map_err(failed)?;
    Ok(claim)
}
