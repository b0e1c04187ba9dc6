//! Requests over NATS while the daemon serves. They have a connection of their own, which many events do not hold up.

use crate::cli::failure::Failure;
use crate::config::Settings;
use sandkeep_broker::Broker;
use sandkeep_doors::Front;

#[cfg(feature = "nats")]
pub use with_nats::Commands;

/// Nothing, in a build without NATS.
#[cfg(not(feature = "nats"))]
pub struct Commands;

#[cfg(not(feature = "nats"))]
impl Commands {
    pub fn wanted(settings: &Settings) -> Result<Self, Failure> {
        if settings.commands.enabled || settings.purista.enabled {
            Err(Failure::Usage {
                problem: "nats.commands and purista.enabled need a build with the feature `nats`"
                    .to_owned(),
            })
        } else {
            Ok(Self)
        }
    }

    pub fn start(&mut self, _front: &Front, _broker: &Broker) {}

    pub fn begin_to_stop(&self) {}

    pub async fn stop(self) {}
}

#[cfg(feature = "nats")]
mod with_nats {
    use sandkeep_commands::verbs::{self, Account};
    use sandkeep_commands::{Inboxes, Intake};
    use sandkeep_core::{Scope, with_causes};
    use sandkeep_doors::MessageDoor;
    use sandkeep_doors::kit::message::Messages;
    use sandkeep_nats::Link;
    use sandkeep_nats::async_nats::{Client, SubscribeError};
    use tokio::task::JoinHandle;
    use tokio_util::sync::CancellationToken;

    use super::{Broker, Failure, Front, Settings};
    use crate::cli::serve::messaging::options;
    #[cfg(feature = "purista")]
    use sandkeep_commands::purista;

    /// Everything that answers messages.
    pub struct Commands {
        wanted: Option<Wanted>,
        work: Option<JoinHandle<()>>,
        stop: CancellationToken,
    }

    #[derive(Clone)]
    struct Wanted {
        connection: sandkeep_nats::Options,
        verbs: Option<verbs::Options>,
        #[cfg(feature = "purista")]
        purista: Option<purista::Options>,
    }

    impl Commands {
        /// What the settings ask for.
        pub fn wanted(settings: &Settings) -> Result<Self, Failure> {
            let (commands, offered) = (&settings.commands, settings.purista.enabled);
            let inboxes = match commands.inboxes.as_slice() {
                [] => Inboxes::default(),
                given => Inboxes::new(given.iter().cloned()),
            };
            let accounts = commands.accounts.iter().map(|account| Account {
                name: account.name.clone(),
                organization: account.organization.clone(),
                user: account.user.clone(),
                project: account.project.clone(),
                scopes: vec![Scope::Read, Scope::Write],
            });
            let verbs = commands.enabled.then(|| verbs::Options {
                prefix: settings.nats.prefix.clone(),
                inboxes: inboxes.clone(),
                accounts: accounts.collect(),
            });
            #[cfg(not(feature = "purista"))]
            if offered {
                let problem = "purista.enabled needs a build with the feature `purista`".to_owned();
                return Err(Failure::Usage { problem });
            }
            let connection = options(&settings.nats).filter(|_| commands.enabled || offered);
            let wanted = connection.map(|connection| Wanted {
                connection,
                verbs,
                #[cfg(feature = "purista")]
                purista: offered
                    .then(|| purista::Options { prefix: settings.purista.prefix.clone(), inboxes }),
            });
            Ok(Self { wanted, work: None, stop: CancellationToken::new() })
        }

        /// Begins; nothing waits for a server.
        pub fn start(&mut self, front: &Front, broker: &Broker) {
            let Some(wanted) = self.wanted.take() else { return };
            let link = Link::open(wanted.connection.clone(), "sandkeep commands");
            let messages = front.messages(broker.clone(), wanted.door());
            self.work = Some(tokio::spawn(run(link, messages, wanted, self.stop.clone())));
        }

        /// No new ones from now on.
        pub fn begin_to_stop(&self) {
            self.stop.cancel();
        }

        /// Waits for a bounded time until those under way are answered.
        pub async fn stop(self) {
            self.stop.cancel();
            if let Some(work) = self.work {
                let _ = work.await;
            }
        }
    }

    impl Wanted {
        #[cfg(feature = "purista")]
        fn door(&self) -> Option<MessageDoor> {
            self.purista.as_ref().map(|_| purista::MESSAGE_DOOR)
        }

        #[cfg(not(feature = "purista"))]
        fn door(&self) -> Option<MessageDoor> {
            None
        }

        async fn serve(
            &self,
            client: &Client,
            messages: &Messages,
            intake: &Intake,
        ) -> Result<(), SubscribeError> {
            if let Some(options) = &self.verbs {
                verbs::serve(client, messages.clone(), options, intake).await?;
            }
            #[cfg(feature = "purista")]
            if let Some(options) = &self.purista {
                purista::serve(client, messages.clone(), options, intake).await?;
            }
            Ok(())
        }
    }

    async fn run(link: Link, messages: Messages, wanted: Wanted, stop: CancellationToken) {
        let client = tokio::select! {
            client = link.client() => client,
            () = stop.cancelled() => None,
        };
        if let Some(client) = client {
            let intake = Intake::default();
            match wanted.serve(&client, &messages, &intake).await {
                Ok(()) => tracing::info!("answering commands over NATS"),
                Err(error) => tracing::error!("cannot answer over NATS: {}", with_causes(&error)),
            }
            stop.cancelled().await;
            messages.stop();
            intake.drain(&client).await;
        }
        link.close().await;
    }
}
