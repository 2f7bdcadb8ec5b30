//! Agents on a real relay and a real queue in this process, under a paused clock. Workers are tasks.

use std::{
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::time::{Instant, sleep};

use super::*;
use crate::{
    base::{sync::lock, task::Scope},
    queue::{MemoryQueue, NewMessage},
    relay::runtime::{Relay, RelayConfig},
    testing::Metered,
    types::{Notification, Notifier},
};

const SECOND: Duration = Duration::from_secs(1);
const VISIBILITY: Duration = Duration::from_secs(10);

/// A queue, a relay with the default checks, and what runs.
struct Fleet {
    queue: Arc<Metered<MemoryQueue>>,
    relay: Relay,
    crews: Vec<Arc<Crew>>,
    agents: Vec<Scope>,
}

/// The workers of one agent.
struct Crew {
    queue: Arc<Metered<MemoryQueue>>,
    serves: bool,
    has_room: AtomicBool,
    fails: AtomicBool,
    /// Messages that a worker handles at most before it ends well.
    takes: AtomicUsize,
    running: Mutex<Vec<usize>>,
    starts: Mutex<Vec<Instant>>,
    most: Mutex<usize>,
    handled: Mutex<usize>,
}

#[async_trait]
impl Workers for Crew {
    async fn run(&self, worker: Worker, end: CancellationToken) -> WorkerEnd {
        lock(&self.starts).push(Instant::now());
        {
            let mut running = lock(&self.running);
            assert!(!running.contains(&worker.slot), "slot {}", worker.slot);
            running.push(worker.slot);
            let mut most = lock(&self.most);
            *most = running.len().max(*most);
        }
        let ended = self.read(&end).await;
        lock(&self.running).retain(|slot| *slot != worker.slot);
        ended
    }

    async fn no_room(&self) -> Option<String> {
        let has_room = self.has_room.load(Ordering::Relaxed);
        (!has_room).then(|| "the test says so".to_owned())
    }

    fn has_signals(&self) -> bool {
        true
    }
}

impl Crew {
    async fn read(&self, end: &CancellationToken) -> WorkerEnd {
        sleep(Duration::from_millis(20)).await;
        let mut left = self.takes.load(Ordering::Relaxed);
        loop {
            if left == 0 {
                return WorkerEnd::Done;
            }
            let got = self.queue.get(1, VISIBILITY).await.expect("in memory");
            if self.fails.load(Ordering::Relaxed) {
                return WorkerEnd::Failed("the test says so".to_owned());
            }
            let Some(message) = got.into_iter().next() else {
                if !self.serves || end.is_cancelled() {
                    return WorkerEnd::Done;
                }
                tokio::select! {
                    () = end.cancelled() => {}
                    () = sleep(SECOND) => {}
                }
                continue;
            };
            sleep(SECOND).await;
            self.queue.delete(&message.receipt).await.expect("held");
            *lock(&self.handled) += 1;
            left -= 1;
        }
    }

    fn starts(&self) -> usize {
        lock(&self.starts).len()
    }
}

impl Fleet {
    fn new() -> Self {
        let queue = MemoryQueue::new("local/jobs".parse().expect("an address"));
        Self {
            queue: Arc::new(Metered::new(Arc::new(queue))),
            relay: Relay::start(RelayConfig::default()).expect("started"),
            crews: Vec::new(),
            agents: Vec::new(),
        }
    }

    fn add(&mut self, config: &AgentConfig, has_depth: bool) {
        let crew = Arc::new(Crew {
            queue: Arc::clone(&self.queue),
            serves: config.idle.is_some(),
            has_room: AtomicBool::new(true),
            fails: AtomicBool::new(false),
            takes: AtomicUsize::new(usize::MAX),
            running: Mutex::default(),
            starts: Mutex::default(),
            most: Mutex::default(),
            handled: Mutex::default(),
        });
        let queues = vec![AgentQueue {
            address: self.queue.address().clone(),
            depth: has_depth.then(|| Arc::clone(&self.queue) as Arc<dyn WorkQueue>),
        }];
        let id = ListenerId::new(&format!("agent-{}", self.crews.len())).expect("a name");
        let group = GroupName::new("agents").expect("a name");
        let options = config.subscription(id, group, &queues).expect("sound");
        let wakes = self.relay.subscribe(options).expect("subscribed");
        let runs = Arc::<Crew>::clone(&crew);
        let agent = Agent::new(config, queues, wakes, runs).expect("sound");
        let scope = Scope::new();
        scope.spawn(async move {
            agent.run(CancellationToken::new()).await.expect("it runs");
        });
        self.crews.push(crew);
        self.agents.push(scope);
    }

    async fn put(&self, count: u64) {
        let messages = (0..count).map(|number| NewMessage::new(number.to_string()));
        self.queue.put(messages.collect()).await.expect("put");
        let notification = Notification {
            messages: count,
            ..Notification::new(self.queue.address().clone())
        };
        let publisher = self.relay.publisher("test");
        publisher.notify(vec![notification]).await.expect("counted");
    }

    fn starts(&self) -> usize {
        self.crews.iter().map(|crew| crew.starts()).sum()
    }

    fn handled(&self) -> usize {
        self.crews.iter().map(|crew| *lock(&crew.handled)).sum()
    }

    fn running(&self) -> usize {
        self.crews
            .iter()
            .map(|crew| lock(&crew.running).len())
            .sum()
    }
}

fn config(max: usize, per: u32) -> AgentConfig {
    AgentConfig {
        max,
        per,
        idle: None,
        visibility_timeout: VISIBILITY,
        poll: 30 * SECOND,
        check: None,
        policy: None,
    }
}

#[tokio::test(start_paused = true)]
async fn an_idle_fleet_runs_nothing_for_an_hour_and_one_message_starts_one_worker() {
    let mut fleet = Fleet::new();
    (0..3).for_each(|_| fleet.add(&config(4, 1), false));
    // One looks for what is there already, and each looks once more when hidden messages are visible.
    sleep(120 * SECOND).await;
    let before = (fleet.starts(), fleet.queue.usage());
    sleep(3600 * SECOND).await;
    assert_eq!((fleet.starts(), fleet.queue.usage()), before);

    let began = Instant::now();
    fleet.put(1).await;
    sleep(60 * SECOND).await;
    assert_eq!((fleet.starts(), fleet.handled()), (before.0 + 1, 1));
    let newest = fleet
        .crews
        .iter()
        .filter_map(|crew| lock(&crew.starts).last().copied());
    let newest = newest.max().expect("a start");
    assert!(
        newest - began < Duration::from_millis(100),
        "{:?}",
        newest - began
    );
    assert_eq!(fleet.running(), 0);
}

#[tokio::test(start_paused = true)]
async fn many_messages_fill_every_agent_at_once_and_all_workers_end() {
    let mut fleet = Fleet::new();
    (0..3).for_each(|_| fleet.add(&config(4, 10), false));
    sleep(120 * SECOND).await;
    fleet.put(1_000).await;
    sleep(SECOND).await;
    assert_eq!(fleet.running(), 12);
    sleep(200 * SECOND).await;
    assert_eq!((fleet.handled(), fleet.running()), (1_000, 0));
    assert!(fleet.crews.iter().all(|crew| *lock(&crew.most) == 4));
}

#[tokio::test(start_paused = true)]
async fn a_machine_without_room_starts_nothing_and_others_get_the_work() {
    let mut fleet = Fleet::new();
    (0..3).for_each(|_| fleet.add(&config(2, 1), false));
    sleep(120 * SECOND).await;
    for full in [0, 2] {
        fleet.crews[full].has_room.store(false, Ordering::Relaxed);
    }
    let before: Vec<_> = fleet.crews.iter().map(|crew| crew.starts()).collect();
    for _ in 0..20 {
        fleet.put(1).await;
        sleep(3 * SECOND).await;
    }
    sleep(30 * SECOND).await;
    let after: Vec<_> = fleet.crews.iter().map(|crew| crew.starts()).collect();
    assert_eq!((after[0], after[2]), (before[0], before[2]));
    assert_eq!(fleet.handled(), 20);

    // Nobody has room: the relay keeps the work until somebody has some.
    fleet.crews[1].has_room.store(false, Ordering::Relaxed);
    sleep(10 * SECOND).await;
    fleet.put(1).await;
    sleep(600 * SECOND).await;
    assert_eq!(fleet.handled(), 20);
    fleet.crews[2].has_room.store(true, Ordering::Relaxed);
    sleep(20 * SECOND).await;
    assert_eq!(fleet.handled(), 21);
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_fails_is_followed_by_one_of_another_agent_and_its_message_is_not_stranded() {
    let mut fleet = Fleet::new();
    (0..2).for_each(|_| fleet.add(&config(1, 1), false));
    sleep(120 * SECOND).await;
    fleet.crews[0].fails.store(true, Ordering::Relaxed);
    let mut followed = 0;
    for number in 1..=10 {
        let before: Vec<_> = fleet.crews.iter().map(|crew| crew.starts()).collect();
        fleet.put(1).await;
        sleep(Duration::from_millis(500)).await;
        let failed = fleet.crews[0].starts() > before[0];
        followed += usize::from(failed && fleet.crews[1].starts() > before[1]);
        sleep(5 * VISIBILITY).await;
        assert_eq!(fleet.handled(), number);
    }
    // At once, and not only when its message is visible.
    assert!(followed > 0);
    // Its slot rests for longer each time.
    let failed = fleet.crews[0].starts();
    assert!((3..40).contains(&failed), "{failed}");
}

#[tokio::test(start_paused = true)]
async fn a_worker_that_serves_ends_when_it_is_idle_and_its_queue_is_empty() {
    let mut fleet = Fleet::new();
    let serving = AgentConfig {
        idle: Some(20 * SECOND),
        ..config(2, 1)
    };
    fleet.add(&serving, true);
    sleep(120 * SECOND).await;
    assert_eq!(fleet.running(), 0);
    // The last ones are handled long after the last wake-up.
    fleet.put(100).await;
    sleep(45 * SECOND).await;
    assert_eq!(fleet.running(), 2);
    sleep(60 * SECOND).await;
    assert_eq!((fleet.handled(), fleet.running()), (100, 0));
    let depths = fleet.queue.usage();
    sleep(3600 * SECOND).await;
    assert_eq!(fleet.queue.usage(), depths);
}

#[tokio::test(start_paused = true)]
async fn with_a_depth_workers_start_again_while_messages_remain() {
    let mut fleet = Fleet::new();
    fleet.add(&config(1, 100), true);
    sleep(120 * SECOND).await;
    fleet.crews[0].takes.store(3, Ordering::Relaxed);
    fleet.put(30).await;
    sleep(120 * SECOND).await;
    assert_eq!((fleet.handled(), fleet.running()), (30, 0));
}

#[tokio::test(start_paused = true)]
async fn workers_that_make_no_progress_start_again_after_longer_and_longer_pauses() {
    let mut fleet = Fleet::new();
    fleet.add(&config(1, 100), true);
    sleep(120 * SECOND).await;
    let before = fleet.starts();
    fleet.crews[0].takes.store(0, Ordering::Relaxed);
    fleet.put(5).await;
    sleep(3600 * SECOND).await;
    // A pause is up to 5 minutes; without pauses a worker would start each second.
    let starts = fleet.starts() - before;
    assert!((10..100).contains(&starts), "{starts}");

    // No wake-up comes, and the messages are found.
    fleet.crews[0].takes.store(usize::MAX, Ordering::Relaxed);
    sleep(320 * SECOND).await;
    assert_eq!((fleet.handled(), fleet.running()), (5, 0));
}

#[tokio::test(start_paused = true)]
async fn an_agent_that_stops_ends_its_workers_first() {
    let mut fleet = Fleet::new();
    let serving = AgentConfig {
        idle: Some(20 * SECOND),
        ..config(1, 1)
    };
    fleet.add(&serving, false);
    let queues = vec![AgentQueue {
        address: fleet.queue.address().clone(),
        depth: None,
    }];
    let crew = Arc::clone(&fleet.crews[0]);
    fleet.agents.clear();
    lock(&crew.running).clear();
    let id = ListenerId::new("agent-9").expect("a name");
    let group = GroupName::new("agents").expect("a name");
    let options = serving.subscription(id, group, &queues).expect("sound");
    let wakes = fleet.relay.subscribe(options).expect("subscribed");
    let runs = Arc::<Crew>::clone(&crew);
    let agent = Agent::new(&serving, queues, wakes, runs).expect("sound");
    fleet.put(1).await;
    let stop = CancellationToken::new();
    let ends = async {
        sleep(10 * SECOND).await;
        assert_eq!(lock(&crew.running).len(), 1);
        stop.cancel();
    };
    let (ended, ()) = tokio::join!(agent.run(stop.clone()), ends);
    ended.expect("it ends");
    assert_eq!(lock(&crew.running).len(), 0);
}

#[test]
fn settings_out_of_range_are_refused_with_their_name() {
    let queues = [AgentQueue {
        address: "local/jobs".parse().expect("an address"),
        depth: None,
    }];
    for (config, words) in [
        (config(0, 1), "max: must be 1 to 10000"),
        (config(10_001, 1), "max: must be 1 to 10000"),
        (config(1, 0), "per: must be 1 or more"),
        (
            AgentConfig {
                idle: Some(Duration::ZERO),
                ..config(1, 1)
            },
            "idle: must be longer than 0",
        ),
        (
            AgentConfig {
                check: Some(Duration::ZERO),
                ..config(1, 1)
            },
            "check: must be longer than 0",
        ),
        (
            AgentConfig {
                poll: Duration::ZERO,
                ..config(1, 1)
            },
            "poll: must be longer than 0",
        ),
        (
            AgentConfig {
                visibility_timeout: 15 * 24 * 3600 * SECOND,
                ..config(1, 1)
            },
            "visibility_timeout: ",
        ),
    ] {
        let id = ListenerId::new("agent").expect("a name");
        let group = GroupName::new("agents").expect("a name");
        let refused = config.subscription(id, group, &queues).expect_err(words);
        assert!(refused.message().starts_with(words), "{refused}");
    }
}
