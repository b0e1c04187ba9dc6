//! How to reach a server, and as whom.

use std::fmt;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::link::LinkError;
use async_nats::ConnectOptions;
use sandkeep_core::limits;

/// Where the servers are and how to be let in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// Any of these, and those of their cluster that they name. User names and passwords in them count as [`Login`].
    pub servers: Vec<String>,
    pub login: Login,
    pub tls: Tls,
}

/// Who we are to the server. Files are read whenever a connection is opened for the first time.
#[derive(Clone, Default, PartialEq, Eq)]
pub enum Login {
    #[default]
    Anonymous,
    Token(String),
    Password {
        user: String,
        password: String,
    },
    /// A file with the seed of an nkey.
    Nkey(PathBuf),
    /// A file with a JWT and its seed, as `nsc` writes it.
    Credentials(PathBuf),
}

impl fmt::Debug for Login {
    /// Without secrets.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Anonymous => f.write_str("Anonymous"),
            Self::Token(_) => f.write_str("Token"),
            Self::Password { user, .. } => write!(f, "Password({user:?})"),
            Self::Nkey(path) => write!(f, "Nkey({path:?})"),
            Self::Credentials(path) => write!(f, "Credentials({path:?})"),
        }
    }
}

/// How the connection is encrypted. A server that requires TLS gets it in any case.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    /// Refuse a server without TLS.
    pub required: bool,
    /// The only certificates that a server's may lead back to; those that this machine trusts if absent.
    pub ca: Option<PathBuf>,
    /// Our own certificate and its key.
    pub client: Option<(PathBuf, PathBuf)>,
}

impl Options {
    /// What the client library wants to know. Reads files.
    pub(crate) fn prepare(&self, name: &str) -> Result<ConnectOptions, LinkError> {
        let mut options = ConnectOptions::new()
            .name(name)
            .connection_timeout(limits::NATS_CONNECT)
            .request_timeout(Some(limits::NATS_REQUEST))
            .ping_interval(limits::NATS_PING)
            .client_capacity(limits::NATS_QUEUE_MAX)
            .require_tls(self.tls.required);
        options = match &self.login {
            Login::Anonymous => options,
            Login::Token(token) => options.token(token.clone()),
            Login::Password { user, password } => {
                options.user_and_password(user.clone(), password.clone())
            }
            Login::Nkey(path) => options.nkey(secret(path)?.trim().to_owned()),
            Login::Credentials(path) => options
                .credentials(&secret(path)?)
                .map_err(|source| LinkError::Unreadable { path: path.clone(), source })?,
        };
        if let Some(ca) = &self.tls.ca {
            options = options.add_root_certificates(ca.clone());
        }
        if let Some((cert, key)) = &self.tls.client {
            options = options.add_client_certificate(cert.clone(), key.clone());
        }
        Ok(options)
    }

    /// Reads the files once, so that a wrong path is known before anything else starts.
    pub fn check(&self) -> Result<(), LinkError> {
        self.prepare("check")?;
        let (cert, key) = self.tls.client.clone().unzip();
        for path in [self.tls.ca.clone(), cert, key].into_iter().flatten() {
            fs::File::open(&path).map_err(|source| LinkError::Unreadable { path, source })?;
        }
        Ok(())
    }
}

fn secret(path: &Path) -> Result<String, LinkError> {
    let unreadable = |source| LinkError::Unreadable { path: path.to_owned(), source };
    let mut text = String::new();
    let file = fs::File::open(path).map_err(unreadable)?;
    file.take(limits::NATS_SECRET_MAX_BYTES).read_to_string(&mut text).map_err(unreadable)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_secret_is_in_the_debug_form() {
        let logins = [
            Login::Token("hush".to_owned()),
            Login::Password { user: "ann".to_owned(), password: "hush".to_owned() },
        ];
        let shown = format!("{logins:?}");
        assert!(!shown.contains("hush") && shown.contains("ann"), "{shown}");
    }

    #[test]
    fn a_file_that_is_missing_is_named() {
        let options = |login, tls| Options { servers: Vec::new(), login, tls };
        let absent = PathBuf::from("/nonexistent/file");
        let ca = Tls { ca: Some(absent.clone()), ..Tls::default() };
        let all = [
            options(Login::Nkey(absent.clone()), Tls::default()),
            options(Login::Credentials(absent), Tls::default()),
            options(Login::Anonymous, ca),
        ];
        for options in all {
            let error = options.check().expect_err("the file is missing").to_string();
            assert!(error.contains("/nonexistent/file"), "{error}");
        }
    }
}
