//! Findings: what is wrong with a queue or a relay, a sentence each, worst first.
//!
//! Each sentence names the thing and says what to do. Pure over gathered facts: knows neither a relay
//! nor a clock.

use std::{collections::HashSet, fmt, time::Duration};

use crate::{
    base::duration::Span,
    relay::{
        hub::{LimitUse, ListenerStats, QueueListener, SurveyedListener, UnservedQueue},
        runtime::RelaySurvey,
        server::{access::recent_refusals::RefusedCaller, lists::pages::Entry},
    },
    types::{ListenerId, QueueAddress},
    wire::{
        link::QueueFacts,
        proto::{Finding, FindingKind, Queue, RelayStats},
        span_from_wire,
    },
};

/// What a relay knows about itself.
#[derive(Debug, Default)]
pub(crate) struct RelayFacts {
    pub(crate) relay_id: String,
    /// Those that are full or nearly so.
    pub(crate) limits: Vec<LimitUse>,
    /// The process is near this limit of memory, in bytes.
    pub(crate) short_of_memory: Option<u64>,
    /// It drains; time until its streams have ended.
    pub(crate) draining: Option<Duration>,
    pub(super) is_cut_off: bool,
    /// Why the store of the flags cannot be read.
    pub(crate) store: Option<String>,
    /// Newest first.
    pub(crate) refused: Vec<RefusedCaller>,
    /// Relays of the cluster that are missing, and their silence.
    pub(crate) missing: Vec<(String, Duration)>,
}

/// Findings of one answer.
pub(crate) const MOST: usize = 32;
/// Findings of one kind about single queues, listeners or callers.
const EACH: usize = 8;
/// A limit is worth a finding from here on, in per cent.
const NEARLY: u64 = 90;
/// A listener that handles one message of the queue for this long explains why others wait.
const BUSY_FROM: Duration = Duration::from_secs(10);

/// Returns the findings about a queue, worst first; the first one is the verdict. `relays` have what
/// each relay knows, and its id.
pub(super) fn of_queue(
    queue: &QueueAddress,
    relays: &[(String, QueueFacts)],
    unanswered: &[String],
) -> Vec<Finding> {
    let facts = QueueSums::of(relays);
    let mut findings = Vec::new();
    if facts.listeners == 0 {
        findings.push(without_listener(queue, &facts, relays));
    } else if facts.waits && facts.at_capacity == facts.listeners {
        findings.push(at_capacity(queue, &facts));
    } else if facts.silent < facts.listeners {
        findings.push(state_of(queue, &facts));
    }
    let present: HashSet<&str> = relays
        .iter()
        .flat_map(|(_, facts)| facts.listener_ids.iter().map(String::as_str))
        .collect();
    let all_are_silent = facts.listeners <= facts.silent;
    for finding in relays.iter().flat_map(|(_, facts)| &facts.findings) {
        let mut finding = finding.clone();
        let is_gone = finding.kind() == FindingKind::Gone;
        // It has subscribed at another relay since.
        if is_gone && present.contains(finding.listener_id.as_str()) {
            continue;
        }
        if is_gone || finding.kind() == FindingKind::Silent {
            finding.urgent = facts.waits && all_are_silent;
        }
        findings.push(finding);
    }
    findings.extend(unanswered.iter().map(|relay| unanswering(relay)));
    if facts.polling > 0 {
        findings.push(polling(queue, &facts));
    }
    worst_first(findings)
}

/// Returns the findings about a whole relay and its listeners, worst first.
pub(crate) fn of_relay(
    facts: &RelayFacts,
    survey: &RelaySurvey,
    lost: &[ListenerStats],
) -> Vec<Finding> {
    let mut findings = of_state(facts);
    let RelaySurvey {
        listeners: survey,
        unserved,
    } = survey;
    findings.extend(
        unserved
            .iter()
            .take(EACH)
            .map(|one| unserved_queue(facts, one)),
    );
    findings.extend(gone(&facts.relay_id, lost));
    let listener = |kind, one: &SurveyedListener| {
        let queue = one.queue.as_ref().map(|queue| queue as &dyn fmt::Display);
        of_listener(kind, &facts.relay_id, &one.listener_id, queue, one.span)
    };
    let silent = survey.silent.iter();
    findings.extend(silent.map(|one| listener(FindingKind::Silent, one)));
    let busy = survey.busy.iter();
    findings.extend(busy.map(|one| listener(FindingKind::Busy, one)));
    if survey.polling > 0 {
        let text = format!(
            "{} of {} poll their queues without wake-ups; they sleep when their dequeue tasks have ended",
            survey.polling,
            count(survey.listeners as u64, "listener"),
        );
        findings.push(finding(FindingKind::Polling, text).at(&facts.relay_id));
    }
    findings.extend(
        facts
            .refused
            .iter()
            .take(EACH)
            .map(|one| refused(facts, one)),
    );
    worst_first(findings)
}

/// Returns the findings of one relay that matter for each queue: its limits, its end, its cluster.
pub(super) fn of_state(facts: &RelayFacts) -> Vec<Finding> {
    let id = &facts.relay_id;
    let mut findings: Vec<_> = facts.limits.iter().filter_map(nearly_full).collect();
    if let Some(limit) = facts.short_of_memory {
        let limit = limit >> 20;
        let text = format!(
            "the process is near its limit of {limit} MiB of memory, so new listeners and queues \
             are refused; raise --max-memory"
        );
        findings.push(finding(FindingKind::Full, text));
    }
    if let Some(left) = facts.draining {
        let text = format!(
            "the relay shuts down: new listeners are refused, and its streams end within {}; \
             listeners need another relay",
            Span(whole(left)),
        );
        findings.push(finding(FindingKind::Draining, text));
    }
    if facts.is_cut_off {
        let text = "the relay is cut off from the others of its cluster, so its listeners poll; \
                    check its connection to NATS";
        findings.push(finding(FindingKind::CutOff, text));
    }
    if let Some(why) = &facts.store {
        let text = format!("the store of the flags cannot be read, wake-ups go on: {why}");
        findings.push(finding(FindingKind::Store, text));
    }
    findings.extend(facts.missing.iter().map(|(relay, silent)| {
        let text = format!(
            "relay {relay} has been silent for {}; check its process and its connection to NATS",
            Span(whole(*silent)),
        );
        finding(FindingKind::RelayMissing, text)
    }));
    for one in &mut findings {
        one.text = match one.text.strip_prefix("the relay ") {
            Some(rest) => format!("relay {id} {rest}"),
            None if one.kind() == FindingKind::RelayMissing => std::mem::take(&mut one.text),
            None => format!("relay {id}: {}", one.text),
        };
        one.relay_id.clone_from(id);
    }
    findings
}

/// Returns the findings of one relay about its listeners of a queue: silent, busy and lost ones.
pub(super) fn of_listeners(
    queue: &QueueAddress,
    relay_id: &str,
    listeners: &[QueueListener],
    lost: &[ListenerStats],
) -> Vec<Finding> {
    let silent: Vec<_> = listeners
        .iter()
        .filter_map(|one| Some((one.silent_for?, &one.listener_id)))
        .collect();
    let busy: Vec<_> = listeners
        .iter()
        .filter_map(|one| Some((one.busy_for.filter(|_| one.busy)?, &one.listener_id)))
        .filter(|(span, _)| *span >= BUSY_FROM)
        .collect();
    let mut findings = Vec::new();
    for (kind, mut named) in [(FindingKind::Silent, silent), (FindingKind::Busy, busy)] {
        named.sort_unstable_by(|one, two| two.cmp(one));
        let longest = named.into_iter().take(EACH);
        findings
            .extend(longest.map(|(span, id)| of_listener(kind, relay_id, id, Some(queue), span)));
    }
    findings.extend(gone(relay_id, lost));
    for finding in &mut findings {
        finding.queue = queue.to_string();
    }
    findings
}

/// Returns the finding of a caller that was refused.
pub(crate) fn refused(facts: &RelayFacts, refused: &RefusedCaller) -> Finding {
    let RefusedCaller {
        caller,
        target,
        why,
        count,
        ..
    } = refused;
    let when = match count {
        1 => ago(refused.before),
        count => format!("{count} times, last {}", ago(refused.before)),
    };
    let text = match refused.action {
        Some(action) if target.is_empty() => {
            format!("`{caller}` was denied `{action}` {when}: {why}; change the rules of --auth")
        }
        Some(action) => format!(
            "`{caller}` was denied `{action}` of {target} {when}: {why}; change the rules of --auth"
        ),
        None => format!("the credential of a caller from {caller} was refused {when}: {why}"),
    };
    finding(FindingKind::Refused, text).at(&facts.relay_id)
}

/// The sums over all relays.
#[derive(Debug, Default)]
struct QueueSums {
    queue: Option<Queue>,
    listeners: u32,
    reporting: u32,
    busy: u32,
    at_capacity: u32,
    /// How long all of them have been so.
    full_for: Option<Duration>,
    polling: u32,
    silent: u32,
    dequeue_tasks: u32,
    /// Messages may wait: the newest notification is not known to be handled.
    waits: bool,
}

impl QueueSums {
    fn of(relays: &[(String, QueueFacts)]) -> Self {
        let mut sums = Self {
            queue: merged(relays),
            ..Self::default()
        };
        for (_, facts) in relays {
            sums.listeners = sums.listeners.saturating_add(facts.pattern_listeners);
            sums.reporting += facts.reporting;
            sums.busy += facts.busy;
            sums.at_capacity += facts.at_capacity;
            let full_for = facts.full_for.map(|span| span_from_wire(Some(span)));
            sums.full_for = sums.full_for.into_iter().chain(full_for).min();
            sums.polling += facts.polling;
            sums.silent += facts.silent;
            sums.dequeue_tasks = sums.dequeue_tasks.saturating_add(facts.dequeue_tasks);
        }
        let known = sums.queue.as_ref().map_or(0, |queue| queue.listeners);
        sums.listeners = sums.listeners.saturating_add(known);
        sums.waits = sums.queue.as_ref().is_some_and(waits);
        sums
    }

    fn notified_before(&self) -> Option<Duration> {
        let queue = self.queue.as_ref()?;
        queue.idle_for.map(|span| span_from_wire(Some(span)))
    }
}

/// Returns the queue as all relays know it.
pub(crate) fn merged(relays: &[(String, QueueFacts)]) -> Option<Queue> {
    let mut known = relays.iter().filter_map(|(_, facts)| facts.queue.clone());
    let mut queue = known.next()?;
    known.for_each(|other| queue.add(other));
    Some(queue)
}

/// Returns whether messages may wait: a reading found some, or none was made since the newest
/// notification.
fn waits(queue: &Queue) -> bool {
    let Some(idle_for) = queue.idle_for else {
        return queue.backlog > 0 || queue.current_queue_depth > Some(0);
    };
    let span = |span| span_from_wire(Some(span));
    let read = queue.depth_age.map(span);
    let is_read = read.is_some_and(|read| read <= span(idle_for));
    queue.backlog > 0 || queue.current_queue_depth > Some(0) || !is_read
}

fn without_listener(
    queue: &QueueAddress,
    facts: &QueueSums,
    relays: &[(String, QueueFacts)],
) -> Finding {
    let near = relays.iter().map(|(_, facts)| facts.near_name.as_str());
    let near = near.into_iter().find(|near| !near.is_empty());
    let what = match (&facts.queue, facts.notified_before()) {
        (None, _) => format!("no listener subscribes to {queue}, and no publisher has notified it"),
        (Some(_), None) => {
            format!("no listener subscribes to {queue}, which has not been notified")
        }
        (Some(known), Some(before)) => format!(
            "no listener subscribes to {queue}, which was notified {}, last {}",
            times(known.notifications),
            ago(before),
        ),
    };
    let (kind, hint) = match near {
        Some(near) => (
            FindingKind::NearName,
            format!("a listener subscribes to {near}: correct the name that is misspelt"),
        ),
        None => (
            FindingKind::NoListener,
            "start one, or check the name".to_owned(),
        ),
    };
    Finding {
        urgent: facts.waits,
        ..finding(kind, format!("{what}; {hint}")).about(queue)
    }
}

fn at_capacity(queue: &QueueAddress, facts: &QueueSums) -> Finding {
    let depth = facts
        .queue
        .as_ref()
        .and_then(|queue| queue.current_queue_depth);
    let depth = match depth.filter(|depth| *depth > 0) {
        Some(depth) => format!(", while {} in the queue", messages(depth)),
        None => String::new(),
    };
    let who = match facts.listeners {
        1 => format!("the only listener of {queue} has run as many dequeue tasks as it may"),
        number => {
            format!("all {number} listeners of {queue} have run as many dequeue tasks as they may")
        }
    };
    let full_for = Span(whole(facts.full_for.unwrap_or_default()));
    let text = format!(
        "{who} ({}) for {full_for}{depth}; start more listeners, or allow more tasks",
        facts.dequeue_tasks,
    );
    finding(FindingKind::AtCapacity, text).about(queue)
}

fn polling(queue: &QueueAddress, facts: &QueueSums) -> Finding {
    let text = format!(
        "{} of {} of {queue} poll it without wake-ups; they sleep when their dequeue tasks have ended",
        facts.polling,
        count(facts.listeners.into(), "listener"),
    );
    finding(FindingKind::Polling, text).about(queue)
}

/// What the listeners of a queue do: the verdict where nothing is wrong.
fn state_of(queue: &QueueAddress, facts: &QueueSums) -> Finding {
    let answering = facts.listeners - facts.silent;
    let asleep = answering.saturating_sub(facts.polling);
    let all = count(facts.listeners.into(), "listener");
    let who = match (facts.busy, asleep) {
        (1, _) => format!("1 of {all} works on {queue}"),
        (2.., _) => format!("{} of {all} work on {queue}", facts.busy),
        (0, 0) if answering == 1 => format!("1 listener polls {queue}"),
        (0, 0) => format!("{answering} listeners poll {queue}"),
        (0, 1) => format!("1 listener sleeps on {queue}"),
        (0, _) => format!("{asleep} listeners sleep on {queue}"),
    };
    let newest = match facts.notified_before() {
        None => "it has not been notified yet".to_owned(),
        Some(before) => {
            let handled = match (facts.waits, facts.busy, facts.reporting) {
                (false, ..) => " and has been handled",
                (true, 1.., _) => "",
                (true, 0, 0) => ", and no listener reports whether it has handled it",
                (true, 0, _) => " and has not been handled yet",
            };
            format!("its newest notification was {}{handled}", ago(before))
        }
    };
    finding(FindingKind::Unspecified, format!("{who}; {newest}")).about(queue)
}

fn unserved_queue(facts: &RelayFacts, unserved: &UnservedQueue) -> Finding {
    let text = format!(
        "no listener subscribes to {}, which was notified {}, last {}; start one, or check the name",
        unserved.queue,
        times(unserved.notifications),
        ago(unserved.notified_before),
    );
    Finding {
        urgent: true,
        ..finding(FindingKind::NoListener, text)
    }
    .about(&unserved.queue)
    .at(&facts.relay_id)
}

fn gone(relay_id: &str, lost: &[ListenerStats]) -> impl Iterator<Item = Finding> {
    lost.iter().take(EACH).map(move |one| {
        let span = one.lost_for.unwrap_or_default();
        of_listener(FindingKind::Gone, relay_id, &one.listener_id, None, span)
    })
}

/// A listener that is silent, busy or gone for some time.
fn of_listener(
    kind: FindingKind,
    relay_id: &str,
    listener: &ListenerId,
    queue: Option<&dyn fmt::Display>,
    span: Duration,
) -> Finding {
    let with_queue = |word| queue.map_or_else(String::new, |queue| format!(" {word} {queue}"));
    let lasts = Span(whole(span));
    let text = match kind {
        FindingKind::Silent => format!(
            "listener {listener} was woken{} {} and has not reported: it hangs, or cannot read the \
             queue; see its log, or restart it",
            with_queue("for"),
            ago(span),
        ),
        FindingKind::Gone => format!(
            "listener {listener} has been gone from relay {relay_id} for {lasts}: it answered no \
             heartbeat; check its process, its machine and the network"
        ),
        _ => format!(
            "listener {listener} has been handling one message{} for {lasts}; if its command hangs, \
             end it",
            with_queue("of"),
        ),
    };
    Finding {
        listener_id: listener.to_string(),
        ..finding(kind, text).at(relay_id)
    }
}

fn nearly_full(limit: &LimitUse) -> Option<Finding> {
    let LimitUse {
        what,
        used,
        limit: most,
        is_full,
    } = *limit;
    let per_cent = used.saturating_mul(100) / most.max(1);
    if !is_full && per_cent < NEARLY {
        return None;
    }
    let text = match is_full {
        true => format!(
            "its limit of {most} {what} is reached ({per_cent} %), so further ones are refused; \
             raise the limit, or start another relay"
        ),
        false => format!(
            "{used} of {most} {what} are in use ({per_cent} %); raise the limit before it is reached"
        ),
    };
    Some(finding(FindingKind::Full, text))
}

fn unanswering(relay: &str) -> Finding {
    let text = format!(
        "relay {relay} does not answer, so its listeners and decisions are missing here; check its \
         process and its connection to NATS"
    );
    finding(FindingKind::RelayMissing, text).at(relay)
}

fn finding(kind: FindingKind, text: impl Into<String>) -> Finding {
    Finding {
        kind: kind.into(),
        text: text.into(),
        ..Finding::default()
    }
}

impl Finding {
    fn about(self, queue: &QueueAddress) -> Self {
        Self {
            queue: queue.to_string(),
            ..self
        }
    }

    fn at(self, relay_id: &str) -> Self {
        Self {
            relay_id: relay_id.to_owned(),
            ..self
        }
    }
}

/// Returns the findings of all relays, worst first. What several state in the same words stands once.
pub(super) fn of_all(relays: &[RelayStats]) -> Vec<Finding> {
    let mut findings: Vec<Finding> = Vec::new();
    for finding in relays.iter().flat_map(|relay| &relay.findings) {
        let is_known = |known: &Finding| known.text == finding.text;
        if !findings.iter().any(is_known) {
            findings.push(finding.clone());
        }
    }
    worst_first(findings)
}

/// Sorts by what must be done first; of one kind the order stays.
fn worst_first(mut findings: Vec<Finding>) -> Vec<Finding> {
    findings.sort_by_key(|one| (!one.urgent, rank(one.kind())));
    findings.truncate(MOST);
    findings
}

fn rank(kind: FindingKind) -> u8 {
    match kind {
        FindingKind::NoListener | FindingKind::NearName => 0,
        FindingKind::Silent => 1,
        FindingKind::Gone => 2,
        FindingKind::AtCapacity => 3,
        FindingKind::Busy => 4,
        FindingKind::Full => 5,
        FindingKind::CutOff => 6,
        FindingKind::Draining => 7,
        FindingKind::Refused => 8,
        FindingKind::RelayMissing => 9,
        FindingKind::Store => 10,
        // Before a hint that only costs reads.
        FindingKind::Unspecified => 11,
        FindingKind::Polling => 12,
    }
}

fn ago(span: Duration) -> String {
    match span.as_secs() {
        0 => "just now".to_owned(),
        _ => format!("{} ago", Span(whole(span))),
    }
}

fn whole(span: Duration) -> Duration {
    Duration::from_secs(span.as_secs())
}

fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

fn times(number: u64) -> String {
    match number {
        1 => "once".to_owned(),
        number => format!("{number} times"),
    }
}

fn messages(number: u64) -> String {
    match number {
        1 => "1 message is".to_owned(),
        number => format!("{number} messages are"),
    }
}

#[cfg(test)]
mod tests;
