//! A credentials file: a server that knows its operator, an account and a user by JWTs.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use nkeys::KeyPair;

use super::*;
use crate::error::ErrorKind;

/// Returns a JWT of NATS about `subject`, signed by `issuer`.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: &str) -> String {
    let header = r#"{"typ":"JWT","alg":"ed25519-nkey"}"#;
    let (from, about) = (issuer.public_key(), subject.public_key());
    let claims = format!(
        r#"{{"jti":"{about}","iat":1700000000,"iss":"{from}","name":"test","sub":"{about}","nats":{nats}}}"#
    );
    let signed = format!(
        "{}.{}",
        URL_SAFE_NO_PAD.encode(header),
        URL_SAFE_NO_PAD.encode(claims)
    );
    let signature = issuer.sign(signed.as_bytes()).expect("signed");
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

/// Returns the text of a credentials file.
fn credentials(jwt: &str, user: &KeyPair) -> String {
    let seed = user.seed().expect("a seed");
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n"
    )
}

#[tokio::test]
async fn a_credentials_file_is_a_login() {
    let (log, _guard) = logged();
    let (operator, account) = (KeyPair::new_operator(), KeyPair::new_account());
    let (user, stranger) = (KeyPair::new_user(), KeyPair::new_user());
    let unlimited = r#"{"subs":-1,"data":-1,"payload":-1,"imports":-1,"exports":-1,"wildcards":true,"conn":-1,"leaf":-1}"#;
    let operator_jwt = jwt(&operator, &operator, r#"{"type":"operator","version":2}"#);
    let account_claims = format!(r#"{{"type":"account","version":2,"limits":{unlimited}}}"#);
    let account_jwt = jwt(&operator, &account, &account_claims);
    let user_claims = r#"{"type":"user","version":2,"subs":-1,"data":-1,"payload":-1}"#;
    let user_jwt = jwt(&account, &user, user_claims);
    let server = NatsServer::with_config(&format!(
        "operator: {operator_jwt}\nresolver: MEMORY\nresolver_preload: {{ {}: {account_jwt} }}",
        account.public_key()
    ));
    let home = tempfile::tempdir().expect("a directory");
    let with_file = |name: &str, text: String| {
        let path = home.path().join(name);
        std::fs::write(&path, text).expect("written");
        NatsConfig {
            credentials: Some(NatsCredentials::File(path)),
            ..config(&server)
        }
    };
    let good = with_file("good.creds", credentials(&user_jwt, &user));
    let mut a = NatsConnection::connect(&good, A).await.expect("permitted");
    publish(&a.publisher(), 1).await;
    assert_eq!(number(&next_of_all(&mut a).await), 1);

    // The JWT is another user's than the key.
    let stolen = with_file("stolen.creds", credentials(&user_jwt, &stranger));
    let error = NatsConnection::connect(&stolen, B)
        .await
        .expect_err("refused");
    assert_eq!(error.kind(), ErrorKind::Denied, "{error}");
    for shown in [log.text(), format!("{a:?} {good:?} {error:?}")] {
        for secret in [user.seed(), stranger.seed()] {
            assert!(!shown.contains(&secret.expect("a seed")), "{shown}");
        }
    }
}
