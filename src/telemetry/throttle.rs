//! What libraries log, at most once in a while for each kind: some have a line for each client's mistake.

use std::fmt::{self, Write};
use std::time::Duration;

use parking_lot::Mutex;
use tracing::field::{Field, Visit};
use tracing::{Event, Metadata, Subscriber};
use tracing_subscriber::layer::{Context, Filter};

use super::Seldom;

/// How often one kind of line is written, at most.
const EVERY: Duration = Duration::from_secs(10);

/// A kind is told by so many bytes of its message: behind them stand addresses and the like.
const KIND: usize = 20;

/// The most kinds; those beyond are not held back.
const MOST_KINDS: usize = 64;

/// The target of everything that comes by way of the crate `log`, as all of Pingora's lines do; this program's do not.
const LIBRARIES: &str = "log";

/// Holds back lines of libraries that were written a short while ago.
#[derive(Debug, Default)]
pub(super) struct Throttle {
    kinds: Mutex<Vec<(String, Seldom)>>,
}

impl Throttle {
    fn passes(&self, kind: String) -> bool {
        let mut kinds = self.kinds.lock();
        if let Some((_, seldom)) = kinds.iter().find(|(known, _)| *known == kind) {
            return seldom.tell().is_some();
        }
        if kinds.len() < MOST_KINDS {
            let seldom = Seldom::new(EVERY);
            seldom.tell();
            kinds.push((kind, seldom));
        }
        true
    }
}

impl<S: Subscriber> Filter<S> for Throttle {
    fn enabled(&self, _metadata: &Metadata<'_>, _context: &Context<'_, S>) -> bool {
        true
    }

    fn event_enabled(&self, event: &Event<'_>, _context: &Context<'_, S>) -> bool {
        if event.metadata().target() != LIBRARIES {
            return true;
        }
        let mut kind = Kind(String::with_capacity(KIND));
        event.record(&mut kind);
        self.passes(kind.0)
    }
}

/// The beginning of a message.
struct Kind(String);

impl Visit for Kind {
    fn record_debug(&mut self, field: &Field, value: &dyn fmt::Debug) {
        if field.name() == "message" {
            // Ends with an error where there is more of it.
            let _ = write!(self, "{value:?}");
        }
    }
}

impl Write for Kind {
    fn write_str(&mut self, text: &str) -> fmt::Result {
        for character in text.chars() {
            if self.0.len() >= KIND {
                return Err(fmt::Error);
            }
            self.0.push(character);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_kind_is_written_seldom_and_does_not_hold_back_another() {
        let throttle = Throttle::default();
        let pass = |kind: &str| throttle.passes(kind.to_owned());
        assert_eq!([pass("a"), pass("a"), pass("b"), pass("a")], [true, false, true, false]);
        tokio::time::advance(EVERY).await;
        assert_eq!([pass("a"), pass("a")], [true, false]);
    }

    #[test]
    fn a_kind_is_the_beginning_of_a_message_and_nothing_that_differs_by_client() {
        let mut kind = Kind(String::new());
        let _ = write!(kind, "Downstream handshake error from {}", std::net::Ipv4Addr::LOCALHOST);
        assert_eq!(kind.0, "Downstream handshake");
    }

    #[test]
    fn kinds_without_end_take_no_memory_without_end() {
        let throttle = Throttle::default();
        for kind in 0..10 * MOST_KINDS {
            assert!(throttle.passes(kind.to_string()));
        }
        assert_eq!(throttle.kinds.lock().len(), MOST_KINDS);
    }
}
