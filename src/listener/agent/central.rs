//! The central agent: how many nodes a fleet has, by the backlog of its queues and the load of its
//! nodes. Pure: a driver follows the relay's stream, reads the relay's lists and calls a hook, and `now`
//! is the time since any fixed moment.
//!
//! The driver subscribes to the queues as a *plain agent*, without a group:
//!
//! * A plain subscriber gets every wake-up and takes none from the group. A member with capacity would be
//!   given messages that it does not handle, and a member without is not woken.
//! * It sends no report. Only reports lower a backlog, so the relay counts no message as handled because
//!   of it. It counts as a listener of the queue, as every agent does.
//! * The sentinel does not ask an agent. A visibility time-out of 1 ms: a subscriber that never reports
//!   counts as busy for that time after a wake-up, and the end of a busy one sets a timer.
//! * `Admin.WatchStats` sends figures at rest too, names no queues, and needs the right to
//!   administer. It is read for the policy's `latency` only.
//!
//! Wake-ups state no level: they cause a look at the relay's lists while there is no node. Otherwise a
//! look is periodic, so a busy queue costs no more looks than a slow one. Each decision follows a look,
//! so it knows which nodes state work.

#[cfg(test)]
mod tests;

use std::time::Duration;

use serde::{Deserialize, Deserializer, Serialize};

use crate::{
    base::{backoff::Backoff, duration::Span, fault::planted},
    error::{Error, Result},
    types::{ListenerId, QueueAddress, SubscribeOptions},
};

/// How many nodes a fleet has.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FleetPolicy {
    /// Least nodes, also without work.
    #[serde(default)]
    pub min: usize,
    /// Most nodes; 1 or more.
    pub max: usize,
    /// Messages of the backlog for one node; 1 or more.
    pub backlog_per_node: Option<u64>,
    /// While the latency from a notification to its handling is above this, and there is a backlog, the
    /// fleet grows by the ratio, at most to double.
    #[serde(default, deserialize_with = "span")]
    pub latency: Option<Duration>,
    /// The share of the nodes' dequeue tasks that work, above which the fleet grows by the ratio; above 0
    /// and at most 1.
    pub busy_share: Option<f64>,
    /// Most nodes that one change adds; 1 or more.
    pub step_up: Option<usize>,
    /// Most nodes that one change removes; 1 or more.
    pub step_down: Option<usize>,
    /// How long fewer nodes must be enough before nodes are removed.
    #[serde(default = "cool_down", deserialize_with = "span")]
    pub cool_down: Duration,
}

/// What the relay's lists state about the queues and the nodes.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FleetLoad {
    /// Messages that are not known to be handled. A queue that was not read since its newest event
    /// counts as one message at least.
    pub backlog: u64,
    /// Nodes that are connected.
    pub nodes: usize,
    /// Nodes that state work.
    pub nodes_at_work: usize,
    /// Dequeue tasks that work.
    pub active_tasks: u64,
    /// The most dequeue tasks at one time.
    pub total_tasks: u64,
    /// From notification to handling; `None` where it is not known.
    pub latency: Option<Duration>,
    /// Some relays of the cluster did not answer: there may be more work. No node is removed.
    pub is_partial: bool,
}

/// A call of the hook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FleetDecision {
    /// How many nodes there are to be.
    pub desired: usize,
    /// How many there are; `None` before the first call that succeeded.
    pub current: Option<usize>,
    /// The backlog of the newest look.
    pub backlog: u64,
    /// The reason, for people.
    pub reason: String,
}

/// The driver's next step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum FleetStep {
    /// Read the relay's lists, then call [`CentralAgent::on_load`].
    Look,
    /// Call the hook, then [`CentralAgent::on_success`] or [`CentralAgent::on_failure`].
    Call(FleetDecision),
    /// Wait until this time or the next event; [`Duration::MAX`]: until the next event.
    Wait(Duration),
}

/// Decides how many nodes a fleet has.
#[derive(Debug)]
pub struct CentralAgent {
    policy: FleetPolicy,
    interval: Duration,
    rng: fastrand::Rng,
    is_pushed: bool,
    /// The first call waits until then: after a restart of the relay nodes connect again.
    settled_at: Duration,
    /// The most nodes that were seen before the first call.
    seen: usize,
    /// A wake-up has arrived since the newest look began.
    is_woken: bool,
    is_looking: bool,
    looked_at: Duration,
    look_at: Duration,
    failed_looks: Backoff,
    /// A load without a decision.
    load: Option<FleetLoad>,
    /// The number of the running call.
    calling: Option<usize>,
    called_at: Option<Duration>,
    /// The number of the newest call that succeeded.
    asserted: Option<usize>,
    current: Option<usize>,
    /// The newest call failed: no call before this time.
    retry_at: Option<Duration>,
    failed_calls: Backoff,
    /// Since when fewer nodes are enough, and the most that were needed in that time.
    below: Option<(Duration, usize)>,
}

/// The longest time between two looks while there are nodes or a backlog.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// The least time between two looks.
const LOOK_GAP: Duration = Duration::from_millis(500);
/// Waits after a failed look: the first one, and the longest.
const FAILED_LOOK: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(30));
/// Waits after a failed call: the first one, and the longest.
const FAILED_CALL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(300));
/// The least wait after a failure.
const RETRY_GAP: Duration = Duration::from_secs(1);
/// The time in which nodes connect to a relay that has started.
const SETTLES_IN: Duration = Duration::from_secs(10);
const SECOND: Duration = Duration::from_secs(1);
/// Latency is not proportional to the number of nodes, and lags behind it.
const MOST_GROWTH: f64 = 2.0;

impl Default for FleetPolicy {
    /// None to one node, one for any backlog; removed after 5 minutes without need, as autoscalers do
    /// by default.
    fn default() -> Self {
        Self {
            min: 0,
            max: 1,
            backlog_per_node: Some(1),
            latency: None,
            busy_share: None,
            step_up: None,
            step_down: None,
            cool_down: cool_down(),
        }
    }
}

fn cool_down() -> Duration {
    Duration::from_secs(300)
}

fn span<'de, D: Deserializer<'de>, T: From<Duration>>(text: D) -> Result<T, D::Error> {
    Span::deserialize(text).map(|Span(span)| span.into())
}

impl FleetPolicy {
    /// Checks the rules of the fields.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the field's name and its rule.
    pub fn check(&self) -> Result<()> {
        let (count, span) = ("must be 1 or more", "must be longer than 0");
        let share = "must be above 0 and at most 1";
        let is_share = |share: f64| share > 0.0 && share <= 1.0;
        for (name, is_wrong, rule) in [
            ("max", self.max == 0, count),
            ("backlog_per_node", self.backlog_per_node == Some(0), count),
            ("step_up", self.step_up == Some(0), count),
            ("step_down", self.step_down == Some(0), count),
            ("latency", self.latency == Some(Duration::ZERO), span),
            ("busy_share", !self.busy_share.is_none_or(is_share), share),
        ] {
            if is_wrong {
                return Err(Error::invalid(name, rule));
            }
        }
        if self.min > self.max {
            let rule = format_args!("must be at most max ({}), not {}", self.max, self.min);
            return Err(Error::invalid("min", rule));
        }
        if self.backlog_per_node.is_none() && self.latency.is_none() && self.busy_share.is_none() {
            let rule = "must be stated, or `latency`, or `busy_share`";
            return Err(Error::invalid("backlog_per_node", rule));
        }
        Ok(())
    }
}

impl CentralAgent {
    /// Makes a central agent. `interval` is the least time between two calls, but for a call that starts
    /// the first nodes or repeats a failed one.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a policy that breaks a rule, and for an
    /// interval of 0.
    pub fn new(policy: FleetPolicy, interval: Duration, seed: u64) -> Result<Self> {
        policy.check()?;
        if interval.is_zero() {
            return Err(Error::invalid("interval", "must be longer than 0"));
        }
        Ok(Self {
            policy,
            interval,
            rng: fastrand::Rng::with_seed(seed),
            is_pushed: false,
            settled_at: Duration::ZERO,
            seen: 0,
            is_woken: false,
            is_looking: false,
            looked_at: Duration::ZERO,
            look_at: Duration::ZERO,
            failed_looks: Backoff::new(FAILED_LOOK.0, FAILED_LOOK.1),
            load: None,
            calling: None,
            called_at: None,
            asserted: None,
            current: None,
            retry_at: None,
            failed_calls: Backoff::new(FAILED_CALL.0, FAILED_CALL.1),
            below: None,
        })
    }

    /// Returns the options of its subscription.
    ///
    /// # Errors
    /// As [`SubscribeOptions::check`].
    pub fn subscription(id: ListenerId, queues: &[QueueAddress]) -> Result<SubscribeOptions> {
        let options = SubscribeOptions {
            visibility_timeout: Duration::from_millis(1),
            agent: true,
            ..SubscribeOptions::new(id, queues.iter().cloned())
        };
        options.check()?;
        Ok(options)
    }

    /// A stream was opened or lost: `is_pushed` says whether every notification becomes a wake-up.
    pub fn on_link(&mut self, is_pushed: bool, now: Duration) {
        if is_pushed != self.is_pushed {
            // The need in between is not known.
            (self.load, self.below) = (None, None);
            self.look_at = now;
            self.settled_at = now.saturating_add(SETTLES_IN);
        }
        self.is_pushed = is_pushed;
        self.is_woken |= is_pushed;
    }

    /// A wake-up has arrived.
    pub fn on_wake_up(&mut self) {
        self.is_woken = true;
    }

    /// A look has ended; `None`: it failed.
    pub fn on_load(&mut self, load: Option<FleetLoad>, now: Duration) {
        self.is_looking = false;
        if !self.is_pushed {
            return;
        }
        if load.is_none() {
            let wait = RETRY_GAP + self.failed_looks.next(&mut self.rng);
            self.look_at = now.saturating_add(wait);
            self.below = None;
        } else {
            self.failed_looks.reset();
        }
        self.load = load;
    }

    /// The hook has succeeded, and has stated this number of nodes, if any.
    pub fn on_success(&mut self, present: Option<usize>, now: Duration) {
        let Some(desired) = self.calling.take() else {
            return;
        };
        if self.below.is_some_and(|(_, peak)| peak >= desired) {
            // The next lower number needs a cool-down of its own.
            self.below = None;
        }
        self.asserted = Some(desired);
        self.current = Some(present.unwrap_or(desired));
        self.retry_at = None;
        self.failed_calls.reset();
        self.look_at = self.next_look(now);
    }

    /// The hook has failed, or was killed. It may have changed the number of nodes.
    pub fn on_failure(&mut self, now: Duration) {
        if planted!(CentralFailureIsDone) {
            return self.on_success(None, now);
        }
        self.calling = None;
        let wait = RETRY_GAP + self.failed_calls.next(&mut self.rng);
        self.look_at = now.saturating_add(wait);
        self.retry_at = Some(self.look_at);
    }

    /// Returns the driver's next step.
    pub fn step(&mut self, now: Duration) -> FleetStep {
        if self.is_looking || self.calling.is_some() {
            return FleetStep::Wait(Duration::MAX);
        }
        if !self.is_pushed {
            return self.step_while_away(now);
        }
        if let Some(load) = self.load.take() {
            match self.decide(&load, now) {
                Ok(decision) => return FleetStep::Call(decision),
                Err(again_at) => self.rest(&load, again_at, now),
            }
        }
        let woken_at = if self.is_woken && self.asserted == Some(0) {
            self.looked_at + LOOK_GAP
        } else {
            Duration::MAX
        };
        let look_at = self.look_at.min(woken_at);
        if look_at > now {
            return FleetStep::Wait(look_at);
        }
        (self.is_looking, self.is_woken) = (true, false);
        (self.looked_at, self.look_at) = (now, Duration::MAX);
        FleetStep::Look
    }

    /// The relay states no need: the number of nodes is kept. A call that failed may have changed it.
    fn step_while_away(&mut self, now: Duration) -> FleetStep {
        if self.asserted.is_none() || self.retry_at.is_none() {
            return FleetStep::Wait(Duration::MAX);
        }
        let load = FleetLoad {
            is_partial: true,
            ..FleetLoad::default()
        };
        match self.decide(&load, now) {
            Ok(decision) => FleetStep::Call(decision),
            Err(again_at) => FleetStep::Wait(again_at),
        }
    }

    /// Plans the look after a decision that calls nothing. Without a node and a backlog only a wake-up
    /// causes a look.
    fn rest(&mut self, load: &FleetLoad, again_at: Duration, now: Duration) {
        let is_done = (self.asserted, self.current, self.retry_at) == (Some(0), Some(0), None);
        self.look_at = if is_done && load.backlog == 0 && !load.is_partial {
            Duration::MAX
        } else {
            again_at.min(self.next_look(now)).max(now + LOOK_GAP)
        };
    }

    fn next_look(&self, now: Duration) -> Duration {
        now + self.interval.min(LOOK_EVERY)
    }

    /// Returns the call that a load needs now, or when it may need one without another event.
    fn decide(
        &mut self,
        load: &FleetLoad,
        now: Duration,
    ) -> std::result::Result<FleetDecision, Duration> {
        if self.asserted.is_none() {
            let seen = load.nodes.min(self.policy.max).max(load.nodes_at_work);
            self.seen = self.seen.max(seen);
            if load.is_partial || now < self.settled_at {
                return Err(self.settled_at.max(now.saturating_add(SECOND)));
            }
        }
        let level = self.asserted.unwrap_or(self.seen);
        let (wanted, mut reason) = self.wanted(load, level);
        let (mut desired, mut again_at) = (level, Duration::MAX);
        if wanted >= level {
            self.below = None;
            let step = self.policy.step_up.unwrap_or(usize::MAX);
            desired = wanted.min(level.saturating_add(step));
            if desired < wanted {
                reason.push_str(", in steps");
                again_at = now.saturating_add(self.interval);
            }
        } else if load.is_partial {
            self.below = None;
            again_at = now.saturating_add(self.interval);
        } else {
            let below = self.below.get_or_insert((now, wanted));
            below.1 = below.1.max(wanted);
            let (since, peak) = *below;
            again_at = since.saturating_add(self.policy.cool_down);
            if planted!(CentralNoCoolDown) {
                again_at = since;
            }
            if again_at <= now {
                desired = peak.max(level.saturating_sub(self.policy.step_down.unwrap_or(level)));
                again_at = Duration::MAX;
                reason = format!("{reason}, for {}", Span(now.saturating_sub(since)));
            } else {
                reason = format!("{reason}, not yet for long enough");
            }
        }
        let present = match self.retry_at {
            None => level.max(self.current.unwrap_or_default()),
            // The call that failed may have started nodes.
            Some(_) => level.max(self.policy.max),
        };
        let at_work = load.nodes_at_work.min(present);
        if at_work > desired && !planted!(CentralRetiresWork) {
            desired = at_work;
            reason = match at_work {
                1 => "1 node has work".to_owned(),
                _ => format!("{at_work} nodes have work"),
            };
        }
        if desired > level {
            // Nodes that were added stay for a cool-down of their own.
            self.below = None;
        }
        let is_done = self.asserted == Some(desired) && self.current == Some(desired);
        if is_done && self.retry_at.is_none() {
            return Err(again_at);
        }
        let allowed_at = self.allowed_at(desired);
        if allowed_at > now {
            return Err(allowed_at);
        }
        if self.retry_at.is_some() {
            reason.push_str("; the call before failed");
        }
        self.calling = Some(desired);
        self.called_at = Some(now);
        Ok(FleetDecision {
            desired,
            current: self.current,
            backlog: load.backlog,
            reason,
        })
    }

    /// Returns the number of nodes that the policy wants for a load, without limits of time.
    fn wanted(&self, load: &FleetLoad, level: usize) -> (usize, String) {
        let policy = &self.policy;
        // Those that still start take no part in the load.
        let connected = load.nodes.min(level);
        let least = match policy.min {
            0 => "there is no work".to_owned(),
            min => format!("the least number is {min}"),
        };
        let mut needs = vec![(policy.min, least)];
        if load.backlog > 0 {
            let per_node = policy.backlog_per_node.unwrap_or(u64::MAX);
            let nodes = usize::try_from(load.backlog.div_ceil(per_node)).unwrap_or(usize::MAX);
            needs.push((nodes, format!("the backlog is {}", load.backlog)));
        }
        if let (Some(target), Some(latency), 1..) = (policy.latency, load.latency, load.backlog) {
            let ratio = latency.div_duration_f64(target).min(MOST_GROWTH);
            let why = format!("the latency is {}", Span(latency));
            needs.push((scaled(connected, ratio), why));
        }
        let tasks = (load.active_tasks, load.total_tasks);
        if let (Some(target), (1.., 1..)) = (policy.busy_share, tasks) {
            #[allow(clippy::cast_precision_loss, reason = "a ratio of two counts")]
            let share = load.active_tasks as f64 / load.total_tasks as f64;
            let why = format!("{:.0} % of the tasks are busy", share * 100.0);
            needs.push((scaled(connected, share / target), why));
        }
        let (nodes, why) = needs
            .into_iter()
            .max_by_key(|need| need.0)
            .expect("one at least");
        (nodes.min(policy.max), why)
    }

    /// Returns from when on the hook may be called with this number.
    fn allowed_at(&self, desired: usize) -> Duration {
        if let Some(retry_at) = self.retry_at {
            return retry_at;
        }
        let starts_first = self.asserted == Some(0) && desired > 0;
        match self.called_at {
            Some(at) if !starts_first && !planted!(CentralIgnoresInterval) => {
                at.saturating_add(self.interval)
            }
            _ => Duration::ZERO,
        }
    }
}

/// Returns a number of nodes times a ratio, rounded up.
fn scaled(nodes: usize, ratio: f64) -> usize {
    // A quotient such as 0.8 / 0.8 may be a little above 1.
    const ROUNDING: f64 = 1e-9;
    #[allow(
        clippy::cast_precision_loss,
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "numbers of nodes are small, and the conversion saturates"
    )]
    let scaled = (nodes as f64 * ratio - ROUNDING).ceil() as usize;
    scaled
}
