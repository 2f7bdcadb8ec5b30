//! Timed wake-ups (R7).

use super::*;

/// Looks at the hub whenever it is woken, as a driver without tasks would.
struct Looker(Arc<Hub>, std::sync::mpsc::Sender<usize>);

impl Wake for Looker {
    fn wake(self: Arc<Self>) {
        let queues = self.0.queues(None, 10, Tick::default());
        self.1.send(queues.len()).expect("the test waits");
    }
}

#[test]
fn whoever_runs_the_timers_is_woken_without_any_lock_held() {
    let hub = hub();
    let (woken, looked) = std::sync::mpsc::channel();
    let looker = Arc::new(Looker(Arc::clone(&hub), woken));
    hub.timers_waker().register(&looker.into());
    std::thread::spawn(move || {
        let delayed = Notification {
            delay: SECOND,
            ..notification("orders")
        };
        notify_with(&hub, delayed, Tick::default());
    });
    assert_eq!(looked.recv_timeout(10 * SECOND), Ok(1));
}
