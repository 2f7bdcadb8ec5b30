//! The routes of all services: relay, flags, admin, health and reflection.

pub(crate) mod admin;
#[cfg(feature = "courier")]
pub(super) mod courier;
pub(super) mod explain;
pub(super) mod findings;
pub(crate) mod flags;
pub(super) mod health;
#[cfg(feature = "nats")]
pub(super) mod peers;
pub(super) mod relay;
#[cfg(feature = "keda")]
pub(super) mod scaler;
pub(super) mod stats;
pub(super) mod store_calls;
pub(super) mod store_probe;
pub(super) mod unconfirmed;
pub(super) mod wake;

#[cfg(feature = "courier")]
use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

#[cfg(feature = "courier")]
use self::courier::CourierService;
use self::{
    admin::AdminService,
    flags::FlagsService,
    health::{Health, HealthService},
    relay::RelayService,
    stats::StatsSource,
};
use super::{
    access::{Access, local_calls::ConsoleDoor},
    http2::answers::LargeAnswers,
};
use crate::{
    coordination::flag::Flags,
    error::{Error, ErrorKind, Result},
    relay::runtime::Relay,
    types::Limits,
    wire::proto,
};
#[cfg(feature = "courier")]
use crate::{courier::Host, wire::proto::courier_server::CourierServer};

/// The parts that the services need.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) relay: Relay,
    pub(crate) flags: Flags,
    /// The hosted queues.
    #[cfg(feature = "courier")]
    pub(crate) queues: Option<Arc<Host>>,
    /// Maximum age of a flag watch's stream.
    pub(crate) stream_max_age: Duration,
    pub(crate) draining: CancellationToken,
    pub(crate) access: Access,
    pub(crate) console: ConsoleDoor,
    pub(crate) stats: StatsSource,
    /// What KEDA is told.
    #[cfg(feature = "keda")]
    pub(crate) scaler: scaler::Scaler,
    /// Serves reflection.
    pub(crate) reflection: bool,
}

impl Services {
    /// Returns the routes and the handle of the health service.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the reflection service cannot read its descriptors.
    pub(crate) fn routes(self) -> Result<(Routes, Health)> {
        let Self {
            relay,
            flags,
            #[cfg(feature = "courier")]
            queues,
            stream_max_age,
            draining,
            access,
            console,
            stats,
            #[cfg(feature = "keda")]
            scaler,
            reflection: has_reflection,
        } = self;
        let names = health::OF_RELAY;
        #[cfg(feature = "courier")]
        let names = queues
            .as_ref()
            .map_or(names, |_| health::OF_RELAY_AND_QUEUES);
        let (health_service, health) = HealthService::new(names);
        let health_service =
            HealthServer::new(health_service).max_decoding_message_size(health::REQUEST_BYTES);
        let broken = |error| {
            Error::new(
                ErrorKind::Internal,
                "reflection cannot read its descriptors",
            )
            .with_source(error)
        };
        #[cfg(feature = "courier")]
        let courier_service =
            queues.map(|host| courier_service(host, draining.clone(), access.clone()));
        let relay_service = proto::relay_server::RelayServer::new(RelayService::new(
            relay.clone(),
            draining,
            access.clone(),
        ))
        .max_decoding_message_size(Limits::SUBSCRIBE_BYTES);
        let flags_service = FlagsService::new(
            flags,
            relay.clone(),
            stream_max_age,
            LargeAnswers::new(),
            access.clone(),
        );
        let flags_service = proto::flags_server::FlagsServer::new(flags_service)
            .max_decoding_message_size(Limits::REQUEST_BYTES);
        #[cfg(feature = "keda")]
        let scaler_service = scaler::service(scaler, stream_max_age, access.clone());
        let admin_service = proto::admin_server::AdminServer::new(AdminService::new(
            relay,
            stats,
            stream_max_age,
            LargeAnswers::new(),
            access,
            console,
        ))
        .max_decoding_message_size(Limits::REQUEST_BYTES);
        let routes = Routes::new(relay_service);
        #[cfg(feature = "courier")]
        let routes = match courier_service {
            Some(service) => routes.add_service(service),
            None => routes,
        };
        let routes = routes
            .add_service(flags_service)
            .add_service(admin_service)
            .add_service(health_service);
        #[cfg(feature = "keda")]
        let routes = routes.add_service(scaler_service);
        if !has_reflection {
            return Ok((routes, health));
        }
        let v1 = reflection().build_v1().map_err(broken)?;
        let v1alpha = reflection().build_v1alpha().map_err(broken)?;
        let routes = routes
            .add_service(v1.max_decoding_message_size(Limits::REQUEST_BYTES))
            .add_service(v1alpha.max_decoding_message_size(Limits::REQUEST_BYTES));
        Ok((routes, health))
    }
}

/// Returns the routes of a host of queues without a relay, and the handle of its health service.
#[cfg(feature = "courier")]
pub(crate) fn queue_routes(
    host: Arc<Host>,
    draining: CancellationToken,
    access: Access,
) -> (Routes, Health) {
    let (health_service, health) = HealthService::new(health::OF_QUEUES);
    let health_service =
        HealthServer::new(health_service).max_decoding_message_size(health::REQUEST_BYTES);
    let routes = Routes::new(courier_service(host, draining, access)).add_service(health_service);
    (routes, health)
}

#[cfg(feature = "courier")]
fn courier_service(
    host: Arc<Host>,
    draining: CancellationToken,
    access: Access,
) -> CourierServer<CourierService> {
    CourierServer::new(CourierService::new(host, draining, access))
        .max_decoding_message_size(Limits::HAND_OVER_BYTES)
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS);
    #[cfg(feature = "keda")]
    let builder = builder.register_encoded_file_descriptor_set(crate::wire::scaler::DESCRIPTORS);
    builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
