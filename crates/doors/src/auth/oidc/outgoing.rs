//! One bounded request to an issuer, subject to the rules for all outgoing connections.

use reqwest::Url;

use sandkeep_core::limits::{JWKS_ANSWER, JWKS_MAX_BYTES};
use sandkeep_outgoing::{self, BodyError, Chosen, Outgoing, OutgoingError};

#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    #[error(transparent)]
    Refused(#[from] OutgoingError),
    #[error("{url} does not answer: {problem}")]
    Failed { url: Url, problem: String },
    #[error("{url} answers {status}")]
    Status { url: Url, status: u16 },
    #[error("{url} answers with more than {JWKS_MAX_BYTES} bytes")]
    TooLarge { url: Url },
}

pub async fn get(url: &Url, chosen: Chosen) -> Result<Vec<u8>, RequestError> {
    let failed = |e: reqwest::Error| RequestError::Failed {
        url: url.clone(),
        problem: sandkeep_core::with_causes(&e.without_url()),
    };
    let timed_out = || RequestError::Failed {
        url: url.clone(),
        problem: format!("it took more than {} s", JWKS_ANSWER.as_secs()),
    };
    let work = async {
        // Only the hosts that the issuer's settings name are allowed.
        let client = Outgoing::default().admit(url, chosen).await?.client()?;
        let response = client.get(url.clone()).send().await.map_err(failed)?;
        let status = response.status();
        if !status.is_success() {
            return Err(RequestError::Status { url: url.clone(), status: status.as_u16() });
        }
        sandkeep_outgoing::body(response, JWKS_MAX_BYTES).await.map_err(|e| match e {
            BodyError::TooLarge => RequestError::TooLarge { url: url.clone() },
            BodyError::Broken(e) => failed(e),
        })
    };
    tokio::time::timeout(JWKS_ANSWER, work).await.unwrap_or_else(|_| Err(timed_out()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn keys_that_others_say_are_inside_are_not_asked_for() {
        let here = sandkeep_outgoing::url("http://127.0.0.1:9/keys").expect("a URL");
        let refused = get(&here, Chosen::ByOthers).await;
        assert!(
            matches!(refused, Err(RequestError::Refused(OutgoingError::NotPublic { .. }))),
            "{refused:?}"
        );
    }
}
