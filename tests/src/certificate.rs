//! Certificates, made by openssl.

use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use crate::process::attempt;

/// A certificate and its key.
#[derive(Debug)]
pub struct Certificate {
    /// PEM.
    pub certificate: PathBuf,
    /// PEM, PKCS#8.
    pub key: PathBuf,
}

impl Certificate {
    /// One of its own authority, that may issue others.
    #[must_use]
    pub fn authority(directory: &Path, name: &str) -> Self {
        Self::make(directory, name, "basicConstraints = critical, CA:TRUE", None)
    }

    /// For an address.
    #[must_use]
    pub fn server(directory: &Path, name: &str, address: SocketAddr) -> Self {
        let extensions = format!("basicConstraints = CA:FALSE\nsubjectAltName = IP:{}", address.ip());
        Self::make(directory, name, &extensions, None)
    }

    /// Of a client.
    #[must_use]
    pub fn client(directory: &Path, name: &str, issuer: &Self) -> Self {
        let extensions = "basicConstraints = CA:FALSE\nextendedKeyUsage = clientAuth";
        Self::make(directory, name, extensions, Some(issuer))
    }

    fn make(directory: &Path, name: &str, extensions: &str, issuer: Option<&Self>) -> Self {
        let file = |suffix: &str| directory.join(format!("{name}.{suffix}"));
        let (certificate, key, config) = (file("pem"), file("key"), file("cnf"));
        let text = format!("[req]\ndistinguished_name = name\n[name]\n[extensions]\n{extensions}\n");
        fs::write(&config, text).expect("a file can be written");
        let mut words: Vec<String> =
            ["openssl", "req", "-x509", "-nodes", "-days", "3650"].map(str::to_owned).into();
        words.extend(["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"].map(str::to_owned));
        words.extend(["-subj", "/CN=kevtmon test", "-extensions", "extensions"].map(str::to_owned));
        let mut path = |option: &str, path: &Path| {
            words.extend([option.to_owned(), path.to_string_lossy().into_owned()])
        };
        path("-config", &config);
        path("-out", &certificate);
        path("-keyout", &key);
        if let Some(issuer) = issuer {
            path("-CA", &issuer.certificate);
            path("-CAkey", &issuer.key);
        }
        let _ = attempt(&words).succeeded("openssl req");
        Self { certificate, key }
    }

    /// Takes the place of another one, as who rotates certificates does it.
    pub fn replace(&self, other: &Self) {
        for (from, to) in [(&self.key, &other.key), (&self.certificate, &other.certificate)] {
            let beside = to.with_extension("new");
            fs::copy(from, &beside).expect("a file can be copied");
            fs::rename(beside, to).expect("a file can be renamed");
        }
    }
}
