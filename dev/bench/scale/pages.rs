//! One page of the list of queues. The library's client can only read the whole list.
//!
//! This calls the protocol's `ListQueues` with messages defined here, which have only the needed
//! fields.

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use http::uri::PathAndQuery;
use tokio::time::Instant;
use tonic::{
    Request,
    client::Grpc,
    transport::{Channel, Endpoint},
};
use tonic_prost::ProstCodec;

use super::{
    super::report::{Figures, Unit},
    names,
};

/// The time to read a page at three positions of the list.
#[derive(Debug)]
pub(super) struct Pages {
    pub(super) start: Duration,
    pub(super) middle: Duration,
    pub(super) end: Duration,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListQueuesRequest {
    #[prost(uint32, tag = "1")]
    page_size: u32,
    #[prost(string, tag = "2")]
    page_token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct ListQueuesResponse {
    #[prost(message, repeated, tag = "1")]
    queues: Vec<Queue>,
    #[prost(string, tag = "2")]
    next_page_token: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Queue {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
}

const METHOD: &str = "/reveille.v1.Admin/ListQueues";
/// Entries of a page: the relay's maximum.
const PAGE: u32 = 1_000;
/// Number of reads of each page; the median is reported.
const READS: usize = 5;

impl Pages {
    pub(super) fn add(&self, figures: &mut Figures) {
        for (name, time) in [
            ("page at the start", self.start),
            ("page in the middle", self.middle),
            ("page at the end", self.end),
        ] {
            let micros = time.as_secs_f64() * 1e6;
            figures.add(name, Unit::Micros, micros);
        }
    }
}

/// Reads the first page, one in the middle of the numbered queues, and the last one.
pub(super) async fn measure(target: &str, queues: u32) -> Result<Pages> {
    let channel = Endpoint::from_shared(target.to_owned())?.connect().await?;
    let mut admin = Grpc::new(channel);
    let first = page(&mut admin, "").await?;
    // The relay's token is the last queue of a page, so a token can be made for any position.
    let last = first.queues.last().context("a relay without queues")?;
    let named = format!("{}/{}", last.storage_account, last.queue_name);
    ensure!(
        first.next_page_token.is_empty() || first.next_page_token == named,
        "the page's token is {:?}, not its last queue",
        first.next_page_token
    );
    Ok(Pages {
        start: median(&mut admin, "").await?,
        middle: median(&mut admin, &token(queues / 2)?).await?,
        end: median(&mut admin, &token(queues.saturating_sub(PAGE + 1))?).await?,
    })
}

/// Returns the token of the page after a queue.
fn token(queue: u32) -> Result<String> {
    Ok(names::queue(queue)?.to_string())
}

/// Reads a page several times; returns the median.
async fn median(admin: &mut Grpc<Channel>, token: &str) -> Result<Duration> {
    let mut times = Vec::new();
    for _ in 0..READS {
        let began = Instant::now();
        page(admin, token).await?;
        times.push(began.elapsed());
    }
    times.sort_unstable();
    Ok(times[READS / 2])
}

async fn page(admin: &mut Grpc<Channel>, token: &str) -> Result<ListQueuesResponse> {
    let request = ListQueuesRequest {
        page_size: PAGE,
        page_token: token.to_owned(),
    };
    let codec: ProstCodec<ListQueuesRequest, ListQueuesResponse> = ProstCodec::default();
    admin.ready().await?;
    let method = PathAndQuery::from_static(METHOD);
    let answer = admin.unary(Request::new(request), method, codec).await?;
    Ok(answer.into_inner())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scale::tests::{node, notify};

    #[tokio::test]
    async fn a_page_is_read_at_any_position_of_the_list() {
        let node = node().await;
        let queues: Vec<_> = (0..2_500)
            .map(|at| names::queue(at).expect("a name"))
            .collect();
        notify(&node, &queues).await;
        measure(&node.url(), 2_500).await.expect("pages");
        let channel = Endpoint::from_shared(node.url()).expect("a URL");
        let mut admin = Grpc::new(channel.connect().await.expect("connected"));
        let middle = page(&mut admin, &token(1_250).expect("a name"))
            .await
            .expect("a page");
        assert_eq!(middle.queues.len(), 1_000);
        assert_eq!(middle.queues[0].queue_name, queues[1_251].queue_name());
        node.shutdown(Duration::ZERO).await;
    }
}
