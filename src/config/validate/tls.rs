//! `[[server.tls]]`

use openssl::pkey::PKey;
use openssl::x509::X509;

use super::value::{self, Parsed, file_path};
use crate::config::fault::Report;
use crate::config::{TlsListener, file};

/// Checks that certificate and key can be read and belong together.
pub(super) fn listener(raw: &file::TlsListener, report: &Report) -> Option<TlsListener> {
    let listen = report.parse(&raw.listen, value::listener);
    let chain = report.parse(&raw.certificate, certificates);
    let private = report.parse(&raw.key, key);
    if let (Some(chain), Some(private), Some(key)) = (chain, private, &raw.key) {
        let belongs = chain.first().and_then(|first| first.public_key().ok()).is_some_and(|of| of.public_eq(&private));
        if !belongs {
            report.note(
                &key.place,
                format!("file {:?} is not the key of the certificate, allowed is only that", key.value),
            );
        }
    }
    Some(TlsListener {
        listen: listen?,
        certificate: file_path(&raw.certificate.as_ref()?.value).ok()?,
        key: file_path(&raw.key.as_ref()?.value).ok()?,
    })
}

/// Reads a chain of certificates in PEM.
pub(super) fn certificates(path: &str) -> Parsed<Vec<X509>> {
    let chain = X509::stack_from_pem(&value::read(path)?).unwrap_or_default();
    if chain.is_empty() {
        Err(format!("file {path:?} holds no certificate, allowed is a chain in PEM"))
    } else {
        Ok(chain)
    }
}

fn key(path: &str) -> Parsed<PKey<openssl::pkey::Private>> {
    // With a passphrase given, OpenSSL never asks for one on the terminal.
    PKey::private_key_from_pem_passphrase(&value::read(path)?, b"")
        .map_err(|_| format!("file {path:?} holds no private key, allowed is one in PEM without passphrase"))
}
