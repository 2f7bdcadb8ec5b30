//! When a connection that is silent gets a PING: together with another message, if one is sent about then.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::{Duration, Instant},
};

use hyper::rt::{Sleep, Timer};

/// hyper's timer for its pings.
#[derive(Debug)]
pub(super) struct PingTimer;

/// A ping's time and its time-out are kept within so much.
const WITHIN: Duration = Duration::from_secs(1);

pin_project_lite::pin_project! {
    /// A wait that is over from [`WITHIN`] before its deadline on, and wakes its connection as long after
    /// it: so a ping is one write with a heartbeat that is sent meanwhile.
    struct PingSleep {
        #[pin]
        late: tokio::time::Sleep,
    }
}

impl Future for PingSleep {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let late = self.project().late;
        match late.deadline() - WITHIN * 2 <= tokio::time::Instant::now() {
            true => Poll::Ready(()),
            false => late.poll(cx),
        }
    }
}

impl Sleep for PingSleep {}

impl Timer for PingTimer {
    fn sleep(&self, span: Duration) -> Pin<Box<dyn Sleep>> {
        self.sleep_until(self.now() + span)
    }

    fn sleep_until(&self, deadline: Instant) -> Pin<Box<dyn Sleep>> {
        let late = tokio::time::sleep_until((deadline + WITHIN).into());
        Box::pin(PingSleep { late })
    }

    fn now(&self) -> Instant {
        tokio::time::Instant::now().into()
    }

    fn reset(&self, sleep: &mut Pin<Box<dyn Sleep>>, deadline: Instant) {
        if let Some(sleep) = sleep.as_mut().downcast_mut_pin::<PingSleep>() {
            sleep.project().late.reset((deadline + WITHIN).into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_wait_is_over_a_second_early_where_it_is_polled_and_wakes_a_second_late() {
        let span = Duration::from_secs(20);
        let mut sleep = PingTimer.sleep(span);
        let is_over = async |sleep: &mut Pin<Box<dyn Sleep>>| {
            std::future::poll_fn(|cx| Poll::Ready(sleep.as_mut().poll(cx).is_ready())).await
        };
        tokio::time::advance(Duration::from_millis(18_900)).await;
        assert!(!is_over(&mut sleep).await);
        tokio::time::advance(Duration::from_millis(200)).await;
        assert!(is_over(&mut sleep).await);
        let began = PingTimer.now();
        PingTimer.reset(&mut sleep, began + span);
        sleep.await;
        assert_eq!(PingTimer.now() - began, Duration::from_secs(21));
    }
}
