//! A job's file: defaults, refusals, secrets, and the schema.

use super::*;

const WHOLE: &str = r#"{
        "$schema": "sweep-job.schema.json",
        "name": "temporary-state", "state": "az://coordination", "interval": "10m",
        "page_size": 100, "parallel": 15,
        "containers": [
            {"id": "tmp", "url": "az://sessions", "prefix": "tmp/", "off": false, "environment": {"A": "b"}},
            {"url": "https://acct.blob.core.windows.net/c?sig=secret"}
        ],
        "dead": {"account": "az:", "environment": {"AZURE_STORAGE_CONNECTION_STRING": "env:DEAD"}}
    }"#;

#[test]
fn a_file_is_read_with_its_defaults() {
    let job = SweepJob::parse(WHOLE).expect("a job");
    assert_eq!(job.interval, Duration::from_secs(600));
    assert_eq!(job.containers[0].id(), "tmp");
    assert_eq!(
        job.containers[1].id(),
        "https://acct.blob.core.windows.net/c"
    );
    let least = r#"{"name": "a", "state": "memory:", "containers": [{"url": "memory:"}]}"#;
    let job = SweepJob::parse(least).expect("a job");
    assert_eq!((job.page_size, job.parallel, job.dead), (100, 15, None));
    assert_eq!(job.containers[0].id(), "memory:");
    assert_eq!(job.interval, default_interval());
}

#[test]
fn an_error_names_its_field() {
    for (was, is, words) in [
        (
            "\"interval\": \"10m\"",
            "\"interval\": \"10\"",
            "interval: `10` is no duration",
        ),
        (
            "\"interval\": \"10m\"",
            "\"interval\": \"10ms\"",
            "interval: must be 1s to 30d",
        ),
        ("\"interval\"", "\"intervall\"", "unknown field `intervall`"),
        (
            "\"page_size\": 100",
            "\"page_size\": 0",
            "page_size: must be 1 to 5000",
        ),
        (
            "\"parallel\": 15",
            "\"parallel\": 257",
            "parallel: must be 1 to 256",
        ),
        ("\"parallel\": 15", "\"parallel\": \"x\"", "invalid type"),
        ("temporary-state", "a/b", "name: must not contain `/`"),
        ("az://coordination", "", "state: must be"),
        (
            "\"prefix\": \"tmp/\"",
            "\"prefixes\": \"tmp/\"",
            "unknown field `prefixes`",
        ),
        ("az://sessions", "", "containers[0].url: must be"),
        (
            "{\"url\": \"https://acct.blob.core.windows.net/c?sig=secret\"}",
            "\"https://acct.blob.core.windows.net/c?sig=secret\"",
            "invalid type: a text, expected",
        ),
    ] {
        let text = WHOLE.replace(was, is);
        assert_ne!(text, WHOLE, "{was}");
        let error = SweepJob::parse(&text).expect_err(is);
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.message().contains(words), "{error}");
        assert!(!error.to_string().contains("sig=secret"), "{error}");
    }
    let twice = r#"{"name": "a", "state": "memory:",
            "containers": [{"url": "memory:"}, {"url": "memory:"}]}"#;
    let error = SweepJob::parse(twice).expect_err("twice");
    assert!(
        error.message().contains("containers[1]: is a duplicate of"),
        "{error}"
    );
}

#[test]
fn a_variable_replaces_a_secret_in_the_file() {
    let process = BTreeMap::from([("DEAD".to_owned(), "secret".to_owned())]);
    let own = BTreeMap::from([("KEY".to_owned(), "env:DEAD".to_owned())]);
    let all = environment(&own, &process).expect("set");
    assert_eq!((&*all["KEY"], &*all["DEAD"]), ("secret", "secret"));
    let shown = format!("{:?}", SweepJob::parse(WHOLE).expect("a job"));
    assert!(
        !shown.contains("sig=secret") && !shown.contains("env:DEAD"),
        "{shown}"
    );
    let process = [
        ("AZURE_STORAGE_CONNECTION_STRING", "a"),
        ("AWS_REGION", "b"),
        ("HOME", "c"),
    ];
    let process = process.map(|(k, v)| (k.to_owned(), v.to_owned())).into();
    let own = [("AZURE_STORAGE_ACCOUNT_NAME".to_owned(), "other".to_owned())].into();
    let all = environment(&own, &process).expect("set");
    let names: Vec<_> = all.keys().map(String::as_str).collect();
    assert_eq!(names, ["AWS_REGION", "AZURE_STORAGE_ACCOUNT_NAME", "HOME"]);
    let own = BTreeMap::from([("KEY".to_owned(), "env:DEAD".to_owned())]);
    let error = environment(&own, &BTreeMap::new()).expect_err("not set");
    assert!(error.message().contains("DEAD is not set"), "{error}");
}

/// The schema and the file have the same properties.
#[test]
fn the_schema_and_the_file_agree() {
    let schema: serde_json::Value = serde_json::from_str(SCHEMA).expect("JSON");
    let whole: serde_json::Value = serde_json::from_str(WHOLE).expect("JSON");
    let keys = |value: &serde_json::Value| -> Vec<String> {
        let object = value.as_object().expect("an object");
        let mut keys: Vec<_> = object.keys().cloned().collect();
        keys.sort();
        keys
    };
    for (schema, sample) in [
        (&schema["properties"], &whole),
        (
            &schema["$defs"]["container"]["properties"],
            &whole["containers"][0],
        ),
        (&schema["properties"]["dead"]["properties"], &whole["dead"]),
    ] {
        assert_eq!(keys(schema), keys(sample));
    }
}
