//! The `ExternalScaler` service: tells KEDA when a workload needs replicas, and how many.
//!
//! Each answer is read from the figures of the object's queues. A stream waits for causes of its queues;
//! it is no subscriber, so it takes no wake-up from a listener.

mod demand;
mod object;

use std::{sync::Arc, time::Duration};

use futures_core::{future::BoxFuture, stream::BoxStream};
use tokio::{sync::watch, time::Instant};
use tonic::{Request, Response, Status, async_trait};

use self::{
    demand::{Assertions, Demand, QueueFacts},
    object::ScaledObject,
};
use super::Services;
use crate::{
    base::{backoff::about, clock::Tick, fnv::fnv1a},
    error::Result,
    relay::{
        auth::{Action, Target},
        runtime::{Relay, ScaledQueue, SilentRelays},
        server::{
            access::requester::{Needs, Requester, StreamGuard},
            http2::activity::{Activity, StreamShares, check_accepts_streams},
            lists::ranked::named_queues,
        },
    },
    types::{QueueAddress, Selector},
    wire::{
        proto,
        scaler::{
            GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse,
            MetricSpec, MetricValue, ScaledObjectRef, external_scaler_server::ExternalScaler,
        },
        span_from_wire,
    },
};

/// The stream of one scaled object.
struct ActiveStream {
    relay: Relay,
    object: ScaledObject,
    /// The causes of the queues, in their order.
    causes: Vec<watch::Receiver<Tick>>,
    assertions: Assertions,
    /// `None` before the first look.
    looked_at: Option<Instant>,
    guard: Option<Box<StreamGuard>>,
    _shares: StreamShares,
    draining: BoxFuture<'static, ()>,
    ends_at: Instant,
}

/// After a start, or missed causes of other relays, all queues are in doubt. The workloads that are
/// started for that are spread over this span.
const DOUBTS_SPREAD: Duration = Duration::from_secs(60);
/// A stream looks no more often than this: a queue may have a cause each microsecond.
const LOOK_AFTER: Duration = Duration::from_secs(1);
/// A stream looks as often as this: its doubts may count by now.
const LOOK_WITHIN: Duration = Duration::from_secs(60);

/// Returns what the queues of an object need. In a cluster the other relays are asked.
async fn demand(relay: &Relay, object: &ScaledObject) -> Result<Demand> {
    let (now, missed) = (relay.now(), relay.missed_causes());
    // Before the figures are read.
    let known = object.queues.iter().map(|queue| relay.scaled_queue(queue));
    let known = known.collect::<Result<Vec<_>>>()?;
    let names = object.queues.iter().cloned().collect();
    let found = named_queues(relay, names, &mut SilentRelays::default()).await;
    let facts = object.queues.iter().zip(known).map(|(queue, known)| {
        let found = found.get(&queue.to_string());
        QueueFacts {
            is_served: found.is_some_and(|found| found.listeners > 0),
            ..facts(queue, found, &known, missed, now)
        }
    });
    let facts: Vec<_> = facts.collect();
    Ok(Demand::of(object, &facts))
}

/// Returns what the figures of a queue say, and remembers whether it was certainly empty after its newest
/// cause. A relay without listeners of the queue has counted all of its messages since then.
fn facts(
    queue: &QueueAddress,
    found: Option<&proto::Queue>,
    known: &ScaledQueue,
    missed: Tick,
    now: Tick,
) -> QueueFacts {
    let at = |age: Option<prost_types::Duration>| age.map(|age| now - span_from_wire(Some(age)));
    let reported = found.filter(|queue| !queue.in_doubt);
    let read_at = reported.and_then(|queue| at(queue.depth_age));
    if reported.is_some_and(|queue| queue.backlog > 0 || queue.busy > 0) {
        known.set_filled();
    } else if let Some(read_at) = read_at {
        // Causes before the first question are in the figures only.
        let caused_at = found.and_then(|queue| at(queue.idle_for));
        if read_at >= caused_at.unwrap_or_default() {
            known.set_empty(read_at);
        }
    }
    if known.is_empty(missed) {
        return QueueFacts::default();
    }
    let (backlog, busy) = found.map_or((0, 0), |queue| (queue.backlog, queue.busy));
    // A cause without messages: a timer of a message that becomes visible again.
    let is_caused = backlog == 0 && known.is_caused_since(missed);
    // A name has the same delay at each look.
    let delay = u32::try_from(fnv1a(queue.to_string().bytes()) % 1_000).unwrap_or_default();
    let is_doubted = now >= known.doubted_since(missed) + DOUBTS_SPREAD / 1_000 * delay;
    let is_older = missed > Tick::default() && read_at.is_none_or(|read_at| read_at < missed);
    let may_have_more = backlog == 0 || reported.is_none() || is_older;
    QueueFacts {
        backlog,
        busy,
        is_served: false,
        is_unbounded: is_caused || is_doubted && may_have_more,
    }
}

impl Services {
    /// Reads an object, and checks that its caller may be told of its queues.
    fn object<T>(
        &self,
        request: &Request<T>,
        reference: Option<&ScaledObjectRef>,
    ) -> Result<(ScaledObject, Requester), Status> {
        let empty = ScaledObjectRef::default();
        let reference = reference.unwrap_or(&empty);
        let object = ScaledObject::read(reference)?;
        let headers = request.metadata().as_ref();
        let token = object::token(reference);
        let requester = self
            .access
            .requester_of(connection(request)?, headers, token)?;
        for queue in &object.queues {
            requester.check(Action::Subscribe, Target::Queue(queue))?;
        }
        Ok((object, requester))
    }
}

#[async_trait]
impl ExternalScaler for Services {
    type StreamIsActiveStream = BoxStream<'static, Result<IsActiveResponse, Status>>;

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<IsActiveResponse>, Status> {
        let (object, _) = self.object(&request, Some(request.get_ref()))?;
        let demand = demand(&self.relay, &object).await?;
        let result = demand.is_active;
        Ok(Response::new(IsActiveResponse { result }))
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<Self::StreamIsActiveStream>, Status> {
        let (object, requester) = self.object(&request, Some(request.get_ref()))?;
        let relay = self.relay.clone();
        check_accepts_streams(&relay, request.extensions())?;
        let shares = connection(&request)?.take_stream(&requester)?;
        let selectors = object.queues.iter().cloned().map(Selector::from).collect();
        let known = object.queues.iter().map(|queue| relay.scaled_queue(queue));
        let known = known.collect::<Result<Vec<_>>>()?;
        let max_age = about(relay.config().stream_max_age, &mut fastrand::Rng::new());
        let stream = ActiveStream {
            relay: self.relay.clone(),
            causes: known.iter().map(|queue| queue.watch()).collect(),
            object,
            assertions: Assertions::new(),
            looked_at: None,
            guard: requester.guard(|| Needs::Queues(Action::Subscribe, selectors)),
            _shares: shares,
            draining: Box::pin(async move { relay.drain_began().await }),
            ends_at: Instant::now() + max_age,
        };
        let responses = futures_util::stream::unfold(stream, ActiveStream::next);
        Ok(Response::new(Box::pin(responses)))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> Result<Response<GetMetricSpecResponse>, Status> {
        let (object, _) = self.object(&request, Some(request.get_ref()))?;
        let spec = MetricSpec {
            metric_name: object.metric_name(),
            target_size: whole(object.target.ceil()),
            target_size_float: object.target,
        };
        Ok(Response::new(GetMetricSpecResponse {
            metric_specs: vec![spec],
        }))
    }

    async fn get_metrics(
        &self,
        request: Request<GetMetricsRequest>,
    ) -> Result<Response<GetMetricsResponse>, Status> {
        let reference = request.get_ref().scaled_object_ref.as_ref();
        let (object, _) = self.object(&request, reference)?;
        let demand = demand(&self.relay, &object).await?;
        let value = MetricValue {
            metric_name: object.metric_name(),
            metric_value: whole(demand.messages.ceil()),
            metric_value_float: demand.messages,
        };
        Ok(Response::new(GetMetricsResponse {
            metric_values: vec![value],
        }))
    }
}

fn connection<T>(request: &Request<T>) -> Result<&Arc<Activity>, Status> {
    let connection = request.extensions().get();
    connection.ok_or_else(|| Status::internal("the request has no connection"))
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "saturates, and KEDA reads the number with its fraction"
)]
fn whole(number: f64) -> i64 {
    number as i64
}

impl ActiveStream {
    /// Returns the next response and the rest of the stream.
    async fn next(mut self) -> Option<(Result<IsActiveResponse, Status>, Self)> {
        loop {
            let is_caused = match self.looked_at {
                // The stream opens.
                None => true,
                Some(_) => self.turn().await?,
            };
            self.looked_at = Some(Instant::now());
            for causes in &mut self.causes {
                causes.mark_unchanged();
            }
            let demand = match demand(&self.relay, &self.object).await {
                Ok(demand) => demand,
                Err(error) => return Some((Err(error.into()), self)),
            };
            let now = self.relay.now();
            let random = &mut fastrand::Rng::new();
            if self.assertions.look(&demand, is_caused, now, random) {
                return Some((Ok(IsActiveResponse { result: true }), self));
            }
        }
    }

    /// Waits until there is a reason to look. Returns whether it is a cause; `None` where the stream must
    /// end.
    async fn turn(&mut self) -> Option<bool> {
        let relay = &self.relay;
        let looked_at = self.looked_at.unwrap_or_else(Instant::now);
        let look_at = relay.clock().instant(self.assertions.look_at);
        let look_at = look_at.min(looked_at + LOOK_WITHIN);
        let causes = &mut self.causes;
        let due = async {
            tokio::time::sleep_until(looked_at + LOOK_AFTER).await;
            let caused = causes.iter_mut().map(|causes| Box::pin(causes.changed()));
            tokio::select! {
                biased;
                _ = futures_util::future::select_all(caused) => true,
                () = tokio::time::sleep_until(look_at) => false,
            }
        };
        tokio::select! {
            biased;
            () = StreamGuard::revoked(&mut self.guard) => None,
            () = &mut self.draining => None,
            () = tokio::time::sleep_until(self.ends_at) => None,
            is_caused = due => Some(is_caused),
        }
    }
}
