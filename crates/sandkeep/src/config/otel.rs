//! Where traces are exported: `[otel]`, whose values may also come in the `OTEL_*` variables of OpenTelemetry.

use std::path::PathBuf;
use std::time::Duration;

use sandkeep_core::limits;

use super::Secret;
use super::value::{self, Invalid};

/// The part of a collector's URL that means traces.
#[cfg(feature = "otlp")]
const TRACES: &str = "v1/traces";

#[derive(Clone, Debug, PartialEq)]
pub struct OtelSettings {
    /// The base URL of a collector; nothing is exported without a URL.
    pub endpoint: Option<String>,
    /// The URL for traces, all of it.
    pub traces_endpoint: Option<String>,
    pub exporter: TracesExporter,
    pub disabled: bool,
    pub protocol: OtlpProtocol,
    /// `NAME=VALUE`, with commas between them.
    pub headers: Option<Secret>,
    /// PEM file with the certificates that the collector's may lead back to.
    pub certificate: Option<PathBuf>,
    pub timeout: Duration,
    pub service_name: String,
    /// Names and values.
    pub resource: Vec<(String, String)>,
    pub sampler: SamplerName,
    pub sampler_ratio: f64,
}

impl Default for OtelSettings {
    fn default() -> Self {
        Self {
            endpoint: None,
            traces_endpoint: None,
            exporter: TracesExporter::Otlp,
            disabled: false,
            protocol: OtlpProtocol::HttpProtobuf,
            headers: None,
            certificate: None,
            timeout: limits::SPANS_ANSWER_DEFAULT,
            service_name: "sandkeep".to_owned(),
            resource: Vec::new(),
            sampler: SamplerName::ParentBasedAlwaysOn,
            sampler_ratio: 1.0,
        }
    }
}

impl OtelSettings {
    /// Whether traces are to be exported.
    pub fn exports(&self) -> bool {
        let has_url = self.endpoint.is_some() || self.traces_endpoint.is_some();
        has_url && !self.disabled && self.exporter == TracesExporter::Otlp
    }

    /// Where traces go.
    #[cfg(feature = "otlp")]
    pub fn url(&self) -> Option<String> {
        let whole = || {
            let base = self.endpoint.as_ref()?;
            Some(format!("{}/{TRACES}", base.trim_end_matches('/')))
        };
        self.traces_endpoint.clone().or_else(whole)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum TracesExporter {
    Otlp,
    None,
}

impl TracesExporter {
    pub const CHOICES: &[(&str, Self)] = &[("otlp", Self::Otlp), ("none", Self::None)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::Otlp => "otlp",
            Self::None => "none",
        }
    }
}

/// The only one there is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OtlpProtocol {
    HttpProtobuf,
}

impl OtlpProtocol {
    pub const CHOICES: &[(&str, Self)] = &[("http/protobuf", Self::HttpProtobuf)];

    pub fn as_str(self) -> &'static str {
        match self {
            Self::HttpProtobuf => "http/protobuf",
        }
    }
}

/// A sampler of OpenTelemetry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SamplerName {
    AlwaysOn,
    AlwaysOff,
    TraceIdRatio,
    ParentBasedAlwaysOn,
    ParentBasedAlwaysOff,
    ParentBasedTraceIdRatio,
}

impl SamplerName {
    pub const CHOICES: &[(&str, Self)] = &[
        ("parentbased_always_on", Self::ParentBasedAlwaysOn),
        ("parentbased_always_off", Self::ParentBasedAlwaysOff),
        ("parentbased_traceidratio", Self::ParentBasedTraceIdRatio),
        ("always_on", Self::AlwaysOn),
        ("always_off", Self::AlwaysOff),
        ("traceidratio", Self::TraceIdRatio),
    ];

    pub fn as_str(self) -> &'static str {
        let named = Self::CHOICES.iter().find(|(_, sampler)| *sampler == self);
        named.map_or("", |(name, _)| name)
    }
}

/// `NAME=VALUE`, with commas between them; values are percent-encoded.
pub fn pairs(text: &str) -> Result<Vec<(String, String)>, Invalid> {
    let pair = |item: &String| {
        let wrong = || Invalid::new("expected NAME=VALUE, with commas between them");
        let (name, value) = item.split_once('=').ok_or_else(wrong)?;
        let value = percent_encoding::percent_decode_str(value.trim()).decode_utf8();
        let value = value.map_err(|_| wrong())?.into_owned();
        match name.trim() {
            "" => Err(wrong()),
            name => Ok((name.to_owned(), value)),
        }
    };
    value::list(text).iter().map(pair).collect()
}

/// Headers of HTTP. Their text never gets into a message.
pub fn headers(text: &str) -> Result<Option<Secret>, Invalid> {
    let wrong = || Invalid::new("expected NAME=VALUE of HTTP headers, with commas between them");
    let pairs = pairs(text).map_err(|_| wrong())?;
    let is_header = |(name, value): &(String, String)| {
        reqwest::header::HeaderName::try_from(name).is_ok()
            && reqwest::header::HeaderValue::try_from(value).is_ok()
    };
    if pairs.iter().all(is_header) { Ok(Some(Secret::new(text))) } else { Err(wrong()) }
}

pub fn timeout(text: &str) -> Result<Duration, Invalid> {
    let max = sandkeep_core::millis(limits::SPANS_ANSWER_MAX);
    value::within(text, 1..=max).map(Duration::from_millis)
}
