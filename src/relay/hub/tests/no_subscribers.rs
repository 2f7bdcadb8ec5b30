//! The search for the intended name of a misspelled one.

use super::{super::NearestName, *};
use crate::types::Selector;

#[test]
fn a_search_takes_short_steps_and_finds_the_nearest_name() {
    let hub = hub();
    let address = |text: String| text.parse::<Selector>().expect("a selector");
    for listener in 0..300 {
        let names = (0..4).map(|at| format!("acct/order-{listener:03}{at}"));
        let options = SubscribeOptions::new(
            ListenerId::new("listener").expect("a name"),
            names.map(address),
        );
        subscribe_with(&hub, &options, Tick::default());
    }
    for (name, found) in [
        ("acct/Order-2503", Some("acct/order-2503")),
        ("acct/oder-2992", Some("acct/order-2992")),
        ("acct/bills", None),
    ] {
        let (account, name) = name.split_once('/').expect("an address");
        let queue = QueueAddress::new(account, name).expect("an address");
        let (mut search, mut steps) = (NearestName::new(&queue), 0);
        while hub.search_nearest(&mut search) {
            steps += 1;
        }
        assert!(steps >= 4, "{steps}");
        let nearest = search.found().map(|selector| selector.to_string());
        assert_eq!(nearest.as_deref(), found);
    }
}
