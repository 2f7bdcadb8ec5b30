//! The primitives of `crate::base::sync` in a test build. Within a model each use of them is a point
//! where shuttle may switch threads.
//!
//! The data stays in std's locks and atomics, so a hub outside of a model behaves as in production, and
//! each type has the size that it has there. A thread of a model takes shuttle's lock first, which
//! blocks it until std's lock is free. Shuttle runs all threads of a model on one thread of the system,
//! so thread-local variables hold the model's state.
//!
//! Outside of models a lock that is waited for under one which comes later in [`ORDER`] is a panic: two
//! threads could wait for each other for ever. Unit tests and simulations run all of the hub's paths on one
//! thread, so they find what no schedule of a model meets. The shards of the map are not seen.

use std::{
    any::type_name,
    cell::{Cell, RefCell},
    collections::HashMap,
    ops::{Deref, DerefMut},
    ptr,
    rc::Rc,
};

use shuttle::future::batch_semaphore::{BatchSemaphore, Fairness};

use crate::base::sync as plain;
pub(crate) use crate::base::sync::{Mutex, Ordering, RwLock};

/// The permits of a lock. A reader takes one of them, a writer takes all.
const PERMITS: usize = 1 << 16;

thread_local! {
    static IN_MODEL: Cell<bool> = const { Cell::new(false) };
    /// Shuttle's locks of the present schedule, by the addresses of what they guard.
    static LOCKS: RefCell<HashMap<usize, Rc<BatchSemaphore>>> = RefCell::default();
    /// The places in [`ORDER`] of the locks that the thread holds, outside of models.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
}

/// What the hub's locks guard, in the order in which they may be taken; all others come last, one at a time.
const ORDER: [&str; 6] = [
    "Eviction",
    "PatternCheck",
    "QueueState",
    "PatternIndex",
    "Subscribers",
    "Inbox",
];

/// A lock that is held, by its place in [`ORDER`].
struct Held(usize);

pub(crate) type MutexGuard<'a, T> = Guard<plain::MutexGuard<'a, T>>;

/// Releases std's lock, then shuttle's: the fields are dropped in this order.
pub(crate) struct Guard<G> {
    inner: G,
    _permit: Option<Permit>,
    _held: Option<Held>,
}

/// Shuttle's lock, held by a thread of a model.
pub(crate) struct Permit {
    lock: Rc<BatchSemaphore>,
    permits: usize,
}

#[derive(Debug, Default)]
pub(crate) struct AtomicU64(plain::AtomicU64);

#[derive(Default)]
pub(crate) struct AtomicWaker(plain::AtomicWaker);

/// The models of this thread begin or end.
pub(super) fn set_in_model(in_model: bool) {
    IN_MODEL.set(in_model);
}

/// Forgets the locks of the schedule before.
pub(super) fn begin_schedule() {
    LOCKS.with_borrow_mut(HashMap::clear);
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    let (permit, held) = (permit(mutex, PERMITS), Held::new::<T>());
    Guard::new(plain::lock(mutex), permit, held)
}

/// Locks in any order: it waits for nobody.
pub(crate) fn try_lock<T>(mutex: &Mutex<T>) -> Option<MutexGuard<'_, T>> {
    let permit = match IN_MODEL.get() {
        true => {
            let lock = model_lock(mutex);
            lock.try_acquire(PERMITS).ok()?;
            Some(Permit {
                lock,
                permits: PERMITS,
            })
        }
        false => None,
    };
    let inner = plain::try_lock(mutex)?;
    Some(Guard::new(inner, permit, Held::unordered::<T>()))
}

pub(crate) fn read<T>(lock: &RwLock<T>) -> Guard<plain::RwLockReadGuard<'_, T>> {
    let (permit, held) = (permit(lock, 1), Held::new::<T>());
    Guard::new(plain::read(lock), permit, held)
}

pub(crate) fn write<T>(lock: &RwLock<T>) -> Guard<plain::RwLockWriteGuard<'_, T>> {
    let (permit, held) = (permit(lock, PERMITS), Held::new::<T>());
    Guard::new(plain::write(lock), permit, held)
}

/// Within a model, lets one thread at a time into a structure whose locks shuttle does not see.
pub(crate) fn alone<T>(structure: &T) -> Option<Permit> {
    permit(structure, PERMITS)
}

fn permit<T>(guarded: &T, permits: usize) -> Option<Permit> {
    if !IN_MODEL.get() {
        return None;
    }
    let lock = model_lock(guarded);
    // An error says that the schedule has ended.
    _ = lock.acquire_blocking(permits);
    Some(Permit { lock, permits })
}

/// Returns shuttle's lock of what std's guards.
fn model_lock<T>(guarded: &T) -> Rc<BatchSemaphore> {
    let place = ptr::from_ref(guarded).addr();
    let new = || Rc::new(BatchSemaphore::new(PERMITS, Fairness::Unfair));
    LOCKS.with_borrow_mut(|locks| Rc::clone(locks.entry(place).or_insert_with(new)))
}

/// Lets shuttle switch threads before an operation, as its own atomics do.
fn before_operation() {
    if IN_MODEL.get() {
        shuttle::sync::atomic::AtomicBool::new(false).load(Ordering::SeqCst);
    }
}

impl<G> Guard<G> {
    fn new(inner: G, permit: Option<Permit>, held: Option<Held>) -> Self {
        Self {
            inner,
            _permit: permit,
            _held: held,
        }
    }
}

impl Held {
    fn new<T>() -> Option<Self> {
        let earlier = HELD.with_borrow(|held| held.iter().copied().max());
        let held = Self::unordered::<T>()?;
        assert!(
            earlier.is_none_or(|earlier| earlier < held.0) || std::thread::panicking(),
            "{} is locked too late: see ORDER",
            type_name::<T>()
        );
        Some(held)
    }

    fn unordered<T>() -> Option<Self> {
        if IN_MODEL.get() {
            return None;
        }
        let name = type_name::<T>();
        let is_named = |known: &&str| name.ends_with(&format!("::{known}"));
        let place = ORDER.iter().position(is_named).unwrap_or(ORDER.len());
        HELD.with_borrow_mut(|held| held.push(place));
        Some(Self(place))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        HELD.with_borrow_mut(|held| {
            let last = held.iter().rposition(|place| *place == self.0);
            held.remove(last.expect("it is held"));
        });
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.inner
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.inner
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.lock.release(self.permits);
    }
}

impl AtomicU64 {
    pub(crate) const fn new(value: u64) -> Self {
        Self(plain::AtomicU64::new(value))
    }
}

/// Each operation goes through here.
impl Deref for AtomicU64 {
    type Target = plain::AtomicU64;

    fn deref(&self) -> &Self::Target {
        before_operation();
        &self.0
    }
}

impl AtomicWaker {
    pub(crate) const fn new() -> Self {
        Self(plain::AtomicWaker::new())
    }
}

impl Deref for AtomicWaker {
    type Target = plain::AtomicWaker;

    fn deref(&self) -> &Self::Target {
        before_operation();
        &self.0
    }
}

#[test]
#[should_panic(expected = "is locked too late")]
fn locks_in_another_order_are_a_panic() {
    let (leaf, other) = (Mutex::new(1_u8), Mutex::new(1_u16));
    let _first = lock(&leaf);
    let _second = lock(&other);
}
