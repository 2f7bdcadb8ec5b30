//! Limits of flags, at a relay that has reached them.

use reveille::{
    ConnectionState, ErrorKind, FlagName, FlagWatch as _, ListenerId, NodeConfig, UnleashOptions,
    testing::TestRelay,
};

use super::state;
use crate::support::{until, within};

#[tokio::test]
async fn a_relay_at_its_limit_refuses_another_flag_and_serves_the_others() {
    let config = NodeConfig {
        max_flags: 1,
        max_watched_flags: 1,
        ..NodeConfig::default()
    };
    let relay = TestRelay::with_config(config).await.expect("a relay");
    let (client, options) = (relay.client().expect("a client"), UnleashOptions::default());
    let name = |name: &str| FlagName::new(name).expect("a name");
    let watch = |flag| client.watch_flag(name(flag), ListenerId::new("w").expect("an id"));

    let mut one = watch("one");
    assert!(!state(&mut one).await.set);
    let flags = client.flags();
    flags.unleash(&name("one"), &options).await.expect("room");
    assert!(state(&mut one).await.set);
    let refused = flags.unleash(&name("two"), &options).await;
    let error = refused.expect_err("one too many");
    assert_eq!(error.kind(), ErrorKind::Exhausted);
    assert!(error.to_string().contains("1 set flags"), "{error}");
    assert!(!flags.get(&name("two")).await.expect("read").set);

    // A refused watch is retried, and accepted when there is room.
    let mut two = watch("two");
    let mut next = std::pin::pin!(two.next());
    let early = tokio::time::timeout(std::time::Duration::from_millis(300), next.as_mut()).await;
    assert!(early.is_err(), "{early:?}");
    assert_eq!(one.link().borrow().connection, ConnectionState::Connected);
    drop(one);
    let told = within("a state", next).await.expect("not closed");
    assert!(!told.expect("not refused for good").set);
    let leashed = flags.leash(&name("one")).await.expect("leash");
    assert!(!leashed.set);
    until("room", async || {
        flags.unleash(&name("two"), &options).await.is_ok()
    })
    .await;
}
