//! Protobuf messages as JSON: protobuf's own mapping, with the field names of the .proto files, with
//! default values, and with 64-bit numbers as numbers.

use bytes::Bytes;
use prost::Message as _;
use prost_reflect::{
    DescriptorPool, DeserializeOptions, DynamicMessage, Kind, MessageDescriptor, SerializeOptions,
};
use serde_json::{Map, Value, value::Serializer};

use super::problem::Problem;
use crate::wire::proto;

/// The described messages of the services.
pub(super) struct Services(DescriptorPool);

/// The messages of a method.
pub(super) struct Method {
    input: MessageDescriptor,
    output: MessageDescriptor,
}

const ENCODING: SerializeOptions = SerializeOptions::new()
    .stringify_64_bit_integers(false)
    .use_proto_field_name(true)
    .skip_default_fields(false);
const DECODING: DeserializeOptions = DeserializeOptions::new();

impl Services {
    pub(super) fn of_relay() -> Self {
        Self(DescriptorPool::decode(proto::DESCRIPTORS).expect("compiled with this crate"))
    }

    /// Returns the method with this path, such as `/reveille.v1.Admin/Drain`.
    pub(super) fn method(&self, path: &str) -> Option<Method> {
        let (service, name) = path.strip_prefix('/')?.split_once('/')?;
        let service = self.0.get_service_by_name(service)?;
        let method = service.methods().find(|method| method.name() == name)?;
        Some(Method {
            input: method.input(),
            output: method.output(),
        })
    }
}

impl Method {
    /// Encodes a request.
    ///
    /// # Errors
    /// INVALID_ARGUMENT with the name of the field that is unknown or has a wrong value.
    pub(super) fn request(&self, fields: Map<String, Value>) -> Result<Bytes, Problem> {
        let mut request = DynamicMessage::new(self.input.clone());
        for (name, value) in fields {
            let Some(field) = self.input.get_field_by_name(&name) else {
                return Err(Problem::invalid(format!("{name}: is no field")));
            };
            let value = match (field.kind(), value.as_str()) {
                // A query has texts only.
                (Kind::Bool, Some("true")) => Value::Bool(true),
                (Kind::Bool, Some("false")) => Value::Bool(false),
                _ => value,
            };
            let one = Value::Object([(name.clone(), value)].into_iter().collect());
            let one = DynamicMessage::deserialize_with_options(self.input.clone(), one, &DECODING);
            let one = one.map_err(|error| Problem::invalid(format!("{name}: {error}")))?;
            if one.has_field(&field) {
                request.set_field(&field, one.get_field(&field).into_owned());
            }
        }
        Ok(request.encode_to_vec().into())
    }

    /// Returns an answer as JSON.
    ///
    /// # Errors
    /// INTERNAL where it has no JSON form: a time that another program wrote, after the year 9999.
    pub(super) fn answer(&self, encoded: Bytes) -> Result<Value, Problem> {
        let message = DynamicMessage::decode(self.output.clone(), encoded);
        let message = message.expect("this process encoded it");
        let value = message.serialize_with_options(Serializer, &ENCODING);
        value.map_err(|error| tonic::Status::internal(format!("no JSON form: {error}")).into())
    }
}

#[cfg(test)]
mod tests {
    use prost::Message as _;
    use serde_json::json;

    use super::*;

    fn request(path: &str, fields: Value) -> Result<Bytes, String> {
        let method = Services::of_relay().method(path).expect("a method");
        let Value::Object(fields) = fields else {
            panic!("an object")
        };
        let refused = |problem: Problem| problem.value()["detail"].to_string();
        method.request(fields).map_err(refused)
    }

    #[test]
    fn texts_of_a_query_become_fields() {
        let fields = json!({"page_size": "7", "lost": "true", "page_token": "x"});
        let encoded = request("/reveille.v1.Admin/ListListeners", fields).expect("fields");
        let decoded = proto::ListListenersRequest::decode(encoded).expect("a request");
        assert_eq!((decoded.page_size, decoded.lost), (7, true));
        let fields = json!({"grace": "1.5s"});
        let encoded = request("/reveille.v1.Admin/Drain", fields).expect("fields");
        let decoded = proto::DrainRequest::decode(encoded).expect("a request");
        let grace = decoded.grace.expect("a duration");
        assert_eq!((grace.seconds, grace.nanos), (1, 500_000_000));
    }

    #[test]
    fn a_wrong_field_is_named() {
        for (fields, words) in [
            (json!({"pagesize": 1}), "pagesize: is no field"),
            (json!({"page_size": -1}), "page_size: "),
            (json!({"page_size": "many"}), "page_size: "),
            (json!({"lost": "maybe"}), "lost: "),
        ] {
            let refused = request("/reveille.v1.Admin/ListListeners", fields.clone());
            let refused = refused.expect_err("wrong");
            assert!(refused.contains(words), "{fields}: {refused}");
        }
    }

    #[test]
    fn an_answer_has_the_names_and_defaults_of_its_fields() {
        let method = Services::of_relay().method("/reveille.v1.Admin/ListQueues");
        let queue = proto::Queue {
            queue_name: "orders".to_owned(),
            sequence: 1 << 50,
            idle_for: Some(prost_types::Duration {
                seconds: 2,
                nanos: 5_000_000,
            }),
            ..proto::Queue::default()
        };
        let answer = proto::ListQueuesResponse {
            queues: vec![queue],
            ..proto::ListQueuesResponse::default()
        };
        let answer = method.expect("known").answer(answer.encode_to_vec().into());
        let answer = answer.expect("a JSON form");
        let queue = &answer["queues"][0];
        assert_eq!(queue["queue_name"], "orders");
        assert_eq!(queue["sequence"], 1_u64 << 50);
        assert_eq!(queue["idle_for"], "2.005s");
        assert_eq!(queue["listeners"], 0);
        assert_eq!(queue.get("current_queue_depth"), None);
        assert_eq!(answer["next_page_token"], "");
    }
}
