//! The `ExternalScaler` service: tells KEDA when a workload needs replicas, and how many.
//!
//! Each answer is read from the figures of the object's queues. A stream waits for causes of its queues;
//! it is no subscriber, so it takes no wake-up from a listener.

mod demand;
mod drained;
mod object;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use futures_core::{future::BoxFuture, stream::BoxStream};
use tokio::{sync::watch, time::Instant};
use tonic::{Request, Response, Status, async_trait};

use self::{
    demand::{Assertions, Demand, QueueFacts},
    object::ScaledObject,
};
use super::{
    access::Access,
    cluster_lists::named_queues,
    limits::to_refusal,
    requester::{Needs, Requester, StreamGuard},
};
use crate::{
    base::{backoff::about, clock::Tick, fnv::fnv1a, sync::lock},
    error::Result,
    relay::{
        auth::{Action, Resource, Share, Target},
        runtime::{Moment, Relay, ScaledQueue, SilentRelays},
    },
    types::{Limits, QueueAddress, Selector},
    wire::{
        proto,
        scaler::{
            GetMetricSpecResponse, GetMetricsRequest, GetMetricsResponse, IsActiveResponse,
            MetricSpec, MetricValue, ScaledObjectRef,
            external_scaler_server::{ExternalScaler, ExternalScalerServer},
        },
        span_from_wire, to_status,
    },
};

/// What a relay knows for scalers. Cheap to clone.
#[derive(Debug, Clone)]
pub(crate) struct Scaler {
    relay: Relay,
    gaps: Arc<Mutex<Gaps>>,
}

/// How often this relay may have missed causes, and the newest time. The start is the first.
#[derive(Debug, Clone, Copy, Default)]
struct Gaps {
    count: u64,
    since: Tick,
}

pub(super) struct ScalerService {
    scaler: Scaler,
    max_age: Duration,
    access: Access,
}

/// The stream of one scaled object.
struct ActiveStream {
    scaler: Scaler,
    object: ScaledObject,
    /// Of each queue.
    causes: Vec<watch::Receiver<u64>>,
    assertions: Assertions,
    /// `None` before the first look.
    looked_at: Option<Instant>,
    guard: Option<Box<StreamGuard>>,
    _share: Option<Share>,
    draining: BoxFuture<'static, ()>,
    ends_at: Instant,
}

/// After a start, or a gap in the causes of other relays, all queues are in doubt. The workloads that
/// are started for that are spread over this span.
const DOUBTS_SPREAD: Duration = Duration::from_secs(60);
/// A stream looks no more often than this: a queue may have a cause each microsecond.
const LOOK_AFTER: Duration = Duration::from_secs(1);

pub(super) fn service(
    scaler: Scaler,
    max_age: Duration,
    access: Access,
) -> ExternalScalerServer<ScalerService> {
    let service = ScalerService {
        scaler,
        max_age,
        access,
    };
    ExternalScalerServer::new(service).max_decoding_message_size(Limits::REQUEST_BYTES)
}

impl Scaler {
    pub(crate) fn new(relay: Relay) -> Self {
        let since = relay.clock().now();
        Self {
            relay,
            gaps: Arc::new(Mutex::new(Gaps { count: 0, since })),
        }
    }

    /// Returns the gaps so far.
    fn gaps(&self) -> Gaps {
        let stats = self.relay.cluster_stats().map(|(stats, _)| stats);
        let count = stats.map_or(0, |stats| {
            stats.resyncs + stats.resyncs_of_all + stats.missing
        });
        let mut gaps = lock(&self.gaps);
        if count != gaps.count {
            let since = self.relay.clock().now();
            *gaps = Gaps { count, since };
        }
        *gaps
    }

    /// Returns what the queues of an object need. In a cluster the other relays are asked.
    async fn demand(&self, object: &ScaledObject) -> Result<Demand> {
        let gaps = self.gaps();
        let scaled = object.queues.iter().map(|queue| {
            let known = self.relay.scaled_queue(queue)?;
            // Before the figures are read.
            let moment = known.moment(gaps.count);
            Ok((known, moment))
        });
        let scaled = scaled.collect::<Result<Vec<_>>>()?;
        let names = object.queues.iter().cloned().collect();
        let found = named_queues(&self.relay, names, &mut SilentRelays::default()).await;
        let facts = object.queues.iter().zip(&scaled).map(|(queue, scaled)| {
            let found = found.get(&queue.to_string());
            let mut facts = self.facts(queue, found, (&scaled.0, scaled.1), gaps);
            if let Some(group) = &object.group {
                let members = self.relay.group_members(queue, group);
                facts.listeners = u32::try_from(members).unwrap_or(u32::MAX);
            }
            facts
        });
        let facts: Vec<_> = facts.collect();
        Ok(Demand::of(object, &facts, self.relay.clock().now()))
    }

    fn facts(
        &self,
        queue: &QueueAddress,
        found: Option<&proto::Queue>,
        (scaled, moment): (&ScaledQueue, Moment),
        gaps: Gaps,
    ) -> QueueFacts {
        if found.is_some_and(is_drained) {
            scaled.set_drained(moment);
        }
        let of = found.cloned().unwrap_or_default();
        let is_doubtful = of.backlog == 0 && of.busy == 0 && !scaled.is_drained(gaps.count);
        // The same at each look.
        let spread = fnv1a(queue.to_string().bytes()) % 1_000;
        let spread = DOUBTS_SPREAD / 1_000 * u32::try_from(spread).unwrap_or_default();
        QueueFacts {
            backlog: of.backlog,
            busy: of.busy,
            listeners: of.listeners,
            doubtful_from: is_doubtful.then_some(gaps.since + spread),
        }
    }
}

/// Returns whether a listener found the queue empty after its newest cause.
fn is_drained(queue: &proto::Queue) -> bool {
    let span = |age: Option<prost_types::Duration>| age.map(|age| span_from_wire(Some(age)));
    let Some(read) = span(queue.depth_age) else {
        return false;
    };
    let is_newest = span(queue.idle_for).is_none_or(|caused| read <= caused);
    is_newest && queue.backlog == 0 && queue.busy == 0 && !queue.in_doubt
}

impl ScalerService {
    /// Reads an object, and checks that its caller may be told of its queues.
    fn object(
        &self,
        reference: Option<&ScaledObjectRef>,
        (extensions, headers): (&http::Extensions, &http::HeaderMap),
    ) -> std::result::Result<(ScaledObject, Requester), Status> {
        let empty = ScaledObjectRef::default();
        let object = ScaledObject::read(reference.unwrap_or(&empty)).map_err(to_status)?;
        let token = object.token.as_deref();
        let requester = self.access.requester_of(extensions, headers, token)?;
        for queue in &object.queues {
            let allowed = requester.check(Action::Subscribe, Target::Queue(queue));
            allowed.map_err(to_status)?;
        }
        Ok((object, requester))
    }
}

#[async_trait]
impl ExternalScaler for ScalerService {
    type StreamIsActiveStream = BoxStream<'static, std::result::Result<IsActiveResponse, Status>>;

    async fn is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> std::result::Result<Response<IsActiveResponse>, Status> {
        let (object, _) = self.object(Some(request.get_ref()), parts(&request))?;
        let demand = self.scaler.demand(&object).await.map_err(to_status)?;
        let result = demand.is_active;
        Ok(Response::new(IsActiveResponse { result }))
    }

    async fn stream_is_active(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> std::result::Result<Response<Self::StreamIsActiveStream>, Status> {
        let (object, requester) = self.object(Some(request.get_ref()), parts(&request))?;
        let relay = self.scaler.relay.clone();
        relay.check_accepts_streams().map_err(to_refusal)?;
        let share = requester.take(Resource::Streams, 1).map_err(to_status)?;
        let selectors = object.queues.iter().cloned().map(Selector::from).collect();
        let known = object.queues.iter().map(|queue| relay.scaled_queue(queue));
        let known = known.collect::<Result<Vec<_>>>().map_err(to_status)?;
        let stream = ActiveStream {
            scaler: self.scaler.clone(),
            causes: known.iter().map(|queue| queue.causes()).collect(),
            object,
            assertions: Assertions::new(),
            looked_at: None,
            guard: requester.guard(|| Needs::Queues(Action::Subscribe, selectors)),
            _share: share,
            draining: Box::pin(async move { relay.drain_began().await }),
            ends_at: Instant::now() + about(self.max_age, &mut fastrand::Rng::new()),
        };
        let responses = futures_util::stream::unfold(stream, ActiveStream::next);
        Ok(Response::new(Box::pin(responses)))
    }

    async fn get_metric_spec(
        &self,
        request: Request<ScaledObjectRef>,
    ) -> std::result::Result<Response<GetMetricSpecResponse>, Status> {
        let (object, _) = self.object(Some(request.get_ref()), parts(&request))?;
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
    ) -> std::result::Result<Response<GetMetricsResponse>, Status> {
        let reference = request.get_ref().scaled_object_ref.as_ref();
        let (object, _) = self.object(reference, parts(&request))?;
        let demand = self.scaler.demand(&object).await.map_err(to_status)?;
        let value = MetricValue {
            metric_name: object.metric_name(),
            metric_value: i64::try_from(demand.backlog).unwrap_or(i64::MAX),
            metric_value_float: 0.0,
        };
        Ok(Response::new(GetMetricsResponse {
            metric_values: vec![value],
        }))
    }
}

fn parts<T>(request: &Request<T>) -> (&http::Extensions, &http::HeaderMap) {
    (request.extensions(), request.metadata().as_ref())
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
    async fn next(mut self) -> Option<(std::result::Result<IsActiveResponse, Status>, Self)> {
        loop {
            let is_first = self.looked_at.is_none();
            if !is_first && !self.turn().await {
                return None;
            }
            self.looked_at = Some(Instant::now());
            let mut caused = false;
            for causes in &mut self.causes {
                caused |= causes.has_changed().unwrap_or_default();
                causes.mark_unchanged();
            }
            let demand = match self.scaler.demand(&self.object).await {
                Ok(demand) => demand,
                Err(error) => return Some((Err(to_status(error)), self)),
            };
            let now = self.scaler.relay.clock().now();
            let random = &mut fastrand::Rng::new();
            if self
                .assertions
                .look(&demand, caused && !is_first, now, random)
            {
                return Some((Ok(IsActiveResponse { result: true }), self));
            }
        }
    }

    /// Waits until there is a reason to look. Returns `false` where the stream must end.
    async fn turn(&mut self) -> bool {
        let clock = self.scaler.relay.clock();
        let rest = self.looked_at.map(|at| at + LOOK_AFTER);
        let look_at = clock.instant(self.assertions.look_at);
        let (guard, causes) = (&mut self.guard, &mut self.causes);
        let revoked = async {
            match guard {
                Some(guard) => guard.revoked().await,
                None => std::future::pending().await,
            }
        };
        let due = async {
            if let Some(rest) = rest {
                tokio::time::sleep_until(rest).await;
            }
            let caused = causes.iter_mut().map(|causes| Box::pin(causes.changed()));
            tokio::select! {
                _ = futures_util::future::select_all(caused) => {}
                () = tokio::time::sleep_until(look_at) => {}
            }
        };
        tokio::select! {
            biased;
            () = revoked => false,
            () = &mut self.draining => false,
            () = tokio::time::sleep_until(self.ends_at) => false,
            () = due => true,
        }
    }
}
