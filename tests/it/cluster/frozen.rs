//! Relays and the broker are stopped for ten seconds and go on, while publishers notify. Each
//! confirmed notification is told within the bounds of docs/cluster.md.

use std::time::{Duration, Instant};

use reveille::{Client, Notification, WakeReason};
use tonic::{Request, Streaming, client::Grpc, codegen::http::uri::PathAndQuery};
use tonic_prost::ProstCodec;

use super::{
    processes::Fleet,
    witness::{all_are_told, names, publish},
};
use crate::support::{figure, queue, within};

const STOPPED: Duration = Duration::from_secs(10);
/// A notification of each queue, for a little longer than [`STOPPED`].
const QUEUES: usize = 110;
const PAUSE: Duration = Duration::from_millis(100);
/// The bounds after the end of a fault: for a relay that heard all, and for one that was cut off.
const HEARD: Duration = Duration::from_millis(1200);
const CUT_OFF: Duration = Duration::from_millis(4500);

/// The fields of the client's messages that these tests use.
#[derive(Clone, PartialEq, prost::Message)]
struct SubscribeRequest {
    #[prost(string, tag = "1")]
    listener_id: String,
    #[prost(message, repeated, tag = "2")]
    selectors: Vec<Selector>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Selector {
    #[prost(string, tag = "1")]
    storage_account: String,
    #[prost(string, tag = "2")]
    queue_name: String,
}

#[derive(Clone, PartialEq, prost::Message)]
struct SubscribeResponse {
    #[prost(message, optional, tag = "3")]
    heartbeat: Option<Heartbeat>,
}

#[derive(Clone, PartialEq, prost::Message)]
struct Heartbeat {
    #[prost(bool, tag = "1")]
    degraded: bool,
}

/// Opens a stream of a queue without notifications, and reads its first heartbeat.
async fn idle_stream(url: &str) -> Streaming<SubscribeResponse> {
    let channel = tonic::transport::Endpoint::from_shared(url.to_owned()).expect("a URL");
    let mut relay = Grpc::new(channel.connect().await.expect("it serves"));
    relay.ready().await.expect("connected");
    let request = Request::new(SubscribeRequest {
        listener_id: "idle".to_owned(),
        selectors: vec![Selector {
            storage_account: "acct".to_owned(),
            queue_name: "idle".to_owned(),
        }],
    });
    let codec: ProstCodec<SubscribeRequest, SubscribeResponse> = ProstCodec::default();
    let method = PathAndQuery::from_static("/reveille.v1.Relay/Subscribe");
    let answer = relay.server_streaming(request, method, codec).await;
    let mut stream = answer.expect("a stream").into_inner();
    assert!(!next_heartbeat(&mut stream).await, "degraded at first");
    stream
}

/// Returns whether the next heartbeat says that the relay is degraded.
async fn next_heartbeat(stream: &mut Streaming<SubscribeResponse>) -> bool {
    let reading = async {
        loop {
            let event = stream.message().await.expect("not refused");
            if let Some(heartbeat) = event.expect("not ended").heartbeat {
                return heartbeat.degraded;
            }
        }
    };
    within("a heartbeat", reading).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_confirmed_while_a_relay_is_stopped_is_told_there_when_it_goes_on() {
    let fleet = Fleet::start().await;
    let queues = names("stopped", QUEUES);
    let witnesses = fleet.witnesses(&queues).await;
    let admin = fleet.relays[0].admin();
    let isolations = "reveille_cluster_isolations_total";
    let before = figure(admin, isolations).await;
    let urls = [fleet.relays[1].url(), fleet.relays[2].url()].join(",");
    let client = Client::new(&urls).expect("URLs");
    fleet.relays[0].freeze().await;
    let publishing = tokio::spawn(publish(client, queues, PAUSE));
    tokio::time::sleep(STOPPED).await;
    let resumed = Instant::now();
    fleet.relays[0].resume().await;
    let all = publishing.await.expect("no panic");
    for other in &witnesses[1..] {
        all_are_told(other, &all, all[0].began, HEARD).await;
    }
    all_are_told(&witnesses[0], &all, resumed, CUT_OFF).await;
    let after = figure(admin, isolations).await;
    assert_eq!(after - before, 1, "it was degraded when it went on");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_stopped_relay_missed_while_its_connection_was_cut_is_told_there_when_it_goes_on() {
    let (fleet, wire) = Fleet::start_with_a_wire().await;
    let queues = names("cut", QUEUES);
    let witnesses = fleet.witnesses(&queues).await;
    let urls = [fleet.relays[1].url(), fleet.relays[2].url()].join(",");
    let client = Client::new(&urls).expect("URLs");
    fleet.relays[0].freeze().await;
    // From here on no message waits for it in a socket, but for one that the wire has in hand.
    wire.cut();
    tokio::time::sleep(Duration::from_millis(200)).await;
    let publishing = tokio::spawn(publish(client, queues, PAUSE));
    tokio::time::sleep(STOPPED).await;
    wire.mend();
    let resumed = Instant::now();
    fleet.relays[0].resume().await;
    let all = publishing.await.expect("no panic");
    for other in &witnesses[1..] {
        all_are_told(other, &all, all[0].began, HEARD).await;
    }
    // Its client waits for at most 2 s before it connects again.
    let bound = CUT_OFF + Duration::from_secs(2);
    all_are_told(&witnesses[0], &all, resumed, bound).await;
    let missed = all.iter().filter(|one| one.confirmed < resumed);
    for one in missed {
        let told = witnesses[0].told(&one.queue, one.began).await;
        assert_eq!(told.reason, WakeReason::CatchUp, "{one:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_relay_that_was_stopped_says_degraded_at_once_when_it_goes_on() {
    let fleet = Fleet::start().await;
    let mut stream = idle_stream(&fleet.relays[0].url()).await;
    // Without the broker, none of its messages can return and end that at once.
    fleet.relays[0].freeze().await;
    fleet.broker.freeze();
    tokio::time::sleep(Duration::from_secs(5)).await;
    fleet.relays[0].resume().await;
    let resumed = Instant::now();
    while !next_heartbeat(&mut stream).await {}
    let told = resumed.elapsed();
    assert!(told < Duration::from_secs(1), "told after {told:?}");
    fleet.broker.resume();
    while next_heartbeat(&mut stream).await {}
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_notified_around_a_broker_that_is_stopped_is_told_at_all_relays() {
    let fleet = Fleet::start().await;
    let queues = names("broker", QUEUES);
    let witnesses = fleet.witnesses(&queues).await;
    let mut publishing = Vec::new();
    for (relay, part) in fleet.relays.iter().zip(queues.chunks(QUEUES / 3 + 1)) {
        let client = Client::new(&relay.url()).expect("a URL");
        publishing.push(tokio::spawn(publish(client, part.to_vec(), PAUSE)));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    fleet.broker.freeze();
    tokio::time::sleep(STOPPED).await;
    fleet.broker.resume();
    let resumed = Instant::now();
    for publishing in publishing {
        let all = within("confirmations", publishing).await.expect("no panic");
        for witness in &witnesses {
            all_are_told(witness, &all, resumed, CUT_OFF).await;
        }
    }
}

/// Returns a client of all relays that begins at the first one.
fn beginning_at_the_first(fleet: &Fleet) -> Client {
    loop {
        // Each client begins at a random relay of its list.
        let client = Client::new(&fleet.urls()).expect("URLs");
        if client.url() == fleet.relays[0].url() {
            return client;
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_notification_goes_to_another_relay_where_one_is_stopped() {
    let fleet = Fleet::start().await;
    let notification = || Notification::new(queue("acct/orders"));
    let connected = beginning_at_the_first(&fleet).publisher("tests");
    connected.notify(notification()).await.expect("confirmed");
    let new = beginning_at_the_first(&fleet).publisher("tests");
    fleet.relays[0].freeze().await;
    for publisher in [connected, new] {
        let began = Instant::now();
        let notified = within("a confirmation", publisher.notify(notification())).await;
        notified.expect("confirmed by another relay");
        // The default time-out of a command is 5 s.
        let took = began.elapsed();
        assert!(took < Duration::from_secs(4), "{took:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_list_is_read_from_another_relay_where_one_is_stopped() {
    let fleet = Fleet::start().await;
    let stopped = fleet.relays[0].url();
    let client = beginning_at_the_first(&fleet);
    within("a list", client.queues()).await.expect("listed");
    fleet.relays[0].freeze().await;
    let listed = within("a list", client.queues()).await.expect("listed");
    assert_eq!(listed.unanswered, ["relay-0"]);
    assert_ne!(client.url(), stopped);
}
