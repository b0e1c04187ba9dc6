//! Why a request got no answer, as far as it makes a difference.

use std::error::Error;
use std::io::{self, ErrorKind};

use super::problem::RegistryError;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// What answered was no TLS, or nothing at all.
    NoTls,
    /// It speaks TLS, with a certificate that nobody vouches for.
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
            // What an io error wraps is not among its sources.
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
