//! The lists of flags and of their watchers, without what the caller may not see.

use super::FlagsService;
use crate::{
    base::clock::wall,
    coordination::flag::WatchersQuery,
    error::{Error, ErrorKind, Result},
    relay::{
        auth::{Action, Target},
        runtime::SilentRelays,
        server::{
            access::requester::Requester,
            lists::{
                cluster_lists::all_watchers,
                pages::{Entry, Page, PageLimits},
            },
            services::{admin::page_size, store_calls::in_time},
        },
    },
    types::{FlagName, ListenerId},
    wire::{flag_to_wire, proto},
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
            // One more than the page has shows whether there is a next one.
            count: count + 1,
        };
        if !requester.may_some(Action::Watch) {
            return Ok(proto::ListFlagWatchersResponse::default());
        }
        let mut page = Page::new(PageLimits::of_client(count));
        let mut silent = SilentRelays::default();
        // The token names the last watcher of the page, which the caller may see.
        let (mut last, mut is_full) = (None, false);
        while !is_full {
            let part = all_watchers(&self.relay, &self.flags, &query, &mut silent).await;
            let end = part.entries.last().map(Entry::key);
            query.after = end.and_then(|(flag, listener)| names(&flag, &listener));
            for entry in part.entries {
                if !may_see(requester, &entry) {
                    continue;
                }
                let token = format!("{}/{}", entry.flag, entry.listener_id);
                if !page.push(entry) {
                    is_full = true;
                    break;
                }
                last = Some(token);
            }
            if !part.more || query.after.is_none() {
                break;
            }
        }
        Ok(proto::ListFlagWatchersResponse {
            watchers: page.into_entries(),
            next_page_token: last.filter(|_| is_full).unwrap_or_default(),
            unanswered_relays: silent.ids.into_iter().collect(),
        })
    }
}

/// Returns whether the caller may see a watcher.
fn may_see(requester: &Requester, entry: &proto::FlagWatcher) -> bool {
    let flag = FlagName::new(&entry.flag);
    flag.is_ok_and(|flag| requester.allows(Action::Watch, Target::Flag(&flag)))
}

/// Parses a page token, which names the last entry of the previous page: `FLAG/LISTENER`.
pub(crate) fn watcher_token(token: &str) -> Result<Option<(FlagName, ListenerId)>> {
    if token.is_empty() {
        return Ok(None);
    }
    let (flag, listener) = token.split_once('/').ok_or_else(bad_token)?;
    names(flag, listener).ok_or_else(bad_token).map(Some)
}

fn names(flag: &str, listener: &str) -> Option<(FlagName, ListenerId)> {
    Some((FlagName::new(flag).ok()?, ListenerId::new(listener).ok()?))
}

fn bad_token() -> Error {
    Error::invalid("page_token", "must come from the previous page")
}
