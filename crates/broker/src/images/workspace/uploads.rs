//! Uploaded archives for workspaces. They are unnamed files, held by this process, so that a daemon leaves none behind,
//! however it ends. An archive is kept for a while, and can serve several sandboxes.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;
use crate::policy::slots::{Slot, Slots};
use crate::{Broker, Upload};
use sandkeep_core::ledger::Reservation;
use sandkeep_core::{Owner, Principal, UploadId, limits};
use sandkeep_image::source::Section;

pub struct Uploads {
    kept: Mutex<HashMap<UploadId, StoredUpload>>,
    slots: Slots,
}

impl Default for Uploads {
    fn default() -> Self {
        let slots = Slots::new("kept uploads of one organization", limits::UPLOADS_KEPT_MAX);
        Self { kept: Mutex::default(), slots }
    }
}

struct StoredUpload {
    owner: Owner,
    file: Arc<File>,
    /// The space reserved for it from the owner's quota.
    _space: Reservation,
    _slot: Slot,
}

/// A stored archive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Upload)]
pub struct UploadView {
    /// For `source.upload` of a sandbox.
    pub id: UploadId,
    /// Size as uploaded.
    pub bytes: u64,
    /// RFC 3339. The archive is lost earlier if the daemon ends.
    #[schema(value_type = String, format = DateTime)]
    pub expires_at: Timestamp,
}

impl Uploads {
    fn all(&self) -> MutexGuard<'_, HashMap<UploadId, StoredUpload>> {
        // No code panics while it holds the lock.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a slot for one more stored archive.
    fn place(&self, owner: &Owner) -> Result<Slot, Error> {
        let all = self.all();
        let same = |kept: &&StoredUpload| {
            (&kept.owner.organization, &kept.owner.user) == (&owner.organization, &owner.user)
        };
        let limit = limits::UPLOADS_KEPT_PER_USER_MAX;
        if all.values().filter(same).count() >= limit {
            return Err(Error::LimitReached { what: "kept uploads of one user", limit });
        }
        self.slots.take(&owner.organization)
    }

    pub fn find(&self, who: &Principal, id: &UploadId) -> Result<Arc<File>, Error> {
        let all = self.all();
        let kept = all.get(id).filter(|kept| who.may_see(&kept.owner));
        let missing = || Error::UploadNotFound { id: id.clone() };
        kept.map(|kept| Arc::clone(&kept.file)).ok_or_else(missing)
    }

    fn remove(&self, id: &UploadId) {
        self.all().remove(id);
    }
}

impl Broker {
    /// Whether this principal may store one more archive.
    pub fn may_upload(&self, who: &Principal) -> Result<(), Error> {
        self.shared.uploads.place(&owner(who)).map(drop)
    }

    /// Stores an archive for a while, as a source of workspaces.
    pub async fn keep_upload(&self, who: &Principal, upload: Upload) -> Result<UploadView, Error> {
        let bytes = upload.bytes();
        if bytes == 0 {
            let problem = "the body is empty; send a tar, plain, gzip or zstd".to_owned();
            return Err(Error::SourceInvalid { problem });
        }
        let (file, space) = upload.finish().await?;
        let file = Arc::new(file);
        let (id, owner) = (UploadId::random(), owner(who));
        let uploads = &self.shared.uploads;
        let slot = uploads.place(&owner)?;
        let kept = StoredUpload { owner, file, _space: space, _slot: slot };
        uploads.all().insert(id.clone(), kept);
        self.forget_later(id.clone());
        let expires_at = self.shared.clock.wall() + limits::UPLOAD_KEPT;
        Ok(UploadView { id, bytes, expires_at })
    }

    fn forget_later(&self, id: UploadId) {
        let shared = Arc::clone(&self.shared);
        self.shared.tasks.spawn(async move {
            tokio::select! {
                () = tokio::time::sleep(limits::UPLOAD_KEPT) => {}
                () = shared.closing.cancelled() => {}
            }
            shared.uploads.remove(&id);
        });
    }

    /// Removes an archive. Sandboxes created from it keep their files.
    pub fn remove_upload(&self, who: &Principal, id: &UploadId) -> Result<(), Error> {
        self.shared.uploads.find(who, id)?;
        self.shared.uploads.remove(id);
        Ok(())
    }
}

/// A principal without a project uploads for all of its projects.
pub fn owner(who: &Principal) -> Owner {
    who.owner(None).expect("nobody is bound to another project than its own")
}

/// A reader of the whole archive, independent of other readers.
pub fn reader(archive: &Arc<File>) -> std::io::Result<impl Read + Send + 'static> {
    Ok(Section::whole(Arc::clone(archive))?.reader())
}
