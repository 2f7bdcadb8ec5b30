//! The names of queues and patterns in all processes of `scale`.
//!
//! Each pattern matches only the new queues with its number: a fixed number of digits ensures that
//! no prefix is a prefix of another one.

use anyhow::Result;
use reveille::{QueueAddress, Selector};

const ACCOUNT: &str = "bench";
/// The account of the patterns and of the new queues.
const PATTERNS: &str = "a";
const QUEUE: &str = "q";

/// Returns a queue by its number.
pub(super) fn queue(number: u32) -> Result<QueueAddress> {
    Ok(QueueAddress::new(ACCOUNT, &format!("{QUEUE}{number:07}"))?)
}

/// Returns the number of a queue; `None` for other names.
pub(super) fn queue_number(queue: &Selector) -> Option<u32> {
    let digits = queue.queue_name().strip_prefix(QUEUE)?;
    let number = digits.parse().ok()?;
    (queue.storage_account() == ACCOUNT).then_some(number)
}

/// Returns the queue whose notifications are measured.
pub(super) fn measured() -> Result<QueueAddress> {
    Ok(QueueAddress::new(ACCOUNT, "measured")?)
}

/// Returns a pattern by its number.
pub(super) fn pattern(number: u32) -> Result<Selector> {
    Ok(Selector::new(PATTERNS, &format!("p{number:07}*"))?)
}

/// Returns a new queue, which one pattern matches.
pub(super) fn new_queue(pattern: u32, number: u32) -> Result<QueueAddress> {
    let name = format!("p{pattern:07}-{number:07}");
    Ok(QueueAddress::new(PATTERNS, &name)?)
}

/// Returns whether this is a new queue.
pub(super) fn is_new(queue: &Selector) -> bool {
    queue.storage_account() == PATTERNS && !queue.is_pattern()
}

/// Returns the queue of an exact subscription, for this number of queues.
pub(super) fn subscribed(subscription: u32, queues: u32) -> Result<QueueAddress> {
    queue(subscription % queues)
}

/// Returns the number of exact subscriptions of a queue.
pub(super) fn subscriptions_of(queue: u32, subscriptions: u32, queues: u32) -> u64 {
    let rest = queue < subscriptions % queues;
    u64::from(subscriptions / queues) + u64::from(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_queue_is_known_by_its_number() {
        let selector = |address: QueueAddress| Selector::from(address);
        let queue = queue(12).expect("a name");
        assert_eq!(queue_number(&selector(queue)), Some(12));
        assert_eq!(queue_number(&selector(measured().expect("a name"))), None);
        let new = selector(new_queue(1, 2).expect("a name"));
        assert_eq!((queue_number(&new), is_new(&new)), (None, true));
        assert!(!is_new(&pattern(1).expect("a name")));
    }

    #[test]
    fn a_new_queue_is_matched_by_its_own_pattern_only() {
        let new = new_queue(10, 3).expect("a name");
        let matching = |number: &u32| pattern(*number).expect("a name").matches(&new);
        let found: Vec<u32> = (0..2_000).filter(matching).collect();
        assert_eq!(found, [10]);
    }

    #[test]
    fn the_subscriptions_of_all_queues_are_all_subscriptions() {
        for (subscriptions, queues) in [(10, 3), (3, 10), (10, 10)] {
            let mut on = vec![0; queues as usize];
            for subscription in 0..subscriptions {
                let address = subscribed(subscription, queues).expect("a name");
                let number = queue_number(&address.into()).expect("a queue");
                on[number as usize] += 1;
            }
            let stated = (0..queues).map(|queue| subscriptions_of(queue, subscriptions, queues));
            assert_eq!(stated.collect::<Vec<u64>>(), on);
        }
    }
}
