//! Why a request failed, as far as the difference matters.

use std::error::Error;
use std::io::{self, ErrorKind};

use super::problem::RegistryError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The server does not speak TLS, or nothing answered.
    NoTls,
    /// It speaks TLS, with an untrusted certificate.
    Untrusted,
    Other,
}

pub fn trouble(error: &reqwest::Error) -> Trouble {
    if !error.is_connect() {
        return Trouble::Other;
    }
    let mut cause: Option<&(dyn Error + 'static)> = Some(error);
    while let Some(error) = cause {
        match error.downcast_ref::<rustls::Error>() {
            Some(rustls::Error::InvalidMessage(_)) => return Trouble::NoTls,
            Some(rustls::Error::InvalidCertificate(_)) => return Trouble::Untrusted,
            Some(_) => return Trouble::Other,
            None => {}
        }
        cause = match error.downcast_ref::<io::Error>() {
            Some(e)
                if matches!(e.kind(), ErrorKind::UnexpectedEof | ErrorKind::ConnectionReset) =>
            {
                return Trouble::NoTls;
            }
            // The error inside an io error is not among its sources.
            Some(e) => e.get_ref().map(|inner| inner as _),
            None => error.source(),
        };
    }
    Trouble::Other
}

pub fn unreachable(host: &str, error: reqwest::Error) -> RegistryError {
    let (host, trouble) = (host.to_owned(), trouble(&error));
    let problem = sandkeep_core::with_causes(&error.without_url());
    match trouble {
        Trouble::Untrusted => RegistryError::Untrusted { host, problem },
        Trouble::NoTls | Trouble::Other => RegistryError::Unreachable { host, problem },
    }
}
