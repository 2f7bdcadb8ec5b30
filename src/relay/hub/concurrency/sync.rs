//! The primitives of `crate::base::sync` in a test build. Within a model each use of them is a point
//! where shuttle may switch threads.
//!
//! The data stays in std's locks and atomics, so a hub outside of a model behaves as in production, and
//! each type has the size that it has there. A thread of a model takes shuttle's lock first, which
//! blocks it until std's lock is free. Shuttle runs all threads of a model on one thread of the system,
//! so thread-local variables hold the model's state.
//!
//! Outside of models each lock that is taken under another one is noted, and the opposite order is a panic:
//! two threads could wait for each other for ever. Unit tests and simulations run all of the hub's paths, on
//! one thread, so they find what no schedule of a model meets.

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
    static ORDER: RefCell<LockOrder> = RefCell::default();
}

/// The order in which a thread takes locks, by the types that they guard.
#[derive(Default)]
struct LockOrder {
    held: Vec<&'static str>,
    /// The second was taken under the first.
    nested: Vec<[&'static str; 2]>,
}

/// A lock that is held, outside of models.
struct Held(&'static str);

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
    let lock = LOCKS.with_borrow_mut(|locks| {
        let new = || Rc::new(BatchSemaphore::new(PERMITS, Fairness::Unfair));
        Rc::clone(
            locks
                .entry(ptr::from_ref(guarded).addr())
                .or_insert_with(new),
        )
    });
    // An error says that the schedule has ended.
    _ = lock.acquire_blocking(permits);
    Some(Permit { lock, permits })
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
        let name = type_name::<T>();
        if IN_MODEL.get() {
            return None;
        }
        let is_wrong = ORDER.with_borrow_mut(|order| {
            for &other in &order.held {
                if other == name || order.nested.contains(&[name, other]) {
                    return Some(other);
                }
                if !order.nested.contains(&[other, name]) {
                    order.nested.push([other, name]);
                }
            }
            order.held.push(name);
            None
        });
        if let Some(other) = is_wrong {
            panic!("{name} is locked under {other}, and {other} under {name} elsewhere");
        }
        Some(Self(name))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        ORDER.with_borrow_mut(|order| {
            let last = order.held.iter().rposition(|name| *name == self.0);
            order.held.remove(last.expect("it is held"));
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
#[should_panic(expected = "u8 is locked under u16, and u16 under u8 elsewhere")]
fn locks_in_opposite_orders_are_a_panic() {
    let (one, other) = (Mutex::new(1_u8), Mutex::new(1_u16));
    {
        let _first = lock(&one);
        let _second = lock(&other);
    }
    let _first = lock(&other);
    let _second = lock(&one);
}
