//! Why a connection cannot be made: a fault of the configuration, or a server that is away.

use std::{error::Error as StdError, io};

use async_nats::{ConnectError, ConnectErrorKind, ConnectOptions, ServerAddr};
use rustls::{AlertDescription, CertificateError, Error as TlsError};

use super::{
    NatsConfig,
    config::shown,
    events::one_line,
    greeting::{Greeting, ServerTls, greeting},
};
use crate::{
    base::causes::causes,
    error::{Error, ErrorKind, Result},
};

/// Tries each server alone, and returns the reason why the first one is away; `None` if one can be
/// reached now.
///
/// # Errors
/// `Invalid` or `Denied` if the configuration does not fit one of the servers; it names the setting
/// and what to do.
pub(super) async fn reason(
    config: &NatsConfig,
    options: &ConnectOptions,
    servers: &[ServerAddr],
) -> Result<Option<String>> {
    // These attempts are no events of the relay's connection.
    let options = options.clone().event_callback(|_| std::future::ready(()));
    let mut away = None;
    for server in servers {
        // A connection that is made ends with this line.
        let Err(error) = options.clone().connect(server.clone()).await else {
            return Ok(None);
        };
        let reason = reason_of(config, server, &error).await?;
        away.get_or_insert(reason);
    }
    Ok(away)
}

async fn reason_of(
    config: &NatsConfig,
    server: &ServerAddr,
    error: &ConnectError,
) -> Result<String> {
    let host = shown(server);
    match error.kind() {
        ConnectErrorKind::AuthorizationViolation => return Err(denied(config, &host)),
        ConnectErrorKind::Authentication => {
            let rule = "must hold a key that signs, but its seed does not";
            return Err(Error::invalid("cluster_creds", rule));
        }
        _ => {}
    }
    let text = one_line(error);
    if let Some(refused) = tls_error(error).and_then(|error| tls_fault(config, &host, error)) {
        return Err(refused);
    }
    match greeting(server).await {
        Greeting::Nats { tls } => match server_tls_fault(config, &host, tls) {
            Some(fault) => Err(fault),
            None => Ok(format!("{host}: {text}")),
        },
        Greeting::Other => Err(Error::invalid(
            "cluster",
            format_args!("{host} must be a NATS server, but answers with another protocol"),
        )),
        Greeting::Silent => Ok(format!(
            "{host} accepts connections and says nothing: it is overloaded, or not a NATS server"
        )),
        Greeting::Unreachable(reason) => Ok(format!("{host}: {reason}")),
    }
}

fn denied(config: &NatsConfig, host: &str) -> Error {
    let advice = match &config.credentials {
        None => "set cluster_creds, or cluster_user and cluster_password_file",
        Some(super::NatsCredentials::File(_)) => "check cluster_creds",
        Some(super::NatsCredentials::Password { .. }) => {
            "check cluster_user and cluster_password_file"
        }
    };
    let message = format!("cluster: NATS at {host} refuses the login: {advice}");
    Error::new(ErrorKind::Denied, message)
}

/// Returns the fault of a TLS handshake; `None` where the first line of the server says more.
fn tls_fault(config: &NatsConfig, host: &str, error: &TlsError) -> Option<Error> {
    use AlertDescription as Alert;
    let invalid = |setting, rule: String| Some(Error::invalid(setting, rule));
    match error {
        // A new authority of the same name is known by its name, but its signature does not fit.
        TlsError::InvalidCertificate(
            CertificateError::UnknownIssuer | CertificateError::BadSignature,
        ) => invalid(
            "cluster_ca",
            format!(
                "must hold the authority of the certificate of {host}, which is not known here"
            ),
        ),
        TlsError::InvalidCertificate(reason) => invalid(
            "cluster",
            format!("the certificate of {host} is not valid: {reason}"),
        ),
        TlsError::AlertReceived(Alert::CertificateRequired) if config.cert.is_none() => {
            Some(certificate_required(host))
        }
        TlsError::AlertReceived(
            alert @ (Alert::BadCertificate
            | Alert::CertificateExpired
            | Alert::CertificateRequired
            | Alert::CertificateRevoked
            | Alert::CertificateUnknown
            | Alert::DecryptError
            | Alert::UnknownCA
            | Alert::UnsupportedCertificate),
        ) => match config.cert.is_some() {
            true => invalid("cluster_cert", format!("is refused by {host}: {alert:?}")),
            false => Some(certificate_required(host)),
        },
        _ => None,
    }
}

fn server_tls_fault(config: &NatsConfig, host: &str, tls: ServerTls) -> Option<Error> {
    if config.requires_tls() && !tls.is_offered {
        let rule = format_args!(
            "tls:// requires TLS, but {host} offers none: enable TLS there, or use nats://"
        );
        return Some(Error::invalid("cluster", rule));
    }
    let lacks_certificate = tls.needs_client_certificate && config.cert.is_none();
    lacks_certificate.then(|| certificate_required(host))
}

fn certificate_required(host: &str) -> Error {
    let rule = format_args!("must be set, with cluster_key: {host} requires a client certificate");
    Error::invalid("cluster_cert", rule)
}

/// Returns the TLS error among the causes. An I/O error does not name its inner error as its cause.
fn tls_error<'e>(error: &'e (dyn StdError + 'static)) -> Option<&'e TlsError> {
    causes(error).find_map(|cause| {
        let inner = cause
            .downcast_ref::<io::Error>()
            .and_then(|error| error.get_ref());
        cause
            .downcast_ref::<TlsError>()
            .or_else(|| inner?.downcast_ref::<TlsError>())
    })
}
