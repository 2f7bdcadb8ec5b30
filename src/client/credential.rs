//! What a client shows with each request, so that the relay knows who it is, and the channel that
//! adds it.

use std::{fmt, path::PathBuf, sync::Arc};

use futures_util::future::BoxFuture;
use tonic::{
    Status,
    body::Body,
    codegen::http::{HeaderValue, Request, Response, header::AUTHORIZATION},
    transport::Channel,
};
use tower::{ServiceExt as _, service_fn, util::BoxCloneSyncService};

use crate::{
    base::{secret::Secret, task::blocking},
    error::{Error, ErrorKind, Result},
    wire::to_status,
};

/// A credential: a token of `reveille auth token new` or a JWT.
///
/// It is read for each request and for each new stream. So a renewed token is used without a restart,
/// and open streams go on: the relay ends a stream only when its own token has expired, and the
/// client then opens the next one with the renewed token.
#[derive(Clone, Default)]
pub struct Credential(Source);

#[derive(Clone, Default)]
enum Source {
    #[default]
    None,
    Text(Secret),
    File(PathBuf),
    Callback(Callback),
}

/// A channel that adds a credential to each request. Cheap to clone.
pub(crate) type RelayChannel = BoxCloneSyncService<Request<Body>, Response<Body>, Status>;

const SCHEME: &str = "Bearer ";

type Callback = Arc<dyn Fn() -> BoxFuture<'static, Result<String>> + Send + Sync>;

impl Credential {
    /// Returns a credential that does not change.
    pub fn text(text: &str) -> Self {
        Self(Source::Text(Secret::new(text)))
    }

    /// Returns the credential of a file, which is read for each request. White space around it is
    /// ignored.
    pub fn file(path: impl Into<PathBuf>) -> Self {
        Self(Source::File(path.into()))
    }

    /// Returns a credential that a function supplies for each request, for example from an identity
    /// service. It should keep a token until shortly before the token expires.
    pub fn callback<F>(callback: impl Fn() -> F + Send + Sync + 'static) -> Self
    where
        F: Future<Output = Result<String>> + Send + 'static,
    {
        Self(Source::Callback(Arc::new(move || Box::pin(callback()))))
    }

    pub(crate) fn is_none(&self) -> bool {
        matches!(self.0, Source::None)
    }

    /// Returns a channel that adds the credential to each request.
    pub(crate) fn over(self, channel: Channel) -> RelayChannel {
        BoxCloneSyncService::new(service_fn(move |mut request: Request<Body>| {
            let (channel, credential) = (channel.clone(), self.clone());
            async move {
                if !credential.is_none() {
                    let header = credential.header().await.map_err(to_status)?;
                    request.headers_mut().insert(AUTHORIZATION, header);
                }
                let answer = channel.oneshot(request).await;
                answer.map_err(|error| Status::from_error(error.into()))
            }
        }))
    }

    /// Returns the value of the header `authorization`.
    ///
    /// # Errors
    /// [`ErrorKind::Denied`] without a usable credential; [`ErrorKind::Unavailable`] if its file
    /// cannot be read now.
    pub(super) async fn header(&self) -> Result<HeaderValue> {
        let text = match &self.0 {
            Source::None => return Err(unusable("there is none")),
            Source::Text(text) => text.reveal().to_owned(),
            Source::File(path) => {
                let (path, shown) = (path.clone(), path.display());
                let read = blocking(move || std::fs::read_to_string(path)).await?;
                let text = read
                    .map_err(|error| absent(format_args!("`{shown}` cannot be read: {error}")))?;
                if bare(&text).is_empty() {
                    // As in the middle of a renewal.
                    return Err(absent(format_args!("`{shown}` is empty")));
                }
                text
            }
            Source::Callback(callback) => callback().await?,
        };
        let text = bare(&text);
        if text.is_empty() {
            return Err(unusable("it is empty"));
        }
        let mut value = HeaderValue::from_str(&format!("Bearer {text}"))
            .map_err(|_| unusable("it has characters that a header cannot have"))?;
        value.set_sensitive(true);
        Ok(value)
    }
}

impl fmt::Debug for Credential {
    /// Without the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            Source::None => f.write_str("None"),
            Source::Text(text) => text.fmt(f),
            Source::File(path) => path.fmt(f),
            Source::Callback(_) => f.write_str("(callback)"),
        }
    }
}

/// Returns the credential without white space, the mark that Windows puts before UTF-8, and the scheme
/// that some tools write with it.
fn bare(text: &str) -> &str {
    let text = text.trim_start_matches('\u{feff}').trim();
    match text.split_at_checked(SCHEME.len()) {
        Some((scheme, token)) if scheme.eq_ignore_ascii_case(SCHEME) => token.trim_start(),
        _ => text,
    }
}

/// Another attempt may find it.
fn absent(rule: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Unavailable, format!("credential: {rule}"))
}

fn unusable(rule: impl fmt::Display) -> Error {
    Error::new(ErrorKind::Denied, format!("credential: {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_token_has_its_scheme() {
        for (text, expected) in [
            ("rvl_abc", "Bearer rvl_abc"),
            ("a.b.c\n", "Bearer a.b.c"),
            ("\u{feff}a.b.c\r\n", "Bearer a.b.c"),
            ("Bearer a.b.c", "Bearer a.b.c"),
            ("\u{feff}bearer  rvl_abc\n", "Bearer rvl_abc"),
        ] {
            let value = Credential::text(text).header().await.expect("a header");
            assert_eq!(value.to_str().expect("ASCII"), expected);
            assert!(value.is_sensitive());
        }
        for text in ["", " \n", "a\u{0}b"] {
            let error = Credential::text(text).header().await.expect_err("unusable");
            assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
        }
    }

    #[tokio::test]
    async fn a_file_and_a_callback_are_asked_each_time() {
        let home = tempfile::tempdir().expect("a directory");
        let path = home.path().join("token");
        let credential = Credential::file(&path);
        let error = credential.header().await.expect_err("missing").to_string();
        assert!(error.contains("cannot be read"), "{error}");
        for token in ["first", "second"] {
            std::fs::write(&path, token).expect("written");
            let value = credential.header().await.expect("a header");
            assert_eq!(value, format!("Bearer {token}"));
        }
        let calls = std::sync::atomic::AtomicU32::new(0);
        let credential = Credential::callback(move || {
            let call = calls.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
            async move { Ok(format!("token-{call}")) }
        });
        assert_eq!(
            credential.header().await.expect("a header"),
            "Bearer token-0"
        );
        assert_eq!(
            credential.header().await.expect("a header"),
            "Bearer token-1"
        );
    }

    #[test]
    fn no_secret_is_shown() {
        let shown = format!("{:?}", Credential::text("planted-secret"));
        assert_eq!(shown, "(secret)");
    }
}
