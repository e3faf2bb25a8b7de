//! The messages of OTLP that are sent and read, by the field numbers of opentelemetry-proto.
//!
//! Only what is used is declared: a decoder skips the rest.

use prost::{Message, Oneof};

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportLogsServiceRequest {
    #[prost(message, repeated, tag = "1")]
    pub(super) resource_logs: Vec<ResourceLogs>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ResourceLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) resource: Option<Resource>,
    #[prost(message, repeated, tag = "2")]
    pub(super) scope_logs: Vec<ScopeLogs>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct Resource {
    #[prost(message, repeated, tag = "1")]
    pub(super) attributes: Vec<KeyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ScopeLogs {
    #[prost(message, optional, tag = "1")]
    pub(super) scope: Option<InstrumentationScope>,
    /// Each a [`LogRecord`]: one that is encoded already is the same on the wire as bytes.
    #[prost(bytes = "vec", repeated, tag = "2")]
    pub(super) log_records: Vec<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct InstrumentationScope {
    #[prost(string, tag = "1")]
    pub(super) name: String,
    #[prost(string, tag = "2")]
    pub(super) version: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct LogRecord {
    /// Wall clock, nanoseconds; 0 where it is not known.
    #[prost(fixed64, tag = "1")]
    pub(super) time_unix_nano: u64,
    /// A `SeverityNumber`.
    #[prost(int32, tag = "2")]
    pub(super) severity_number: i32,
    #[prost(string, tag = "3")]
    pub(super) severity_text: String,
    #[prost(message, optional, tag = "5")]
    pub(super) body: Option<AnyValue>,
    #[prost(message, repeated, tag = "6")]
    pub(super) attributes: Vec<KeyValue>,
    #[prost(fixed64, tag = "11")]
    pub(super) observed_time_unix_nano: u64,
    #[prost(string, tag = "12")]
    pub(super) event_name: String,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct KeyValue {
    #[prost(string, tag = "1")]
    pub(super) key: String,
    #[prost(message, optional, tag = "2")]
    pub(super) value: Option<AnyValue>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct AnyValue {
    #[prost(oneof = "Value", tags = "1, 3")]
    pub(super) value: Option<Value>,
}

#[derive(Clone, PartialEq, Oneof)]
pub(super) enum Value {
    #[prost(string, tag = "1")]
    Text(String),
    #[prost(int64, tag = "3")]
    Number(i64),
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportLogsServiceResponse {
    #[prost(message, optional, tag = "1")]
    pub(super) partial_success: Option<ExportLogsPartialSuccess>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct ExportLogsPartialSuccess {
    #[prost(int64, tag = "1")]
    pub(super) rejected_log_records: i64,
    #[prost(string, tag = "2")]
    pub(super) error_message: String,
}

/// `google.rpc.Status`: what a server says of a failure.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Status {
    #[prost(string, tag = "2")]
    pub(super) message: String,
}

impl KeyValue {
    pub(super) fn text(key: &str, value: String) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue::text(value)) }
    }

    pub(super) fn number(key: &str, value: i64) -> Self {
        Self { key: key.to_owned(), value: Some(AnyValue { value: Some(Value::Number(value)) }) }
    }
}

impl AnyValue {
    pub(super) fn text(value: String) -> Self {
        Self { value: Some(Value::Text(value)) }
    }
}
