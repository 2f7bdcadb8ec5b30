//! The tasks of the relays' flags: futures that are polled in virtual time.

use std::{
    collections::BTreeMap,
    fmt,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
    time::Duration,
};

use super::FlagEvent;
use crate::sim::cluster::world::{Event, World};

/// All tasks, and their alarms.
#[derive(Default)]
pub(super) struct Tasks {
    tasks: BTreeMap<u64, Task>,
    alarms: BTreeMap<u64, Alarm>,
    made: u64,
    bell: Arc<Bell>,
}

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

struct Task {
    relay: usize,
    work: Work,
    waker: Arc<TaskWaker>,
}

/// The tasks that were woken, and new alarms.
#[derive(Debug, Default)]
pub(super) struct Bell {
    rung: Mutex<Vec<u64>>,
    alarms: Mutex<Vec<(Duration, Alarm)>>,
}

#[derive(Debug)]
struct Alarm {
    over: Arc<AtomicBool>,
    waker: Waker,
}

struct TaskWaker {
    id: u64,
    /// Whether it is rung already.
    woken: AtomicBool,
    bell: Arc<Bell>,
}

impl Wake for TaskWaker {
    fn wake(self: Arc<Self>) {
        if !self.woken.swap(true, Ordering::Relaxed) {
            self.bell.rung.lock().expect("one thread").push(self.id);
        }
    }
}

impl Bell {
    /// Waits in virtual time.
    pub(super) fn sleep(
        self: &Arc<Self>,
        span: Duration,
    ) -> impl Future<Output = ()> + Send + use<> {
        let (bell, over) = (Arc::clone(self), Arc::new(AtomicBool::new(false)));
        let mut begun = false;
        std::future::poll_fn(move |context| {
            if over.load(Ordering::Relaxed) {
                return Poll::Ready(());
            }
            if !std::mem::replace(&mut begun, true) {
                let alarm = Alarm {
                    over: Arc::clone(&over),
                    waker: context.waker().clone(),
                };
                let mut alarms = bell.alarms.lock().expect("one thread");
                alarms.push((span, alarm));
            }
            Poll::Pending
        })
    }
}

impl Tasks {
    pub(super) fn bell(&self) -> Arc<Bell> {
        Arc::clone(&self.bell)
    }

    /// Adds a task of a relay; it is polled soon.
    pub(super) fn spawn(
        &mut self,
        relay: usize,
        work: impl Future<Output = ()> + Send + 'static,
    ) -> u64 {
        self.made += 1;
        let waker = Arc::new(TaskWaker {
            id: self.made,
            woken: AtomicBool::new(false),
            bell: Arc::clone(&self.bell),
        });
        Arc::clone(&waker).wake();
        let work: Work = Box::pin(work);
        self.tasks.insert(self.made, Task { relay, work, waker });
        self.made
    }

    pub(super) fn end(&mut self, id: u64) {
        self.tasks.remove(&id);
    }

    pub(super) fn end_all_of(&mut self, relay: usize) {
        self.tasks.retain(|_, task| task.relay != relay);
    }

    pub(super) fn alarm(&mut self, id: u64) {
        if let Some(alarm) = self.alarms.remove(&id) {
            alarm.over.store(true, Ordering::Relaxed);
            alarm.waker.wake();
        }
    }

    /// Polls a task once.
    fn poll(&mut self, id: u64) {
        let Some(task) = self.tasks.get_mut(&id) else {
            return;
        };
        task.waker.woken.store(false, Ordering::Relaxed);
        let waker = Waker::from(Arc::clone(&task.waker));
        if task
            .work
            .as_mut()
            .poll(&mut Context::from_waker(&waker))
            .is_ready()
        {
            self.tasks.remove(&id);
        }
    }
}

impl World {
    /// Schedules the tasks that were woken.
    pub(in crate::sim::cluster) fn flag_wakers(&mut self) {
        if !self.flags.plan.enabled {
            return;
        }
        let tasks = &mut self.flags.tasks;
        let alarms = std::mem::take(&mut *tasks.bell.alarms.lock().expect("one thread"));
        let rung = std::mem::take(&mut *tasks.bell.rung.lock().expect("one thread"));
        for (span, alarm) in alarms {
            let tasks = &mut self.flags.tasks;
            tasks.made += 1;
            let id = tasks.made;
            tasks.alarms.insert(id, alarm);
            self.after(span, Event::Flag(FlagEvent::Alarm(id)));
        }
        for id in rung {
            let Some(task) = self.flags.tasks.tasks.get(&id) else {
                continue;
            };
            let (relay, step) = (task.relay, self.flags.plan.step);
            let span = self.flags.micros(1..step);
            self.after(span, Event::Flag(FlagEvent::Task(relay, id)));
        }
    }

    /// Polls a task, and notes a write of the store.
    pub(super) fn poll_flag_task(&mut self, id: u64) {
        let before = self.flags.store.writes();
        self.flags.tasks.poll(id);
        if self.flags.store.writes() > before {
            self.flag_has_changed(Some(id));
        }
        if let Some(violation) = self.flags.store.violation() {
            self.violate(|| violation);
        }
    }
}

impl fmt::Debug for Tasks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tasks").finish_non_exhaustive()
    }
}
