//! What operators are told about the listeners of the relay.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use super::{Relay, SilentRelays};
use crate::{
    base::{clock::Tick, sync::lock},
    relay::hub::{ListenerSurvey, UnservedQueue},
};

/// What the relay's listeners need, and the queues without one.
#[derive(Debug, Default)]
pub(crate) struct RelaySurvey {
    pub(crate) listeners: ListenerSurvey,
    /// The newest first.
    pub(crate) unserved: Vec<UnservedQueue>,
}

/// The newest survey.
#[derive(Debug, Default)]
pub(super) struct SurveyCache(Mutex<Option<(Tick, Arc<RelaySurvey>)>>);

/// A survey locks each subscription and asks the other relays, so it is repeated no more often.
const SURVEY_EVERY: Duration = Duration::from_secs(5);
/// Queues about which the other relays are asked.
const UNSERVED: usize = 8;

impl Relay {
    /// Surveys the relay; the result is at most five seconds old.
    pub(crate) async fn survey(&self) -> Arc<RelaySurvey> {
        let now = self.shared.clock.now();
        let cached = lock(&self.shared.survey.0).clone();
        if let Some((at, survey)) = cached
            && now.since(at) < SURVEY_EVERY
        {
            return survey;
        }
        let (mut survey, mut after) = (RelaySurvey::default(), None);
        loop {
            after = self.shared.hub.survey(after, &mut survey.listeners, now);
            if after.is_none() {
                break;
            }
            tokio::task::yield_now().await;
        }
        let mut silent = SilentRelays::default();
        let unserved = self.shared.hub.unserved_queues(now);
        for one in unserved.into_iter().take(UNSERVED) {
            let is_served = self
                .shared
                .may_have_listener_elsewhere(&one.queue, &mut silent);
            if !is_served.await {
                survey.unserved.push(one);
            }
        }
        let survey = Arc::new(survey);
        *lock(&self.shared.survey.0) = Some((now, Arc::clone(&survey)));
        survey
    }
}
