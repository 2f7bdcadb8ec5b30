//! Listeners that are paused, and the number of tasks while they run.

use super::*;
use crate::{
    error::ErrorKind,
    listener::{HandlingEnd, Hooks, ListenerMode},
    queue::Message,
};

/// Starts a listener of the bench's queue with slow messages.
async fn started(bench: &Bench, seen: &Seen, takes: u64) -> Listener {
    let config = ListenerConfig {
        dequeue_batch_size: 1,
        ..config()
    };
    let noting = seen.clone();
    let listener = bench.pushed(config).start(move |delivery: Delivery| {
        noting.note(&delivery);
        async move {
            seconds(takes).await;
            Ok(())
        }
    });
    listener.await.expect("started")
}

#[tokio::test(start_paused = true)]
async fn a_paused_listener_gets_nothing_and_polls_when_it_resumes() {
    let (bench, seen) = (Bench::new(), Seen::default());
    let listener = started(&bench, &seen, 10).await;
    seconds(5).await;
    bench.put(&["before"]).await;
    bench.notify().await;
    seconds(1).await;
    listener.pause();
    assert!(listener.state().is_paused);
    bench.put(&["during"]).await;
    bench.notify().await;
    seconds(60).await;
    assert_eq!(seen.all(), ["before"]);
    assert_eq!(listener.state().stats.handled, 1, "what it held is handled");
    let before = bench.usage();
    seconds(3600).await;
    assert_eq!(bench.usage().since(&before).total(), 0);
    assert_eq!(
        listener.state().mode,
        ListenerMode::Pushed,
        "by its own wish"
    );
    listener.resume();
    seconds(1).await;
    assert_eq!(seen.all(), ["before", "during"]);
    bench.put(&["after"]).await;
    bench.notify().await;
    seconds(1).await;
    assert_eq!(seen.all().len(), 3, "it is woken again");
    assert!(!listener.state().is_paused);
}

#[tokio::test(start_paused = true)]
async fn while_one_is_paused_the_others_of_its_group_are_woken_at_once() {
    let bench = Bench::new();
    let (idle, busy) = (Seen::default(), Seen::default());
    let paused = started(&bench, &idle, 0).await;
    let _other = started(&bench, &busy, 0).await;
    seconds(5).await;
    paused.pause();
    millis(100).await;
    for number in 0..20 {
        bench.put(&["job"]).await;
        bench.notify().await;
        millis(200).await;
        assert_eq!(busy.all().len(), number + 1, "not after a second");
    }
    assert_eq!(idle.all().len(), 0);
}

#[tokio::test(start_paused = true)]
async fn a_listener_without_a_relay_is_paused_as_well() {
    let (bench, seen) = (Bench::new(), Seen::default());
    let listener = bench.pulling().start(seen.handler()).await;
    let listener = listener.expect("started");
    seconds(5).await;
    listener.pause();
    seconds(5).await;
    let before = bench.usage();
    bench.put(&["job"]).await;
    seconds(3600).await;
    assert_eq!(bench.usage().since(&before).gets, 0);
    listener.resume();
    millis(10).await;
    assert_eq!(seen.all(), ["job"]);
    listener.pause();
    listener.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn the_number_of_tasks_is_followed_while_they_are_at_work() {
    let (bench, seen) = (Bench::new(), Seen::default());
    bench.put(&["job"; 3000]).await;
    let listener = started(&bench, &seen, 1).await;
    seconds(10).await;
    let rate = async || {
        let before = seen.all().len();
        seconds(10).await;
        seen.all().len() - before
    };
    assert!(rate().await > 100, "up to a hundred tasks");
    listener.set_max_tasks(2).expect("two");
    seconds(2).await;
    assert!((18..=20).contains(&rate().await));
    assert_eq!(listener.state().active_dequeue_tasks, 2);
    listener.set_max_tasks(5).expect("five");
    seconds(10).await;
    assert!((45..=50).contains(&rate().await));
    let error = listener.set_max_tasks(0).expect_err("none");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.message().contains("max_tasks"), "{error}");
}

/// The recorded calls of the hooks.
#[derive(Clone, Default)]
struct Heard(Arc<Mutex<Vec<String>>>);

impl Heard {
    fn note(&self, text: String) {
        self.0.lock().expect("no panic").push(text);
    }
}

impl Hooks for Heard {
    fn on_start(&self, message: &Message) {
        let body = String::from_utf8_lossy(&message.body).into_owned();
        self.note(format!("{body} starts"));
    }

    fn on_end(&self, message: &Message, end: &HandlingEnd<'_>, duration: Duration) {
        let body = String::from_utf8_lossy(&message.body).into_owned();
        let end = match end {
            HandlingEnd::Handled => "is handled".to_owned(),
            HandlingEnd::Failed(error) => format!("fails: {error}"),
            HandlingEnd::NotTried => "is not tried".to_owned(),
        };
        self.note(format!("{body} {end} after {}", duration.as_secs()));
    }
}

#[tokio::test(start_paused = true)]
async fn hooks_hear_of_each_start_and_end_with_its_duration() {
    use crate::listener::Postponed;
    let (bench, heard) = (Bench::new(), Heard::default());
    let builder = bench.pulling().hooks(heard.clone());
    let listener = builder.start(|delivery: Delivery| async move {
        seconds(3).await;
        match &*delivery.message.body {
            b"bad" => Err("it is bad".into()),
            b"later" => Err(Postponed::by(Duration::from_secs(3600)).into()),
            _ => Ok(()),
        }
    });
    let _listener = listener.await.expect("started");
    for body in ["good", "bad", "later"] {
        bench.put(&[body]).await;
        seconds(4).await;
        let mut heard = heard.0.lock().expect("no panic");
        let end = match body {
            "good" => "is handled",
            "bad" => "fails: it is bad",
            _ => "is not tried",
        };
        heard.retain(|text| text.starts_with(body));
        assert_eq!(
            *heard,
            [format!("{body} starts"), format!("{body} {end} after 3")]
        );
        heard.clear();
    }
}
