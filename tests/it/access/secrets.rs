//! No token, key, signature or secret appears in a log, an error, a page or a file.

use std::path::Path;

use base64::{
    Engine as _,
    engine::general_purpose::{STANDARD, STANDARD_NO_PAD, URL_SAFE_NO_PAD},
};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject as _};
use tempfile::TempDir;

use super::{RULES, admin_port::answer, token};
use crate::{
    binary::{Binary, reveille, stderr, stdout},
    support::{azurite::azurite, until, within},
    tls::{Authority, Files},
};

/// A part of each secret text.
const PLANTED: &str = "planted";
const KEY: &str = "planted-key-0123456789-planted-key-0123456789";
const JWT: &str = "eyJhbGciOiJFZERTQSJ9.eyJpc3MiOiJwbGFudGVkLWlzc3VlciJ9.cGxhbnRlZC1zaWduYXR1cmU";
const GUESS: &str = "rvl_plantedgue_plantedplantedplantedplantedplantedplanted1";
/// A shared access signature of Azure.
const SAS: &str = "sv=2021-08-06&se=2099-01-01&sr=c&sp=racwdl&sig=planted-signature-0123456789%3D";

/// Returns the texts that base64 has for these bytes: one for each place that they may have in a
/// group of three bytes. Letters that depend on other bytes are left out.
fn base64_fragments(secret: &[u8]) -> Vec<String> {
    let at = |shift: usize| {
        let bytes = [&[0; 2][..shift], secret].concat();
        let letters = (shift * 8).div_ceil(6)..bytes.len() * 8 / 6;
        let encoded = [&STANDARD_NO_PAD, &URL_SAFE_NO_PAD].map(|engine| engine.encode(&bytes));
        encoded.map(|text| text[letters.clone()].to_owned())
    };
    (0..3).flat_map(at).collect()
}

/// Returns the texts that would show a secret of bytes.
fn texts_of_bytes(secret: &[u8]) -> Vec<String> {
    let hex = secret.iter().map(|byte| format!("{byte:02x}")).collect();
    let list = format!("{secret:?}").replace(['[', ']'], "");
    [base64_fragments(secret), vec![hex, list]].concat()
}

/// Returns a part of the private key of a file. A P-256 key in PKCS #8 has it in the bytes 36 to 67
/// (RFC 5915); the part is on one line of the file.
fn part_of_key(files: &Files) -> Vec<u8> {
    let key = PrivateKeyDer::from_pem_file(&files.key).expect("a key");
    key.secret_der()[36..48].to_vec()
}

/// Checks that none of the secrets is shown: no planted text, and none of `further`.
fn assert_hidden(shown: &str, further: &[String]) {
    let planted = base64_fragments(PLANTED.as_bytes());
    let plain = [PLANTED.to_owned(), "eyJhbGciOiJFZERTQSJ9".to_owned()];
    for part in planted.iter().chain(&plain).chain(further) {
        let place = shown.find(part).map(|at| {
            let from = shown.floor_char_boundary(at.saturating_sub(200));
            &shown[from..at + part.len()]
        });
        assert!(place.is_none(), "{part} is shown: {place:?}");
    }
}

/// Starts a relay with these rules and TLS, which logs as much as it can.
async fn logging_relay(home: &TempDir, files: &Files) -> Binary {
    let text = |path: &Path| path.to_str().expect("UTF-8").to_owned();
    let path = |name: &str| text(&home.path().join(name));
    let variables = [
        ("RUST_LOG", "trace".to_owned()),
        ("REVEILLE_AUTH", path("auth.toml")),
        ("REVEILLE_AUDIT_LOG", path("audit.jsonl")),
        ("REVEILLE_TLS_CERT", text(&files.certificate)),
        ("REVEILLE_TLS_KEY", text(&files.key)),
        ("REVEILLE_CA", text(&files.ca)),
    ];
    let variables = variables.map(|(name, value)| (name.to_owned(), value));
    Binary::serve_with(&[], &variables).await
}

/// Runs verbs with a credential; returns their output.
async fn verbs(relay: &Binary, home: &TempDir, credential: &str, is_known: bool) -> String {
    let mut shown = String::new();
    for verb in [&["notify", "acct/orders"][..], &["queues", "-o", "json"]] {
        let output = relay
            .verb(verb)
            .env("REVEILLE_TOKEN", credential)
            .output()
            .await;
        let output = output.expect("it starts");
        assert_eq!(output.status.success(), is_known, "{}", stderr(&output));
        shown += &stdout(&output);
        shown += &stderr(&output);
    }
    let file = home.path().join("credential");
    std::fs::write(&file, credential).expect("written");
    let file = file.to_str().expect("UTF-8");
    let elsewhere = "http://relay.example.com:1";
    let verb = ["health", "--token-file", file, "--relay", elsewhere];
    shown + &stderr(&relay.run(&verb).await)
}

/// Returns the metrics, and the answers of the admin port to callers that it refuses.
async fn pages(relay: &Binary, owner: &str, other: &str) -> String {
    let mut shown = String::new();
    for (status, authorization) in [
        ("200", Some(format!("Bearer {owner}"))),
        ("401", None),
        ("401", Some(format!("Basic {KEY}"))),
        ("401", Some(format!("Bearer {JWT}"))),
        ("401", Some(format!("Bearer {GUESS}"))),
        ("401", Some(format!("Planted {KEY}"))),
        ("403", Some(format!("Bearer {other}"))),
    ] {
        let answer = answer(relay.admin(), "/metrics", authorization.as_deref()).await;
        let head = format!("HTTP/1.1 {status} ");
        assert!(answer.starts_with(&head), "{status}: {answer}");
        shown += &answer;
    }
    assert!(shown.contains("reveille_"), "{shown}");
    shown
}

#[test]
fn a_fragment_of_base64_is_found_wherever_the_secret_stands() {
    let fragments = base64_fragments(PLANTED.as_bytes());
    for before in ["", "a", "ab", "console:", "{\"iss\":\""] {
        for engine in [&STANDARD, &URL_SAFE_NO_PAD] {
            let encoded = engine.encode(format!("{before}{KEY}"));
            let found = fragments.iter().any(|part| encoded.contains(part));
            assert!(found, "{before}: {encoded} has none of {fragments:?}");
        }
    }
}

#[tokio::test]
async fn no_secret_is_shown_anywhere() {
    let home = tempfile::tempdir().expect("a directory");
    let path = |name: &str| home.path().join(name);
    std::fs::write(path("auth.toml"), RULES).expect("written");
    let authority = Authority::new("everyone");
    let files = authority.write(home.path(), "relay", authority.server());
    let (owner, other) = (
        token(home.path(), "owner", None),
        token(home.path(), "other", None),
    );
    let relay = logging_relay(&home, &files).await;
    let mut shown = String::new();
    for (credential, is_known) in [(owner.reveal(), true), (JWT, false), (GUESS, false)] {
        shown += &verbs(&relay, &home, credential, is_known).await;
    }
    assert!(shown.contains("revoked"), "{shown}");
    shown += &pages(&relay, owner.reveal(), other.reveal()).await;
    let audit = path("audit.jsonl");
    until("the audit log is written", async || {
        std::fs::read_to_string(&audit).is_ok_and(|text| text.contains("authenticate"))
    })
    .await;
    shown += &relay.log();
    shown += &std::fs::read_to_string(&audit).expect("an audit log");
    shown += &std::fs::read_to_string(path("tokens.toml")).expect("a file");
    shown += &format!("{owner:?} {:?}", reveille::Credential::text(KEY));
    let tokens = [&owner, &other].map(|token| {
        let text = token.reveal();
        text[text.len() - 20..].to_owned()
    });
    let of_tokens = tokens
        .iter()
        .flat_map(|text| base64_fragments(text.as_bytes()));
    let mut further: Vec<_> = of_tokens.collect();
    further.extend(tokens);
    further.extend(texts_of_bytes(&part_of_key(&files)));
    assert_hidden(&shown, &further);
}

/// A start with TLS files that do not fit.
#[tokio::test]
async fn no_private_key_is_shown_by_a_start_that_fails() {
    let home = tempfile::tempdir().expect("a directory");
    let authority = Authority::new("everyone");
    let files = authority.write(home.path(), "relay", authority.server());
    let foreign = authority.write(home.path(), "foreign", authority.server());
    let key = std::fs::read_to_string(&files.key).expect("a key");
    let broken = home.path().join("broken.key");
    std::fs::write(&broken, key.replace("-----END", "!")).expect("written");
    let mut shown = String::new();
    for (certificate, key) in [
        (&files.key, &files.key),
        (&files.certificate, &broken),
        (&foreign.certificate, &files.key),
    ] {
        let (certificate, key) = (certificate.to_str(), key.to_str());
        let typed = ["serve", "--tls-cert", certificate.expect("UTF-8")];
        let typed = [&typed[..], &["--tls-key", key.expect("UTF-8")]].concat();
        shown += &failed(&home, &typed, &[]).await;
    }
    assert!(shown.contains("tls_key"), "{shown}");
    assert_hidden(&shown, &texts_of_bytes(&part_of_key(&files)));
}

/// Runs a command that fails, with the most that it logs; returns its output.
async fn failed(home: &TempDir, arguments: &[&str], variables: &[(&str, &str)]) -> String {
    let mut command = reveille(home, arguments);
    command
        .env("RUST_LOG", "trace")
        .envs(variables.iter().copied());
    let output = within("its end", command.output()).await;
    let output = output.expect("it starts");
    let text = stdout(&output) + &stderr(&output);
    assert!(!output.status.success(), "{arguments:?}: {text}");
    text
}

#[tokio::test]
async fn no_signature_of_a_store_is_shown_by_a_start_that_fails() {
    let home = tempfile::tempdir().expect("a directory");
    azurite().create_container("signed");
    let endpoint = azurite().blob_endpoint();
    let signed = |endpoint: &str| format!("BlobEndpoint={endpoint};SharedAccessSignature={SAS}");
    let (known, unreachable) = (signed(&endpoint), signed("http://127.0.0.1:1/acct"));
    let mut shown = String::new();
    for store in [
        &format!("az://signed?{SAS}"),
        &format!("az://signed/flags?{SAS}"),
        &format!("az:signed?{SAS}"),
        &format!("{endpoint}/signed?{SAS}"),
        &format!("https://acct.blob.core.windows.net/signed?{SAS}"),
        &known,
    ] {
        for verb in [&["serve"][..], &["flag", "list"]] {
            let typed = [verb, &["--store", store]].concat();
            shown += &failed(&home, &typed, &[]).await;
        }
    }
    let serve = ["serve", "--store", "az://signed"];
    for text in [&known, &unreachable] {
        let variables = [("AZURE_STORAGE_CONNECTION_STRING", &**text)];
        shown += &failed(&home, &serve, &variables).await;
    }
    let variables = [
        ("AZURE_STORAGE_ACCOUNT_NAME", "devstoreaccount1"),
        ("AZURE_STORAGE_ENDPOINT", &endpoint),
        ("AZURE_STORAGE_SAS_TOKEN", SAS),
    ];
    shown += &failed(&home, &serve, &variables).await;
    for words in ["refuses the credential", "cannot be reached"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert_hidden(&shown, &["sig=".to_owned()]);
}
