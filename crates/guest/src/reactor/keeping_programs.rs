//! Programs in the loop: receiving them from the host, as a descriptor or byte by byte, and running them.

use guest_proto::{Exec, FromGuest, NAME_MAX, ProgramSource, ToGuest};

use super::Reactor;
use super::operation::{Manner, Refused};
use crate::connection::{Broken, Role};
use crate::poll::Id;
use crate::programs::{Arrived, Arriving, Untakable};

impl Reactor {
    pub(super) fn keep(
        &mut self,
        id: Id,
        program: String,
        source: ProgramSource,
    ) -> Result<Option<FromGuest>, Refused> {
        let connection = self.connection(id)?;
        match source {
            ProgramSource::Descriptor => {
                let file = connection.take_descriptors().into_iter().next();
                let file = file.filter(|_| program.len() <= NAME_MAX);
                let file = file.ok_or_else(|| Refused::because("no program came with its name"))?;
                self.programs.keep(program, file);
                Ok(Some(FromGuest::Done))
            }
            ProgramSource::Bytes { len } => {
                let arriving = Arriving::new(program, len).map_err(refused)?;
                connection.role = Role::Receiving;
                self.arrivals.insert(id, arriving);
                Ok(None)
            }
        }
    }

    /// Some more bytes of a program.
    pub(super) fn take_program(&mut self, id: Id, message: ToGuest) -> Result<(), Broken> {
        let ToGuest::Program(bytes) = message else { return Err(Broken) };
        let arriving = self.arrivals.get_mut(&id).ok_or(Broken)?;
        let answer = match arriving.take(&bytes) {
            Ok(Arrived::Partly) => return Ok(()),
            Ok(Arrived::Whole { name, file }) => {
                self.programs.keep(name, file);
                FromGuest::Done
            }
            Err(Untakable::AgainstTheRules) => return Err(Broken),
            Err(Untakable::Io(error)) => {
                FromGuest::Refused { reason: format!("cannot keep the program: {error}") }
            }
        };
        self.arrivals.remove(&id);
        self.connections.get_mut(&id).ok_or(Broken)?.conclude(&answer);
        Ok(())
    }

    pub(super) fn exec_kept(
        &mut self,
        id: Id,
        program: &str,
        exec: &Exec,
    ) -> Result<Option<FromGuest>, Refused> {
        let Some(file) = self.programs.find(program) else {
            return Ok(Some(FromGuest::NotKept));
        };
        let file = file.map_err(|error| Refused::because(format!("cannot run it: {error}")))?;
        self.exec(id, exec, Manner::Kept(file)).map(|()| None)
    }
}

fn refused(why: Untakable) -> Refused {
    match why {
        Untakable::AgainstTheRules => Refused::because("no program is that long, or so called"),
        Untakable::Io(error) => Refused::because(format!("cannot keep the program: {error}")),
    }
}
