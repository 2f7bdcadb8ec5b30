//! Types that all modules share: addresses, notifications, wake-ups, reports, flags, and
//! the traits that both an in-process and a remote relay implement.
//!
//! Plain data with its rules. Knows neither the wire format nor any transport.

mod address;
#[cfg(feature = "relay")]
#[cfg_attr(
    not(feature = "nats"),
    allow(dead_code, reason = "only a cluster uses all of it")
)]
pub(crate) mod cluster;
mod flag;
mod limits;
mod name;
mod notification;
mod report;
mod session;
mod size;
#[cfg(feature = "relay")]
mod stream_heartbeat;
mod traits;
mod work;

pub use address::{QueueAddress, Selector};
pub use flag::{FlagEvent, FlagState, LeashOptions, UnleashOptions};
pub use limits::Limits;
#[cfg(feature = "coordination")]
pub(crate) use name::check_kept_text;
pub use name::{FlagName, GroupName, ListenerId};
pub(crate) use name::{check_name, check_text};
#[cfg(feature = "listener")]
pub(crate) use notification::check_delay;
pub(crate) use notification::is_in_calendar;
pub use notification::{Accepted, LastEvent, Notification};
pub use report::{Report, ReportState};
pub use session::{
    ConnectionState, Goodbye, GoodbyeReason, LinkState, ResumeNumber, SubscribeEvent,
    SubscribeOptions, Welcome,
};
#[cfg(feature = "relay")]
pub(crate) use stream_heartbeat::{Drain, StreamAction, StreamLifecycle};
pub use traits::{FlagWatch, GlobalFlag, Notifier, ReportFuture, WakeStream};
pub use work::{WakeReason, WorkDetected};
