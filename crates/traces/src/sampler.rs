//! Which traces are recorded: the samplers of OpenTelemetry.

use sandkeep_core::{TraceId, TraceParent};

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Sampler {
    /// Whatever the caller says.
    Always(Otherwise),
    /// As the caller says of its own trace; otherwise for traces that begin here.
    AsCaller(Otherwise),
}

/// Which traces are recorded if nobody says.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Otherwise {
    All,
    None,
    /// This part of them, between 0 and 1. Every program that samples by the trace's id decides alike.
    Ratio(f64),
}

impl Default for Sampler {
    fn default() -> Self {
        Self::AsCaller(Otherwise::All)
    }
}

impl Sampler {
    pub fn takes(self, trace: TraceId, sent: Option<TraceParent>) -> bool {
        match (self, sent) {
            (Self::AsCaller(_), Some(sent)) => sent.is_sampled(),
            (Self::AsCaller(otherwise) | Self::Always(otherwise), _) => otherwise.takes(trace),
        }
    }
}

impl Otherwise {
    fn takes(self, trace: TraceId) -> bool {
        match self {
            Self::All => true,
            Self::None => false,
            Self::Ratio(ratio) => {
                let bytes = trace.to_bytes();
                let low = bytes[8..].try_into().map_or(0, u64::from_be_bytes);
                // 63 bits, as all implementations do.
                const WHOLE: f64 = (1_u64 << 63) as f64;
                ((low >> 1) as f64) < ratio * WHOLE
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SAMPLED: &str = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";

    #[test]
    fn a_caller_decides_about_its_own_trace_unless_the_setting_does() {
        let sampled: TraceParent = SAMPLED.parse().expect("valid");
        let left_out = sampled.unsampled();
        let trace = sampled.trace;
        for (sampler, of_sampled, of_left_out, of_own) in [
            (Sampler::default(), true, false, true),
            (Sampler::AsCaller(Otherwise::None), true, false, false),
            (Sampler::Always(Otherwise::All), true, true, true),
            (Sampler::Always(Otherwise::None), false, false, false),
            (Sampler::AsCaller(Otherwise::Ratio(0.0)), true, false, false),
            (Sampler::Always(Otherwise::Ratio(1.0)), true, true, true),
        ] {
            assert_eq!(sampler.takes(trace, Some(sampled)), of_sampled, "{sampler:?}");
            assert_eq!(sampler.takes(trace, Some(left_out)), of_left_out, "{sampler:?}");
            assert_eq!(sampler.takes(trace, None), of_own, "{sampler:?}");
        }
    }

    #[test]
    fn a_ratio_takes_that_part_of_all_traces_and_the_same_ones_every_time() {
        let sampler = Sampler::Always(Otherwise::Ratio(0.25));
        let traces: Vec<TraceId> = (0..4_000).map(|_| TraceId::random()).collect();
        let taken: Vec<bool> = traces.iter().map(|trace| sampler.takes(*trace, None)).collect();
        let count = taken.iter().filter(|taken| **taken).count();
        assert!((800..1_200).contains(&count), "{count} of 4000");
        assert!(
            traces.iter().zip(taken).all(|(trace, taken)| sampler.takes(*trace, None) == taken)
        );
    }
}
