//! The watchers of a flag, as operators see them.

use crate::types::Drain;
use std::{sync::Arc, task::Waker, time::Duration};

use super::{
    super::{Flags, FlagsConfig, WatchStream, WatchersQuery},
    at, forever, listener, name,
};
use crate::{
    base::clock::Tick,
    store::MemoryStore,
    types::{StreamAction, StreamLifecycle},
};

fn flags() -> Flags {
    Flags::new(Arc::new(MemoryStore::new()), FlagsConfig::default())
}

/// Returns the watchers of `go` as `listener*streams`, with `+` if it has acknowledged.
fn shown(flags: &Flags) -> Vec<String> {
    let query = WatchersQuery {
        flag: Some(name("go")),
        away: true,
        after: None,
        count: 100,
    };
    let page = flags.list_watchers(&query).into_iter();
    let entry = page.map(|view| {
        let mark = if view.acknowledged { "+" } else { "" };
        format!("{}*{}{mark}", view.listener, view.streams)
    });
    entry.collect()
}

#[tokio::test]
async fn the_list_marks_the_listeners_that_have_acknowledged() {
    let flags = flags();
    let go = name("go");
    let watch = |id: &str| flags.watch(&go, listener(id), false);
    let (one, two) = (watch("node-1"), watch("node-2"));
    drop(watch("node-3"));
    let observer = flags.watch(&go, listener("cli"), true);
    let (set, _) = flags.unleash(&go, &forever(), at(0)).await.expect("set");
    one.ack(set.generation).expect("counted");
    drop(one);
    assert_eq!(shown(&flags), ["node-1*0+", "node-2*1", "node-3*0"]);
    // No listener has acknowledged the next generation.
    flags.leash(&go, at(0)).await.expect("leash");
    flags.unleash(&go, &forever(), at(1)).await.expect("set");
    assert_eq!(shown(&flags), ["node-1*0", "node-2*1", "node-3*0"]);
    drop((two, observer));
    assert_eq!(shown(&flags), ["node-1*0", "node-2*0", "node-3*0"]);
}

#[tokio::test]
async fn a_second_stream_under_one_listener_id_is_a_duplicate_unless_the_first_is_ending() {
    let flags = flags();
    let go = name("go");
    let first = flags.watch(&go, listener("node-1"), false);
    assert!(!first.is_duplicate());
    assert!(flags.watch(&go, listener("node-1"), false).is_duplicate());
    assert!(
        !flags
            .watch(&name("other"), listener("node-1"), false)
            .is_duplicate()
    );
    assert!(!flags.watch(&go, listener("node-1"), true).is_duplicate());

    let (start, second) = (Tick::default(), Duration::from_secs(1));
    let mut rng = fastrand::Rng::with_seed(1);
    let lifecycle = StreamLifecycle::new(second, 3600 * second, start, &mut rng);
    let mut feed = WatchStream::new(first, lifecycle);
    let goodbye = feed.next(start, Some(Drain::at_once(start)), Waker::noop());
    assert!(matches!(goodbye, StreamAction::Send(_)), "{goodbye:?}");
    let again = flags.watch(&go, listener("node-1"), false);
    assert!(!again.is_duplicate(), "the first stream has sent Goodbye");
    drop(feed);
    assert_eq!(shown(&flags), ["node-1*1"]);
}
