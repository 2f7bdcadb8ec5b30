//! Durable flags over the network: unleash, leash, get, list.

use std::time::Duration;

use async_trait::async_trait;

use super::{
    connection::{Client, FlagsClient},
    pages::{ListPage, Listed, all_pages},
};
use crate::{
    error::Result,
    types::{FlagName, FlagState, GlobalFlag, LeashOptions, UnleashOptions},
    wire::{flag_from_wire, proto, span_from_wire, span_to_wire},
};

/// The calls on durable flags.
#[derive(Debug, Clone)]
pub struct Flags {
    client: Client,
}

/// The result of an unleash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unleashed {
    /// The flag as it is stored now.
    pub flag: FlagState,
    /// Number of watchers notified at once. Later watchers read the flag.
    pub watchers: u32,
}

/// A listener that watches a flag, as the relay knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FlagWatcherInfo {
    /// The flag's name.
    pub flag: String,
    /// The listener's id, which it chose itself.
    pub listener_id: String,
    /// Its open streams under this id.
    pub streams: u32,
    /// How long it has watched.
    pub since: Duration,
    /// Whether it has acknowledged the flag's newest generation.
    pub acknowledged: bool,
}

/// One flag as a [`GlobalFlag`].
#[derive(Debug)]
struct RemoteFlag {
    flags: Flags,
    name: FlagName,
}

impl Flags {
    pub(super) fn new(client: &Client) -> Self {
        Self {
            client: client.clone(),
        }
    }

    /// Sets a flag durably and notifies all of its watchers. A flag that is already set keeps its
    /// generation, and the values that the options leave out.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a text or ttl out of range;
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached or
    /// cannot write. The flag may still have been set; check with [`Flags::get`].
    pub async fn unleash(&self, flag: &FlagName, options: &UnleashOptions) -> Result<Unleashed> {
        options.check()?;
        let request = proto::UnleashRequest {
            flag: flag.to_string(),
            ttl: options.ttl.map(span_to_wire),
            set_by: options.set_by.clone(),
            reason: options.reason.clone(),
        };
        let call = async |channel, request| FlagsClient::new(channel).unleash(request).await;
        let response = self.client.call(request, call).await?;
        Ok(Unleashed {
            flag: flag_from_wire(response.flag)?,
            watchers: response.watchers,
        })
    }

    /// Clears a flag durably and notifies all of its watchers.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) as for [`Flags::unleash`].
    pub async fn leash(&self, flag: &FlagName) -> Result<FlagState> {
        self.leash_with(flag, &LeashOptions::default()).await
    }

    /// Clears a flag durably and notifies all of its watchers. The relay logs the given caller and
    /// reason.
    ///
    /// # Errors
    /// As [`Flags::leash`], and [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a text that
    /// is too long.
    pub async fn leash_with(&self, flag: &FlagName, options: &LeashOptions) -> Result<FlagState> {
        options.check()?;
        let request = proto::LeashRequest {
            flag: flag.to_string(),
            cleared_by: options.cleared_by.clone(),
            reason: options.reason.clone(),
        };
        let call = async |channel, request| FlagsClient::new(channel).leash(request).await;
        flag_from_wire(self.client.call(request, call).await?.flag)
    }

    /// Reads a flag. An unknown flag is not set.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if it cannot be read now.
    pub async fn get(&self, flag: &FlagName) -> Result<FlagState> {
        let request = proto::GetFlagRequest {
            flag: flag.to_string(),
        };
        let call = async |channel, request| FlagsClient::new(channel).get_flag(request).await;
        flag_from_wire(self.client.read(request, call).await?.flag)
    }

    /// Lists the set flags whose names begin with `prefix`, by name; reads all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if they cannot be read now.
    pub async fn list(&self, prefix: &str) -> Result<Vec<FlagState>> {
        let fetch = async |page_token| {
            let request = proto::ListFlagsRequest {
                prefix: prefix.to_owned(),
                page_size: 0,
                page_token,
            };
            let call = async |channel, request| FlagsClient::new(channel).list_flags(request).await;
            let page = self.client.read(request, call).await?;
            Ok(ListPage {
                entries: page.flags,
                next: page.next_page_token,
                unanswered: Vec::new(),
            })
        };
        let listed = all_pages(fetch).await?;
        listed
            .into_iter()
            .map(|flag| flag_from_wire(Some(flag)))
            .collect()
    }

    /// Lists the listeners that watch a flag (`None`: any flag), by flag and listener id; reads all
    /// pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) if the relay cannot be reached;
    /// [`ErrorKind::Unsupported`](crate::ErrorKind::Unsupported) from a relay older than this call.
    pub async fn watchers(&self, flag: Option<&FlagName>) -> Result<Listed<FlagWatcherInfo>> {
        let flag = flag.map(FlagName::to_string).unwrap_or_default();
        let fetch = async |page_token| {
            let request = proto::ListFlagWatchersRequest {
                flag: flag.clone(),
                page_size: 1000,
                page_token,
            };
            let call = async |channel, request| {
                FlagsClient::new(channel).list_flag_watchers(request).await
            };
            let page = self.client.read(request, call).await?;
            Ok(ListPage {
                entries: page.watchers,
                next: page.next_page_token,
                unanswered: page.unanswered_relays,
            })
        };
        Ok(all_pages(fetch).await?.map(FlagWatcherInfo::from_wire))
    }

    /// Returns one flag as a [`GlobalFlag`], for
    /// [`Release::reading`](crate::coordination::release::Release::reading).
    pub fn global(&self, flag: FlagName) -> impl GlobalFlag + use<> {
        RemoteFlag {
            flags: self.clone(),
            name: flag,
        }
    }
}

impl FlagWatcherInfo {
    fn from_wire(watcher: proto::FlagWatcher) -> Self {
        Self {
            flag: watcher.flag,
            listener_id: watcher.listener_id,
            streams: watcher.streams,
            since: span_from_wire(watcher.since),
            acknowledged: watcher.acknowledged,
        }
    }
}

#[async_trait]
impl GlobalFlag for RemoteFlag {
    async fn is_set(&self) -> Result<bool> {
        Ok(self.flags.get(&self.name).await?.set)
    }

    async fn set(&self, set: bool) -> Result<()> {
        if set {
            let for_ever = UnleashOptions {
                ttl: Some(Duration::ZERO),
                ..UnleashOptions::default()
            };
            self.flags.unleash(&self.name, &for_ever).await.map(|_| ())
        } else {
            self.flags.leash(&self.name).await.map(|_| ())
        }
    }
}
