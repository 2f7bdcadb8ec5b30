//! Every order in which a watcher, writers here and writers elsewhere can meet.
//!
//! Each scenario holds in all orders, and each planted fault breaks its scenario in some.

use std::sync::{Arc, Mutex};

use super::{
    super::{Flags, FlagsConfig, body::blob_name},
    at, forever, lasting, listener, name,
    stepped::{Actor, Chooser, Explored, Failing, SteppedStore, explore},
    take_states,
};
use crate::{fault::Fault, store::BlobStore, sync::lock, words::FlagState};

/// What a writer does.
#[derive(Debug, Clone, Copy)]
enum Act {
    Unleash,
    Leash,
}

/// Who acts beside the watcher, and what was before.
#[derive(Debug, Clone, Copy, Default)]
struct Story {
    before: bool,
    here: &'static [Act],
    also_here: &'static [Act],
    elsewhere: &'static [Act],
    fault: Fault,
}

fn flags(store: &SteppedStore, fault: Fault) -> Flags {
    Flags::new(
        Arc::new(store.clone()),
        FlagsConfig {
            fault,
            ..FlagsConfig::default()
        },
    )
}

fn alone(chooser: &mut Chooser, actor: impl Future<Output = ()>) {
    chooser.run(vec![Box::pin(actor)]);
}

/// Does the acts; notes the generations that were set, each when it is certain.
async fn act(flags: &Flags, acts: &[Act], set: &Mutex<Vec<u64>>) {
    for act in acts {
        match act {
            Act::Unleash => {
                let told = flags.unleash(&name("go"), &forever(), at(0)).await;
                let (state, _) = told.expect("unleash");
                lock(set).push(state.generation);
            }
            Act::Leash => drop(flags.leash(&name("go")).await.expect("leash")),
        }
    }
}

/// A watcher comes while others write. It must be told each set that is the newest when it is asked
/// next, and in the end what is in the store.
fn watch_among_writers(story: Story) -> Explored {
    explore(|chooser| {
        let three = !story.also_here.is_empty() || !story.elsewhere.is_empty();
        let store = match three {
            true => SteppedStore::with_few_steps(),
            false => SteppedStore::new(),
        };
        let here = flags(&store, story.fault);
        let elsewhere = flags(&store, Fault::None);
        let (set_here, set_elsewhere) = (Mutex::new(Vec::new()), Mutex::new(Vec::new()));
        if story.before {
            alone(chooser, act(&elsewhere, &[Act::Unleash], &set_elsewhere));
        }
        let watch = Mutex::new(None);
        let known = Mutex::new(0);
        let watcher = async {
            *lock(&known) = lock(&set_here).len();
            let watching = here.watch(&name("go"), listener("w"), false);
            watching.settle(at(0)).await.expect("settle");
            *lock(&watch) = Some(watching);
        };
        let mut actors: Vec<Actor<'_>> = vec![Box::pin(watcher)];
        for acts in [story.here, story.also_here] {
            if !acts.is_empty() {
                actors.push(Box::pin(act(&here, acts, &set_here)));
            }
        }
        if !story.elsewhere.is_empty() {
            actors.push(Box::pin(act(&elsewhere, story.elsewhere, &set_elsewhere)));
        }
        chooser.run(actors);
        if !story.elsewhere.is_empty() {
            alone(chooser, async {
                here.refresh(at(0)).await.expect("refresh");
            });
        }
        let watch = lock(&watch).take().expect("a watch");
        let told = take_states(&watch);
        let newest = lock(&set_here)[*lock(&known)..].last().copied();
        check(&store, &told, newest)
    })
}

fn check(store: &SteppedStore, told: &[FlagState], newest: Option<u64>) -> Result<(), String> {
    let stored = store.peek(&blob_name(&name("go"))).is_some();
    match told.last() {
        Some(last) if last.set == stored => {}
        last => {
            return Err(format!(
                "told {last:?} in the end, but the store says {stored}"
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
            Err(format!("never told of {newest}: {told:?}"))
        }
        _ => Ok(()),
    }
}

const STORIES: [Story; 8] = {
    use Act::{Leash, Unleash};
    const PLAIN: Story = Story {
        before: false,
        here: &[],
        also_here: &[],
        elsewhere: &[],
        fault: Fault::None,
    };
    [
        PLAIN,
        Story {
            before: true,
            ..PLAIN
        },
        Story {
            here: &[Unleash],
            ..PLAIN
        },
        Story {
            here: &[Unleash, Leash],
            ..PLAIN
        },
        Story {
            before: true,
            here: &[Leash, Unleash],
            ..PLAIN
        },
        Story {
            here: &[Unleash],
            also_here: &[Leash],
            ..PLAIN
        },
        Story {
            here: &[Unleash],
            elsewhere: &[Unleash],
            ..PLAIN
        },
        Story {
            before: true,
            here: &[Unleash],
            elsewhere: &[Leash],
            ..PLAIN
        },
    ]
};

#[test]
fn no_watcher_misses_an_unleash_wherever_it_lands() {
    for story in STORIES {
        let explored = watch_among_writers(story);
        assert_eq!(explored.violation, None, "{story:?}: {explored:?}");
    }
}

/// Each story in which the fault breaks the rule, in some order.
fn broken_by(fault: Fault) -> usize {
    let stories = STORIES.iter().map(|story| Story { fault, ..*story });
    stories
        .filter(|story| watch_among_writers(*story).violations > 0)
        .count()
}

#[test]
fn a_read_from_before_the_registration_is_found_out() {
    assert!(broken_by(Fault::FlagReadBeforeRegister) > 0);
}

#[test]
fn a_read_that_a_write_overtook_is_found_out() {
    assert!(broken_by(Fault::FlagReadDuringWrite) > 0);
}

#[test]
fn a_set_that_is_conflated_away_is_found_out() {
    assert!(broken_by(Fault::FlagSetConflated) > 0);
}

/// A flag's time is over here while another relay gives it more: that one's word stands.
fn expiry_against_refreshment(fault: Fault) -> Explored {
    explore(|chooser| {
        let store = SteppedStore::new();
        let (here, elsewhere) = (flags(&store, fault), flags(&store, Fault::None));
        let mut watch = None;
        alone(chooser, async {
            here.unleash(&name("go"), &lasting(10), at(0))
                .await
                .expect("unleash");
            let watching = here.watch(&name("go"), listener("w"), false);
            watching.settle(at(1)).await.expect("settle");
            watch = Some(watching);
        });
        let expiry = async {
            here.expire(at(10)).await.expect("expire");
        };
        let refreshment = async {
            let told = elsewhere.unleash(&name("go"), &lasting(60), at(10)).await;
            told.expect("unleash");
        };
        chooser.run(vec![Box::pin(expiry), Box::pin(refreshment)]);
        if store.peek(&blob_name(&name("go"))).is_none() {
            return Err("an unleash that was answered is gone from the store".to_owned());
        }
        alone(chooser, async {
            here.refresh(at(11)).await.expect("refresh");
        });
        let told = take_states(&watch.expect("a watch"));
        match told.last() {
            Some(last) if last.expires_at == Some(at(70)) => Ok(()),
            last => Err(format!("told {last:?} in the end")),
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
fn a_watcher_is_not_told_what_an_expiry_had_read_before_it_came() {
    let explored = explore(|chooser| {
        let store = SteppedStore::new();
        let (here, elsewhere) = (flags(&store, Fault::None), flags(&store, Fault::None));
        alone(chooser, async {
            let options = [lasting(10), lasting(60)];
            here.unleash(&name("go"), &options[0], at(0))
                .await
                .expect("set");
            elsewhere
                .unleash(&name("go"), &options[1], at(0))
                .await
                .expect("set");
        });
        let told = Mutex::new(Vec::new());
        let expiry = async {
            here.expire(at(10)).await.expect("expire");
        };
        let cleared_before = async {
            elsewhere.leash(&name("go")).await.expect("leash");
            let watch = here.watch(&name("go"), listener("w"), false);
            watch.settle(at(10)).await.expect("settle");
            *lock(&told) = take_states(&watch);
        };
        chooser.run(vec![Box::pin(expiry), Box::pin(cleared_before)]);
        let told = lock(&told).clone();
        match told.iter().all(|state| !state.set) && told.len() == 1 {
            true => Ok(()),
            false => Err(format!("told {told:?}, and it was cleared before")),
        }
    });
    assert_eq!(explored.violation, None, "{explored:?}");
}

/// A store that fails: before the write's effect, or after it.
fn unleash_on_a_failing_store(fault: Fault, failing: Failing) -> Explored {
    explore(|chooser| {
        let store = SteppedStore::new();
        let here = flags(&store, fault);
        let watch = here.watch(&name("go"), listener("w"), false);
        alone(chooser, async {
            watch.settle(at(0)).await.expect("settle");
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
        alone(chooser, async {
            here.refresh(at(0)).await.expect("refresh");
        });
        let stored = store.peek(&blob_name(&name("go"))).is_some();
        let told = told.len() + take_states(&watch).len();
        if told == usize::from(stored) {
            Ok(())
        } else {
            Err(format!("told {told} times in the end, stored: {stored}"))
        }
    })
}

#[test]
fn nobody_is_told_before_the_flag_is_durable() {
    for failing in [Failing::Everything, Failing::WritesThatHappened] {
        let explored = unleash_on_a_failing_store(Fault::None, failing);
        assert_eq!(explored.violation, None, "{failing:?}: {explored:?}");
        let explored = unleash_on_a_failing_store(Fault::FlagTellsBeforeDurable, failing);
        assert!(explored.violations > 0, "{failing:?}: {explored:?}");
    }
}

/// Sets and clears a flag while the clock stands still.
fn generations_of_one_microsecond(fault: Fault) -> Explored {
    explore(|chooser| {
        let here = flags(&SteppedStore::new(), fault);
        let set = Mutex::default();
        let acts = [
            Act::Unleash,
            Act::Leash,
            Act::Unleash,
            Act::Leash,
            Act::Unleash,
        ];
        alone(chooser, act(&here, &acts, &set));
        let mut set: Vec<u64> = lock(&set).clone();
        set.dedup();
        if set.len() == 3 {
            Ok(())
        } else {
            Err(format!("{set:?}"))
        }
    })
}

#[test]
fn each_setting_has_a_generation_of_its_own() {
    assert_eq!(generations_of_one_microsecond(Fault::None).violation, None);
    assert_eq!(
        generations_of_one_microsecond(Fault::FlagGenerationRepeats).violations,
        1
    );
}

#[test]
fn an_unleash_given_up_half_way_leaves_nothing_locked_and_is_heard_of() {
    // However far it came: what it left in the store is told by the next look.
    for steps in 0..6 {
        let store = SteppedStore::new();
        let here = flags(&store, Fault::None);
        let watch = here.watch(&name("go"), listener("w"), false);
        let mut chooser = Chooser::default();
        alone(&mut chooser, async {
            watch.settle(at(0)).await.expect("settle");
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
        alone(&mut chooser, async {
            here.refresh(at(0)).await.expect("refresh");
        });
        let stored = store.peek(&blob_name(&go)).is_some();
        assert_eq!(
            take_states(&watch).len(),
            usize::from(stored),
            "{steps} steps"
        );
        alone(&mut chooser, async {
            drop(here.leash(&go).await.expect("leash"));
        });
        assert_eq!(store.capabilities(), crate::store::Capabilities::default());
    }
}
