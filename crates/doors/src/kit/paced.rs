//! A long body that is passed on piece by piece, from a client that has to keep a pace: otherwise one that sends a byte a
//! minute would hold a slot, a process or a connection for ever. Only the time counts in which the client is waited for.

use axum::body::Body;
use bytes::Bytes;
use http_body_util::BodyExt;
use tokio::time::{Duration, Instant, timeout};

use super::Refusal;
use super::request_memory::is_read;
use sandkeep_core::limits::{UPLOAD_MAX, UPLOAD_RATE_MIN_BYTES, UPLOAD_SILENCE_MAX};

pub struct Paced<'a> {
    body: &'a mut Body,
    began: Instant,
    waited: Duration,
    bytes: u64,
}

impl<'a> Paced<'a> {
    pub fn new(body: &'a mut Body) -> Self {
        Self { body, began: Instant::now(), waited: Duration::ZERO, bytes: 0 }
    }

    /// The next piece; `None` after the last one.
    pub async fn next(&mut self) -> Result<Option<Bytes>, Refusal> {
        loop {
            let asked = Instant::now();
            let frame = timeout(UPLOAD_SILENCE_MAX, self.body.frame()).await;
            self.waited += asked.elapsed();
            let Some(frame) = frame.map_err(|_elapsed| Refusal::BodyTooSlow)? else {
                is_read();
                return Ok(None);
            };
            let frame =
                frame.map_err(|error| Refusal::BodyBroken { problem: error.to_string() })?;
            let Ok(piece) = frame.into_data() else { continue };
            self.bytes += piece.len() as u64;
            if self.is_too_slow() || self.began.elapsed() > UPLOAD_MAX {
                return Err(Refusal::BodyTooSlow);
            }
            return Ok(Some(piece));
        }
    }

    fn is_too_slow(&self) -> bool {
        self.waited > UPLOAD_SILENCE_MAX
            && self.bytes < self.waited.as_secs() * UPLOAD_RATE_MIN_BYTES
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{StreamExt, stream};

    use super::*;

    /// A client that sends a piece of this size every second, and how its upload ends, and when.
    async fn sent(bytes: usize, seconds: u32, each: Duration) -> (Result<u64, Refusal>, Duration) {
        let piece = Bytes::from(vec![0; bytes]);
        let pieces = stream::iter(0..seconds).then(move |_| {
            let piece = piece.clone();
            async move {
                tokio::time::sleep(Duration::from_secs(1)).await;
                Ok::<_, Infallible>(piece)
            }
        });
        let mut body = Body::from_stream(pieces);
        let began = Instant::now();
        let mut paced = Paced::new(&mut body);
        let result = loop {
            match paced.next().await {
                Ok(Some(_)) => tokio::time::sleep(each).await,
                Ok(None) => break Ok(paced.bytes),
                Err(refusal) => break Err(refusal),
            }
        };
        (result, began.elapsed())
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_sends_less_than_the_minimum_is_sent_away_after_a_minute() {
        let minimum = usize::try_from(UPLOAD_RATE_MIN_BYTES).expect("small");
        let (result, took) = sent(minimum - 100, 1000, Duration::ZERO).await;
        assert!(matches!(result, Err(Refusal::BodyTooSlow)), "{result:?}");
        assert!((60..=65).contains(&took.as_secs()), "{took:?}");
        let (result, took) = sent(minimum, 1000, Duration::ZERO).await;
        assert_eq!((result.expect("all of it"), took.as_secs()), (1000 * minimum as u64, 1000));
        let (result, _) = sent(1, 50, Duration::ZERO).await;
        assert_eq!(result.expect("a small one may take its time"), 50);
    }

    #[tokio::test(start_paused = true)]
    async fn it_is_not_the_clients_fault_if_its_bytes_are_taken_slowly() {
        let slow = Duration::from_secs(20);
        let (result, took) = sent(100_000, 100, slow).await;
        assert_eq!(result.expect("all of it"), 10_000_000);
        assert!(took >= slow * 100, "{took:?}");
        let (result, took) = sent(100_000, 10_000, slow).await;
        assert!(matches!(result, Err(Refusal::BodyTooSlow)), "{result:?}");
        assert!((UPLOAD_MAX..UPLOAD_MAX + 2 * slow).contains(&took), "{took:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn a_silent_client_is_sent_away() {
        let mut body = Body::from_stream(stream::pending::<Result<Bytes, Infallible>>());
        assert!(matches!(Paced::new(&mut body).next().await, Err(Refusal::BodyTooSlow)));
    }
}
