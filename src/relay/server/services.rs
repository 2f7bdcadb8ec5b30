//! The routes of all services: relay, flags, admin, health and reflection.

use std::time::Duration;

use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

#[cfg(feature = "courier")]
use super::courier::CourierService;
use super::{
    admin::AdminService,
    flags::FlagsService,
    health::{Health, HealthService},
    relay::RelayService,
};
#[cfg(feature = "courier")]
use crate::courier::Host;
use crate::{
    coordination::flag::Flags,
    error::{Error, ErrorKind, Result},
    relay::runtime::Relay,
    types::Limits,
    wire::proto,
};

/// The parts that the services need.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) relay: Relay,
    pub(crate) flags: Flags,
    /// The hosted queues.
    #[cfg(feature = "courier")]
    pub(crate) queues: Option<std::sync::Arc<Host>>,
    /// Maximum age of a flag watch's stream.
    pub(crate) stream_max_age: Duration,
    pub(crate) draining: CancellationToken,
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
        } = self;
        let (health_service, health) = HealthService::new();
        let health_service =
            HealthServer::new(health_service).max_decoding_message_size(Limits::REQUEST_BYTES);
        let broken = |error| {
            Error::new(
                ErrorKind::Internal,
                "reflection cannot read its descriptors",
            )
            .with_source(error)
        };
        let relay_service = proto::relay_server::RelayServer::new(RelayService::new(
            relay.clone(),
            draining.clone(),
        ))
        .max_decoding_message_size(Limits::SUBSCRIBE_BYTES);
        let flags_service = FlagsService::new(flags, stream_max_age, draining);
        let flags_service = proto::flags_server::FlagsServer::new(flags_service)
            .max_decoding_message_size(Limits::REQUEST_BYTES);
        let admin_service = proto::admin_server::AdminServer::new(AdminService::new(relay))
            .max_decoding_message_size(Limits::REQUEST_BYTES);
        let reflection_v1 = reflection().build_v1().map_err(broken)?;
        let reflection_v1alpha = reflection().build_v1alpha().map_err(broken)?;
        let routes = Routes::new(relay_service);
        #[cfg(feature = "courier")]
        let routes = match queues {
            Some(host) => routes.add_service(
                proto::courier_server::CourierServer::new(CourierService::new(host))
                    .max_decoding_message_size(Limits::HAND_OVER_BYTES),
            ),
            None => routes,
        };
        let routes = routes
            .add_service(flags_service)
            .add_service(admin_service)
            .add_service(health_service)
            .add_service(reflection_v1.max_decoding_message_size(Limits::REQUEST_BYTES))
            .add_service(reflection_v1alpha.max_decoding_message_size(Limits::REQUEST_BYTES));
        Ok((routes, health))
    }
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS)
        .register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
