//! A scaled object: the keys of its trigger, and its metric.

use crate::{
    base::fnv::fnv1a,
    error::{Error, Result},
    types::QueueAddress,
    wire::scaler::ScaledObjectRef,
};

/// What a trigger asks for.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct ScaledObject {
    /// At least one.
    pub(super) queues: Vec<QueueAddress>,
    /// Messages for a replica.
    pub(super) target: f64,
    /// A queue with more messages than these is active.
    pub(super) activation: u64,
}

/// Queues of an object.
const MOST_QUEUES: usize = 64;
const TARGET: f64 = 10.0;
/// Keys that KEDA reads itself and passes on.
const OF_KEDA: [&str; 3] = ["scalerAddress", "enableTLS", "unsafeSsl"];
/// All others.
const KEYS: [&str; 5] = [
    "queues",
    "targetPerReplica",
    "activation",
    "token",
    "tokenFromEnv",
];

impl ScaledObject {
    /// Reads the keys of a trigger.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) with the key and its rule.
    pub(super) fn read(reference: &ScaledObjectRef) -> Result<Self> {
        let keys = &reference.scaler_metadata;
        let is_known = |key: &str| KEYS.contains(&key) || OF_KEDA.contains(&key);
        // The first one by name, so that the answer is the same each time.
        if let Some(unknown) = keys.keys().filter(|key| !is_known(key)).min() {
            let rule = format!("is unknown; the keys are {}", KEYS.join(", "));
            return Err(invalid(unknown, rule));
        }
        let of = |key| value_of(reference, key);
        Ok(Self {
            queues: queues(of("queues").ok_or_else(|| invalid("queues", "is missing"))?)?,
            target: number(of("targetPerReplica"), TARGET, |target| target > 0.0)
                .ok_or_else(|| invalid("targetPerReplica", "must be a number above 0"))?,
            activation: of("activation")
                .map_or(Ok(0), str::parse)
                .map_err(|_| invalid("activation", "must be a whole number"))?,
        })
    }

    /// Returns the name of the metric, of `[a-z0-9-]`: the first queue and a hash of all.
    pub(super) fn metric_name(&self) -> String {
        const LONGEST: usize = 48;
        let all: Vec<_> = self.queues.iter().map(QueueAddress::to_string).collect();
        let plain = |letter: char| match letter.to_ascii_lowercase() {
            plain if plain.is_ascii_alphanumeric() => plain,
            _ => '-',
        };
        let name: String = all[0].chars().take(LONGEST).map(plain).collect();
        let hash = fnv1a(all.join(",").bytes()) & 0xff_ffff;
        format!("reveille-{name}-{hash:06x}")
    }
}

/// Returns the token of the caller, if the trigger states it.
pub(super) fn token(reference: &ScaledObjectRef) -> Option<&str> {
    value_of(reference, "token").or_else(|| value_of(reference, "tokenFromEnv"))
}

fn value_of<'r>(reference: &'r ScaledObjectRef, key: &str) -> Option<&'r str> {
    let value = reference.scaler_metadata.get(key)?.trim();
    (!value.is_empty()).then_some(value)
}

fn queues(list: &str) -> Result<Vec<QueueAddress>> {
    let mut queues = Vec::new();
    for text in list.split(',').map(str::trim) {
        if text.contains('*') {
            let rule = format!("must be names, and `{text}` is a pattern");
            return Err(invalid("queues", rule));
        }
        let queue: QueueAddress = text.parse().map_err(|error| invalid("queues", error))?;
        if !queues.contains(&queue) {
            queues.push(queue);
        }
    }
    match queues.len() {
        ..=MOST_QUEUES => Ok(queues),
        many => {
            let rule = format!("must be at most {MOST_QUEUES}, not {many}");
            Err(invalid("queues", rule))
        }
    }
}

fn number(text: Option<&str>, default: f64, is_valid: impl Fn(f64) -> bool) -> Option<f64> {
    let number = text.map_or(Some(default), |text| text.parse().ok())?;
    (number.is_finite() && is_valid(number)).then_some(number)
}

fn invalid(key: &str, rule: impl std::fmt::Display) -> Error {
    Error::invalid("scalerMetadata", format_args!("{key}: {rule}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(keys: &[(&str, &str)]) -> Result<ScaledObject> {
        ScaledObject::read(&reference(keys))
    }

    fn reference(keys: &[(&str, &str)]) -> ScaledObjectRef {
        let keys = keys
            .iter()
            .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        ScaledObjectRef {
            name: "orders".to_owned(),
            namespace: "shop".to_owned(),
            scaler_metadata: keys.collect(),
        }
    }

    #[test]
    fn the_keys_of_a_trigger_are_read() {
        let object = read(&[
            ("scalerAddress", "reveille.shop:7600"),
            ("queues", "acct/orders, acct/refunds,acct/orders"),
            ("targetPerReplica", "2.5"),
            ("activation", "3"),
            ("tokenFromEnv", "secret"),
        ])
        .expect("valid");
        assert_eq!(object.queues.len(), 2);
        assert_eq!((object.target, object.activation), (2.5, 3));
        let short = read(&[("queues", "acct/orders")]).expect("valid");
        assert_eq!((short.target, short.activation), (10.0, 0));
        for key in ["token", "tokenFromEnv"] {
            assert_eq!(token(&reference(&[(key, "secret")])), Some("secret"));
        }
        assert_eq!(token(&reference(&[("token", "")])), None);
    }

    #[test]
    fn a_bad_key_is_named_with_its_rule() {
        let cases: [(&[(&str, &str)], &str); 8] = [
            (&[], "queues: is missing"),
            (
                &[("queues", "acct/a"), ("qeues", "b")],
                "qeues: is unknown; the keys are queues, ",
            ),
            (
                &[("queues", "acct/a*")],
                "queues: must be names, and `acct/a*` is a pattern",
            ),
            (&[("queues", "acct")], "queues: "),
            (&[("queues", "acct/a,")], "queues: "),
            (
                &[("queues", "acct/a"), ("targetPerReplica", "0")],
                "targetPerReplica: must be a number above 0",
            ),
            (
                &[("queues", "acct/a"), ("targetPerReplica", "inf")],
                "targetPerReplica: ",
            ),
            (
                &[("queues", "acct/a"), ("activation", "-1")],
                "activation: must be a whole number",
            ),
        ];
        for (keys, rule) in cases {
            let error = read(keys).expect_err(rule).to_string();
            assert!(error.contains(rule), "{error}, not {rule}");
        }
        let many: Vec<_> = (0..65).map(|number| format!("acct/q{number}")).collect();
        let error = read(&[("queues", &many.join(","))]).expect_err("too many");
        assert!(error.to_string().contains("at most 64, not 65"), "{error}");
    }

    #[test]
    fn the_name_of_a_metric_has_the_first_queue_and_differs_with_each() {
        let name = |queues: &str| read(&[("queues", queues)]).expect("valid").metric_name();
        assert!(name("acct/Orders").starts_with("reveille-acct-orders-"));
        assert_ne!(name("acct/or.ders"), name("acct/or_ders"));
        assert_ne!(name("acct/orders,acct/a"), name("acct/orders,acct/b"));
        let long = name(&format!("{}/{}", "a".repeat(128), "B".repeat(128)));
        assert!(long.len() <= 64, "{long}");
        let is_valid = |byte: u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'-');
        assert!(long.bytes().all(is_valid), "{long}");
    }
}
