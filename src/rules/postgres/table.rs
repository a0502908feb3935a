//! Reads all rules.

use tokio::sync::mpsc;
use tokio_postgres::Row;

use super::{Database, DatabaseError, RULE_COLUMNS, rule_of, whole};
use crate::rules::background::in_background;
use crate::rules::merge::{Merge, Merged, Place};
use crate::rules::report::LoadError;

/// So many chunks of rows may wait to be judged.
const WAITING: usize = 4;

impl Database {
    /// Adds every row of `rate_limit_rule` to `merge`. They are judged on a thread of their own: what changes in the
    /// meantime waits for none of them.
    pub(in crate::rules) async fn read_rules(&mut self, mut merge: Merge) -> Result<Merged, LoadError> {
        let (sender, mut receiver) = mpsc::channel::<Vec<Row>>(WAITING);
        let judged = in_background(move || {
            while let Some(rows) = receiver.blocking_recv() {
                for row in &rows {
                    merge.add(Place::Row, rule_of(row).map_err(|error| failed(whole(&error)))?);
                }
            }
            Ok(merge)
        });
        let read = async {
            let hand_over = |rows| {
                let sender = sender.clone();
                async move { sender.send(rows).await.map_err(|_| "a row cannot be understood".to_owned()) }
            };
            let read = self.read("rate_limit_rule", &RULE_COLUMNS, hand_over).await;
            drop(sender);
            read
        };
        let (judged, read) = tokio::join!(judged, read);
        let merge = judged?;
        read?;
        in_background(move || Ok(merge.finish())).await
    }
}

fn failed(problem: String) -> DatabaseError {
    DatabaseError::Read { table: "rate_limit_rule", problem }
}
