//! The queue that counts its transactions.

use std::{sync::Arc, time::Duration};

use crate::{
    queue::{MemoryQueue, NewMessage, WorkQueue},
    testing::{Metered, QueueUsage, queue_contract as contract},
};

const LONG: Duration = Duration::from_secs(600);

fn queue() -> Metered<MemoryQueue> {
    let address = "local/jobs".parse().expect("an address");
    Metered::new(Arc::new(MemoryQueue::new(address)))
}

#[tokio::test(start_paused = true)]
async fn it_keeps_the_contract() {
    contract::check(&queue()).await;
}

#[tokio::test]
async fn every_kind_is_counted_by_all_clones_together() {
    let queue = queue();
    let clone = queue.clone();
    assert_eq!(queue.to_string(), "memory:jobs");
    queue.create().await.expect("create");
    let two = ["one", "two"].map(NewMessage::new).to_vec();
    clone.put(two).await.expect("put");
    queue.peek(1).await.expect("peek");
    let got = clone.get(2, LONG).await.expect("get");
    let renewed = queue.renew(&got[0].receipt, LONG).await.expect("renew");
    let lost = clone.delete(&got[0].receipt).await;
    lost.expect_err("the old receipt; still billed");
    let released = queue.release(&renewed, Duration::ZERO).await;
    released.expect("release");
    clone.depth().await.expect("depth");
    clone.purge().await.expect("purge");
    let before = queue.usage();
    clone.get(1, LONG).await.expect("get");
    let expected = QueueUsage {
        puts: 2,
        gets: 1,
        empty_gets: 1,
        deletes: 1,
        renews: 1,
        others: 5,
    };
    assert_eq!(queue.usage(), expected);
    assert_eq!(clone.usage().total(), 11);
    assert_eq!(clone.usage().since(&before).total(), 1);
}

#[tokio::test]
async fn a_call_that_is_refused_before_sending_costs_nothing() {
    let queue = queue();
    queue.get(0, LONG).await.expect_err("none is not a number");
    let large = NewMessage::new(vec![0; queue.limits().body + 1]);
    queue.put(vec![large]).await.expect_err("too large");
    queue.put(Vec::new()).await.expect("nothing to do");
    assert_eq!(queue.usage(), QueueUsage::default());
}
