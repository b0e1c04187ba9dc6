//! Storage work blocks (a system call may wait for a commit), so it leaves the async threads.

use super::StorageError;

/// Runs `work` where it may block. It goes on to its end even if the caller stops waiting.
pub(super) async fn offload<T: Send + 'static>(
    storage: &'static str,
    work: impl FnOnce() -> Result<T, StorageError> + Send + 'static,
) -> Result<T, StorageError> {
    match tokio::task::spawn_blocking(work).await {
        Ok(answer) => answer,
        Err(error) => match error.try_into_panic() {
            Ok(panic) => std::panic::resume_unwind(panic),
            Err(error) => Err(StorageError::Io {
                storage,
                what: "start work: the daemon is shutting down".to_owned(),
                source: std::io::Error::other(error),
            }),
        },
    }
}
