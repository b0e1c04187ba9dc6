//! Archives that callers have sent for workspaces. They are files without a name, held by this process: a daemon
//! that ends, however it does, leaves none. One is kept for a while, and may serve several sandboxes.

use std::collections::HashMap;
use std::fs::File;
use std::io::Read;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use serde::Serialize;
use utoipa::ToSchema;

use crate::error::Error;
use crate::{Broker, Upload};
use sandkeep_core::{Owner, Principal, UploadId, limits};
use sandkeep_image::source::Section;

#[derive(Default)]
pub struct Uploads(Mutex<HashMap<UploadId, Kept>>);

struct Kept {
    owner: Owner,
    file: Arc<File>,
}

/// An archive that is kept.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, ToSchema)]
#[schema(as = Upload)]
pub struct UploadView {
    /// For `source.upload` of a sandbox.
    pub id: UploadId,
    /// As it was sent.
    pub bytes: u64,
    /// RFC 3339. It is gone earlier if the daemon ends.
    #[schema(value_type = String)]
    pub expires_at: Timestamp,
}

impl Uploads {
    fn all(&self) -> MutexGuard<'_, HashMap<UploadId, Kept>> {
        // Nothing panics while it holds the lock.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether one more can be kept.
    fn check(&self, owner: &Owner) -> Result<(), Error> {
        let all = self.all();
        let same = |kept: &&Kept| {
            (&kept.owner.organization, &kept.owner.user) == (&owner.organization, &owner.user)
        };
        let limit = limits::UPLOADS_KEPT_PER_USER_MAX;
        if all.values().filter(same).count() >= limit {
            return Err(Error::LimitReached { what: "kept uploads of one user", limit });
        }
        let limit = limits::UPLOADS_KEPT_MAX;
        match all.len() >= limit {
            true => Err(Error::LimitReached { what: "kept uploads", limit }),
            false => Ok(()),
        }
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
    /// Whether this principal may send one more archive to be kept.
    pub fn may_upload(&self, who: &Principal) -> Result<(), Error> {
        self.shared.uploads.check(&owner(who))
    }

    /// Keeps an archive, for a while, for workspaces to be made of.
    pub async fn keep_upload(&self, who: &Principal, upload: Upload) -> Result<UploadView, Error> {
        let bytes = upload.bytes();
        if bytes == 0 {
            let problem = "the body is empty; send a tar, plain, gzip or zstd".to_owned();
            return Err(Error::SourceInvalid { problem });
        }
        let file = Arc::new(upload.finish().await?);
        let (id, owner) = (UploadId::random(), owner(who));
        let uploads = &self.shared.uploads;
        uploads.check(&owner)?;
        uploads.all().insert(id.clone(), Kept { owner, file });
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

    /// Forgets an archive. Sandboxes that are made of it still are.
    pub fn remove_upload(&self, who: &Principal, id: &UploadId) -> Result<(), Error> {
        self.shared.uploads.find(who, id)?;
        self.shared.uploads.remove(id);
        Ok(())
    }
}

/// Whoever is bound to no project sends for all of its own.
fn owner(who: &Principal) -> Owner {
    who.owner(None).expect("nobody is bound to another project than its own")
}

/// All of an archive, from its beginning, whoever else reads it.
pub fn reader(archive: &Arc<File>) -> std::io::Result<impl Read + Send + 'static> {
    Ok(Section::whole(Arc::clone(archive))?.reader())
}
