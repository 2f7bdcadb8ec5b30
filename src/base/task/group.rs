//! One task for a connection and all its streams.
//!
//! hyper spawns a task for each stream of a connection. Then each message passes between two tasks,
//! and HTTP/2 wakes a stream while it is polled, so tokio wakes another thread that takes the stream
//! over. If one task polls all of them, messages do not go through the scheduler, and an idle stream
//! needs no separate task. The price: a connection's streams share one core.

use std::{
    future::Future,
    panic::AssertUnwindSafe,
    pin::Pin,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    task::{Context, Poll, Wake, Waker},
};

use atomic_waker::AtomicWaker;
use futures_util::FutureExt;
use slab::Slab;
use tokio::task::coop::{has_budget_remaining, poll_proceed};

use super::panic_message;
use crate::base::{sync::lock, text::opaque_debug};

/// A group of futures that run in one task, beside the main future of [`TaskGroup::run`].
#[derive(Clone, Default)]
pub(crate) struct TaskGroup {
    state: Arc<GroupState>,
}

struct GroupState {
    /// What must be done: the flags below, and in the lower bits the ready members, by the remainders of
    /// their keys. A list of them would be one more place in memory that each wake-up has to fetch, and a
    /// relay wakes thousands of connections whose memory is in no cache.
    flags: AtomicU64,
    task: AtomicWaker,
    /// The members added since the last turn; `None` after the group's end.
    added: Mutex<Option<Vec<Member>>>,
}

/// The waker of a member.
struct MemberWaker {
    group: Arc<GroupState>,
    key: usize,
    /// It must be polled. Members share a flag if there are many.
    is_ready: AtomicBool,
}

/// The members that run.
#[derive(Default)]
struct Members {
    running: Slab<Running>,
    /// The key at which the next turn begins, so that members that spend the budget take turns.
    first: usize,
}

/// A member that runs.
struct Running {
    member: Member,
    state: Arc<MemberWaker>,
    waker: Waker,
}

/// The waker of the main future.
struct MainWaker(Arc<GroupState>);

type Member = Pin<Box<dyn Future<Output = ()> + Send>>;

/// Ends the group when dropped. A member may hold the group itself, as hyper's streams do: a member
/// that was added and never polled would keep itself alive for ever.
struct EndGuard(Arc<GroupState>);

/// The number of turns in one poll of the task, before other tasks run.
const TURNS: u32 = 8;
/// The number of flags of members.
const MEMBER_FLAGS: usize = 61;
const MEMBERS: u64 = (1 << MEMBER_FLAGS) - 1;
/// Flag: members were added.
const ADDED: u64 = 1 << 61;
/// Flag: the main future must be polled.
const MAIN: u64 = 1 << 62;
/// Flag: the task is polling and checks the other flags before it returns, so a wake need not wake the
/// task.
const POLLING: u64 = 1 << 63;

impl TaskGroup {
    /// Runs `member` until it or the group ends. A panic ends this member only. A member that is
    /// added after the group's end is dropped.
    pub(crate) fn add(&self, member: impl Future<Output = ()> + Send + 'static) {
        let member = AssertUnwindSafe(member).catch_unwind().map(|ended| {
            if let Err(panic) = ended {
                tracing::error!(panic = panic_message(&*panic), "a stream panicked");
            }
        });
        if self.state.push(Box::pin(member)) {
            self.state.wake(ADDED);
        }
    }

    /// Has the main future polled.
    pub(crate) fn wake_main(&self) {
        self.state.wake(MAIN);
    }

    /// Runs `main` to its end together with the members; then all members are dropped.
    ///
    /// # Cancel safety
    /// Dropping the future drops all members, even if it was never polled.
    pub(crate) fn run<T>(self, main: impl Future<Output = T>) -> impl Future<Output = T> {
        // Created before the first poll, and dropped after everything else in the future.
        let end_guard = EndGuard(Arc::clone(&self.state));
        async move {
            let _end_guard = end_guard;
            self.drive(main).await
        }
    }

    async fn drive<T>(self, main: impl Future<Output = T>) -> T {
        let mut main = std::pin::pin!(main);
        let mut members = Members::default();
        let main_waker = Waker::from(Arc::new(MainWaker(Arc::clone(&self.state))));
        let mut main_first = true;
        std::future::poll_fn(|cx| {
            self.state.task.register(cx.waker());
            if std::mem::take(&mut main_first) {
                self.state.begin_main();
                let mut context = Context::from_waker(&main_waker);
                if let Poll::Ready(output) = main.as_mut().poll(&mut context) {
                    return Poll::Ready(output);
                }
                if !has_budget_remaining() {
                    return next_turn(cx);
                }
            }
            for _ in 0..TURNS {
                let mut flags = self.state.begin_turn();
                if flags & ADDED != 0 {
                    flags |= members.add(&self.state);
                }
                members.poll(flags, &self.state);
                if !has_budget_remaining() {
                    // The members have spent the budget, and would spend the next one as well.
                    main_first = true;
                    return next_turn(cx);
                }
                // Polled in the same turn if the members have just woken it: usually they have
                // produced a frame that it must write.
                flags |= self.state.begin_main();
                let mut context = Context::from_waker(&main_waker);
                if flags & MAIN != 0
                    && let Poll::Ready(output) = main.as_mut().poll(&mut context)
                {
                    return Poll::Ready(output);
                }
                if self.state.end_polling() {
                    return Poll::Pending;
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await
    }
}

/// Schedules another poll of the task after other tasks have run.
fn next_turn<T>(cx: &mut Context<'_>) -> Poll<T> {
    // Without a budget this is Pending, and wakes the task after the others.
    if poll_proceed(cx).is_ready() {
        cx.waker().wake_by_ref();
    }
    Poll::Pending
}

/// The flag of the members with this key.
fn flag(key: usize) -> u64 {
    1 << (key % MEMBER_FLAGS)
}

/// Returns the first key from this one on whose flag is set; one of them must be.
fn next_flagged(flags: u64, mut key: usize) -> usize {
    loop {
        let flag = key % MEMBER_FLAGS;
        let rest = flags >> flag;
        if rest != 0 {
            return key + rest.trailing_zeros() as usize;
        }
        key += MEMBER_FLAGS - flag;
    }
}

impl Members {
    /// Takes the members that were added; returns their flags.
    fn add(&mut self, group: &Arc<GroupState>) -> u64 {
        let mut flags = 0;
        let mut added = lock(&group.added);
        for member in added.iter_mut().flat_map(|added| added.drain(..)) {
            let place = self.running.vacant_entry();
            let key = place.key();
            let state = Arc::new(MemberWaker {
                group: Arc::clone(group),
                key,
                is_ready: AtomicBool::new(true),
            });
            flags |= flag(key);
            place.insert(Running {
                member,
                waker: Waker::from(Arc::clone(&state)),
                state,
            });
        }
        flags
    }

    /// Polls each ready member once, or as many as the budget allows.
    fn poll(&mut self, flags: u64, group: &GroupState) {
        if flags & MEMBERS == 0 {
            return;
        }
        let begin = std::mem::take(&mut self.first);
        for keys in [begin..self.running.capacity(), 0..begin] {
            let mut next = next_flagged(flags & MEMBERS, keys.start);
            while next < keys.end {
                let key = next;
                next = next_flagged(flags & MEMBERS, key + 1);
                // A waker may outlive its member.
                let Some(running) = self.running.get_mut(key) else {
                    continue;
                };
                // Cleared before the poll, which sees what was done before a wake; a wake during it counts.
                if !running.state.is_ready.swap(false, Ordering::AcqRel) {
                    continue;
                }
                let mut context = Context::from_waker(&running.waker);
                if running.member.as_mut().poll(&mut context).is_ready() {
                    self.running.remove(key);
                }
                if !has_budget_remaining() {
                    // The others come first in the next turn.
                    self.first = key + 1;
                    group.flags.fetch_or(flags & MEMBERS, Ordering::AcqRel);
                    return;
                }
            }
        }
    }
}

impl GroupState {
    /// Returns whether the member will run. Otherwise it is dropped, outside of the lock.
    fn push(&self, member: Member) -> bool {
        match &mut *lock(&self.added) {
            Some(added) => added.push(member),
            None => return false,
        }
        true
    }

    /// Clears the flags and returns them. Acquire and release: this turn must see everything that
    /// was done before a wake.
    fn begin_turn(&self) -> u64 {
        self.flags.swap(POLLING, Ordering::AcqRel)
    }

    /// Clears the main future's flag, just before it is polled. Returns the flags before.
    fn begin_main(&self) -> u64 {
        self.flags.fetch_and(!MAIN, Ordering::AcqRel)
    }

    /// Ends the polling unless a flag was set since the turn began; returns whether it ended.
    fn end_polling(&self) -> bool {
        let (idle, seq) = (0, Ordering::SeqCst);
        self.flags.compare_exchange(POLLING, idle, seq, seq).is_ok()
    }

    fn wake(&self, flag: u64) {
        if self.flags.fetch_or(flag, Ordering::AcqRel) == 0 {
            self.task.wake();
        }
    }
}

impl Default for GroupState {
    fn default() -> Self {
        Self {
            flags: AtomicU64::new(0),
            task: AtomicWaker::new(),
            added: Mutex::new(Some(Vec::new())),
        }
    }
}

impl Drop for EndGuard {
    fn drop(&mut self) {
        // Dropped outside of the lock: a member's drop may add another.
        let added = lock(&self.0.added).take();
        drop(added);
        // A waker may outlive its member, and must not keep the task's memory.
        drop(self.0.task.take());
    }
}

impl Wake for MemberWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        if !self.is_ready.swap(true, Ordering::AcqRel) {
            self.group.wake(flag(self.key));
        }
    }
}

impl Wake for MainWaker {
    fn wake(self: Arc<Self>) {
        self.0.wake(MAIN);
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.0.wake(MAIN);
    }
}

impl<F: Future<Output = ()> + Send + 'static> hyper::rt::Executor<F> for TaskGroup {
    fn execute(&self, stream: F) {
        self.add(stream);
    }
}

opaque_debug!(TaskGroup);

#[cfg(test)]
mod tests {
    use std::{
        sync::atomic::{AtomicUsize, Ordering},
        time::Duration,
    };

    use tokio::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn it_ends_with_its_main_future_and_drops_its_members() {
        let group = TaskGroup::default();
        let (held, mut dropped) = mpsc::channel::<()>(1);
        group.add(async move {
            let _held = held;
            std::future::pending::<()>().await;
        });
        assert_eq!(group.run(async { 7 }).await, 7);
        assert_eq!(dropped.recv().await, None);
    }

    /// A member that holds its own group, as hyper's streams do.
    fn circular(group: &TaskGroup) -> impl Future<Output = ()> + Send + 'static {
        let group = group.clone();
        async move {
            std::future::pending::<()>().await;
            drop(group);
        }
    }

    #[tokio::test]
    async fn a_member_that_is_added_too_late_is_dropped_with_the_group() {
        let group = TaskGroup::default();
        let last = group.clone();
        group
            .clone()
            .run(async move { last.add(circular(&last)) })
            .await;
        group.add(circular(&group));
        assert_eq!(
            Arc::strong_count(&group.state),
            1,
            "no member holds it any more"
        );
    }

    #[test]
    fn a_group_that_is_never_polled_drops_its_members() {
        let group = TaskGroup::default();
        let run = group.clone().run(std::future::pending::<()>());
        group.add(circular(&group));
        drop(run);
        assert_eq!(Arc::strong_count(&group.state), 1);
    }

    #[tokio::test]
    async fn a_panic_ends_only_its_member() {
        let group = TaskGroup::default();
        let (sender, mut receiver) = mpsc::channel(1);
        group.add(async { panic!("intended") });
        group.add({
            let group = group.clone();
            // Added by a member while the group is polled.
            async move { group.add(async move { sender.send(7).await.expect("received") }) }
        });
        assert_eq!(group.run(async { receiver.recv().await }).await, Some(7));
    }

    /// Members pass a token around, on threads that wake each other all the time. A single lost wake
    /// would stop the token.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn no_wake_is_lost_between_groups() {
        const ROUNDS: usize = 20_000;
        let (first, mut inbox) = mpsc::channel::<usize>(1);
        let passed = Arc::new(AtomicUsize::new(0));
        let mut tasks = Vec::new();
        for _ in 0..4 {
            let group = TaskGroup::default();
            for _ in 0..3 {
                let (out, next) = mpsc::channel(1);
                let (mut input, passed) =
                    (std::mem::replace(&mut inbox, next), Arc::clone(&passed));
                group.add(async move {
                    while let Some(token) = input.recv().await {
                        passed.fetch_add(1, Ordering::Relaxed);
                        if out.send(token).await.is_err() {
                            return;
                        }
                    }
                });
            }
            tasks.push(tokio::spawn(group.run(std::future::pending::<()>())));
        }
        let round = async {
            for token in 0..ROUNDS {
                first.send(token).await.expect("they run");
                assert_eq!(inbox.recv().await, Some(token));
            }
        };
        let ended = tokio::time::timeout(Duration::from_secs(60), round).await;
        assert!(ended.is_ok(), "stuck after {passed:?} steps");
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
    }

    #[tokio::test]
    async fn a_member_that_always_wakes_itself_lets_other_tasks_run() {
        let group = TaskGroup::default();
        group.add(std::future::poll_fn(|cx| {
            cx.waker().wake_by_ref();
            Poll::Pending
        }));
        let task = tokio::spawn(group.run(std::future::pending::<()>()));
        for _ in 0..100 {
            tokio::task::yield_now().await;
        }
        task.abort();
    }

    /// Polls the group's task once, with a main future that is ready at its second poll.
    async fn first_poll(group: TaskGroup) -> Poll<()> {
        let mut is_second = false;
        let mut run = Box::pin(group.run(std::future::poll_fn(move |_| {
            match std::mem::replace(&mut is_second, true) {
                true => Poll::Ready(()),
                false => Poll::Pending,
            }
        })));
        std::future::poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx))).await
    }

    /// hyper reserves room for a frame, and HTTP/2 wakes the stream that asks for it.
    #[tokio::test]
    async fn members_that_wake_themselves_do_not_have_the_main_future_polled_again() {
        let group = TaskGroup::default();
        let mut woken = false;
        group.add(std::future::poll_fn(move |cx| {
            if !std::mem::replace(&mut woken, true) {
                cx.waker().wake_by_ref();
            }
            Poll::Pending
        }));
        assert!(first_poll(group).await.is_pending(), "polled once");
    }

    #[tokio::test]
    async fn a_member_has_the_main_future_polled_in_the_same_poll_of_the_task() {
        let group = TaskGroup::default();
        let (of_member, mut turns) = (group.clone(), 0);
        group.add(std::future::poll_fn(move |cx| {
            turns += 1;
            // The main future is polled before the first turn in any case.
            match turns {
                1 => cx.waker().wake_by_ref(),
                _ => of_member.wake_main(),
            }
            Poll::Pending
        }));
        assert!(first_poll(group).await.is_ready(), "polled twice");
    }

    struct Ignored;

    impl Wake for Ignored {
        fn wake(self: Arc<Self>) {}
    }

    #[test]
    fn a_waker_that_outlives_its_member_does_not_keep_the_task() {
        let group = TaskGroup::default();
        let (out, kept) = std::sync::mpsc::channel();
        group.add(std::future::poll_fn(move |cx| {
            out.send(cx.waker().clone()).expect("it is received");
            Poll::Pending
        }));
        let mut run = Box::pin(group.run(std::future::pending::<()>()));
        let task = Arc::new(Ignored);
        let waker = Waker::from(Arc::clone(&task));
        assert!(
            run.as_mut()
                .poll(&mut Context::from_waker(&waker))
                .is_pending()
        );
        let kept = kept.recv().expect("it was polled");
        drop((waker, run));
        assert_eq!(Arc::strong_count(&task), 1);
        drop(kept);
    }

    /// Spends a unit of the budget in each poll that has one, and counts them.
    async fn spender(turns: Arc<AtomicUsize>, enough: usize) {
        std::future::poll_fn(|cx| {
            if let Poll::Ready(unit) = poll_proceed(cx) {
                unit.made_progress();
                if turns.fetch_add(1, Ordering::Relaxed) + 1 == enough {
                    return Poll::Ready(());
                }
            }
            cx.waker().wake_by_ref();
            Poll::Pending
        })
        .await;
    }

    #[tokio::test]
    async fn members_that_spend_every_budget_do_not_starve_the_main_future() {
        const COUNT: usize = 1_000;
        let group = TaskGroup::default();
        let spent = Arc::<AtomicUsize>::default();
        for _ in 0..COUNT {
            group.add(spender(Arc::default(), 1));
            // Spends in every turn.
            group.add(spender(Arc::clone(&spent), usize::MAX));
        }
        let served = Arc::<AtomicUsize>::default();
        let mut run = Box::pin(group.run(spender(Arc::clone(&served), usize::MAX)));
        let mut polls = 0;
        // Each poll of the outer future is one poll of the task.
        std::future::poll_fn(|cx| {
            assert!(run.as_mut().poll(cx).is_pending());
            polls += 1;
            let served = served.load(Ordering::Relaxed);
            assert!(polls < 2 || served > 0, "the main future starves");
            if polls < 20 {
                Poll::Pending
            } else {
                Poll::Ready(())
            }
        })
        .await;
        assert!(spent.load(Ordering::Relaxed) > 0, "the members starve");
    }

    #[tokio::test]
    async fn a_woken_member_is_polled_and_those_that_share_its_flag_are_not() {
        let group = TaskGroup::default();
        let (out, wakers) = std::sync::mpsc::channel();
        for key in 0..3 * MEMBER_FLAGS {
            let out = out.clone();
            group.add(std::future::poll_fn(move |cx| {
                out.send((key, cx.waker().clone())).expect("it is received");
                Poll::Pending
            }));
        }
        let mut run = Box::pin(group.run(std::future::pending::<()>()));
        let mut poll = async || {
            std::future::poll_fn(|cx| Poll::Ready(run.as_mut().poll(cx).is_pending())).await
        };
        assert!(poll().await);
        let all: Vec<_> = wakers.try_iter().collect();
        assert_eq!(all.len(), 3 * MEMBER_FLAGS);
        let woken = MEMBER_FLAGS + 7;
        all.iter()
            .find(|(key, _)| *key == woken)
            .expect("polled")
            .1
            .wake_by_ref();
        assert!(poll().await);
        let polled: Vec<_> = wakers.try_iter().map(|(key, _)| key).collect();
        assert_eq!(polled, [woken]);
    }

    #[tokio::test]
    async fn members_that_spend_every_budget_take_turns() {
        let group = TaskGroup::default();
        // Some share a flag.
        let all = (0..2 * MEMBER_FLAGS + 5).map(|_| Arc::<AtomicUsize>::default());
        let all: Vec<_> = all.collect();
        for turns in &all {
            let turns = Arc::clone(turns);
            group.add(std::future::poll_fn(move |cx| {
                while let Poll::Ready(unit) = poll_proceed(cx) {
                    unit.made_progress();
                    turns.fetch_add(1, Ordering::Relaxed);
                }
                Poll::Pending
            }));
        }
        let task = tokio::spawn(group.run(std::future::pending::<()>()));
        for _ in 0..1_000 {
            tokio::task::yield_now().await;
        }
        task.abort();
        let turns: Vec<_> = all.iter().map(|one| one.load(Ordering::Relaxed)).collect();
        assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
    }
}
