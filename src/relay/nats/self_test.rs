//! The self-test of a new connection: own messages on the subjects of this life must return.
//!
//! NATS reports a refused publish or subscription by a later message, for which a client does not
//! wait. So each subject is used once before the relay serves.

use std::time::Duration;

use async_nats::{Client, Subject, Subscriber};
use bytes::Bytes;
use futures_util::StreamExt as _;
use tokio::{sync::mpsc, time::timeout};

use super::subjects::Subjects;
use crate::{
    error::{Error, ErrorKind, Result},
    types::cluster::{ClusterContent, ClusterLimits, ClusterMessage, LifeId},
    wire::cluster_message_to_wire,
};

/// Own messages return within milliseconds; the limit holds for a server that is overloaded.
const LIMIT: Duration = Duration::from_secs(2);

/// Checks the server's limit of messages, and the permissions. Returns whether the messages returned
/// in time: if not, the server is taken for slow.
///
/// # Errors
/// `Invalid` if messages may not have 64 KiB; `Denied` if NATS refuses a subject.
pub(super) async fn self_test(
    client: &Client,
    subjects: &Subjects,
    life: LifeId,
    refusals: &mut mpsc::Receiver<String>,
) -> Result<bool> {
    check_max_payload(client.max_payload())?;
    let returned = async {
        // These subscriptions end with the test, so the messages of peers that they take are those
        // from before the start of this relay.
        let mut all = subscribe(client, &subjects.all).await?;
        let mut own = subscribe(client, &subjects.own).await?;
        // Peers ignore a message of an unknown kind.
        let content = ClusterContent::Unknown;
        let probe = cluster_message_to_wire(&ClusterMessage { life, content });
        publish(client, &subjects.all, probe.clone()).await?;
        publish(client, &subjects.own_reply(0), Bytes::new()).await?;
        while all
            .next()
            .await
            .is_some_and(|message| message.payload != probe)
        {}
        own.next().await;
        Ok(())
    };
    let refused = async {
        match refusals.recv().await {
            Some(refusal) => Err(denied(subjects, &refusal)),
            None => std::future::pending().await,
        }
    };
    let tested = async {
        tokio::select! {
            returned = returned => returned,
            refused = refused => refused,
        }
    };
    match timeout(LIMIT, tested).await {
        Ok(tested) => tested.map(|()| true),
        Err(_) => Ok(false),
    }
}

fn check_max_payload(max: usize) -> Result<()> {
    let needed = ClusterLimits::MESSAGE_BYTES;
    match max < needed {
        true => Err(Error::invalid(
            "cluster",
            format_args!(
                "max_payload of the NATS server must be at least {needed} bytes, but is {max}: set \
                 it there"
            ),
        )),
        false => Ok(()),
    }
}

async fn subscribe(client: &Client, subject: &Subject) -> Result<Subscriber> {
    client.subscribe(subject.clone()).await.map_err(ended)
}

async fn publish(client: &Client, subject: &Subject, payload: Bytes) -> Result<()> {
    client
        .publish(subject.clone(), payload)
        .await
        .map_err(ended)
}

/// Only the end of the client's task refuses a command.
pub(super) fn ended(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::new(ErrorKind::Unavailable, "the client of NATS has ended").with_source(error)
}

fn denied(subjects: &Subjects, refusal: &str) -> Error {
    let message = format!(
        "cluster: NATS refuses this login: {refusal}: permit publish and subscribe on {}",
        subjects.cluster
    );
    Error::new(ErrorKind::Denied, message)
}
