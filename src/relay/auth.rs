//! Authentication and authorisation of callers: the principal of a call, and its allowed actions.
//!
//! An [`Authenticator`] turns a credential into a [`Caller`], whose [`Grants`] answer each request. The
//! operator's file names rules, tokens, issuers and certificates ([`AuthFile`]). Time is an argument.
//! Knows neither gRPC nor TLS: the server passes the header, the certificate's names and the clock.

mod action;
mod attempts;
mod audit;
mod credential;
mod denial;
mod file;
mod jwt;
mod policy;
mod principal;
mod public_key;
mod quota;
mod tickets;
mod token;

#[cfg(test)]
mod tests;

pub use self::{
    action::{Action, Scope, Target},
    credential::{Authenticator, Caller},
    denial::Denial,
    file::{AuthConfig, AuthFile},
    policy::{Grants, Policy, Verdict},
    principal::Principal,
    quota::Quota,
    token::{IssuedToken, NewToken, TokenFile, TokenRecord},
};
pub(crate) use self::{
    attempts::Attempts,
    audit::{AuditEvent, AuditLog},
    file::{is_host_name, is_uri},
    quota::{Resource, Share},
    tickets::Tickets,
};
