//! The `Flags` service: translates requests and calls the durable flags.

use std::{
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use futures_core::{Stream, future::BoxFuture};
use tonic::{Request, Response, Status, async_trait};

use super::Services;
use crate::{
    base::{
        clock::{Timer, wall},
        task::{Work, poll_budget, spend},
    },
    coordination::flag::WatchStream,
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        runtime::{Relay, SilentRelays, poll_stream},
        server::{
            access::requester::{Needs, Requester, StreamGuard},
            http2::{activity::check_accepts_streams, server_limits::retry_later},
        },
    },
    types::{
        FlagEvent, FlagName, FlagState, LeashOptions, ListenerId, StreamLifecycle, UnleashOptions,
    },
    wire::{
        checked_span, flag_to_wire, goodbye_to_wire,
        link::{AcknowledgementsRequest, peer_reply::Answer, peer_request::Call},
        proto,
    },
};

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
/// Maximum flags of a page: 150 KiB with the longest texts.
const MAX_PAGE: u32 = 100;
/// Flags of each reading for a caller that may not see all of its prefix.
const MAX_READ: u32 = 700;
/// Maximum flags for such a caller.
const MAX_VISIBLE: usize = 100;
/// Calls of the store at one time; further ones wait for their turn.
pub(crate) const MAX_CALLS: usize = 256;
/// Time limit of a call with the wait for its turn; a slower store counts as unavailable.
const TIMEOUT: Duration = Duration::from_secs(4);

impl Services {
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

    /// Returns a page of flags. A caller that may not see all of the prefix gets its flags on one page: the
    /// token of a page may contain the name of a flag that it may not see.
    async fn flags_page(
        &self,
        request: &proto::ListFlagsRequest,
        requester: &Requester,
    ) -> Result<proto::ListFlagsResponse> {
        let prefix = &request.prefix;
        let is_whole = requester.allows(Action::Watch, Target::FlagPrefix(prefix));
        let mut answer = proto::ListFlagsResponse::default();
        if !is_whole && !requester.may_some(Action::Watch) {
            return Ok(answer);
        }
        // Larger numbers are refused below, as any other invalid one.
        let size = match request.page_size {
            _ if !is_whole => MAX_READ,
            MAX_PAGE..=1000 => MAX_PAGE,
            stated => stated,
        };
        let mut token = match is_whole {
            true => request.page_token.clone(),
            false => String::new(),
        };
        loop {
            let (flags, next) = self.flags.list(prefix, size, &token, wall()).await?;
            let is_visible = |flag: &&FlagState| {
                is_whole || requester.allows(Action::Watch, Target::Flag(&flag.name))
            };
            let visible = flags.iter().filter(is_visible);
            answer.flags.extend(visible.map(flag_to_wire));
            match next {
                Some(next) if is_whole => answer.next_page_token = next,
                Some(next) if answer.flags.len() <= MAX_VISIBLE => {
                    token = next;
                    continue;
                }
                Some(_) => {
                    let message = "prefix: too many flags; state a prefix that one rule covers";
                    return Err(Error::new(ErrorKind::Exhausted, message));
                }
                None => {}
            }
            return Ok(answer);
        }
    }

    /// Runs a call of the store. A write that exceeds the time limit may have happened.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`] if the store does not answer in time, and those of the call.
    async fn call<T>(&self, call: impl Future<Output = Result<T>>) -> Result<T> {
        in_time(async {
            let _permit = self.calls.acquire().await.expect("never closed");
            call.await
        })
        .await
        .map_err(retry_later)
    }
}

async fn in_time<T>(call: impl Future<Output = Result<T>>) -> Result<T> {
    let late = |_| {
        let message =
            "the store did not answer in time; a write may have happened, check with `flag get`";
        Err(Error::new(ErrorKind::Unavailable, message))
    };
    tokio::time::timeout(TIMEOUT, call)
        .await
        .unwrap_or_else(late)
}

#[async_trait]
impl proto::flags_server::Flags for Services {
    type WatchFlagStream = WatchResponses;

    async fn unleash(
        &self,
        request: Request<proto::UnleashRequest>,
    ) -> Result<Response<proto::UnleashResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let request = request.into_inner();
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
        let written = self.flags.unleash(&flag, &options, wall());
        let written = self.call(written).await;
        let (state, watchers) =
            written.inspect_err(|error| requester.record_failure("unleash", &flag, error))?;
        let others = self.watchers_elsewhere(&state).await;
        let watchers = watchers.saturating_add(others);
        // The stored state, including kept values.
        let FlagState { set_by, reason, .. } = &state;
        tracing::info!(%flag, ttl = ?options.ttl, %set_by, %reason, watchers, "a flag is set");
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
        let request = request.into_inner();
        let flag = FlagName::new(&request.flag)?;
        requester.check(Action::Unleash, Target::Flag(&flag))?;
        let options = LeashOptions {
            cleared_by: request.cleared_by,
            reason: request.reason,
        };
        options.check()?;
        requester.record("leash", &flag, &options.reason);
        let written = self.flags.leash(&flag, wall());
        let written = self.call(written).await;
        let (state, watchers) =
            written.inspect_err(|error| requester.record_failure("leash", &flag, error))?;
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
        let state = self.call(self.flags.get(&flag, wall())).await?;
        Ok(Response::new(proto::GetFlagResponse {
            flag: Some(flag_to_wire(&state)),
        }))
    }

    async fn list_flags(
        &self,
        request: Request<proto::ListFlagsRequest>,
    ) -> Result<Response<proto::ListFlagsResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let list = self.flags_page(request.get_ref(), &requester);
        Ok(Response::new(self.call(list).await?))
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
            .watch_within_limit(&flag, listener, request.acks, wall())
            .map_err(retry_later)?;
        let settling = Box::pin(in_time(watch.sync(wall())));
        // The times of a drain are of the relay's clock.
        let clock = self.relay.clock();
        let (now, mut rng) = (clock.now(), fastrand::Rng::new());
        let max_age = self.relay.config().stream_max_age;
        let lifecycle = StreamLifecycle::new(heartbeat, max_age, now, &mut rng);
        let responses = WatchResponses {
            stream: Some(WatchStream::new(watch, lifecycle)),
            guard: requester.guard(|| Needs::Flag(flag)),
            settling: Some(settling),
            drain_changes: Box::pin(self.relay.drain_changes()),
            relay: self.relay.clone(),
            timer: Timer::new(clock),
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
        self.list(request).await
    }

    async fn ack_flag(
        &self,
        request: Request<proto::AckFlagRequest>,
    ) -> Result<Response<proto::AckFlagResponse>, Status> {
        let requester = self.access.requester(request.extensions())?;
        let request = request.get_ref();
        let listener = ListenerId::new(&request.listener_id)?;
        let flag = FlagName::new(&request.flag)?;
        requester.check(Action::Watch, Target::Flag(&flag))?;
        let generation = request.generation;
        let counted = self.flags.ack(&flag, generation, &listener);
        // An acknowledgement of a known generation needs no store.
        if !counted.map_err(retry_later)? {
            let ack = self.flags.ack_any(&flag, generation, &listener, wall());
            self.call(ack).await?;
        }
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
            let goodbye = FlagEvent::Goodbye(StreamGuard::goodbye());
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
fn to_wire(event: FlagEvent) -> proto::WatchFlagResponse {
    use proto::watch_flag_response::Event as Wire;
    let event = match event {
        FlagEvent::State(state) => Some(Wire::Flag(flag_to_wire(&state))),
        FlagEvent::Heartbeat => Some(Wire::Heartbeat(proto::Heartbeat::default())),
        FlagEvent::Goodbye(goodbye) => Some(Wire::Goodbye(goodbye_to_wire(goodbye))),
        FlagEvent::Acks {
            generation,
            acknowledged,
            watchers,
        } => Some(Wire::Acks(proto::Acks {
            generation,
            acknowledged,
            watchers,
        })),
        FlagEvent::Unknown => None,
    };
    proto::WatchFlagResponse { event }
}
