//! Findings: what is wrong with a queue or a relay, a sentence each, worst first.
//!
//! Each sentence names the thing and says what to do. Pure over gathered facts: knows neither a relay
//! nor a clock.

use std::{collections::HashSet, fmt, time::Duration};

use crate::{
    base::duration::Span,
    relay::{
        hub::{LimitUse, ListenerStats, QueueListener, SurveyedListener},
        runtime::RelaySurvey,
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
}

/// Findings of one answer.
pub(crate) const MOST: usize = 32;
/// Findings of one kind about single queues or listeners.
const EACH: usize = 8;
/// A limit is worth a finding from here on, in per cent.
const NEARLY: u64 = 90;
/// A listener that handles one message of the queue for this long explains why others wait.
const BUSY_FROM: Duration = Duration::from_secs(10);
/// The kinds, the worst first.
const ORDER: [FindingKind; 11] = [
    FindingKind::NoListener,
    FindingKind::Silent,
    FindingKind::Gone,
    FindingKind::AtCapacity,
    FindingKind::Busy,
    FindingKind::Full,
    FindingKind::CutOff,
    FindingKind::Draining,
    FindingKind::RelayMissing,
    FindingKind::Store,
    // Before a hint that only costs reads.
    FindingKind::Unspecified,
];

/// Returns the findings about a queue, worst first; the first one is the verdict. `facts` are those of all
/// relays but the unanswering ones.
pub(super) fn of_queue(
    queue: &QueueAddress,
    facts: &QueueFacts,
    unanswered: &[String],
) -> Vec<Finding> {
    let known = facts.queue.as_ref();
    let waits = known.is_some_and(waits);
    let mut findings = Vec::new();
    if facts.listeners == 0 {
        let notifications = known.map_or(0, |queue| queue.notifications);
        findings.push(Finding {
            urgent: waits,
            ..no_listener(queue, notifications, notified_before(known))
        });
    } else if waits && facts.at_capacity == facts.listeners {
        let text = format!(
            "the dequeue tasks of {} of {queue} are all in use; start more listeners, or allow more \
             tasks",
            count(facts.listeners.into(), "listener"),
        );
        findings.push(finding(FindingKind::AtCapacity, text).about(queue));
    } else if facts.silent < facts.listeners {
        findings.push(state_of(queue, facts, waits));
    }
    let present: HashSet<&str> = facts.listener_ids.iter().map(String::as_str).collect();
    let all_are_silent = facts.listeners <= facts.silent;
    for finding in &facts.findings {
        let mut finding = finding.clone();
        let is_gone = finding.kind() == FindingKind::Gone;
        // It has subscribed at another relay since.
        if is_gone && present.contains(finding.listener_id.as_str()) {
            continue;
        }
        if is_gone || finding.kind() == FindingKind::Silent {
            finding.urgent = waits && all_are_silent;
        }
        findings.push(finding);
    }
    findings.extend(unanswered.iter().map(|relay| unanswering(relay)));
    if facts.polling > 0 {
        findings.push(polling(facts.polling.into(), facts.listeners.into()).about(queue));
    }
    worst_first(findings)
}

/// Returns the findings about a whole relay and its listeners, worst first.
pub(crate) fn of_relay(
    facts: &RelayFacts,
    survey: &RelaySurvey,
    lost: &[ListenerStats],
) -> Vec<Finding> {
    let relay = &facts.relay_id;
    let mut findings = of_state(facts);
    findings.extend(survey.unserved.iter().take(EACH).map(|one| Finding {
        urgent: true,
        ..no_listener(&one.address, one.notifications, one.idle_for).at(relay)
    }));
    findings.extend(gone(relay, lost));
    let survey = &survey.listeners;
    let listener = |kind, one: &SurveyedListener| {
        let queue = one.queue.as_ref().map(|queue| queue as &dyn fmt::Display);
        of_listener(kind, relay, &one.listener_id, queue, one.span)
    };
    let silent = survey.silent.iter();
    findings.extend(silent.map(|one| listener(FindingKind::Silent, one)));
    let busy = survey.busy.iter();
    findings.extend(busy.map(|one| listener(FindingKind::Busy, one)));
    if survey.polling > 0 {
        findings.push(polling(survey.polling as u64, survey.listeners as u64).at(relay));
    }
    worst_first(findings)
}

/// Returns the findings of one relay that matter for each queue: its limits, its end, its cluster.
pub(super) fn of_state(facts: &RelayFacts) -> Vec<Finding> {
    let id = &facts.relay_id;
    let mut findings = Vec::new();
    let mut add = |kind, text| findings.push(finding(kind, text).at(id));
    for limit in &facts.limits {
        let LimitUse {
            what,
            used,
            limit: most,
            is_full,
        } = *limit;
        let per_cent = used.saturating_mul(100) / most.max(1);
        if is_full || per_cent >= NEARLY {
            let text = format!(
                "relay {id}: {used} of {most} {what} are in use ({per_cent} %); raise the limit, or \
                 start another relay"
            );
            add(FindingKind::Full, text);
        }
    }
    if let Some(limit) = facts.short_of_memory {
        let text = format!(
            "relay {id}: the process is near its limit of {} MiB of memory, so new listeners and \
             queues are refused; raise --max-memory",
            limit >> 20,
        );
        add(FindingKind::Full, text);
    }
    if let Some(left) = facts.draining {
        let text = format!(
            "relay {id} shuts down: new listeners are refused, and its streams end within {}; \
             listeners need another relay",
            whole(left),
        );
        add(FindingKind::Draining, text);
    }
    if facts.is_cut_off {
        let text = format!(
            "relay {id} is cut off from the others of its cluster, so its listeners poll; check its \
             connection to NATS"
        );
        add(FindingKind::CutOff, text);
    }
    if let Some(why) = &facts.store {
        let text =
            format!("relay {id}: the store of the flags cannot be read, wake-ups go on: {why}");
        add(FindingKind::Store, text);
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

/// Returns the findings of all relays, worst first. What several state in the same words stands once.
pub(super) fn of_all(relays: &[RelayStats], unanswered: &[String]) -> Vec<Finding> {
    let mut findings: Vec<_> = unanswered.iter().map(|relay| unanswering(relay)).collect();
    for finding in relays.iter().flat_map(|relay| &relay.findings) {
        let is_known = |known: &Finding| known.text == finding.text;
        if !findings.iter().any(is_known) {
            findings.push(finding.clone());
        }
    }
    worst_first(findings)
}

/// Returns whether messages may wait: a reading found some, or none was made since the newest
/// notification.
fn waits(queue: &Queue) -> bool {
    let span = |span| span_from_wire(Some(span));
    let is_read = match (queue.idle_for, queue.depth_age) {
        (None, _) => true,
        (Some(notified), Some(read)) => span(read) <= span(notified),
        (Some(_), None) => false,
    };
    queue.backlog > 0 || queue.current_queue_depth > Some(0) || !is_read
}

fn notified_before(known: Option<&Queue>) -> Option<Duration> {
    // A resync between relays counts as a cause, without a notification.
    let notified = known.filter(|queue| queue.notifications > 0)?;
    notified.idle_for.map(|span| span_from_wire(Some(span)))
}

fn no_listener(queue: &QueueAddress, notifications: u64, before: Option<Duration>) -> Finding {
    let what = match (notifications, before) {
        (_, None) => "and no publisher has notified it".to_owned(),
        (1, Some(before)) => format!("which was notified once, {}", ago(before)),
        (times, Some(before)) => format!("which was notified {times} times, last {}", ago(before)),
    };
    let text = format!("no listener subscribes to {queue}, {what}; start one, or check the name");
    finding(FindingKind::NoListener, text).about(queue)
}

fn polling(number: u64, of: u64) -> Finding {
    let all = count(of, "listener");
    let text = format!(
        "{number} of {all} poll without wake-ups; they sleep when their dequeue tasks have ended"
    );
    finding(FindingKind::Polling, text)
}

/// What the listeners of a queue do: the verdict where nothing is wrong.
fn state_of(queue: &QueueAddress, facts: &QueueFacts, waits: bool) -> Finding {
    let answering = facts.listeners - facts.silent;
    let asleep = answering.saturating_sub(facts.polling);
    let (number, one, many) = match (facts.busy, asleep) {
        (0, 0) => (answering, "polls", "poll"),
        (0, _) => (asleep, "sleeps on", "sleep on"),
        (busy, _) => (busy, "works on", "work on"),
    };
    let verb = if number == 1 { one } else { many };
    let listeners = count(number.into(), "listener");
    let newest = match notified_before(facts.queue.as_ref()) {
        None => "it has not been notified yet".to_owned(),
        Some(before) => {
            let handled = match (waits, facts.busy) {
                (false, _) => " and has been handled",
                (true, 0) => " and is not known to be handled",
                (true, _) => "",
            };
            format!("its newest notification was {}{handled}", ago(before))
        }
    };
    let text = format!("{listeners} {verb} {queue}; {newest}");
    finding(FindingKind::Unspecified, text).about(queue)
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
    let lasts = whole(span);
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

fn unanswering(relay: &str) -> Finding {
    let text = format!(
        "relay {relay} does not answer, so its listeners are missing here; check its process and its \
         connection to NATS"
    );
    finding(FindingKind::RelayMissing, text).at(relay)
}

fn finding(kind: FindingKind, text: String) -> Finding {
    Finding {
        kind: kind.into(),
        text,
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

/// Sorts by what must be done first; of one kind the order stays.
fn worst_first(mut findings: Vec<Finding>) -> Vec<Finding> {
    let rank = |one: &Finding| ORDER.iter().position(|kind| *kind == one.kind());
    findings.sort_by_key(|one| (!one.urgent, rank(one).unwrap_or(ORDER.len())));
    findings.truncate(MOST);
    findings
}

fn ago(span: Duration) -> String {
    match span.as_secs() {
        0 => "just now".to_owned(),
        _ => format!("{} ago", whole(span)),
    }
}

fn whole(span: Duration) -> Span {
    Span(Duration::from_secs(span.as_secs()))
}

fn count(number: u64, noun: &str) -> String {
    let plural = if number == 1 { "" } else { "s" };
    format!("{number} {noun}{plural}")
}

#[cfg(test)]
mod tests;
