//! Answers the requests of other relays of the cluster (C13).
//!
//! The broker admits relays only, and the asking relay has checked its caller. A request's values are
//! checked like a client's.

use async_trait::async_trait;

use super::stats::StatsSource;
use crate::{
    error::Result,
    relay::{
        runtime::PeerService,
        server::{
            http2::server_limits::retry_later,
            lists::{List, own_page, ranked},
        },
    },
    types::QueueAddress,
    wire::{
        link::{
            AcknowledgementsRequest, Done, TimersRequest, peer_reply::Answer, peer_request::Call,
        },
        peer_failure, proto, report_from_wire, timers_from_wire,
    },
};

/// Keys of one reply: 56 KiB.
const MAX_KEYS: usize = 7_000;

#[async_trait]
impl PeerService for StatsSource {
    async fn answer(&self, call: Call) -> Answer {
        self.call(call)
            .await
            .unwrap_or_else(|error| Answer::Failure(peer_failure(&retry_later(error).into())))
    }
}

impl StatsSource {
    async fn call(&self, call: Call) -> Result<Answer> {
        match call {
            Call::Report(report) => self.report(report).await,
            Call::Queues(request) if request.order_by != proto::QueueOrder::Unspecified as i32 => {
                ranked::own_page(&self.relay, &request).await
            }
            Call::Queues(request) => Ok(Answer::Queues(self.page(&request).await?)),
            Call::Listeners(request) => Ok(Answer::Listeners(self.page(&request).await?)),
            Call::FlagWatchers(request) => Ok(Answer::FlagWatchers(self.page(&request).await?)),
            Call::Acknowledgements(request) => self.acks(&request),
            Call::Timers(request) => self.timers(request),
            Call::NamedQueues(request) => ranked::own_named_page(&self.relay, &request),
            Call::Stats(_) => Ok(Answer::Stats(self.own().await)),
            Call::Explain(request) => {
                let queue = QueueAddress::new(&request.storage_account, &request.queue_name)?;
                Ok(Answer::Explain(self.own_facts(&queue)))
            }
        }
    }

    /// Takes a report of one of this relay's streams that reached another relay.
    async fn report(&self, report: proto::ReportRequest) -> Result<Answer> {
        let (subscription_id, report) = report_from_wire(report)?;
        self.relay.report(&subscription_id, &report).await?;
        Ok(Answer::Done(Done {}))
    }

    async fn page<L: List>(&self, list: &L) -> Result<L::Response> {
        own_page(list, &self.relay, &self.flags).await
    }

    fn timers(&self, request: TimersRequest) -> Result<Answer> {
        self.relay.take_over_timers(&timers_from_wire(request)?)?;
        Ok(Answer::Done(Done {}))
    }

    fn acks(&self, request: &AcknowledgementsRequest) -> Result<Answer> {
        let max = usize::try_from(request.max_keys).unwrap_or(MAX_KEYS);
        let known = self.flags.acks_of(request, max.min(MAX_KEYS))?;
        Ok(Answer::Acknowledgements(known))
    }
}
