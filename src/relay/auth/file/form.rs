//! The tables of the file, before their rules are checked.

use std::collections::BTreeMap;

use serde::Deserialize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FileForm {
    pub(super) tokens: Option<String>,
    #[serde(default)]
    pub(super) groups: BTreeMap<String, Vec<String>>,
    #[serde(default)]
    pub(super) rule: Vec<RuleForm>,
    #[serde(default)]
    pub(super) limit: Vec<LimitForm>,
    #[serde(default)]
    pub(super) jwt: Vec<JwtForm>,
    #[serde(default)]
    pub(super) certificates: BTreeMap<String, String>,
}

/// A table `[[rule]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RuleForm {
    pub(super) principals: Vec<String>,
    pub(super) actions: Vec<String>,
    pub(super) queues: Option<Vec<String>>,
    pub(super) flags: Option<Vec<String>>,
}

/// A table `[[limit]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct LimitForm {
    pub(super) principals: Vec<String>,
    pub(super) notify_rate: Option<u32>,
    pub(super) notify_burst: Option<u32>,
    pub(super) connections: Option<usize>,
    pub(super) streams: Option<usize>,
    pub(super) selectors: Option<usize>,
    pub(super) subscribed_queues: Option<usize>,
}

/// A table `[[jwt]]`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct JwtForm {
    pub(super) issuer: String,
    pub(super) audience: String,
    pub(super) algorithms: Option<Vec<String>>,
    pub(super) key: Option<String>,
    pub(super) jwks: Option<String>,
    pub(super) principal: Option<String>,
    pub(super) groups: Option<String>,
    pub(super) leeway: Option<String>,
}
