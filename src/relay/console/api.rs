//! The JSON interface: its routes, and the methods that they call.

use std::{collections::HashMap, convert::Infallible, net::SocketAddr, time::Duration};

use axum::{
    Json, RequestPartsExt as _, Router,
    body::{Body, Bytes},
    extract::{FromRequest, Path, Query, Request, State},
    http::{HeaderMap, HeaderValue, Method as HttpMethod, StatusCode, header},
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
    routing::{MethodRouter, get, post},
};
use futures_util::stream;
use serde_json::{Map, Value, json};
use tokio::time::Instant;
use tonic::{Code, Status, Streaming};

use super::{ConsoleMode, Page, json::Method, problem::Problem};
use crate::{
    console::{LongAnswer, Peer},
    relay::server::LocalCaller,
};

/// What a handler gets of its request.
struct Asked {
    headers: HeaderMap,
    address: SocketAddr,
    /// From the path, and the query or the body.
    fields: Map<String, Value>,
    long: LongAnswer,
}

#[derive(serde::Deserialize)]
#[serde(deny_unknown_fields)]
struct Login {
    token: Option<String>,
    code: Option<String>,
}

type Texts = HashMap<String, String>;
type Outcome<T = Response> = Result<T, Problem>;

/// Largest body of a request, in bytes.
const BODY: usize = 64 * 1024;
/// A comment keeps the connection alive through proxies.
const KEEP_ALIVE: Duration = Duration::from_secs(15);
/// Who sets or clears a flag where no caller is known.
const ANYONE: &str = "console";

pub(super) fn routes() -> Router<Page> {
    Router::new()
        .route("/api/v1/info", get(info))
        .route("/api/v1/login", post(login))
        .route("/api/v1/logout", post(logout))
        .route("/api/v1/queues", list("/reveille.v1.Admin/ListQueues"))
        .route(
            "/api/v1/queues/{storage_account}/{queue_name}",
            list("/reveille.v1.Admin/Explain"),
        )
        .route(
            "/api/v1/listeners",
            list("/reveille.v1.Admin/ListListeners"),
        )
        .route("/api/v1/relays", list("/reveille.v1.Admin/ListRelays"))
        .route("/api/v1/history", list("/reveille.v1.Admin/GetHistory"))
        .route("/api/v1/flags", list("/reveille.v1.Flags/ListFlags"))
        .route("/api/v1/flags/{flag}", list("/reveille.v1.Flags/GetFlag"))
        .route(
            "/api/v1/flags/{flag}/watchers",
            list("/reveille.v1.Flags/ListFlagWatchers"),
        )
        .route(
            "/api/v1/watchers",
            list("/reveille.v1.Flags/ListFlagWatchers"),
        )
        .route(
            "/api/v1/flags/{flag}/unleash",
            change("/reveille.v1.Flags/Unleash", Some("set_by")),
        )
        .route(
            "/api/v1/flags/{flag}/leash",
            change("/reveille.v1.Flags/Leash", Some("cleared_by")),
        )
        .route("/api/v1/notify", change("/reveille.v1.Relay/Notify", None))
        .route("/api/v1/drain", change("/reveille.v1.Admin/Drain", None))
        .route("/api/v1/stream", get(stats))
        .route("/api/v1/flags/{flag}/stream", get(watch_flag))
}

/// Returns the route of a method that changes nothing.
fn list(method: &'static str) -> MethodRouter<Page> {
    get(async move |State(page): State<Page>, asked: Asked| page.answer(method, asked).await)
}

/// Returns the route of a method that changes something. The field `by` is the caller.
fn change(method: &'static str, by: Option<&'static str>) -> MethodRouter<Page> {
    post(async move |State(page): State<Page>, mut asked: Asked| {
        if let Some(by) = by {
            let principal = page.0.calls.principal(asked.caller())?;
            let by_whom = match principal.as_str() {
                "" => ANYONE,
                known => known,
            };
            if asked.fields.insert(by.to_owned(), by_whom.into()).is_some() {
                return Err(Problem::invalid(format!(
                    "{by}: is the caller; leave it out"
                )));
            }
        }
        page.answer(method, asked).await
    })
}

async fn info(State(page): State<Page>, asked: Asked) -> Json<Value> {
    Json(page.info(&asked))
}

async fn login(State(page): State<Page>, mut asked: Asked) -> Outcome {
    let fields = Value::Object(std::mem::take(&mut asked.fields));
    let Login { token, code } =
        serde_json::from_value(fields).map_err(|error| Problem::invalid(error.to_string()))?;
    let authorization = match (token, code) {
        (Some(token), None) => HeaderValue::from_str(&format!("Bearer {}", token.trim())).ok(),
        (None, Some(code)) => {
            let known = page.0.calls.redeem(&code);
            Some(known.ok_or_else(|| {
                let why = "code: was used, or is older than a minute; run `reveille console` again";
                Status::unauthenticated(why)
            })?)
        }
        _ => return Err(Problem::invalid("token: state either `token` or `code`")),
    };
    let rule = "token: must be one line of letters, digits and signs";
    let mut authorization = authorization.ok_or_else(|| Problem::invalid(rule))?;
    authorization.set_sensitive(true);
    asked
        .headers
        .insert(header::AUTHORIZATION, authorization.clone());
    page.0.calls.principal(asked.caller())?;
    let begun = page
        .0
        .sessions
        .begin(&asked.headers, authorization, Instant::now());
    let cookie = begun.map_err(|error| Problem::from(crate::wire::to_status(error)))?;
    Ok(([(header::SET_COOKIE, cookie)], Json(page.info(&asked))).into_response())
}

async fn logout(State(page): State<Page>, headers: HeaderMap) -> Response {
    let cookie = page.0.sessions.end(&headers, Instant::now());
    ([(header::SET_COOKIE, cookie)], Json(json!({}))).into_response()
}

async fn stats(State(page): State<Page>, asked: Asked) -> Outcome {
    page.events("/reveille.v1.Admin/WatchStats", asked, |stats| {
        ("stats", stats)
    })
    .await
}

async fn watch_flag(State(page): State<Page>, mut asked: Asked) -> Outcome {
    asked.fields.insert("acks".to_owned(), true.into());
    let id = crate::types::ListenerId::unique(ANYONE);
    let id = id.map_err(|error| Problem::from(crate::wire::to_status(error)))?;
    asked
        .fields
        .insert("listener_id".to_owned(), id.to_string().into());
    let event = |mut message: Value| {
        let kinds = ["flag", "acks", "goodbye", "heartbeat"];
        let mut known = kinds.into_iter().filter_map(|kind| {
            let content = message.get_mut(kind)?.take();
            (!content.is_null()).then_some((kind, content))
        });
        known.next().unwrap_or_else(|| ("heartbeat", json!({})))
    };
    page.events("/reveille.v1.Flags/WatchFlag", asked, event)
        .await
}

impl FromRequest<Page> for Asked {
    type Rejection = Problem;

    async fn from_request(request: Request, page: &Page) -> Outcome<Self> {
        let (mut head, body) = request.into_parts();
        let mut fields = if head.method == HttpMethod::POST {
            fields_of(body).await?
        } else {
            let query = Query::<Texts>::try_from_uri(&head.uri);
            let Query(query) = query.map_err(|error| Problem::invalid(error.body_text()))?;
            let fields = query.into_iter().map(|(name, text)| (name, text.into()));
            fields.collect()
        };
        let path = head.extract::<Path<Texts>>().await;
        let Path(path) = path.map_err(|error| Problem::invalid(error.body_text()))?;
        for (name, text) in path {
            if fields.contains_key(&name) {
                return Err(Problem::invalid(format!("{name}: stands in the path")));
            }
            fields.insert(name, text.into());
        }
        let no_connection = || Status::internal("the request has no connection");
        let Peer(address) = *head.extensions.get().ok_or_else(no_connection)?;
        Ok(Self {
            long: head.extensions.remove().unwrap_or_default(),
            headers: page.0.sessions.authorized(head.headers, Instant::now()),
            address,
            fields,
        })
    }
}

impl Asked {
    fn caller(&self) -> LocalCaller<'_> {
        LocalCaller {
            headers: &self.headers,
            address: self.address,
        }
    }
}

async fn fields_of(body: Body) -> Outcome<Map<String, Value>> {
    let body = axum::body::to_bytes(body, BODY).await.map_err(|_| {
        let rule = format!("body: must have at most {BODY} bytes");
        Problem::new(StatusCode::PAYLOAD_TOO_LARGE, Code::InvalidArgument, rule)
    })?;
    if body.is_empty() {
        return Ok(Map::new());
    }
    match serde_json::from_slice(&body) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(Problem::invalid("body: must be a JSON object")),
        Err(error) => Err(Problem::invalid(format!("body: {error}"))),
    }
}

impl Page {
    /// Calls a method.
    async fn call(
        &self,
        path: &'static str,
        asked: &mut Asked,
    ) -> Outcome<(Streaming<Bytes>, Method)> {
        let method = self.0.services.method(path);
        let method = method.ok_or_else(|| Status::unimplemented(path))?;
        let request = method.request(std::mem::take(&mut asked.fields))?;
        let answers = self.0.calls.call(asked.caller(), path, request).await?;
        Ok((answers, method))
    }

    /// Calls a unary method.
    async fn answer(&self, path: &'static str, mut asked: Asked) -> Outcome {
        let (mut answers, method) = self.call(path, &mut asked).await?;
        let answer = answers.message().await?;
        let answer = answer.ok_or_else(|| Status::internal("there is no answer"))?;
        let headers = [(header::CACHE_CONTROL, "no-store")];
        Ok((headers, Json(method.answer(answer)?)).into_response())
    }

    /// Calls a method that streams its answers, and sends each as an event. The last event says why the
    /// stream ended.
    async fn events(
        &self,
        path: &'static str,
        mut asked: Asked,
        event: fn(Value) -> (&'static str, Value),
    ) -> Outcome {
        let answers = self.call(path, &mut asked).await?;
        asked.long.begin();
        let next = move |state: Option<(Streaming<Bytes>, Method)>| async move {
            let (mut answers, method) = state?;
            let next = match answers.message().await {
                Ok(Some(answer)) => method.answer(answer).map(Some),
                Ok(None) => Ok(None),
                Err(status) => Err(status.into()),
            };
            let (event, state) = match next {
                Ok(Some(answer)) => {
                    let (name, content) = event(answer);
                    let event = Event::default().event(name);
                    (event.data(content.to_string()), Some((answers, method)))
                }
                Ok(None) => (Event::default().event("goodbye").data("{}"), None),
                Err(problem) => {
                    let event = Event::default().event("problem");
                    (event.data(problem.value().to_string()), None)
                }
            };
            Some((Ok::<_, Infallible>(event), state))
        };
        let kept = KeepAlive::new().interval(KEEP_ALIVE);
        let events = Sse::new(stream::unfold(Some(answers), next)).keep_alive(kept);
        let headers = [(header::CACHE_CONTROL, "no-store")];
        Ok((headers, events).into_response())
    }

    fn info(&self, asked: &Asked) -> Value {
        let relay = &self.0.relay;
        let own = relay.own_info();
        // A page that begins has no credential, which is no refused caller.
        let has_none = !asked.headers.contains_key(header::AUTHORIZATION);
        let user = match self.0.calls.access.is_controlled() && has_none {
            true => None,
            false => self.0.calls.principal(asked.caller()).ok(),
        };
        json!({
            "relay_id": own.relay_id,
            "version": own.version,
            "epoch": own.epoch,
            "mode": match self.0.mode {
                ConsoleMode::Off => "off",
                ConsoleMode::Read => "read",
                ConsoleMode::Act => "act",
            },
            "login": user.is_none(),
            "user": user.unwrap_or_default(),
            "cluster": relay.cluster_stats().is_some(),
        })
    }
}
