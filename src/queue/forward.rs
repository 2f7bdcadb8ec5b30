//! Forwarding implementations of [`WorkQueue`]: single methods for wrappers, and the whole trait for
//! `Arc` and `Box`, so that a wrapper can take a queue that is chosen at run time.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;

use super::{Message, MessageId, NewMessage, PeekedMessage, QueueLimits, Receipt, WorkQueue};
use crate::{
    error::Result,
    types::{GroupName, QueueAddress},
};

/// Forwards the named methods to a field of the wrapper: `forward!(inner: address, limits);`.
macro_rules! forward {
    ($inner:ident: $($method:ident),+) => {
        $(forward!(@ $method $inner);)+
    };
    (@ address $inner:ident) => {
        fn address(&self) -> &$crate::types::QueueAddress {
            self.$inner.address()
        }
    };
    (@ addresses $inner:ident) => {
        fn addresses(&self) -> Vec<&$crate::types::QueueAddress> {
            self.$inner.addresses()
        }
    };
    (@ listener_group $inner:ident) => {
        fn listener_group(&self) -> $crate::types::GroupName {
            self.$inner.listener_group()
        }
    };
    (@ limits $inner:ident) => {
        fn limits(&self) -> $crate::queue::QueueLimits {
            self.$inner.limits()
        }
    };
    (@ empty_is_certain $inner:ident) => {
        fn empty_is_certain(&self) -> bool {
            self.$inner.empty_is_certain()
        }
    };
}

pub(crate) use forward;

macro_rules! forward_all {
    ($pointer:ty) => {
        #[async_trait]
        #[deny(clippy::missing_trait_methods)]
        impl<Q: WorkQueue + ?Sized> WorkQueue for $pointer {
            fn address(&self) -> &QueueAddress {
                (**self).address()
            }

            fn addresses(&self) -> Vec<&QueueAddress> {
                (**self).addresses()
            }

            fn listener_group(&self) -> GroupName {
                (**self).listener_group()
            }

            fn limits(&self) -> QueueLimits {
                (**self).limits()
            }

            async fn create(&self) -> Result<bool> {
                (**self).create().await
            }

            async fn put(&self, messages: Vec<NewMessage>) -> Result<Vec<MessageId>> {
                (**self).put(messages).await
            }

            async fn put_each(&self, messages: Vec<NewMessage>) -> Vec<Result<MessageId>> {
                (**self).put_each(messages).await
            }

            async fn get(&self, max: usize, visibility_timeout: Duration) -> Result<Vec<Message>> {
                (**self).get(max, visibility_timeout).await
            }

            async fn delete(&self, receipt: &Receipt) -> Result<()> {
                (**self).delete(receipt).await
            }

            async fn renew(&self, receipt: &Receipt, timeout: Duration) -> Result<Receipt> {
                (**self).renew(receipt, timeout).await
            }

            async fn release(&self, receipt: &Receipt, delay: Duration) -> Result<()> {
                (**self).release(receipt, delay).await
            }

            async fn release_untried(&self, receipt: &Receipt, delay: Duration) -> Result<bool> {
                (**self).release_untried(receipt, delay).await
            }

            async fn depth(&self) -> Result<u64> {
                (**self).depth().await
            }

            async fn peek(&self, max: usize) -> Result<Vec<PeekedMessage>> {
                (**self).peek(max).await
            }

            async fn purge(&self) -> Result<()> {
                (**self).purge().await
            }

            fn empty_is_certain(&self) -> bool {
                (**self).empty_is_certain()
            }
        }
    };
}

forward_all!(Arc<Q>);
forward_all!(Box<Q>);

#[cfg(test)]
mod tests {
    use super::{
        super::{
            ClaimCheck, ClaimConfig, MemoryQueue, Metered, Partitioned, RetryConfig, Retrying,
        },
        *,
    };
    use crate::{
        store::MemoryStore,
        testing::{ScriptedQueue, queue_contract as contract},
    };

    fn memory() -> MemoryQueue {
        MemoryQueue::new("local/jobs".parse().expect("an address"))
    }

    #[tokio::test(start_paused = true)]
    async fn a_queue_that_is_chosen_while_running_is_wrapped() {
        let chosen: Arc<dyn WorkQueue> = Arc::new(memory());
        let wrapped = Metered::new(Retrying::new(chosen, RetryConfig::default()));
        contract::check(&wrapped).await;
        let boxed: Box<dyn WorkQueue> = Box::new(wrapped.clone());
        contract::check(&boxed).await;
        assert!(wrapped.usage().total() > 0);
        assert_eq!(boxed.to_string(), "memory:jobs");
    }

    #[test]
    fn no_wrapper_hides_that_there_are_several_addresses() {
        let address = |number| -> QueueAddress {
            format!("local/jobs-{number}").parse().expect("an address")
        };
        let one = |number| -> Arc<dyn WorkQueue> { Arc::new(MemoryQueue::new(address(number))) };
        let two = || Partitioned::new(vec![one(0), one(1)]).expect("two");
        let (store, config) = (Arc::new(MemoryStore::new()), ClaimConfig::default());
        let (shared, boxed): (Arc<dyn WorkQueue>, Box<dyn WorkQueue>) =
            (Arc::new(two()), Box::new(two()));
        let wrapped: [&dyn WorkQueue; 6] = [
            &shared,
            &boxed,
            &Metered::new(two()),
            &Retrying::new(two(), RetryConfig::default()),
            &ClaimCheck::new(two(), store, config).expect("a good prefix"),
            &Partitioned::new(vec![Arc::new(two())]).expect("one"),
        ];
        for queue in wrapped {
            assert_eq!(queue.addresses(), [&address(0), &address(1)], "{queue:?}");
        }
        assert_eq!(one(0).addresses(), [&address(0)]);
    }

    /// A method that a wrapper does not forward has the trait's default.
    #[test]
    fn no_wrapper_makes_an_uncertain_queue_certain() {
        let certain: Arc<dyn WorkQueue> = Arc::new(memory());
        let uncertain = || ScriptedQueue::new(memory().address().clone()).uncertain();
        let shared: Arc<dyn WorkQueue> = Arc::new(uncertain());
        let boxed: Box<dyn WorkQueue> = Box::new(uncertain());
        let two = [Arc::clone(&certain), Arc::clone(&shared)];
        let wrapped: [&dyn WorkQueue; 5] = [
            &shared,
            &boxed,
            &Metered::new(uncertain()),
            &Retrying::new(uncertain(), RetryConfig::default()),
            &Partitioned::new(two.to_vec()).expect("two"),
        ];
        for queue in wrapped {
            assert!(!queue.empty_is_certain(), "{queue:?}");
        }
        let two = [Arc::clone(&certain), certain];
        let all = Partitioned::new(two.to_vec()).expect("two");
        assert!(all.empty_is_certain());
    }
}
