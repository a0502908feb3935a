//! PostgreSQL: `LISTEN` on a connection of its own.
//!
//! `LISTEN` means something only on a connection to the primary that is nobody else's: a standby refuses it, and a
//! pooler that shares connections between transactions takes it and delivers nothing. So each connection is tried out:
//! a second one sends a ping, which has to arrive.

use std::future::{pending, poll_fn};
use std::time::Duration;

use tokio::sync::{Notify, mpsc};
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};
use tokio_postgres::error::SqlState;
use tokio_postgres::{AsyncMessage, Client, Notification};

use super::inbox::Inbox;
use super::{KEEPALIVE, Retry};
use crate::config::Listen;
use crate::rules::messages::{Said, parse};
use crate::rules::postgres::{CONNECT_TIMEOUT, Connection, DatabaseError, dial, whole};

/// What `conf/schema.sql` notifies.
const CHANNEL: &str = "sekisho_rules";
/// Notifications that wait at once; what is more waits at the server.
const QUEUE: usize = 1024;
/// How long a ping may take.
const PING_TIMEOUT: Duration = Duration::from_secs(5);
/// A pooler that delivers nothing will hardly do so a moment later.
const DEAF_PAUSE: Duration = Duration::from_secs(300);

/// Listens for ever.
#[derive(Debug)]
pub(super) struct Listener {
    settings: Listen,
    inbox: Inbox,
}

/// Why a connection ended.
enum Ended {
    /// No connection, or not any more.
    Broken(String),
    /// It stands, and delivers nothing.
    Deaf(String),
}

/// Moves the bytes of a connection; ends with it.
struct Driver(AbortHandle);

impl Drop for Driver {
    fn drop(&mut self) {
        self.0.abort();
    }
}

type Heard = mpsc::Receiver<Result<Notification, tokio_postgres::Error>>;

impl Listener {
    pub(super) fn new(settings: Listen, inbox: Inbox) -> Self {
        Self { settings, inbox }
    }

    pub(super) async fn run(&self) {
        let mut retry = Retry::default();
        loop {
            let began = Instant::now();
            match self.listen().await {
                Ended::Broken(why) => {
                    self.inbox.channel.closed(why);
                    retry.pause(began).await;
                }
                Ended::Deaf(why) => {
                    self.inbox.channel.closed(why);
                    sleep(DEAF_PAUSE).await;
                }
            }
        }
    }

    async fn listen(&self) -> Ended {
        let (client, heard, _driver) = match self.connect().await {
            Ok(connected) => connected,
            Err(why) => return Ended::Broken(why),
        };
        // What changes from here on is heard; what changed before is read.
        self.inbox.opened();
        let (ping, arrived) = (format!("\"{:016x}\"", rand::random::<u64>()), Notify::new());
        tokio::select! {
            why = self.hear(heard, &ping, &arrived) => Ended::Broken(why),
            why = keep_alive(&client) => Ended::Broken(why),
            why = self.try_out(&ping, &arrived) => Ended::Deaf(why),
        }
    }

    async fn connect(&self) -> Result<(Client, Heard, Driver), String> {
        let (client, connection) = self.dial().await?;
        let (sender, heard) = mpsc::channel(QUEUE);
        let driver = Driver(tokio::spawn(drive(connection, sender)).abort_handle());
        match timeout(KEEPALIVE, client.batch_execute(&format!("LISTEN {CHANNEL}"))).await {
            Ok(Ok(())) => Ok((client, heard, driver)),
            Ok(Err(error)) if error.code() == Some(&SqlState::READ_ONLY_SQL_TRANSACTION) => Err(format!(
                "LISTEN is refused: {}; rules.listen_url names the primary, or hosts with \
                 target_session_attrs=read-write",
                whole(&error)
            )),
            Ok(Err(error)) => Err(format!("LISTEN is refused: {}", whole(&error))),
            Err(_) => Err(format!("no answer within {KEEPALIVE:?}")),
        }
    }

    async fn dial(&self) -> Result<(Client, Connection), String> {
        dial(CONNECT_TIMEOUT, &self.settings.url.0).await.map_err(|error| match error {
            DatabaseError::Url(what) => format!("{}: {what}", self.settings.setting),
            other => other.to_string(),
        })
    }

    /// Takes notifications until the connection breaks; why it did.
    async fn hear(&self, mut heard: Heard, ping: &str, arrived: &Notify) -> String {
        while let Some(told) = heard.recv().await {
            let told = match told {
                Ok(told) => told,
                Err(error) => return format!("the connection broke: {}", whole(&error)),
            };
            let said = parse(told.payload().as_bytes());
            match &said {
                Ok(said) if matches!(&said[..], [Said::Ping(_)]) => {
                    if *said == [Said::Ping(ping.to_owned())] {
                        arrived.notify_one();
                    }
                    continue;
                }
                Ok(_) => {}
                // Somebody meant to say something.
                Err(_) => self.inbox.changes.all(),
            }
            let place = format!("notification of process {}", told.process_id());
            self.inbox.take(&place, told.payload().as_bytes(), said).await;
        }
        "the server closed the connection".to_owned()
    }

    /// Ends where a ping sent by another connection does not arrive.
    async fn try_out(&self, ping: &str, arrived: &Notify) -> String {
        let sent = async {
            let (client, connection) = self.dial().await.ok()?;
            let driver = Driver(tokio::spawn(connection).abort_handle());
            let sent = client.batch_execute(&format!("NOTIFY {CHANNEL}, '{{\"ping\": {ping}}}'")).await;
            drop(driver);
            sent.ok()
        };
        // Where no ping can be sent, nothing is known.
        let Ok(Some(())) = timeout(CONNECT_TIMEOUT + PING_TIMEOUT, sent).await else { return pending().await };
        match timeout(PING_TIMEOUT, arrived.notified()).await {
            Ok(()) => pending().await,
            Err(_) => "notifications do not arrive: through PgBouncer, LISTEN needs pool_mode = session, or a direct \
                       connection in rules.listen_url"
                .to_owned(),
        }
    }
}

/// Moves the bytes of a connection, and hands on what the server says without being asked.
async fn drive(mut connection: Connection, sender: mpsc::Sender<Result<Notification, tokio_postgres::Error>>) {
    while let Some(message) = poll_fn(|cx| connection.poll_message(cx)).await {
        let told = match message {
            Ok(AsyncMessage::Notification(told)) => Ok(told),
            Ok(_) => continue,
            Err(error) => Err(error),
        };
        let is_over = told.is_err();
        if sender.send(told).await.is_err() || is_over {
            return;
        }
    }
}

/// Asks the server for nothing again and again; why it did not answer.
async fn keep_alive(client: &Client) -> String {
    loop {
        sleep(KEEPALIVE).await;
        match timeout(KEEPALIVE, client.batch_execute("")).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) if error.is_closed() => pending().await, // Whoever hears knows why.
            Ok(Err(error)) => return whole(&error),
            Err(_) => return format!("the connection is dead: no answer within {KEEPALIVE:?}"),
        }
    }
}
