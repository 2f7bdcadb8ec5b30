//! Keys of issuers, and tokens signed with them.

use base64::{Engine as _, engine::general_purpose::URL_SAFE_NO_PAD};
use ring::{
    rand::SystemRandom,
    rsa,
    signature::{
        ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, Ed25519KeyPair, KeyPair as _,
        RSA_PKCS1_SHA256,
    },
};
use serde_json::{Value, json};

/// A key with which a test signs. `ring` makes no RSA keys, so that one is a file.
pub(super) enum SigningKey {
    Ed25519(Ed25519KeyPair),
    P256(EcdsaKeyPair),
    Rsa(rsa::KeyPair),
}

pub(super) const RSA_PEM: &[u8] = include_bytes!("../testdata/rsa_for_tests.pub.pem");
const RSA_KEY: &[u8] = include_bytes!("../testdata/rsa_for_tests.der");

impl SigningKey {
    pub(super) fn ed25519() -> Self {
        let pkcs8 = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).expect("random");
        Self::Ed25519(Ed25519KeyPair::from_pkcs8(pkcs8.as_ref()).expect("a key"))
    }

    pub(super) fn p256() -> Self {
        let (algorithm, random) = (&ECDSA_P256_SHA256_FIXED_SIGNING, SystemRandom::new());
        let pkcs8 = EcdsaKeyPair::generate_pkcs8(algorithm, &random).expect("random");
        let pair = EcdsaKeyPair::from_pkcs8(algorithm, pkcs8.as_ref(), &random);
        Self::P256(pair.expect("a key"))
    }

    pub(super) fn rsa() -> Self {
        Self::Rsa(rsa::KeyPair::from_der(RSA_KEY).expect("a key"))
    }

    pub(super) fn algorithm(&self) -> &'static str {
        match self {
            Self::Ed25519(_) => "EdDSA",
            Self::P256(_) => "ES256",
            Self::Rsa(_) => "RS256",
        }
    }

    fn sign(&self, message: &[u8]) -> Vec<u8> {
        let random = SystemRandom::new();
        match self {
            Self::Ed25519(pair) => pair.sign(message).as_ref().to_vec(),
            Self::P256(pair) => pair
                .sign(&random, message)
                .expect("signed")
                .as_ref()
                .to_vec(),
            Self::Rsa(pair) => {
                let mut signature = vec![0; pair.public().modulus_len()];
                pair.sign(&RSA_PKCS1_SHA256, &random, message, &mut signature)
                    .expect("signed");
                signature
            }
        }
    }

    /// Returns the public key as a member of a JWKS.
    pub(super) fn jwk(&self, id: &str) -> Value {
        let encode = |bytes: &[u8]| URL_SAFE_NO_PAD.encode(bytes);
        match self {
            Self::Ed25519(pair) => {
                let x = encode(pair.public_key().as_ref());
                json!({"kty": "OKP", "crv": "Ed25519", "kid": id, "x": x})
            }
            Self::P256(pair) => {
                let point = pair.public_key().as_ref();
                let (x, y) = (encode(&point[1..33]), encode(&point[33..]));
                json!({"kty": "EC", "crv": "P-256", "kid": id, "use": "sig", "x": x, "y": y})
            }
            Self::Rsa(pair) => {
                let public = rsa::PublicKeyComponents::<Vec<u8>>::from(pair.public());
                let (n, e) = (encode(&public.n), encode(&public.e));
                json!({"kty": "RSA", "kid": id, "alg": "RS256", "n": n, "e": e})
            }
        }
    }

    /// Returns the public key as a PEM file.
    pub(super) fn pem(&self) -> Vec<u8> {
        // The DER prefixes of RFC 8410 and RFC 5480.
        const ED25519: [u8; 12] = *b"\x30\x2a\x30\x05\x06\x03\x2b\x65\x70\x03\x21\x00";
        const P256: [u8; 26] = *b"\x30\x59\x30\x13\x06\x07\x2a\x86\x48\xce\x3d\x02\x01\x06\x08\
            \x2a\x86\x48\xce\x3d\x03\x01\x07\x03\x42\x00";
        let der = match self {
            Self::Ed25519(pair) => [&ED25519[..], pair.public_key().as_ref()].concat(),
            Self::P256(pair) => [&P256[..], pair.public_key().as_ref()].concat(),
            Self::Rsa(_) => return RSA_PEM.to_vec(),
        };
        pem("PUBLIC KEY", &der)
    }

    /// Signs a token with the key's algorithm.
    pub(super) fn token(&self, claims: &Value) -> String {
        self.token_with(&json!({"alg": self.algorithm(), "typ": "JWT"}), claims)
    }

    pub(super) fn token_with(&self, header: &Value, claims: &Value) -> String {
        let signed = unsigned(header, claims);
        let signature = URL_SAFE_NO_PAD.encode(self.sign(signed.as_bytes()));
        format!("{signed}.{signature}")
    }
}

pub(super) fn pem(label: &str, der: &[u8]) -> Vec<u8> {
    let body = base64::engine::general_purpose::STANDARD.encode(der);
    format!("-----BEGIN {label}-----\n{body}\n-----END {label}-----\n").into_bytes()
}

/// Returns header and claims without a signature.
pub(super) fn unsigned(header: &Value, claims: &Value) -> String {
    let encode = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
    format!("{}.{}", encode(header), encode(claims))
}
