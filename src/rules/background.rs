//! Work that takes long where there are many rules: not on a thread that serves others, nor at their expense.

use rustix::process::setpriority_process;

use super::report::LoadError;

/// Requests come first: this is the share of a processor that is left to work in the background while they need it, as
/// `nice` has it.
const NICE: i32 = 5;

/// Does it on a thread of its own.
pub(super) async fn in_background<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, LoadError> + Send + 'static,
) -> Result<T, LoadError> {
    let work = || {
        give_way();
        work()
    };
    tokio::task::spawn_blocking(work).await.map_err(|error| LoadError::System(std::io::Error::other(error)))?
}

/// Frees it on a thread of its own.
pub(super) fn free_in_background<T: Send + 'static>(what: T) {
    tokio::task::spawn_blocking(|| {
        give_way();
        drop(what);
    });
}

/// Lowers the priority of this thread. (POSIX means the process; Linux does not.)
fn give_way() {
    // A system that does not let it loses nothing but this.
    let _ = setpriority_process(None, NICE);
}
