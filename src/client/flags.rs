//! Durable flags over the network: unleash, leash, get, list.

use async_trait::async_trait;

use super::{
    connection::{Client, FlagsClient},
    pages::all_pages,
};
use crate::{
    error::Result,
    wire::{flag_from_wire, proto, span_to_wire},
    words::{FlagName, FlagState, GlobalFlag, UnleashOptions},
};

/// The calls on durable flags.
#[derive(Debug, Clone)]
pub struct Flags {
    client: Client,
}

/// What came of an unleash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unleashed {
    /// The flag as it is stored now.
    pub flag: FlagState,
    /// How many watchers were told at once; who comes later reads the flag.
    pub watchers: u32,
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

    /// Sets a flag durably, and tells everybody who watches it. One that is set keeps its
    /// generation; its end, who and why are refreshed.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a text or ttl out of range;
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where the relay cannot be reached
    /// or cannot write: it may have happened all the same, [`Flags::get`] tells.
    pub async fn unleash(&self, flag: &FlagName, options: &UnleashOptions) -> Result<Unleashed> {
        options.check()?;
        let request = proto::UnleashRequest {
            flag: flag.to_string(),
            ttl: (!options.ttl.is_zero()).then(|| span_to_wire(options.ttl)),
            set_by: options.set_by.clone(),
            reason: options.reason.clone(),
        };
        let call = |channel| async move { FlagsClient::new(channel).unleash(request).await };
        let response = self.client.call(call).await?;
        Ok(Unleashed {
            flag: flag_from_wire(response.flag)?,
            watchers: response.watchers,
        })
    }

    /// Clears a flag durably, and tells everybody who watches it.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) as for [`Flags::unleash`].
    pub async fn leash(&self, flag: &FlagName) -> Result<FlagState> {
        let request = proto::LeashRequest {
            flag: flag.to_string(),
        };
        let call = |channel| async move { FlagsClient::new(channel).leash(request).await };
        flag_from_wire(self.client.call(call).await?.flag)
    }

    /// Reads a flag; one that was never set is not set.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where it cannot be read now.
    pub async fn get(&self, flag: &FlagName) -> Result<FlagState> {
        let request = proto::GetFlagRequest {
            flag: flag.to_string(),
        };
        let call = |channel| async move { FlagsClient::new(channel).get_flag(request).await };
        flag_from_wire(self.client.call(call).await?.flag)
    }

    /// Lists the flags that are set and begin with `prefix`, by name, through all pages.
    ///
    /// # Errors
    /// [`ErrorKind::Unavailable`](crate::ErrorKind::Unavailable) where they cannot be read now.
    pub async fn list(&self, prefix: &str) -> Result<Vec<FlagState>> {
        let ask = async |page_token| {
            let request = proto::ListFlagsRequest {
                prefix: prefix.to_owned(),
                page_size: 0,
                page_token,
            };
            let call = |channel| async move { FlagsClient::new(channel).list_flags(request).await };
            let page = self.client.call(call).await?;
            Ok((page.flags, page.next_page_token))
        };
        let listed = all_pages(ask).await?;
        listed
            .into_iter()
            .map(|flag| flag_from_wire(Some(flag)))
            .collect()
    }

    /// Returns one flag as a [`GlobalFlag`], for a [`PollingRelease`](crate::release::PollingRelease).
    pub fn global(&self, flag: FlagName) -> impl GlobalFlag + use<> {
        RemoteFlag {
            flags: self.clone(),
            name: flag,
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
            self.flags
                .unleash(&self.name, &UnleashOptions::default())
                .await
                .map(|_| ())
        } else {
            self.flags.leash(&self.name).await.map(|_| ())
        }
    }
}
