//! The search for the intended name of a misspelled one: its results and its cost.

use proptest::prelude::*;

use super::{
    super::{
        NearestName,
        no_subscribers::{BAND, NEAR, distance},
    },
    *,
};
use crate::types::Selector;

/// The whole matrix of the textbook algorithm.
fn by_the_book(name: &str, other: &str) -> usize {
    let (name, other) = (name.to_lowercase(), other.to_lowercase());
    let mut last: Vec<usize> = (0..=other.len()).collect();
    for (row, a) in (1..).zip(name.bytes()) {
        let mut next = vec![row];
        for (at, b) in other.bytes().enumerate() {
            let replaced = last[at] + usize::from(a != b);
            next.push(replaced.min(last[at + 1] + 1).min(next[at] + 1));
        }
        last = next;
    }
    last[other.len()]
}

proptest! {
    #[test]
    fn the_distance_is_that_of_the_book_as_far_as_it_is_asked(
        name in "[ab/]{0,12}",
        other in "[abAB/]{0,12}",
        most in 0..=NEAR,
    ) {
        let far = by_the_book(&name, &other);
        let found = distance(name.as_bytes(), other.as_bytes(), most, &mut 0);
        prop_assert_eq!(found, (far <= most).then_some(far));
    }
}

#[test]
fn two_long_names_cost_a_band_of_their_matrix() {
    let (name, other) = (["ab"; 128].concat(), ["ba"; 128].concat());
    let mut work = 0;
    let found = distance(name.as_bytes(), other.as_bytes(), NEAR, &mut work);
    assert_eq!(found, Some(2));
    assert!(work <= BAND * name.len(), "{work}");
}

#[test]
fn a_search_takes_short_steps_and_ends_at_its_bound() {
    let hub = hub();
    let account = ["ab"; 64].concat();
    let address = |text: String| text.parse::<Selector>().expect("a selector");
    // Names of the greatest length that differ at both ends: no comparison ends early.
    for listener in 0..64 {
        let all = 0..64;
        let names = all.map(|at| format!("{account}/{}{listener:03}{at:03}", ["ba"; 60].concat()));
        let options = SubscribeOptions::new(
            ListenerId::new("listener").expect("a name"),
            names.map(address),
        );
        subscribe_with(&hub, &options, Tick::default());
    }
    let account = format!("b{}", &account[1..]);
    let name = format!("{}zzzzz", ["ba"; 61].concat());
    let queue = QueueAddress::new(&account, &name).expect("an address");
    for most in [NearestName::WORK, NearestName::WORK / 8] {
        let mut search = NearestName::new(&queue, most);
        let (mut before, mut steps) = (0, 0);
        while hub.search_nearest(&mut search) {
            let step = search.work() - before;
            assert!(step < 200_000, "{step} bytes compared in one step");
            (before, steps) = (search.work(), steps + 1);
        }
        let work = search.work();
        assert!(work >= most && work <= most + 2_000, "{work} for {most}");
        assert!(steps >= 4, "{steps}");
    }
}
