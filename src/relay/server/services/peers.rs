//! Answers the requests of other relays of the cluster (C13).
//!
//! The broker admits relays only, and the asking relay has checked its caller. A request's values are
//! checked like a client's.

use async_trait::async_trait;
use tonic::Status;

use super::{
    admin::page_size, explain::own_facts, flags::lists::watcher_token, stats::StatsSource,
};
use crate::{
    coordination::flag::{AckKey, Flags, WatchersQuery},
    error::{Error, Result},
    relay::{
        runtime::{PeerService, Relay},
        server::{
            http2::limits::to_refusal,
            lists::{
                cluster_lists::{MAX_NAMED, check_filter, order_from_wire, stream_id},
                own_lists::{own_listeners, own_named, own_queues, own_ranked, own_watchers},
                pages::{Page, PageLimits, Part},
            },
        },
    },
    types::{FlagName, QueueAddress},
    wire::{
        link::{
            AcknowledgementsRequest, AcknowledgementsResponse, Done, NamedQueuesRequest,
            TimersRequest, peer_reply::Answer, peer_request::Call,
        },
        peer_failure, proto, report_from_wire, timers_from_wire,
    },
};

/// What a relay answers to others.
#[derive(Debug)]
pub(crate) struct RelayPeers {
    pub(crate) relay: Relay,
    pub(crate) flags: Flags,
    pub(crate) stats: StatsSource,
}

/// Keys of one reply: 56 KiB.
const MAX_KEYS: usize = 7_000;

#[async_trait]
impl PeerService for RelayPeers {
    async fn answer(&self, call: Call) -> Answer {
        self.call(call).await.unwrap_or_else(failed)
    }
}

impl RelayPeers {
    async fn call(&self, call: Call) -> Result<Answer, Status> {
        match call {
            Call::Report(report) => self.report(report).await,
            Call::Queues(request) => self.queues(&request).await.map_err(to_refusal),
            Call::Listeners(request) => self.listeners(&request).await.map_err(to_refusal),
            Call::FlagWatchers(request) => self.watchers(&request).await.map_err(to_refusal),
            Call::Acknowledgements(request) => self.acks(&request).map_err(to_refusal),
            Call::Timers(request) => self.timers(request).map_err(to_refusal),
            Call::NamedQueues(request) => self.named_queues(&request).map_err(to_refusal),
            Call::Stats(_) => Ok(Answer::Stats(self.stats.own().await)),
            Call::Explain(request) => {
                let queue = QueueAddress::new(&request.storage_account, &request.queue_name);
                let queue = queue.map_err(to_refusal)?;
                let facts = own_facts(&self.relay, self.stats.view(), &queue).await;
                Ok(Answer::Explain(facts))
            }
        }
    }

    /// Takes a report of one of this relay's streams that reached another relay.
    async fn report(&self, report: proto::ReportRequest) -> Result<Answer, Status> {
        let (subscription_id, report) = report_from_wire(report).map_err(to_refusal)?;
        let taken = self.relay.report(&subscription_id, &report);
        taken.map_err(to_refusal)?;
        if report.counts_a_cause() {
            self.relay.confirm_report().await.map_err(to_refusal)?;
        }
        Ok(Answer::Done(Done {}))
    }

    async fn queues(&self, request: &proto::ListQueuesRequest) -> Result<Answer> {
        let count = page_size(request.page_size)?;
        check_filter(&request.filter)?;
        let limits = PageLimits::of_relay(count);
        if let Some(order) = order_from_wire(request.order_by)? {
            let search = (&*request.filter, count);
            let ranked = own_ranked(&self.relay, order, search, |_| true).await;
            let mut page = Page::new(limits);
            // Those without room are the last ones of the order.
            _ = ranked.into_iter().all(|(entry, _)| page.push(entry));
            return Ok(Answer::Queues(proto::ListQueuesResponse {
                queues: page.into_entries(),
                ..Default::default()
            }));
        }
        let part = own_queues(&self.relay, &request.page_token, &request.filter, limits).await;
        Ok(Answer::Queues(proto::ListQueuesResponse {
            next_page_token: next(&part),
            queues: part.entries,
            unanswered_relays: Vec::new(),
        }))
    }

    async fn listeners(&self, request: &proto::ListListenersRequest) -> Result<Answer> {
        let after = stream_id(&request.page_token);
        let limits = PageLimits::of_relay(page_size(request.page_size)?);
        check_filter(&request.filter)?;
        let query = (request.lost, &*request.filter);
        let part = own_listeners(&self.relay, after, query, limits).await;
        Ok(Answer::Listeners(proto::ListListenersResponse {
            next_page_token: next(&part),
            listeners: part.entries,
            unanswered_relays: Vec::new(),
        }))
    }

    fn named_queues(&self, request: &NamedQueuesRequest) -> Result<Answer> {
        if request.queues.len() > MAX_NAMED {
            return Err(Error::invalid("queues", "are too many"));
        }
        let names = request.queues.iter().map(|name| name.parse());
        let names = names.collect::<Result<Vec<QueueAddress>>>()?;
        Ok(Answer::Queues(proto::ListQueuesResponse {
            queues: own_named(&self.relay, &names),
            ..Default::default()
        }))
    }

    async fn watchers(&self, request: &proto::ListFlagWatchersRequest) -> Result<Answer> {
        let count = page_size(request.page_size)?;
        let flag = Some(request.flag.as_str()).filter(|flag| !flag.is_empty());
        let query = WatchersQuery {
            flag: flag.map(FlagName::new).transpose()?,
            away: request.away,
            after: watcher_token(&request.page_token)?,
            count,
        };
        let part = own_watchers(&self.flags, &query, PageLimits::of_relay(count)).await;
        Ok(Answer::FlagWatchers(proto::ListFlagWatchersResponse {
            next_page_token: next(&part),
            watchers: part.entries,
            unanswered_relays: Vec::new(),
        }))
    }

    fn timers(&self, request: TimersRequest) -> Result<Answer> {
        self.relay.take_over_timers(&timers_from_wire(request)?)?;
        Ok(Answer::Done(Done {}))
    }

    fn acks(&self, request: &AcknowledgementsRequest) -> Result<Answer> {
        let flag = FlagName::new(&request.flag)?;
        let max = usize::try_from(request.max_keys).map_err(|_| too_many())?;
        let after = request.after.map(AckKey);
        let known = self
            .flags
            .acks_of(&flag, request.generation, after, max.min(MAX_KEYS));
        Ok(Answer::Acknowledgements(AcknowledgementsResponse {
            acknowledged: known.acknowledged,
            watchers: known.watchers,
            keys: known.keys.iter().map(|key| key.0).collect(),
        }))
    }
}

/// States only whether there is more: the asking relay knows the last entry.
fn next<T>(part: &Part<T>) -> String {
    if part.more { "more" } else { "" }.to_owned()
}

fn too_many() -> Error {
    Error::invalid("max_keys", "is too large")
}

#[allow(clippy::needless_pass_by_value, reason = "for `unwrap_or_else`")]
fn failed(status: Status) -> Answer {
    Answer::Failure(peer_failure(&status))
}
