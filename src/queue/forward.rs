//! Forwarding implementations of [`WorkQueue`]: single methods for wrappers, and the whole trait for
//! `Arc`, so that a wrapper can take a queue that is chosen at run time.

use std::sync::Arc;

use super::WorkQueue;

/// Forwards the named methods to a field of the wrapper: `forward!([inner] address, limits);`.
/// `deny(clippy::missing_trait_methods)` reports a method that a wrapper forgets.
///
/// An asynchronous method is written as `async_trait` expands it, because `async_trait` does not
/// look into a macro. The future of the wrapped queue is returned without a second allocation.
macro_rules! forward {
    (@sync [$($inner:tt)+] $method:ident $answer:ty) => {
        fn $method(&self) -> $answer {
            self.$($inner)+.$method()
        }
    };
    (@async [$($inner:tt)+] $method:ident($($name:ident: $type:ty),*) $answer:ty) => {
        fn $method<'s, 'f>(
            &'s self,
            $($name: $type),*
        ) -> ::futures_util::future::BoxFuture<'f, $answer>
        where
            's: 'f,
            Self: 'f,
        {
            self.$($inner)+.$method($($name),*)
        }
    };
    (@receipt [$($inner:tt)+] $method:ident($($name:ident: $type:ty)?) $answer:ty) => {
        fn $method<'s, 'r, 'f>(
            &'s self,
            receipt: &'r $crate::queue::Receipt,
            $($name: $type)?
        ) -> ::futures_util::future::BoxFuture<'f, $crate::Result<$answer>>
        where
            's: 'f,
            'r: 'f,
            Self: 'f,
        {
            self.$($inner)+.$method(receipt, $($name)?)
        }
    };
    ($inner:tt $method:ident, $($more:ident),+) => {
        forward!($inner $method);
        forward!($inner $($more),+);
    };
    ($inner:tt address) => { forward!(@sync $inner address &$crate::types::QueueAddress); };
    ($inner:tt listener_group) => {
        forward!(@sync $inner listener_group $crate::types::GroupName);
    };
    ($inner:tt limits) => { forward!(@sync $inner limits $crate::queue::QueueLimits); };
    ($inner:tt empty_is_certain) => { forward!(@sync $inner empty_is_certain bool); };
    ($inner:tt create) => { forward!(@async $inner create() $crate::Result<bool>); };
    ($inner:tt put) => {
        forward!(@async $inner put(messages: Vec<$crate::queue::NewMessage>)
            $crate::Result<Vec<$crate::queue::MessageId>>);
    };
    ($inner:tt put_each) => {
        forward!(@async $inner put_each(messages: Vec<$crate::queue::NewMessage>)
            Vec<$crate::Result<$crate::queue::MessageId>>);
    };
    ($inner:tt get) => {
        forward!(@async $inner get(max: usize, timeout: ::std::time::Duration)
            $crate::Result<Vec<$crate::queue::Message>>);
    };
    ($inner:tt delete) => { forward!(@receipt $inner delete() ()); };
    ($inner:tt renew) => {
        forward!(@receipt $inner renew(timeout: ::std::time::Duration) $crate::queue::Receipt);
    };
    ($inner:tt release) => {
        forward!(@receipt $inner release(delay: ::std::time::Duration) ());
    };
    ($inner:tt release_untried) => {
        forward!(@receipt $inner release_untried(delay: ::std::time::Duration) bool);
    };
    ($inner:tt depth) => { forward!(@async $inner depth() $crate::Result<u64>); };
    ($inner:tt peek) => {
        forward!(@async $inner peek(max: usize) $crate::Result<Vec<$crate::queue::PeekedMessage>>);
    };
    ($inner:tt purge) => { forward!(@async $inner purge() $crate::Result<()>); };
}

pub(crate) use forward;

#[deny(clippy::missing_trait_methods)]
impl<Q: WorkQueue + ?Sized> WorkQueue for Arc<Q> {
    forward!([as_ref()] address, listener_group, limits, empty_is_certain);
    forward!([as_ref()] create, put, put_each, get, delete, renew, release);
    forward!([as_ref()] release_untried, depth, peek, purge);
}

#[cfg(test)]
mod tests {
    use super::{
        super::{ClaimCheck, ClaimConfig, MemoryQueue, RetryConfig, Retrying},
        *,
    };
    use crate::{
        store::MemoryStore,
        testing::{Metered, ScriptedQueue, queue_contract as contract},
    };

    fn memory() -> MemoryQueue {
        MemoryQueue::new("local/jobs".parse().expect("an address"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_is_chosen_while_running_is_wrapped() {
        let chosen: Arc<dyn WorkQueue> = Arc::new(memory());
        let wrapped = Metered::new(Retrying::new(chosen, RetryConfig::default()));
        contract::check(&wrapped).await;
        assert!(wrapped.usage().total() > 0);
        assert_eq!(wrapped.to_string(), "memory:jobs");
    }

    /// A method that a wrapper does not forward has the trait's default.
    #[test]
    fn no_wrapper_makes_an_uncertain_queue_certain() {
        let uncertain = || ScriptedQueue::new(memory().address().clone()).uncertain();
        let shared: Arc<dyn WorkQueue> = Arc::new(uncertain());
        let (store, config) = (Arc::new(MemoryStore::new()), ClaimConfig::default());
        let wrapped: [&dyn WorkQueue; 4] = [
            &shared,
            &Metered::new(uncertain()),
            &Retrying::new(uncertain(), RetryConfig::default()),
            &ClaimCheck::new(uncertain(), store, config).expect("a good prefix"),
        ];
        for queue in wrapped {
            assert!(!queue.empty_is_certain(), "{queue:?}");
        }
    }
}
