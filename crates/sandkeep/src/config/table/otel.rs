//! The rows of `[otel]`. A value that OpenTelemetry's own variables have and we cannot use is a warning, as its
//! specification says: they are often set for all programs of a machine.

use serde_json::json;

use super::super::otel::{self, OtlpProtocol, SamplerName, TracesExporter};
use super::{AliasMeaning, Setting, Shape, alias, value};

pub static OTEL: &[Setting] = &[
    Setting::new(
        "otel.endpoint",
        Shape::Text,
        "URL",
        "OpenTelemetry collector to which traces are exported over OTLP, such as http://127.0.0.1:4318: https, or http on loopback. /v1/traces is added",
        set!(otel.endpoint, |text| value::outgoing_url(text).map(Some)),
        |of| json!(of.otel.endpoint.as_deref().map(value::without_credentials)),
    )
    .aliases(&[alias("OTEL_EXPORTER_OTLP_ENDPOINT", AliasMeaning::Advice)]),
    Setting::new(
        "otel.traces_endpoint",
        Shape::Text,
        "URL",
        "The same for traces alone, used as it is",
        set!(otel.traces_endpoint, |text| value::outgoing_url(text).map(Some)),
        |of| json!(of.otel.traces_endpoint.as_deref().map(value::without_credentials)),
    )
    .aliases(&[alias("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", AliasMeaning::Advice)]),
    Setting::new(
        "otel.exporter",
        Shape::Text,
        "NAME",
        "otlp, or none to export no traces although there is an endpoint",
        set!(otel.exporter, |text| value::choice(text, TracesExporter::CHOICES)),
        |of| json!(of.otel.exporter.as_str()),
    )
    .aliases(&[alias("OTEL_TRACES_EXPORTER", AliasMeaning::Advice)]),
    Setting::new(
        "otel.disabled",
        Shape::Switch,
        "BOOL",
        "Export nothing",
        set!(otel.disabled, value::switch),
        show!(otel.disabled),
    )
    .aliases(&[alias("OTEL_SDK_DISABLED", AliasMeaning::Advice)]),
    Setting::new(
        "otel.protocol",
        Shape::Text,
        "NAME",
        "Only http/protobuf",
        set!(otel.protocol, |text| value::choice(text, OtlpProtocol::CHOICES)),
        |of| json!(of.otel.protocol.as_str()),
    )
    .aliases(&[
        alias("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", AliasMeaning::Advice),
        alias("OTEL_EXPORTER_OTLP_PROTOCOL", AliasMeaning::Advice),
    ]),
    Setting::new(
        "otel.headers",
        Shape::Text,
        "HEADERS",
        "HTTP headers for the collector, as NAME=VALUE with commas between them, values percent-encoded; never shown",
        set!(otel.headers, otel::headers),
        |of| json!(of.otel.headers.as_ref().map(|_| "***")),
    )
    .aliases(&[
        alias("OTEL_EXPORTER_OTLP_TRACES_HEADERS", AliasMeaning::Advice),
        alias("OTEL_EXPORTER_OTLP_HEADERS", AliasMeaning::Advice),
    ]),
    Setting::new(
        "otel.certificate",
        Shape::Text,
        "FILE",
        "PEM file with certificates to trust for the collector, besides the system's",
        set!(otel.certificate, |text| value::path(text).map(Some)),
        show!(otel.certificate),
    )
    .aliases(&[
        alias("OTEL_EXPORTER_OTLP_TRACES_CERTIFICATE", AliasMeaning::Advice),
        alias("OTEL_EXPORTER_OTLP_CERTIFICATE", AliasMeaning::Advice),
    ]),
    Setting::new(
        "otel.timeout_ms",
        Shape::Integer,
        "MS",
        "How long the collector may take to answer, in milliseconds",
        set!(otel.timeout, otel::timeout),
        |of| json!(sandkeep_core::millis(of.otel.timeout)),
    )
    .aliases(&[
        alias("OTEL_EXPORTER_OTLP_TRACES_TIMEOUT", AliasMeaning::Advice),
        alias("OTEL_EXPORTER_OTLP_TIMEOUT", AliasMeaning::Advice),
    ]),
    Setting::new(
        "otel.service_name",
        Shape::Text,
        "NAME",
        "service.name of exported traces",
        set!(otel.service_name, value::name),
        show!(otel.service_name),
    )
    .aliases(&[alias("OTEL_SERVICE_NAME", AliasMeaning::Advice)]),
    Setting::new(
        "otel.resource_attributes",
        Shape::Text,
        "ATTRIBUTES",
        "More attributes of this daemon in exported traces, as NAME=VALUE with commas between them, values percent-encoded",
        set!(otel.resource, otel::pairs),
        |of| {
            let pairs = of.otel.resource.iter().map(|(name, value)| format!("{name}={value}"));
            json!(pairs.collect::<Vec<_>>().join(","))
        },
    )
    .aliases(&[alias("OTEL_RESOURCE_ATTRIBUTES", AliasMeaning::Advice)]),
    Setting::new(
        "otel.sampler",
        Shape::Text,
        "NAME",
        "Which traces are exported: always_on, always_off, traceidratio, or one of these after parentbased_, by which a caller that sends traceparent decides about its own trace",
        set!(otel.sampler, |text| value::choice(text, SamplerName::CHOICES)),
        |of| json!(of.otel.sampler.as_str()),
    )
    .aliases(&[alias("OTEL_TRACES_SAMPLER", AliasMeaning::Advice)]),
    Setting::new(
        "otel.sampler_arg",
        Shape::Decimal,
        "PART",
        "The part of all traces that traceidratio takes, from 0 to 1",
        set!(otel.sampler_ratio, ratio),
        show!(otel.sampler_ratio),
    )
    .aliases(&[alias("OTEL_TRACES_SAMPLER_ARG", AliasMeaning::Advice)]),
];

fn ratio(text: &str) -> Result<f64, value::Invalid> {
    match text.parse() {
        Ok(ratio) if (0.0..=1.0).contains(&ratio) => Ok(ratio),
        _ => Err(value::Invalid::new("expected a number from 0 to 1")),
    }
}
