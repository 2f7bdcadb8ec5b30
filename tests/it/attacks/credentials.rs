//! Floods of bad credentials beside good clients at the same address.

use std::{
    sync::Arc,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use http::{Request, Response};
use hyper::body::Incoming;
use rcgen::{KeyPair, PKCS_ED25519, SigningKey as _};
use reveille::{
    Credential,
    auth::{NewToken, Principal, TokenFile},
};
use tempfile::TempDir;
use tokio::{task::JoinSet, time::Instant};
use tonic::{Code, Status};

use super::{
    harness::{Setup, Trial},
    peer::{Peer, Unfinished, status},
    target::{Scheme, Target},
};
use crate::support::{figure_as, within};

/// Files of access control, and the key of its issuer of JWTs.
#[derive(Debug)]
struct Access {
    home: TempDir,
    key: KeyPair,
    /// A true signature of other claims: its check takes the full time.
    foreign_signature: String,
}

/// The kinds of bad credentials.
#[derive(Debug, Clone, Copy)]
enum Bad {
    Token,
    Signature,
    Issuer,
}

const RULES: &str = r#"
tokens = "tokens.toml"

[[jwt]]
issuer = "https://login.example.com"
audience = "reveille"
key = "issuer.pem"

[[rule]]
principals = ["good"]
actions = ["notify", "subscribe", "report"]
queues = ["good/*", "late/*"]

[[rule]]
principals = ["good"]
actions = ["admin"]
"#;
const ISSUER: &str = "https://login.example.com";
const SPAN: Duration = Duration::from_secs(3);
const CONNECTIONS: u64 = 4;
/// Requests in flight of each connection.
const IN_FLIGHT: usize = 4;
/// Number of different credentials. The relay keeps no refused one, so that a repeated one is checked
/// anew.
const DIFFERENT: usize = 3_000;

impl Access {
    fn new() -> Self {
        let home = tempfile::tempdir().expect("a directory");
        let key = KeyPair::generate_for(&PKCS_ED25519).expect("a key");
        let write = |name, text: &str| std::fs::write(home.path().join(name), text);
        write("auth.toml", RULES).expect("written");
        write("issuer.pem", &key.public_key_pem()).expect("written");
        write("tokens.toml", "").expect("written");
        let foreign_signature = URL_SAFE_NO_PAD.encode(key.sign(b"other").expect("signed"));
        Self {
            home,
            key,
            foreign_signature,
        }
    }

    fn path(&self, name: &str) -> String {
        let path = self.home.path().join(name);
        path.to_str().expect("UTF-8").to_owned()
    }

    /// Adds a token of the good clients.
    fn token(&self) -> String {
        let new = NewToken {
            principal: Principal::new("good").expect("a name"),
            expires: None,
            note: String::new(),
        };
        let file = TokenFile::new(self.path("tokens.toml"));
        let added = file.add(&new, SystemTime::now()).expect("added");
        added.reveal().to_owned()
    }

    /// Returns a new JWT of the good clients.
    fn jwt(&self) -> String {
        let signed = unsigned(ISSUER);
        let signature = self.key.sign(signed.as_bytes()).expect("signed");
        let signature = URL_SAFE_NO_PAD.encode(signature);
        format!("{signed}.{signature}")
    }

    /// Returns a credential that the relay must refuse.
    fn bad(&self, kind: Bad) -> String {
        let signed = match kind {
            Bad::Token => {
                let secret = URL_SAFE_NO_PAD.encode([fastrand::u128(..).to_le_bytes(); 2].concat());
                return format!("rvl_aaaaaaaaaa_{secret}");
            }
            Bad::Signature => unsigned(ISSUER),
            Bad::Issuer => unsigned("https://other.example.com"),
        };
        format!("{signed}.{}", self.foreign_signature)
    }
}

/// Returns the header and the claims of a new JWT.
fn unsigned(issuer: &str) -> String {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let claims = serde_json::json!({
        "iss": issuer,
        "aud": "reveille",
        "sub": "good",
        "exp": now.expect("after 1970").as_secs() + 3600,
        "jti": format!("{:032x}", fastrand::u128(..)),
    });
    let header = r#"{"alg":"EdDSA","typ":"JWT"}"#;
    let encode = |text: &str| URL_SAFE_NO_PAD.encode(text);
    format!("{}.{}", encode(header), encode(&claims.to_string()))
}

/// Calls with a credential.
async fn call(peer: &Peer, credential: &str) -> Response<Incoming> {
    let request = Request::post("http://relay/reveille.v1.Admin/ListQueues")
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .header("authorization", format!("Bearer {credential}"))
        .body(Unfinished::whole(&[]))
        .expect("a request");
    let answer = within("an answer", peer.send(request)).await;
    answer.expect("the connection is kept")
}

/// Shows these bad credentials one after another on several connections, for [`SPAN`]. Returns their
/// number.
async fn flood(target: Target, credentials: Arc<[String]>) -> u64 {
    let end = Instant::now() + SPAN;
    let mut attackers = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let peer = Peer::connect(&target, 64 * 1024).await;
        for _ in 0..IN_FLIGHT {
            let (credentials, peer) = (Arc::clone(&credentials), peer.clone());
            attackers.spawn(async move {
                let mut refused = 0;
                let first = fastrand::usize(..credentials.len());
                for credential in credentials.iter().cycle().skip(first) {
                    if Instant::now() >= end {
                        break;
                    }
                    let answer = call(&peer, credential).await;
                    let status = Status::from_header_map(answer.headers()).expect("a refusal");
                    assert_eq!(status.code(), Code::Unauthenticated, "{status:?}");
                    refused += 1;
                }
                refused
            });
        }
    }
    attackers.join_all().await.iter().sum()
}

/// Connects with credentials that the relay has not seen yet, until the attack ends. The first call of
/// each is answered: no retry helps.
async fn newcomers(target: Target, credentials: Vec<String>) {
    let pause = SPAN / 2 / u32::try_from(credentials.len()).expect("few");
    for credential in credentials {
        tokio::time::sleep(pause).await;
        let peer = Peer::connect(&target, 64 * 1024).await;
        let answer = call(&peer, &credential).await;
        // A refusal is in the header.
        assert_eq!(status(&answer), None, "a good client is locked out");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_credentials_are_refused_and_good_ones_are_accepted() {
    let access = Access::new();
    let good = access.token();
    let new = vec![access.token(), access.jwt(), access.token(), access.jwt()];
    let kinds = [Bad::Token, Bad::Signature, Bad::Issuer];
    let bad = kinds.iter().cycle().take(DIFFERENT);
    let bad = bad.map(|kind| access.bad(*kind)).collect();
    let (rules, audit) = (access.path("auth.toml"), access.path("audit.jsonl"));
    let setup = Setup {
        arguments: &["--auth", &rules, "--audit-log", &audit],
        credential: Credential::text(&good),
        listen: None,
    };
    let mut trial = Trial::with(Scheme::Plain, setup).await;
    let target = trial.target();
    let attack = {
        let flood = flood(target.clone(), bad);
        Box::pin(async move { tokio::join!(flood, newcomers(target, new)) })
    };
    let ((refused, ()), damage) = trial.under(attack).await;
    assert!(refused > 200, "{refused}");
    let counted = "reveille_requests_unauthenticated_total";
    let counted = figure_as(trial.admin(), counted, Some(&good)).await;
    assert_eq!(counted, refused);
    // One line a second for each reason; the others are counted only.
    let audit = std::fs::read_to_string(&audit).expect("an audit log");
    let lines = audit.lines().filter(|line| line.contains("authenticate"));
    assert!((1..50).contains(&lines.count()), "{audit}");
    damage.is_within(8 * 1024);
}
