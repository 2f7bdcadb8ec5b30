//! The `Flags` service: translates requests and calls the durable flags.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::{Stream, future::BoxFuture};
use prost_types::Timestamp;
use tonic::{Request, Response, Status, async_trait};

use super::store_calls::{StoreCalls, in_time};
use crate::{
    base::{
        clock::{Clock, Timer, wall},
        task::{Work, poll_budget, spend},
    },
    coordination::flag::{Event, Flags, WatchStream},
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        runtime::{Relay, SilentRelays, poll_stream},
        server::{
            access::{
                Access,
                requester::{Needs, Requester, StreamGuard},
            },
            http2::{answers::LargeAnswers, limits::retry_later, service::check_accepts_streams},
            lists::Lists,
        },
    },
    types::{FlagName, FlagState, LeashOptions, ListenerId, StreamLifecycle, UnleashOptions},
    wire::{
        checked_span, flag_to_wire, goodbye_to_wire,
        link::{AcknowledgementsRequest, peer_reply::Answer, peer_request::Call},
        proto,
    },
};

#[derive(Debug)]
pub(crate) struct FlagsService {
    flags: Flags,
    /// For what other relays of the cluster know.
    relay: Relay,
    clock: Clock,
    /// Maximum age of a watch's stream.
    max_age: Duration,
    /// For lists of flags, which wait for the store; the others do not wait for them.
    answers: LargeAnswers,
    lists: Lists,
    calls: StoreCalls,
    access: Access,
}

/// A watcher's stream on the wire.
pub(crate) struct WatchResponses {
    /// `None` once the guard has ended it.
    stream: Option<WatchStream>,
    guard: Option<Box<StreamGuard>>,
    /// Reads the store until the current state is known; `None` afterwards.
    settling: Option<BoxFuture<'static, Result<()>>>,
    relay: Relay,
    /// The next change of the relay's drain.
    drain_changes: BoxFuture<'static, ()>,
    timer: Timer,
}

/// An `unleash` waits no longer than this for the numbers of watchers at other relays.
const ELSEWHERE_WITHIN: Duration = Duration::from_millis(300);
/// Maximum flags of a page: 1 MiB with the longest texts.
const MAX_PAGE: u32 = 700;

impl FlagsService {
    pub(crate) fn new(
        flags: Flags,
        relay: Relay,
        max_age: Duration,
        lists: Lists,
        access: Access,
    ) -> Self {
        Self {
            flags,
            // The times of a drain are of the relay's clock.
            clock: relay.clock(),
            relay,
            max_age,
            answers: LargeAnswers::new(),
            lists,
            calls: StoreCalls::new(),
            access,
        }
    }

    /// C14: counts the watchers at other relays. A relay that does not answer in time is left out.
    async fn watchers_elsewhere(&self, state: &FlagState) -> u32 {
        let call = Call::Acknowledgements(AcknowledgementsRequest {
            flag: state.name.to_string(),
            generation: state.generation,
            after: None,
            max_keys: 0,
        });
        let mut silent = SilentRelays::default();
        let others = self.relay.ask_all(call, ELSEWHERE_WITHIN, &mut silent);
        let others = others.await;
        let watchers = others.iter().map(|(_, answer)| match answer {
            Answer::Acknowledgements(known) => known.watchers,
            _ => 0,
        });
        watchers.fold(0, u32::saturating_add)
    }

    async fn list(
        &self,
        request: &proto::ListFlagsRequest,
        requester: &Requester,
    ) -> Result<proto::ListFlagsResponse> {
        if !requester.allows(Action::Watch, Target::FlagPrefix(&request.prefix)) {
            return self.list_visible(&request.prefix, requester).await;
        }
        let list = self.flags.list(
            &request.prefix,
            // Larger numbers are refused below, as any other invalid one.
            match request.page_size {
                MAX_PAGE..=1000 => MAX_PAGE,
                stated => stated,
            },
            &request.page_token,
            wall(),
        );
        let (flags, next) = in_time(list).await?;
        Ok(proto::ListFlagsResponse {
            flags: flags.iter().map(flag_to_wire).collect(),
            next_page_token: next.unwrap_or_default(),
        })
    }

    /// Returns the flags that the caller may see, on one page: the token of a page may contain the
    /// name of a flag that the caller may not see.
    async fn list_visible(
        &self,
        prefix: &str,
        requester: &Requester,
    ) -> Result<proto::ListFlagsResponse> {
        let mut visible = Vec::new();
        if !requester.may_some(Action::Watch) {
            return Ok(proto::ListFlagsResponse::default());
        }
        let mut token = String::new();
        loop {
            let page = self.flags.list(prefix, MAX_PAGE, &token, wall());
            let (flags, next) = in_time(page).await?;
            let seen = flags
                .iter()
                .filter(|flag| requester.allows(Action::Watch, Target::Flag(&flag.name)));
            visible.extend(seen.map(flag_to_wire));
            if visible.len() > MAX_PAGE as usize {
                let message = "prefix: too many flags; state a prefix that one rule covers";
                return Err(Error::new(ErrorKind::Exhausted, message));
            }
            match next {
                Some(next) => token = next,
                None => break,
            }
        }
        Ok(proto::ListFlagsResponse {
            flags: visible,
            next_page_token: String::new(),
        })
    }
}

#[async_trait]
impl proto::flags_server::Flags for FlagsService {
    type WatchFlagStream = WatchResponses;

    async fn unleash(
        &self,
        request: Request<proto::UnleashRequest>,
    ) -> Result<Response<proto::UnleashResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let (_, extensions, request) = request.into_parts();
        let flag = FlagName::new(&request.flag)?;
        requester.check(Action::Unleash, Target::Flag(&flag))?;
        let options = UnleashOptions {
            ttl: checked_span("ttl", request.ttl)?,
            set_by: request.set_by,
            reason: request.reason,
        };
        options.check()?;
        // Before the write: what happens after it must not be without a trace.
        requester.record("unleash", &flag, &options.reason);
        let written = self.flags.set(&flag, &options, wall());
        let written = self.calls.run(&extensions, written).await;
        let written = written
            .map_err(retry_later)
            .inspect_err(|error| requester.record_failure("unleash", &flag, error))?;
        // No time limit after the store's answer: notifying very many watchers may take longer.
        let (state, watchers) = written.wake_watchers().await;
        let others = self.watchers_elsewhere(&state).await;
        let watchers = watchers.saturating_add(others);
        let ttl = options.ttl.filter(|ttl| !ttl.is_zero());
        let ttl = ttl.map(tracing::field::debug);
        // The stored state, including kept values.
        let FlagState { set_by, reason, .. } = &state;
        let expires_at = state.expires_at.map(Timestamp::from);
        let expires_at = expires_at.as_ref().map(tracing::field::display);
        tracing::info!(%flag, ttl, expires_at, %set_by, %reason, watchers, "a flag is set");
        Ok(Response::new(proto::UnleashResponse {
            flag: Some(flag_to_wire(&state)),
            watchers,
        }))
    }

    async fn leash(
        &self,
        request: Request<proto::LeashRequest>,
    ) -> Result<Response<proto::LeashResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let (_, extensions, request) = request.into_parts();
        let flag = FlagName::new(&request.flag)?;
        requester.check(Action::Unleash, Target::Flag(&flag))?;
        let options = LeashOptions {
            cleared_by: request.cleared_by,
            reason: request.reason,
        };
        options.check()?;
        requester.record("leash", &flag, &options.reason);
        let written = self.flags.clear(&flag, wall());
        let written = self.calls.run(&extensions, written).await;
        let written = written
            .map_err(retry_later)
            .inspect_err(|error| requester.record_failure("leash", &flag, error))?;
        let (state, watchers) = written.wake_watchers().await;
        let LeashOptions { cleared_by, reason } = &options;
        tracing::info!(%flag, %cleared_by, %reason, watchers, "a flag is cleared");
        Ok(Response::new(proto::LeashResponse {
            flag: Some(flag_to_wire(&state)),
        }))
    }

    async fn get_flag(
        &self,
        request: Request<proto::GetFlagRequest>,
    ) -> Result<Response<proto::GetFlagResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let flag = FlagName::new(&request.get_ref().flag)?;
        requester.check(Action::Watch, Target::Flag(&flag))?;
        let state = self.flags.get(&flag, wall());
        let state = self
            .calls
            .run(request.extensions(), state)
            .await
            .map_err(retry_later)?;
        Ok(Response::new(proto::GetFlagResponse {
            flag: Some(flag_to_wire(&state)),
        }))
    }

    async fn list_flags(
        &self,
        request: Request<proto::ListFlagsRequest>,
    ) -> Result<Response<proto::ListFlagsResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let prefix = &request.get_ref().prefix;
        let is_whole = requester.allows(Action::Watch, Target::FlagPrefix(prefix));
        if request.get_ref().page_size == 1 && is_whole {
            // A small answer; clients check with this call that the relay answers.
            let page = self
                .list(request.get_ref(), &requester)
                .await
                .map_err(retry_later)?;
            return Ok(Response::new(page));
        }
        let permit = self.answers.permit(request.extensions()).await?;
        let page = self
            .list(request.get_ref(), &requester)
            .await
            .map_err(retry_later)?;
        Ok(permit.attach(page))
    }

    async fn watch_flag(
        &self,
        request: Request<proto::WatchFlagRequest>,
    ) -> Result<Response<WatchResponses>, Status> {
        let requester = self.access.requester(request.extensions())?;
        check_accepts_streams(&self.relay, request.extensions())?;
        let request = request.into_inner();
        let flag = FlagName::new(&request.flag)?;
        requester.check(Action::Watch, Target::Flag(&flag))?;
        let listener = ListenerId::new(&request.listener_id)?;
        let heartbeat = checked_span("heartbeat", request.heartbeat)?.unwrap_or_default();
        tracing::debug!(%flag, %listener, "a flag is watched");
        let watch = self
            .flags
            .watch_within_limit(&flag, listener.clone(), request.acks)
            .map_err(retry_later)?;
        let settling = Box::pin(in_time(watch.sync(wall())));
        let (now, mut rng) = (self.clock.now(), fastrand::Rng::new());
        let lifecycle = StreamLifecycle::new(heartbeat, self.max_age, now, &mut rng);
        let responses = WatchResponses {
            stream: Some(WatchStream::new(watch, lifecycle)),
            guard: requester.guard(|| Needs::Flag(flag)),
            settling: Some(settling),
            drain_changes: Box::pin(self.relay.drain_changes()),
            relay: self.relay.clone(),
            timer: Timer::new(self.clock),
        };
        Ok(Response::new(responses))
    }

    async fn list_flag_watchers(
        &self,
        request: Request<proto::ListFlagWatchersRequest>,
    ) -> Result<Response<proto::ListFlagWatchersResponse>, Status> {
        let flag = &request.get_ref().flag;
        if !flag.is_empty() {
            let flag = FlagName::new(flag)?;
            let requester = self.access.requester(request.extensions())?;
            requester.check(Action::Watch, Target::Flag(&flag))?;
        }
        self.lists.list(request).await
    }

    async fn ack_flag(
        &self,
        request: Request<proto::AckFlagRequest>,
    ) -> Result<Response<proto::AckFlagResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let (extensions, request) = (request.extensions(), request.get_ref());
        let listener = ListenerId::new(&request.listener_id)?;
        let flag = FlagName::new(&request.flag)?;
        requester.check(Action::Watch, Target::Flag(&flag))?;
        let generation = request.generation;
        if self.flags.knows_generation(&flag, generation) {
            // Also while the store is slow.
            self.flags
                .ack(&flag, generation, &listener)
                .map_err(retry_later)?;
            return Ok(Response::new(proto::AckFlagResponse {}));
        }
        let ack = self.flags.ack_any(&flag, generation, &listener, wall());
        self.calls.run(extensions, ack).await.map_err(retry_later)?;
        Ok(Response::new(proto::AckFlagResponse {}))
    }
}

impl Stream for WatchResponses {
    type Item = Result<proto::WatchFlagResponse, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        std::task::ready!(poll_budget(cx));
        if let Some(guard) = &mut this.guard
            && guard.poll_revoked(cx).is_ready()
        {
            // The watcher counts no longer.
            (this.stream, this.guard, this.settling) = (None, None, None);
            let goodbye = Event::Goodbye(StreamGuard::goodbye());
            return Poll::Ready(Some(Ok(to_wire(goodbye))));
        }
        if let Some(settling) = &mut this.settling
            && let Poll::Ready(settled) = settling.as_mut().poll(cx)
        {
            this.settling = None;
            if let Err(error) = settled {
                return Poll::Ready(Some(Err(retry_later(error).into())));
            }
        }
        while this.drain_changes.as_mut().poll(cx).is_ready() {
            this.drain_changes = Box::pin(this.relay.drain_changes());
        }
        let Some(stream) = &mut this.stream else {
            return Poll::Ready(None);
        };
        let drain = this.relay.drain_state();
        let event = std::task::ready!(poll_stream(&mut this.timer, cx, |now, waker| {
            stream.next(now, drain, waker)
        }));
        Poll::Ready(event.map(|event| {
            spend(Work::Message(0));
            Ok(to_wire(event))
        }))
    }
}

/// Encodes an event of a watch.
fn to_wire(event: Event) -> proto::WatchFlagResponse {
    use proto::watch_flag_response::Event as Wire;
    let event = match event {
        Event::State(state) => Wire::Flag(flag_to_wire(&state)),
        Event::Heartbeat => Wire::Heartbeat(proto::Heartbeat::default()),
        Event::Goodbye(goodbye) => Wire::Goodbye(goodbye_to_wire(goodbye)),
        Event::Acks(acks) => Wire::Acks(proto::Acks {
            generation: acks.generation,
            acknowledged: acks.acknowledged,
            watchers: acks.watchers,
        }),
    };
    proto::WatchFlagResponse { event: Some(event) }
}
