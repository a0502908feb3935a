//! Redis: a channel of the store that gateways subscribe to, for example `rl:rules-changed`. Redis keeps no message: who
//! is away when it is sent never gets it.

use tokio::time::{Instant, sleep};

use super::inbox::Inbox;
use super::{KEEPALIVE, Retry};
use crate::config;
use crate::rules::messages::{LONGEST, parse};
use crate::store::redis::{SetupError, Subscription, Subscriptions};

/// Subscribes for ever.
#[derive(Debug)]
pub(super) struct Subscriber {
    subscriptions: Subscriptions,
    channel: String,
    inbox: Inbox,
}

impl Subscriber {
    pub(super) fn new(server: &config::Redis, channel: &str, inbox: Inbox) -> Result<Self, SetupError> {
        Ok(Self { subscriptions: Subscriptions::new(server, LONGEST)?, channel: channel.to_owned(), inbox })
    }

    pub(super) async fn run(&self) {
        let mut retry = Retry::default();
        loop {
            let began = Instant::now();
            let why = match self.subscriptions.subscribe(&self.channel).await {
                Ok(subscription) => self.listen(subscription).await,
                Err(why) => why,
            };
            self.inbox.channel.closed(why);
            retry.pause(began).await;
        }
    }

    /// Takes messages until the connection breaks; why it did.
    async fn listen(&self, mut subscription: Subscription) -> String {
        self.inbox.opened();
        let place = format!("{} of {}", self.channel, subscription.address());
        let mut answer = Box::pin(ask(&subscription));
        loop {
            tokio::select! {
                message = subscription.next() => {
                    let Some(message) = message else { return format!("{place}: the connection broke") };
                    self.inbox.take(&place, &message, parse(&message)).await;
                    let lost = subscription.take_lost();
                    if lost > 0 {
                        tracing::error!("{place}: {lost} messages came faster than they could be read, and are lost");
                        self.inbox.changes.all();
                    }
                }
                answered = &mut answer => match answered {
                    Ok(()) => answer = Box::pin(ask(&subscription)),
                    Err(why) => return format!("the connection is dead: {why}"),
                },
            }
        }
    }
}

/// Whether the connection stands, a while from now.
fn ask(subscription: &Subscription) -> impl Future<Output = Result<(), String>> + Send + use<> {
    let ping = subscription.ping();
    async move {
        sleep(KEEPALIVE).await;
        ping.await
    }
}
