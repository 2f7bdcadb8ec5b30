//! The lists of flags and of their watchers, without what the caller may not see.

use super::FlagsService;
use crate::{
    base::{
        clock::wall,
        task::{Work, spend_and_yield},
    },
    coordination::flag::{WatcherView, WatchersQuery},
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        server::{admin::page_size, requester::Requester, store_calls::in_time},
    },
    types::{FlagName, ListenerId},
    wire::{flag_to_wire, proto, span_to_wire},
};

/// Maximum flags of a page: 1 MiB with the longest texts.
const MAX_PAGE: u32 = 700;

impl FlagsService {
    pub(super) async fn list(
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

    pub(super) async fn watchers(
        &self,
        request: &proto::ListFlagWatchersRequest,
        requester: &Requester,
    ) -> Result<proto::ListFlagWatchersResponse> {
        let flag = Some(request.flag.as_str()).filter(|flag| !flag.is_empty());
        let flag = flag.map(FlagName::new).transpose()?;
        if let Some(flag) = &flag {
            requester.check(Action::Watch, Target::Flag(flag))?;
        }
        let count = page_size(request.page_size)?;
        let mut query = WatchersQuery {
            flag,
            away: request.away,
            after: watcher_token(&request.page_token)?,
            count,
        };
        if !requester.may_some(Action::Watch) {
            return Ok(proto::ListFlagWatchersResponse::default());
        }
        let mut watchers = Vec::new();
        // The token names the last watcher of the page, which the caller may see.
        let mut last = None;
        loop {
            let page = self.flags.list_watchers(&query);
            let is_last = page.len() < count;
            for view in &page {
                if !requester.allows(Action::Watch, Target::Flag(&view.flag)) {
                    continue;
                }
                watchers.push(watcher_to_wire(view));
                last = Some(format!("{}/{}", view.flag, view.listener));
                if watchers.len() == count {
                    break;
                }
            }
            if is_last || watchers.len() == count {
                let next = last.filter(|_| watchers.len() == count);
                return Ok(proto::ListFlagWatchersResponse {
                    watchers,
                    next_page_token: next.unwrap_or_default(),
                });
            }
            spend_and_yield(Work::Names(page.len())).await;
            query.after = page
                .last()
                .map(|view| (view.flag.clone(), view.listener.clone()));
        }
    }
}

/// Parses a page token, which names the last entry of the previous page: `FLAG/LISTENER`.
pub(crate) fn watcher_token(token: &str) -> Result<Option<(FlagName, ListenerId)>> {
    if token.is_empty() {
        return Ok(None);
    }
    let names = token.split_once('/');
    let names = names.and_then(|(flag, listener)| {
        Some((FlagName::new(flag).ok()?, ListenerId::new(listener).ok()?))
    });
    let bad = || Error::invalid("page_token", "must come from the previous page");
    names.ok_or_else(bad).map(Some)
}

fn watcher_to_wire(view: &WatcherView) -> proto::FlagWatcher {
    proto::FlagWatcher {
        flag: view.flag.to_string(),
        listener_id: view.listener.to_string(),
        streams: view.streams,
        since: Some(span_to_wire(view.since)),
        acknowledged: view.acknowledged,
    }
}
