//! From a message to [`Changes`].

use std::sync::Arc;

use super::channel::Channel;
use crate::rules::Source;
use crate::rules::change::{Changes, Told};
use crate::rules::messages::{Ids, Said};

/// Where a messenger leaves what it hears.
#[derive(Debug)]
pub(super) struct Inbox {
    pub(super) changes: Arc<Changes>,
    pub(super) channel: Arc<Channel>,
    source: Source,
    /// A database says what is right: messages only say where to look.
    pub(super) has_database: bool,
}

impl Inbox {
    pub(super) fn new(changes: Arc<Changes>, channel: Arc<Channel>, source: Source, has_database: bool) -> Self {
        Self { changes, channel, source, has_database }
    }

    /// A connection stands: what was said before it is found by reading everything.
    pub(super) fn opened(&self) {
        self.channel.opened();
        self.changes.all();
    }

    /// Takes what a message says, or why it says nothing; `place` is where it was read. Waits while too much waits.
    pub(super) async fn take(&self, place: &str, message: &[u8], said: Result<Vec<Said>, String>) {
        match said {
            Ok(said) => {
                self.channel.good();
                for said in said {
                    self.one(place, said).await;
                }
            }
            Err(why) => self.channel.bad(place, &why, message),
        }
    }

    async fn one(&self, place: &str, said: Said) {
        let hint = |Ids { tenant, route }: &Ids| self.changes.pair(tenant, route);
        let (source, place) = (self.source, place.to_owned());
        match said {
            Said::Ping(_) => {}
            Said::All => self.changes.all(),
            Said::Pair(ids) | Said::Put { ids, .. } | Said::Delete { ids, .. } if self.has_database => hint(&ids),
            // Of a file there is no reading a part.
            Said::Pair(_) => self.changes.all(),
            Said::Put { json, .. } => self.changes.tell(Told::Put { source, place, json }).await,
            Said::Delete { ids: Ids { tenant, route }, mode } => {
                let (tenant_id, route_id) = (tenant.into(), route.into());
                self.changes.tell(Told::Delete { source, place, tenant_id, route_id, mode }).await;
            }
        }
    }
}
