//! The flags' part of the simulation, among writers, watchers, failures and restarts: R20 (only a
//! fresh read settles a watcher), R21 (a set is never conflated away) and R22 (an expired flag is
//! removed only as it was read).
//!
//! A relay's production `Flags` work on a store that pauses and fails (`store`). Every unleash,
//! leash, refresh, expiry and settling is a future, polled in the order that the seed chooses.
//! Another relay and an operator by hand write to the same store. A watcher is polled only when its
//! waker was woken. A few operations, then silence: at the end each watcher must know the store's
//! content.

pub(super) mod store;

use std::{
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use self::store::ShakyStore;
use super::Seeds;
use crate::{
    base::{fault::Fault, sync::lock},
    coordination::flag::{Flags, FlagsConfig, WatchGuard},
    types::{FlagEvent, FlagName, FlagState, ListenerId, UnleashOptions},
};

const SEEDS: Seeds = Seeds::new("no_watcher_misses_a_flag", [500; 2]);
/// A run that is not idle after this many steps never will be: runs need about 200.
const STEPS: u32 = 20_000;

/// One run.
struct World {
    rng: fastrand::Rng,
    print: bool,
    flag: FlagName,
    store: ShakyStore,
    /// The relay that is tested.
    here: Flags,
    /// Another relay on the same store, without watchers.
    elsewhere: Flags,
    tasks: Vec<Task>,
    watchers: Vec<Watcher>,
    /// The unleashes that were answered in this life of the relay.
    unleashed: Arc<Mutex<Vec<Unleashed>>>,
    /// Whether the store may hold a write of this life that the relay cannot know before a refresh:
    /// a foreign write, or an own write that failed.
    unknown: Arc<AtomicBool>,
    shape: Shape,
    step: u32,
    operations: u32,
}

/// The choices of a seed.
#[derive(Debug)]
struct Shape {
    operations: u32,
    watchers: u32,
    /// Whether others write too.
    foreign: bool,
    /// How far the other relay's clock is ahead, and behind.
    ahead: Duration,
    behind: Duration,
    /// One operation in this many is a crash; 0: none.
    crashes: u32,
    /// One step in this many moves the clock; 0: the clock stands still, and generations must
    /// differ without it.
    clock: u32,
    /// Whether flags expire.
    expiring: bool,
    /// Whether the refresh runs often.
    refreshes: bool,
}

/// A running operation.
struct Task {
    who: Who,
    work: Pin<Box<dyn Future<Output = ()> + Send>>,
    woken: Arc<Woken>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Who {
    Admin,
    Expiry,
    Refresh,
    Elsewhere,
}

/// An unleash that was answered with OK.
#[derive(Debug, Clone, Copy)]
struct Unleashed {
    began: u32,
    generation: u64,
}

struct Watcher {
    number: u32,
    watch: WatchGuard,
    settling: Option<Settling>,
    settling_woken: Arc<Woken>,
    woken: Arc<Woken>,
    registered: u32,
    /// The writes of the store at its registration.
    writes: usize,
    told: Vec<FlagState>,
}

type Settling = Pin<Box<dyn Future<Output = crate::error::Result<()>> + Send>>;

/// Whether a future must be polled.
#[derive(Debug)]
struct Woken(AtomicBool);

impl Wake for Woken {
    fn wake(self: Arc<Self>) {
        self.0.store(true, Ordering::Relaxed);
    }
}

impl Woken {
    fn new() -> Arc<Self> {
        Arc::new(Self(AtomicBool::new(true)))
    }

    fn is(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }

    /// Returns a waker that wakes it again.
    fn rearm(self: &Arc<Self>) -> Waker {
        self.0.store(false, Ordering::Relaxed);
        Waker::from(Arc::clone(self))
    }
}

/// Runs one seed to its end, or to the first violation, which it returns.
pub(super) fn run(seed: u64, fault: Fault, print: bool) -> Option<String> {
    World::new(seed, fault, print).run().err()
}

/// Returns nothing, or up to ten minutes in whole milliseconds.
fn minutes(rng: &mut fastrand::Rng) -> Duration {
    Duration::from_millis([0, rng.u64(..600_000)][rng.usize(..2)])
}

fn config() -> FlagsConfig {
    FlagsConfig {
        ..FlagsConfig::default()
    }
}

impl Shape {
    fn new(rng: &mut fastrand::Rng) -> Self {
        Self {
            operations: rng.u32(1..=8),
            watchers: rng.u32(1..=3),
            foreign: rng.u8(..3) == 0,
            ahead: minutes(rng),
            behind: minutes(rng),
            crashes: if rng.u8(..3) == 0 { 6 } else { 0 },
            clock: *rng.choice(&[0, 8, 20]).expect("some"),
            expiring: rng.bool(),
            refreshes: rng.bool(),
        }
    }
}

impl World {
    fn new(seed: u64, fault: Fault, print: bool) -> Self {
        fault.plant();
        let mut rng = fastrand::Rng::with_seed(seed);
        let flag = FlagName::new("go").expect("a name");
        let store = ShakyStore::new(&flag, rng.fork());
        let shape = Shape::new(&mut rng);
        let flags = || Flags::new(Arc::new(store.clone()), config());
        let world = Self {
            rng,
            print,
            here: flags(),
            elsewhere: flags(),
            flag,
            store,
            tasks: Vec::new(),
            watchers: Vec::new(),
            unleashed: Arc::default(),
            unknown: Arc::default(),
            shape,
            step: 0,
            operations: 0,
        };
        world.log(|| format!("seed {seed}: {:?}", world.shape));
        world
    }

    fn log(&self, text: impl FnOnce() -> String) {
        if self.print {
            println!("{:5} {}", self.step, text());
        }
    }

    fn run(mut self) -> Result<(), String> {
        while self.operations < self.shape.operations {
            self.act();
            self.poll_one()?;
        }
        self.store.stop_failing();
        self.come_to_rest()?;
        // By now all own changes are known: only foreign and failed writes need a refresh.
        self.begin_expiry();
        self.come_to_rest()?;
        if !self.unknown.load(Ordering::Relaxed) {
            self.check_all("R20", "without a refreshment")?;
        }
        self.begin_refresh();
        self.come_to_rest()?;
        self.check_all("I6", "after the last refreshment")
    }

    /// Begins an operation, or lets time pass.
    fn act(&mut self) {
        if self.shape.clock > 0 && self.rng.u32(..self.shape.clock) == 0 {
            let span = Duration::from_millis(self.rng.u64(1..8_000));
            self.log(|| format!("{span:?} pass"));
            self.store.advance(span);
        }
        match self.rng.u32(..40) {
            0..=3 => self.begin_operation(),
            4..=5 => self.come_or_go(),
            6 => self.begin_refresh(),
            // Some runs refresh often.
            10..=17 if self.shape.refreshes => self.begin_refresh(),
            7..=9 | 18..=24 => {
                let due = self.here.next_expiry();
                if due.is_some_and(|due| due <= self.store.wall()) && !self.is_busy(Who::Expiry) {
                    self.begin_expiry();
                    if self.shape.foreign && self.rng.bool() && !self.is_busy(Who::Elsewhere) {
                        self.begin_extension();
                    }
                }
            }
            _ => {}
        }
    }

    fn begin_operation(&mut self) {
        self.operations += 1;
        if self.shape.crashes > 0 && self.rng.u32(..self.shape.crashes) == 0 {
            self.crash();
        } else if self.shape.foreign && self.rng.bool() {
            self.begin_elsewhere();
        } else if self.rng.u8(..5) < 3 {
            self.begin_unleash();
        } else {
            self.begin_leash();
        }
    }

    fn begin_unleash(&mut self) {
        let (here, flag, options) = (self.here.clone(), self.flag.clone(), self.options());
        let (wall, began) = (self.store.wall(), self.step);
        let (unleashed, unknown) = (Arc::clone(&self.unleashed), Arc::clone(&self.unknown));
        self.log(|| format!("an unleash begins: {options:?}"));
        let work = async move {
            match here.unleash(&flag, &options, wall).await {
                Ok((state, _)) => {
                    let generation = state.generation;
                    lock(&unleashed).push(Unleashed { began, generation });
                }
                Err(_) => unknown.store(true, Ordering::Relaxed),
            }
        };
        self.begin(Who::Admin, work);
    }

    fn begin_leash(&mut self) {
        let (here, flag, wall) = (self.here.clone(), self.flag.clone(), self.store.wall());
        let unknown = Arc::clone(&self.unknown);
        self.log(|| "a leash begins".to_owned());
        let work = async move {
            if here.leash(&flag, wall).await.is_err() {
                unknown.store(true, Ordering::Relaxed);
            }
        };
        self.begin(Who::Admin, work);
    }

    /// Begins a foreign write: by another relay, or by hand in the container.
    fn begin_elsewhere(&mut self) {
        self.unknown.store(true, Ordering::Relaxed);
        // Two relays without contact make the same generation in the same microsecond: a clock that
        // stands still is for one relay.
        self.store.advance(Duration::from_millis(1));
        let (relay, flag, options) = (self.elsewhere.clone(), self.flag.clone(), self.options());
        let wall = self.store.wall() + self.shape.ahead - self.shape.behind;
        let wall = wall + Duration::from_micros(500);
        let choice = self.rng.u8(..6);
        self.log(|| format!("elsewhere: {choice}"));
        let unknown = Arc::clone(&self.unknown);
        match choice {
            0 | 1 => self.store.meddle(choice == 0),
            _ if self.is_busy(Who::Elsewhere) => {}
            _ => self.begin(Who::Elsewhere, async move {
                if choice == 2 {
                    drop(relay.leash(&flag, wall).await);
                } else {
                    drop(relay.unleash(&flag, &options, wall).await);
                }
                // A second time: the relay here may have crashed since.
                unknown.store(true, Ordering::Relaxed);
            }),
        }
    }

    /// Another relay sets the flag again at the moment at which it has expired here.
    fn begin_extension(&mut self) {
        self.unknown.store(true, Ordering::Relaxed);
        let (relay, flag) = (self.elsewhere.clone(), self.flag.clone());
        let wall = self.store.wall() + Duration::from_micros(500);
        let options = UnleashOptions {
            ttl: Some(Duration::from_secs(60)),
            ..self.options()
        };
        self.log(|| "elsewhere: an extension".to_owned());
        let unknown = Arc::clone(&self.unknown);
        self.begin(Who::Elsewhere, async move {
            drop(relay.unleash(&flag, &options, wall).await);
            unknown.store(true, Ordering::Relaxed);
        });
    }

    fn begin_refresh(&mut self) {
        let (here, wall) = (self.here.clone(), self.store.wall());
        self.log(|| "a refreshment begins".to_owned());
        self.begin(Who::Refresh, async move { drop(here.refresh(wall).await) });
    }

    fn begin_expiry(&mut self) {
        let (here, wall) = (self.here.clone(), self.store.wall());
        self.log(|| "an expiry begins".to_owned());
        self.begin(Who::Expiry, async move { drop(here.expire(wall).await) });
    }

    fn begin(&mut self, who: Who, work: impl Future<Output = ()> + Send + 'static) {
        self.tasks.push(Task {
            who,
            work: Box::pin(work),
            woken: Woken::new(),
        });
    }

    fn is_busy(&self, who: Who) -> bool {
        self.tasks.iter().any(|task| task.who == who)
    }

    /// Makes options that identify each unleash by its setter.
    fn options(&mut self) -> UnleashOptions {
        let ends = self.shape.expiring && self.rng.bool();
        // An unleash without a ttl keeps the present end.
        let ttl = ends.then(|| Duration::from_secs(self.rng.u64(1..10)));
        UnleashOptions {
            ttl,
            set_by: self.operations.to_string(),
            ..UnleashOptions::default()
        }
    }

    /// The relay crashes during its operations, and its next life begins.
    fn crash(&mut self) {
        self.log(|| "the relay dies and comes back".to_owned());
        self.tasks.retain(|task| task.who == Who::Elsewhere);
        self.watchers.clear();
        self.unleashed = Arc::default();
        self.unknown.store(false, Ordering::Relaxed);
        // Longer than generations run ahead of the clock.
        self.store.advance(Duration::from_secs(1));
        self.here = Flags::new(Arc::new(self.store.clone()), config());
        let (here, wall) = (self.here.clone(), self.store.wall());
        self.begin(Who::Refresh, async move { drop(here.recover(wall).await) });
    }

    fn come_or_go(&mut self) {
        let count = u32::try_from(self.watchers.len()).expect("few");
        if count < self.shape.watchers {
            self.watch();
        } else if self.rng.u8(..4) == 0 {
            let index = self.rng.usize(..self.watchers.len());
            let gone = self.watchers.swap_remove(index);
            self.log(|| format!("watcher {} leaves", gone.number));
        }
    }

    fn watch(&mut self) {
        let listener = ListenerId::new("w").expect("an id");
        let number = self.step;
        self.log(|| format!("watcher {number} comes"));
        let watch = self
            .here
            .watch(&self.flag, listener, false, self.store.wall());
        self.watchers.push(Watcher {
            number,
            settling: Some(Box::pin(watch.sync(self.store.wall()))),
            watch,
            settling_woken: Woken::new(),
            woken: Woken::new(),
            registered: number,
            writes: self.store.writes(),
            told: Vec::new(),
        });
    }

    /// Polls one woken future; returns whether there was one.
    fn poll_one(&mut self) -> Result<bool, String> {
        self.step += 1;
        let tasks = self.tasks.iter().enumerate();
        let mut ready: Vec<(u8, usize)> = tasks
            .filter(|(_, task)| task.woken.is())
            .map(|(index, _)| (0, index))
            .collect();
        for (index, watcher) in self.watchers.iter().enumerate() {
            if watcher.settling.is_some() && watcher.settling_woken.is() {
                ready.push((1, index));
            }
            if watcher.woken.is() {
                ready.push((2, index));
            }
        }
        let Some(&(kind, index)) = self.rng.choice(&ready) else {
            return Ok(false);
        };
        match kind {
            0 => self.poll_task(index),
            1 => self.poll_settling(index),
            _ => self.drain(index)?,
        }
        self.store.violation().map_or(Ok(true), Err)
    }

    fn poll_task(&mut self, index: usize) {
        let task = &mut self.tasks[index];
        self.store.set_expiring(task.who == Who::Expiry);
        let waker = task.woken.rearm();
        let polled = task.work.as_mut().poll(&mut Context::from_waker(&waker));
        self.store.set_expiring(false);
        if polled.is_ready() {
            let task = self.tasks.swap_remove(index);
            self.log(|| format!("{:?} has ended", task.who));
        }
    }

    fn poll_settling(&mut self, index: usize) {
        let wall = self.store.wall();
        let watcher = &mut self.watchers[index];
        let Some(settling) = &mut watcher.settling else {
            return;
        };
        let waker = watcher.settling_woken.rearm();
        match settling.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Pending => {}
            Poll::Ready(Ok(())) => watcher.settling = None,
            Poll::Ready(Err(_)) => {
                watcher.settling = Some(Box::pin(watcher.watch.sync(wall)));
                watcher.settling_woken = Woken::new();
            }
        }
    }

    /// Delivers a watcher's pending events, and checks them.
    fn drain(&mut self, index: usize) -> Result<(), String> {
        let watcher = &mut self.watchers[index];
        let waker = watcher.woken.rearm();
        let before = watcher.told.len();
        while let Some(event) = watcher.watch.next_event(&waker) {
            if let FlagEvent::State(state) = event {
                watcher.told.push(state);
            }
        }
        let watcher = &self.watchers[index];
        for state in &watcher.told[before..] {
            self.log(|| format!("watcher {} is told {state:?}", watcher.number));
            if !state.set {
                continue;
            }
            if !self.store.ever_held(state) {
                return Err(format!(
                    "durable first: a watcher is told a state that was never in the store: {{{state:?}}}"
                ));
            }
            // The newest write before it is the state at its registration.
            let held = self.store.last_held(state.generation);
            if held < Some(watcher.writes.max(1) - 1) {
                return Err(format!(
                    "R20: a watcher is told a set that was over before it came: {{{state:?}}}"
                ));
            }
        }
        self.check_unleashed(watcher)
    }

    /// R21: a watcher that existed before an answered unleash knows of it, or of a later set.
    fn check_unleashed(&self, watcher: &Watcher) -> Result<(), String> {
        let sets = watcher.told.iter().filter(|state| state.set);
        let newest = sets
            .filter_map(|state| self.store.first_held(state.generation))
            .max();
        for unleashed in lock(&self.unleashed).iter() {
            let held = self.store.first_held(unleashed.generation);
            if unleashed.began > watcher.registered && newest < held {
                return Err(format!(
                    "R21: a watcher that was there is not told of an unleash: {{{unleashed:?}, told {:?}}}",
                    watcher.told
                ));
            }
        }
        Ok(())
    }

    /// Polls until no future is woken.
    fn come_to_rest(&mut self) -> Result<(), String> {
        for _ in 0..STEPS {
            if self.poll_one()? {
                continue;
            }
            let settling = self
                .watchers
                .iter()
                .any(|watcher| watcher.settling.is_some());
            if settling || !self.tasks.is_empty() {
                return Err("all writers wait for each other".to_owned());
            }
            return Ok(());
        }
        Err("it never comes to rest".to_owned())
    }

    /// The last event of each watcher equals the store's content.
    fn check_all(&self, rule: &str, when: &str) -> Result<(), String> {
        let present = self.store.present();
        for watcher in &self.watchers {
            self.check_unleashed(watcher)?;
            let last = watcher.told.last();
            if last.is_some() && last.filter(|state| state.set) == present.as_ref() {
                continue;
            }
            let word = |set| if set { "set" } else { "unset" };
            let told = last.map_or("nothing", |state| word(state.set));
            let is = word(present.is_some());
            return Err(format!(
                "{rule}: a watcher ends on {told} while it is {is} {when}: {{{last:?}, {present:?}}}"
            ));
        }
        Ok(())
    }
}

/// In any order of steps every watcher gets its events, and no expiry removes too much.
#[test]
fn no_watcher_misses_a_flag() {
    SEEDS.run(run);
}

#[test]
fn a_set_that_an_older_read_saw_first_is_told_to_a_later_watcher_as_well() {
    // A watcher's read saw the write of an unleash before that ended. A second watcher registered
    // between the two, and received the clearing only.
    assert_eq!(run(26_266, Fault::None, false), None);
}
