//! The certificate that a daemon serves with, and when it is reloaded.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use tokio::signal::unix::{SignalKind, signal};

use crate::cli::failure::Failure;
use crate::config::{Settings, TlsSource};
use sandkeep_core::with_causes;
use sandkeep_doors::kit::tls::{Tls, TlsError, TlsFiles, fingerprint, own_certificate};

/// The certificate in use.
pub struct Served {
    pub tls: Arc<Tls>,
    /// `None` if an authority has signed it.
    pub own: Option<Own>,
}

/// What a user needs to trust a self-signed certificate.
pub struct Own {
    pub path: PathBuf,
    pub fingerprint: String,
}

/// `None` means plain HTTP.
pub fn open(settings: &Settings, data_dir: &Path) -> Result<Option<Served>, Failure> {
    let unusable = |e: TlsError| Failure::Usage { problem: format!("tls: {}", with_causes(&e)) };
    let (files, own) = match settings.tls.source() {
        TlsSource::Plain => return Ok(None),
        TlsSource::Files { cert, key } => (TlsFiles { certificate: cert, key }, None),
        TlsSource::Dev => {
            let files = own_certificate(data_dir, &names(settings)).map_err(unusable)?;
            let path = files.certificate.clone();
            let fingerprint = fingerprint(&path).map_err(unusable)?;
            (files, Some(Own { path, fingerprint }))
        }
    };
    let tls = Arc::new(Tls::load(files).map_err(unusable)?);
    reload_on_hangup(Arc::clone(&tls))?;
    Ok(Some(Served { tls, own }))
}

/// The names under which clients may address this machine.
fn names(settings: &Settings) -> Vec<String> {
    let mut names = ["localhost", "127.0.0.1", "::1"].map(str::to_owned).to_vec();
    let node = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let address = settings.listen.ip();
    names.extend((!address.is_unspecified()).then(|| address.to_string()));
    names.extend((!node.is_empty()).then_some(node));
    names.sort();
    names.dedup();
    names
}

/// Reloads the certificate on SIGHUP, which renewal tools send.
fn reload_on_hangup(tls: Arc<Tls>) -> Result<(), Failure> {
    let mut hangup = signal(SignalKind::hangup()).map_err(Failure::system("handle signals"))?;
    tokio::spawn(async move {
        while hangup.recv().await.is_some() {
            match tls.reload() {
                Ok(()) => tracing::info!("SIGHUP: the certificate was read again"),
                Err(e) => tracing::error!("SIGHUP: the old certificate stays: {}", with_causes(&e)),
            }
        }
    });
    Ok(())
}
