//! All orders in which a watcher, local writers and other writers can run.
//!
//! Each scenario holds in all orders. Each planted fault breaks its scenario in some order.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicBool, Ordering},
};

use super::{
    super::{Flags, FlagsConfig, document::blob_name},
    at, forever, lasting, listener, name,
    stepped::{Actor, Chooser, Explored, Failing, SteppedStore, explore},
    take_states, unleash,
};
use crate::{
    base::{fault::Fault, sync::lock},
    store::BlobStore,
    types::FlagState,
};

/// A write of an actor.
#[derive(Debug, Clone, Copy)]
enum Operation {
    /// Sets it for ten seconds.
    Unleash,
    Leash,
    /// Ends it as expired.
    Expire,
}

/// The actors beside the watcher, and the flag's state before.
#[derive(Debug, Clone, Copy, Default)]
struct Scenario {
    before: bool,
    here: &'static [Operation],
    also_here: &'static [Operation],
    elsewhere: &'static [Operation],
    fault: Fault,
}

fn flags(store: &SteppedStore) -> Flags {
    Flags::new(Arc::new(store.clone()), FlagsConfig::default())
}

fn run_alone(chooser: &mut Chooser, actor: impl Future<Output = ()>) {
    chooser.run(vec![Box::pin(actor)]);
}

/// Does the writes. Notes each generation when its set is certain, and whether the watcher came before
/// the set began, or before an operation that ends it began.
async fn run_operations(
    flags: &Flags,
    operations: &[Operation],
    came: &AtomicBool,
    set: &Mutex<Vec<(bool, u64)>>,
) {
    for act in operations {
        let came = came.load(Ordering::Relaxed);
        if let Operation::Leash | Operation::Expire = act
            && let Some((came_before, _)) = lock(set).last_mut()
        {
            *came_before |= came;
        }
        match act {
            Operation::Unleash => {
                let told = flags.unleash(&name("go"), &lasting(10), at(0)).await;
                let (state, _) = told.expect("unleash");
                lock(set).push((came, state.generation));
            }
            Operation::Leash => drop(flags.leash(&name("go"), at(0)).await.expect("leash")),
            Operation::Expire => drop(flags.expire(at(10)).await.expect("expire")),
        }
    }
}

/// A watcher registers during writes. It must receive each set that is the newest when its stream
/// is polled, also one that ends here before its first read, and at last the state in the store.
fn watch_among_writers(scenario: Scenario) -> Explored {
    explore(|chooser| {
        let three = !scenario.also_here.is_empty() || !scenario.elsewhere.is_empty();
        let store = match three {
            true => SteppedStore::with_few_steps(),
            false => SteppedStore::new(),
        };
        scenario.fault.plant();
        let (here, elsewhere) = (flags(&store), flags(&store));
        let (sets, sets_elsewhere) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        let came = AtomicBool::new(false);
        if scenario.before {
            run_alone(chooser, async {
                run_operations(&elsewhere, &[Operation::Unleash], &came, &sets).await;
                // It learns the expiry.
                here.recover(at(0)).await.expect("recover");
            });
        }
        let watch = Mutex::new(None);
        let watcher = async {
            came.store(true, Ordering::Relaxed);
            let watching = here.watch(&name("go"), listener("w"), false, at(0));
            watching.sync(at(0)).await.expect("sync");
            *lock(&watch) = Some(watching);
        };
        let mut actors: Vec<Actor<'_>> = vec![Box::pin(watcher)];
        for operations in [scenario.here, scenario.also_here] {
            if !operations.is_empty() {
                let work = run_operations(&here, operations, &came, &sets);
                actors.push(Box::pin(work));
            }
        }
        if !scenario.elsewhere.is_empty() {
            actors.push(Box::pin(run_operations(
                &elsewhere,
                scenario.elsewhere,
                &came,
                &sets_elsewhere,
            )));
        }
        chooser.run(actors);
        if !scenario.elsewhere.is_empty() {
            run_alone(chooser, async {
                here.refresh(at(0)).await.expect("refresh");
            });
        }
        let watch = lock(&watch).take().expect("a watch");
        let told = take_states(&watch);
        let sets = lock(&sets);
        let newest = sets.iter().rfind(|(came, _)| *came);
        let newest = newest.map(|(_, generation)| *generation);
        check(&store, &told, newest)
    })
}

fn check(store: &SteppedStore, told: &[FlagState], newest: Option<u64>) -> Result<(), String> {
    let stored = store.peek(&blob_name(&name("go"))).is_some();
    match told.last() {
        Some(last) if last.set == stored => {}
        last => {
            return Err(format!(
                "received {last:?} at last, but the store has {stored}"
            ));
        }
    }
    if told.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(format!("told twice: {told:?}"));
    }
    match newest {
        Some(newest)
            if !told
                .iter()
                .any(|state| state.set && state.generation == newest) =>
        {
            Err(format!("never received {newest}: {told:?}"))
        }
        _ => Ok(()),
    }
}

const SCENARIOS: [Scenario; 10] = {
    use Operation::{Expire, Leash, Unleash};
    const PLAIN: Scenario = Scenario {
        before: false,
        here: &[],
        also_here: &[],
        elsewhere: &[],
        fault: Fault::None,
    };
    [
        PLAIN,
        Scenario {
            before: true,
            ..PLAIN
        },
        Scenario {
            here: &[Unleash],
            ..PLAIN
        },
        Scenario {
            here: &[Unleash, Leash],
            ..PLAIN
        },
        Scenario {
            before: true,
            here: &[Leash],
            ..PLAIN
        },
        Scenario {
            before: true,
            here: &[Expire],
            ..PLAIN
        },
        Scenario {
            before: true,
            here: &[Leash, Unleash],
            ..PLAIN
        },
        Scenario {
            here: &[Unleash],
            also_here: &[Leash],
            ..PLAIN
        },
        Scenario {
            here: &[Unleash],
            elsewhere: &[Unleash],
            ..PLAIN
        },
        Scenario {
            before: true,
            here: &[Unleash],
            elsewhere: &[Leash],
            ..PLAIN
        },
    ]
};

#[test]
fn no_watcher_misses_an_unleash_wherever_it_lands() {
    for scenario in SCENARIOS {
        let explored = watch_among_writers(scenario);
        assert_eq!(explored.violation, None, "{scenario:?}: {explored:?}");
    }
}

/// Returns whether the fault breaks the rule in some order of a scenario.
fn is_broken_by(fault: Fault) -> bool {
    let mut scenarios = SCENARIOS.iter();
    scenarios.any(|scenario| watch_among_writers(Scenario { fault, ..*scenario }).violations > 0)
}

#[test]
fn a_read_that_a_write_overtook_is_found_out() {
    assert!(is_broken_by(Fault::FlagReadDuringWrite));
}

#[test]
fn a_set_that_is_conflated_away_is_found_out() {
    assert!(is_broken_by(Fault::FlagSetConflated));
}

/// A flag has expired here, while another relay extends it. The extension wins.
fn expiry_against_refreshment(fault: Fault) -> Explored {
    explore(|chooser| {
        let store = SteppedStore::new();
        fault.plant();
        let (here, elsewhere) = (flags(&store), flags(&store));
        let mut watch = None;
        run_alone(chooser, async {
            unleash(&here, "go", &lasting(10), 0).await;
            let watching = here.watch(&name("go"), listener("w"), false, at(0));
            watching.sync(at(1)).await.expect("sync");
            watch = Some(watching);
        });
        let expiry = async {
            here.expire(at(10)).await.expect("expire");
        };
        let refreshment = async {
            unleash(&elsewhere, "go", &lasting(60), 10).await;
        };
        chooser.run(vec![Box::pin(expiry), Box::pin(refreshment)]);
        if store.peek(&blob_name(&name("go"))).is_none() {
            return Err("an unleash that was answered is gone from the store".to_owned());
        }
        run_alone(chooser, async {
            here.refresh(at(11)).await.expect("refresh");
        });
        let told = take_states(&watch.expect("a watch"));
        match told.last() {
            Some(last) if last.expires_at == Some(at(70)) => Ok(()),
            last => Err(format!("received {last:?} at last")),
        }
    })
}

#[test]
fn an_expired_flag_is_removed_only_as_it_was_read() {
    let explored = expiry_against_refreshment(Fault::None);
    assert_eq!(explored.violation, None, "{explored:?}");
    assert!(explored.orders > 20, "{explored:?}");
    let explored = expiry_against_refreshment(Fault::FlagExpiryUnconditional);
    assert!(explored.violations > 0, "{explored:?}");
}

#[test]
fn an_expiry_that_read_before_a_registration_sends_the_watcher_nothing() {
    let explored = explore(|chooser| {
        let store = SteppedStore::new();
        let (here, elsewhere) = (flags(&store), flags(&store));
        run_alone(chooser, async {
            unleash(&here, "go", &lasting(10), 0).await;
            unleash(&elsewhere, "go", &lasting(60), 0).await;
        });
        let told = Mutex::new(Vec::new());
        let expiry = async {
            here.expire(at(10)).await.expect("expire");
        };
        let cleared_before = async {
            elsewhere.leash(&name("go"), at(0)).await.expect("leash");
            let watch = here.watch(&name("go"), listener("w"), false, at(0));
            watch.sync(at(10)).await.expect("sync");
            *lock(&told) = take_states(&watch);
        };
        chooser.run(vec![Box::pin(expiry), Box::pin(cleared_before)]);
        let told = lock(&told).clone();
        match told.iter().all(|state| !state.set) && told.len() == 1 {
            true => Ok(()),
            false => Err(format!("received {told:?}, but it was cleared before")),
        }
    });
    assert_eq!(explored.violation, None, "{explored:?}");
}

/// A store that fails: before the write's effect, or after it.
fn unleash_on_a_failing_store(fault: Fault, failing: Failing) -> Explored {
    explore(|chooser| {
        let store = SteppedStore::new();
        fault.plant();
        let here = flags(&store);
        let watch = here.watch(&name("go"), listener("w"), false, at(0));
        run_alone(chooser, async {
            watch.sync(at(0)).await.expect("sync");
        });
        take_states(&watch);
        let mut outcome = None;
        let fail = async { store.fail(failing) };
        let unleash = async { outcome = Some(here.unleash(&name("go"), &forever(), at(0)).await) };
        chooser.run(vec![Box::pin(fail), Box::pin(unleash)]);
        let told = take_states(&watch);
        match outcome.expect("it has ended") {
            Ok(_) if told.len() == 1 => {}
            Err(_) if told.is_empty() => {}
            outcome => return Err(format!("{outcome:?}, and told {told:?}")),
        }
        store.fail(Failing::Nothing);
        run_alone(chooser, async {
            here.refresh(at(0)).await.expect("refresh");
        });
        let stored = store.peek(&blob_name(&name("go"))).is_some();
        let told = told.len() + take_states(&watch).len();
        if told == usize::from(stored) {
            Ok(())
        } else {
            Err(format!("received {told} sets, stored: {stored}"))
        }
    })
}

#[test]
fn no_watcher_is_notified_before_the_flag_is_durable() {
    for failing in [Failing::Everything, Failing::WritesThatHappened] {
        let explored = unleash_on_a_failing_store(Fault::None, failing);
        assert_eq!(explored.violation, None, "{failing:?}: {explored:?}");
        let explored = unleash_on_a_failing_store(Fault::FlagTellsBeforeDurable, failing);
        assert!(explored.violations > 0, "{failing:?}: {explored:?}");
    }
}

/// Sets and clears a flag while the wall clock stands still.
fn generations_of_one_microsecond(fault: Fault) -> Explored {
    explore(|chooser| {
        fault.plant();
        let here = flags(&SteppedStore::new());
        let (set, came) = (Mutex::default(), AtomicBool::new(false));
        let (set_it, clear_it) = (Operation::Unleash, Operation::Leash);
        let operations = [set_it, clear_it, set_it, clear_it, set_it];
        run_alone(chooser, run_operations(&here, &operations, &came, &set));
        let mut set: Vec<_> = lock(&set).clone();
        set.dedup();
        if set.len() == 3 {
            Ok(())
        } else {
            Err(format!("{set:?}"))
        }
    })
}

#[test]
fn each_set_has_a_new_generation() {
    assert_eq!(generations_of_one_microsecond(Fault::None).violation, None);
    assert_eq!(
        generations_of_one_microsecond(Fault::FlagGenerationRepeats).violations,
        1
    );
}

#[test]
fn a_cancelled_unleash_leaves_no_lock_and_the_next_refresh_finds_it() {
    // The next refresh sends what the cancelled unleash left in the store.
    for steps in 0..6 {
        let store = SteppedStore::new();
        let here = flags(&store);
        let watch = here.watch(&name("go"), listener("w"), false, at(0));
        let mut chooser = Chooser::default();
        run_alone(&mut chooser, async {
            watch.sync(at(0)).await.expect("sync");
        });
        take_states(&watch);
        let (go, options) = (name("go"), forever());
        let mut given_up = Box::pin(here.unleash(&go, &options, at(0)));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        for _ in 0..steps {
            if given_up.as_mut().poll(&mut context).is_ready() {
                break;
            }
        }
        drop(given_up);
        run_alone(&mut chooser, async {
            here.refresh(at(0)).await.expect("refresh");
        });
        let stored = store.peek(&blob_name(&go)).is_some();
        assert_eq!(
            take_states(&watch).len(),
            usize::from(stored),
            "{steps} steps"
        );
        run_alone(&mut chooser, async {
            drop(here.leash(&go, at(0)).await.expect("leash"));
        });
        assert!(store.conditional_delete());
    }
}
