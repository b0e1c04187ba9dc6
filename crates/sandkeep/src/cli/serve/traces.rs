//! The export of traces while the daemon serves.

use crate::cli::failure::Failure;
use crate::config::OtelSettings;
use sandkeep_broker::Broker;
use sandkeep_traces::Recorder;

#[cfg(feature = "otlp")]
use {
    crate::cli::version::VERSION,
    crate::config::{SamplerName, pairs},
    reqwest::header::{HeaderMap, HeaderName, HeaderValue},
    sandkeep_core::with_causes,
    sandkeep_outgoing::{Outgoing, Roots},
    sandkeep_traces::otlp::{ExportOptions, Exporter},
    sandkeep_traces::{FinishedSpans, Otherwise, Sampler},
};

/// What records the spans of requests, and the spans that it has recorded, if they are exported.
pub struct Traces {
    #[cfg(feature = "otlp")]
    spans: Option<(FinishedSpans, Roots)>,
}

/// The export that goes on.
pub struct Exporting {
    #[cfg(feature = "otlp")]
    exporter: Option<Exporter>,
}

#[cfg(not(feature = "otlp"))]
impl Traces {
    pub fn of(settings: &OtelSettings) -> Result<(Recorder, Self), Failure> {
        if settings.exports() {
            Err(Failure::Usage {
                problem: "otel.endpoint needs a build with the feature `otlp`; set otel.disabled to start without"
                    .to_owned(),
            })
        } else {
            Ok((Recorder::idle(), Self {}))
        }
    }

    pub fn export(self, _: &OtelSettings, _: &Broker) -> Exporting {
        Exporting {}
    }
}

#[cfg(feature = "otlp")]
impl Traces {
    pub fn of(settings: &OtelSettings) -> Result<(Recorder, Self), Failure> {
        if settings.exports() {
            let roots = settings.certificate.as_deref().map(Roots::read).transpose();
            let roots = roots.map_err(|error| Failure::Usage {
                problem: format!("otel.certificate: {}", with_causes(&error)),
            })?;
            let (recorder, spans) = Recorder::exporting(sampler(settings));
            Ok((recorder, Self { spans: Some((spans, roots.unwrap_or_default())) }))
        } else {
            Ok((Recorder::idle(), Self { spans: None }))
        }
    }

    /// Nothing waits for a collector.
    pub fn export(self, settings: &OtelSettings, broker: &Broker) -> Exporting {
        let url = settings.url().and_then(|url| url.parse().ok());
        let exporter = url.zip(self.spans).map(|(url, (spans, roots))| {
            let options = ExportOptions {
                url,
                headers: headers(settings),
                answer: settings.timeout,
                resource: resource(settings, broker.instance()),
                outgoing: Outgoing::new(Vec::new(), roots),
            };
            Exporter::start(options, spans, broker.telemetry().spans().clone())
        });
        Exporting { exporter }
    }
}

impl Exporting {
    /// Waits for a bounded time until the last spans are exported.
    pub async fn stop(self) {
        #[cfg(feature = "otlp")]
        if let Some(exporter) = self.exporter {
            exporter.stop().await;
        }
    }
}

#[cfg(feature = "otlp")]
fn sampler(settings: &OtelSettings) -> Sampler {
    let ratio = Otherwise::Ratio(settings.sampler_ratio);
    match settings.sampler {
        SamplerName::AlwaysOn => Sampler::Always(Otherwise::All),
        SamplerName::AlwaysOff => Sampler::Always(Otherwise::None),
        SamplerName::TraceIdRatio => Sampler::Always(ratio),
        SamplerName::ParentBasedAlwaysOn => Sampler::AsCaller(Otherwise::All),
        SamplerName::ParentBasedAlwaysOff => Sampler::AsCaller(Otherwise::None),
        SamplerName::ParentBasedTraceIdRatio => Sampler::AsCaller(ratio),
    }
}

#[cfg(feature = "otlp")]
fn headers(settings: &OtelSettings) -> HeaderMap {
    let given = settings.headers.as_ref().map(|secret| pairs(secret.reveal()).unwrap_or_default());
    let header = |(name, value): (String, String)| {
        let mut value = HeaderValue::try_from(value).ok()?;
        value.set_sensitive(true);
        Some((HeaderName::try_from(name).ok()?, value))
    };
    given.into_iter().flatten().filter_map(header).collect()
}

/// What all spans of this daemon have in common.
#[cfg(feature = "otlp")]
fn resource(settings: &OtelSettings, instance: &str) -> Vec<(String, String)> {
    let own = [
        ("service.name", settings.service_name.as_str()),
        ("service.version", VERSION),
        ("service.instance.id", instance),
    ];
    let is_given = |name: &str| settings.resource.iter().any(|(given, _)| given == name);
    let own = own.into_iter().filter(|(name, _)| *name == "service.name" || !is_given(name));
    let given = settings.resource.iter().filter(|(name, _)| name != "service.name").cloned();
    own.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(given).collect()
}
