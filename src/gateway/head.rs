//! A deadline for the head of a request. Pingora has one for each read only, so a client that sends a byte now and then
//! would hold its connection for ever.

use std::cell::Cell;
use std::future::{Future, pending};
use std::time::Duration;

use pingora::time::sleep;

tokio::task_local! {
    /// Whether the head of the request that this task serves is there.
    static ARRIVED: Cell<bool>;
}

/// Serves one request of a connection of HTTP/1.1; `None` where `limit` passed before its head was there. What it takes
/// afterwards has limits of its own.
pub async fn within<T>(limit: Duration, serving: impl Future<Output = T>) -> Option<T> {
    ARRIVED.scope(Cell::new(false), begun_within(limit, || ARRIVED.with(Cell::get), serving)).await
}

/// Serves to the end what has begun within `limit`; `None` where it has not.
pub async fn begun_within<T>(
    limit: Duration,
    has_begun: impl Fn() -> bool,
    serving: impl Future<Output = T>,
) -> Option<T> {
    let late = async {
        sleep(limit).await;
        if has_begun() {
            pending::<()>().await;
        }
    };
    tokio::select! {
        biased;
        served = serving => Some(served),
        () = late => None,
    }
}

/// Says that the head is there. Streams of HTTP/2 have tasks of their own, to which this means nothing.
pub(super) fn arrived() {
    let _ = ARRIVED.try_with(|arrived| arrived.set(true));
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_millis(20);

    #[tokio::test]
    async fn a_head_that_does_not_come_ends_the_wait() {
        assert_eq!(within(LIMIT, pending::<()>()).await, None);
    }

    #[tokio::test]
    async fn once_the_head_is_there_a_request_may_take_longer() {
        let served = within(LIMIT, async {
            arrived();
            sleep(5 * LIMIT).await;
            7
        });
        assert_eq!(served.await, Some(7));
    }

    #[tokio::test]
    async fn each_request_has_a_deadline_of_its_own() {
        assert_eq!(within(LIMIT, async { arrived() }).await, Some(()));
        assert_eq!(within(LIMIT, pending::<()>()).await, None);
    }

    #[tokio::test]
    async fn outside_of_a_connection_it_means_nothing() {
        arrived();
    }
}
