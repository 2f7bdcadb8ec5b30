//! The routes of all services: relay, flags, admin, health and reflection.

pub(crate) mod admin;
#[cfg(feature = "courier")]
pub(super) mod courier;
pub(super) mod explain;
pub(super) mod findings;
pub(crate) mod flags;
pub(super) mod health;
#[cfg(feature = "nats")]
mod peers;
pub(super) mod relay;
#[cfg(feature = "keda")]
pub(super) mod scaler;
pub(super) mod stats;
pub(super) mod unconfirmed;

use std::sync::Arc;

use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;
use tonic::service::Routes;
use tonic_health::pb::health_server::HealthServer;

#[cfg(feature = "courier")]
use self::courier::CourierService;
use self::{health::Health, stats::StatsSource};
use super::{
    access::{Access, local_calls::ConsoleDoor},
    http2::{body::UNKNOWN_BYTES, service::ServiceRoutes},
};
#[cfg(feature = "keda")]
use crate::wire::scaler::external_scaler_server::ExternalScalerServer;
use crate::{
    coordination::flag::Flags,
    error::{Error, ErrorKind, Result},
    relay::runtime::Relay,
    types::Limits,
    wire::proto::{
        self, admin_server::AdminServer, flags_server::FlagsServer, relay_server::RelayServer,
    },
};
#[cfg(feature = "courier")]
use crate::{courier::Host, wire::proto::courier_server::CourierServer};

/// All services of a relay but the courier's.
#[derive(Debug)]
pub(crate) struct Services {
    pub(crate) relay: Relay,
    pub(crate) flags: Flags,
    /// The hosted queues.
    #[cfg(feature = "courier")]
    pub(crate) queues: Option<Arc<Host>>,
    pub(crate) draining: CancellationToken,
    pub(crate) access: Access,
    pub(crate) console: ConsoleDoor,
    pub(crate) stats: StatsSource,
    /// The lists that are computed at one time.
    pub(crate) lists: Semaphore,
    /// The calls of the store that are made for requests at one time: a slow store must not gather the
    /// requests of a client that sends them without end.
    pub(crate) calls: Semaphore,
    /// Serves reflection.
    pub(crate) reflection: bool,
}

impl Services {
    /// Returns the routes and the handle of the health service.
    ///
    /// # Errors
    /// [`ErrorKind::Internal`] if the reflection service cannot read its descriptors.
    pub(crate) fn routes(self) -> Result<(ServiceRoutes, Health)> {
        let health = Health::new(self.draining.clone());
        let mut routes = Routes::builder();
        let most = Limits::REQUEST_BYTES;
        routes.add_service(health_service(&health));
        #[cfg(feature = "courier")]
        if let Some(host) = self.queues.clone() {
            let (draining, access) = (self.draining.clone(), self.access.clone());
            routes.add_service(courier_service(host, draining, access));
        }
        let all = Arc::new(self);
        #[cfg(feature = "keda")]
        let service = ExternalScalerServer::from_arc(Arc::clone(&all));
        #[cfg(feature = "keda")]
        routes.add_service(service.max_decoding_message_size(most));
        let service = FlagsServer::from_arc(Arc::clone(&all));
        routes.add_service(service.max_decoding_message_size(most));
        let service = AdminServer::from_arc(Arc::clone(&all));
        routes.add_service(service.max_decoding_message_size(most));
        if all.reflection {
            let v1 = reflection().build_v1().map_err(broken)?;
            let v1alpha = reflection().build_v1alpha().map_err(broken)?;
            routes.add_service(v1.max_decoding_message_size(most));
            routes.add_service(v1alpha.max_decoding_message_size(most));
        }
        let relay = RelayServer::from_arc(all).max_decoding_message_size(Limits::NOTIFY_BYTES);
        let routes = ServiceRoutes::new(routes.routes());
        Ok((routes.with_direct("/reveille.v1.Relay/", relay), health))
    }
}

/// Returns the routes of a host of queues without a relay.
#[cfg(feature = "courier")]
pub(crate) fn queue_routes(
    host: Arc<Host>,
    draining: CancellationToken,
    access: Access,
) -> ServiceRoutes {
    let health = Health::new(draining.clone());
    let routes = Routes::new(courier_service(host, draining, access));
    ServiceRoutes::new(routes.add_service(health_service(&health)))
}

fn health_service(health: &Health) -> HealthServer<Health> {
    HealthServer::new(health.clone()).max_decoding_message_size(UNKNOWN_BYTES)
}

#[cfg(feature = "courier")]
fn courier_service(
    host: Arc<Host>,
    draining: CancellationToken,
    access: Access,
) -> CourierServer<CourierService> {
    let service = CourierService {
        host,
        draining,
        access,
    };
    CourierServer::new(service).max_decoding_message_size(Limits::HAND_OVER_BYTES)
}

fn broken(error: tonic_reflection::server::Error) -> Error {
    let message = "reflection cannot read its descriptors";
    Error::new(ErrorKind::Internal, message).with_source(error)
}

fn reflection() -> tonic_reflection::server::Builder<'static> {
    let builder = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(proto::DESCRIPTORS);
    #[cfg(feature = "keda")]
    let builder = builder.register_encoded_file_descriptor_set(crate::wire::scaler::DESCRIPTORS);
    builder.register_encoded_file_descriptor_set(tonic_health::pb::FILE_DESCRIPTOR_SET)
}
