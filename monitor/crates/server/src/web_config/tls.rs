//! `tls_server_config`: the certificate of the daemon, and which clients need one.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kevtmon_types::error_chain::chain;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{NoServerSessionStorage, WebPkiClientVerifier};
use rustls::version::{TLS12, TLS13};
use rustls::{RootCertStore, ServerConfig, SupportedProtocolVersion, crypto};

use super::document::{Keys, Node, Table, invalid};
use super::{Files, WebConfigError};

const KEYS: Keys = Keys {
    valid: &[
        "cert_file", "key_file", "client_auth_type", "client_ca_file", "min_version", "max_version",
        "prefer_server_cipher_suites",
    ],
    unsupported: &[
        ("cert", "name a file with cert_file"),
        ("key", "name a file with key_file"),
        ("client_ca", "name a file with client_ca_file"),
        ("client_allowed_sans", "every certificate of the authority is accepted"),
        ("cipher_suites", "all that are offered are safe"),
        ("curve_preferences", "all that are offered are safe"),
    ],
};

/// `client_auth_type`, the values of Go's `tls.ClientAuthType`, the weakest first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ClientAuth {
    /// Certificates are not looked at.
    None,
    /// A certificate that is given has to be the authority's.
    IfGiven,
    Required,
}

const CLIENT_AUTH: [(&str, ClientAuth); 4] = [
    ("NoClientCert", ClientAuth::None),
    // It asks for one, and then does nothing with it.
    ("RequestClientCert", ClientAuth::None),
    ("VerifyClientCertIfGiven", ClientAuth::IfGiven),
    ("RequireAndVerifyClientCert", ClientAuth::Required),
];
const VERSIONS: [(&str, usize); 2] = [("TLS12", 0), ("TLS13", 1)];
const SUPPORTED: [&SupportedProtocolVersion; 2] = [&TLS12, &TLS13];

/// Reads the section and the files that it names, and notes these.
pub(super) fn of(
    node: &Node,
    directory: &Path,
    files: &mut Files,
) -> Result<(Arc<ServerConfig>, ClientAuth), WebConfigError> {
    let table = node.table(&KEYS)?;
    let required = |key: &str| {
        let missing = || invalid(node.position.clone(), format!("{key} is missing in tls_server_config"));
        table.given(key)?.ok_or_else(missing)
    };
    let (chain_node, key_node) = (required("cert_file")?, required("key_file")?);
    let versions = versions(&table)?;
    let authority = authority(&table, directory, files)?;
    let certificates = certificates(chain_node, directory, files)?;
    let (path, bytes) = contents(key_node, directory, files)?;
    let key = PrivateKeyDer::from_pem_slice(&bytes).map_err(|error| {
        invalid(key_node.position.clone(), format!("{}: {}", path.display(), chain(&error)))
    })?;

    let provider = Arc::new(crypto::ring::default_provider());
    let refused = |node: &Node, error: &dyn std::error::Error| invalid(node.position.clone(), chain(error));
    let builder = ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(versions)
        .map_err(|error| refused(node, &error))?;
    table.get("prefer_server_cipher_suites").map(Node::flag).transpose()?;
    let asked = authority.as_ref().map_or(ClientAuth::None, |(auth, _)| *auth);
    let builder = match authority {
        None => builder.with_no_client_auth(),
        Some((auth, roots)) => {
            let verifier = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider);
            let verifier =
                if auth == ClientAuth::IfGiven { verifier.allow_unauthenticated() } else { verifier };
            builder.with_client_cert_verifier(verifier.build().map_err(|error| refused(node, &error))?)
        }
    };
    let mut config =
        builder.with_single_cert(certificates, key).map_err(|error| refused(key_node, &error))?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    // One request for a connection: no session is gone on with, least of all one of another configuration.
    config.session_storage = Arc::new(NoServerSessionStorage {});
    config.send_tls13_tickets = 0;
    Ok((Arc::new(config), asked))
}

/// Who clients need a certificate of, and which need one; `None` if none does.
fn authority(
    table: &Table<'_>,
    directory: &Path,
    files: &mut Files,
) -> Result<Option<(ClientAuth, RootCertStore)>, WebConfigError> {
    let kind = table.given("client_auth_type")?;
    // The second is what the first was called before.
    if let Some(node) = kind
        && let name @ ("RequireAnyClientCert" | "RequireClientCert") = node.text()?
    {
        let why = format!(
            "{name} is not supported, as anybody can make such a certificate: use \
             RequireAndVerifyClientCert, with client_ca_file"
        );
        return Err(invalid(node.position.clone(), why));
    }
    let auth = kind.map(|node| node.choice(&CLIENT_AUTH)).transpose()?.unwrap_or(ClientAuth::None);
    match (auth, kind, table.given("client_ca_file")?) {
        (ClientAuth::None, _, None) => Ok(None),
        (ClientAuth::None, _, Some(file)) => Err(invalid(
            file.position.clone(),
            "client_ca_file has no effect without client_auth_type: RequireAndVerifyClientCert, or \
             VerifyClientCertIfGiven",
        )),
        (_, Some(kind), None) => Err(invalid(
            kind.position.clone(),
            "client_ca_file is missing: it names the CAs of accepted client certificates",
        )),
        (_, None, None) => Ok(None),
        (auth, _, Some(file)) => {
            let mut roots = RootCertStore::empty();
            for certificate in certificates(file, directory, files)? {
                roots.add(certificate).map_err(|error| invalid(file.position.clone(), chain(&error)))?;
            }
            Ok(Some((auth, roots)))
        }
    }
}

fn versions(table: &Table<'_>) -> Result<&'static [&'static SupportedProtocolVersion], WebConfigError> {
    static ALL: [&SupportedProtocolVersion; 2] = SUPPORTED;
    let (least, most) = (table.get("min_version"), table.get("max_version"));
    let first = least.map(|node| node.choice(&VERSIONS)).transpose()?.unwrap_or(0);
    let last = most.map(|node| node.choice(&VERSIONS)).transpose()?.unwrap_or(ALL.len() - 1);
    match (ALL.get(first..=last), most) {
        (Some(versions), _) if !versions.is_empty() => Ok(versions),
        (_, Some(node)) => Err(invalid(node.position.clone(), "max_version is below min_version")),
        (_, None) => Ok(&ALL),
    }
}

fn certificates(
    node: &Node,
    directory: &Path,
    files: &mut Files,
) -> Result<Vec<CertificateDer<'static>>, WebConfigError> {
    let (path, bytes) = contents(node, directory, files)?;
    let found = CertificateDer::pem_slice_iter(&bytes).collect::<Result<Vec<_>, _>>();
    match found {
        Ok(found) if !found.is_empty() => Ok(found),
        Ok(_) => Err(invalid(node.position.clone(), format!("{} has no certificate (PEM)", path.display()))),
        Err(error) => Err(invalid(node.position.clone(), format!("{}: {}", path.display(), chain(&error)))),
    }
}

/// The file that a key names, and what is in it.
fn contents(node: &Node, directory: &Path, files: &mut Files) -> Result<(PathBuf, Vec<u8>), WebConfigError> {
    let path = directory.join(node.text()?);
    match files.read(&path) {
        Ok(bytes) => Ok((path, bytes)),
        Err(error) => Err(invalid(node.position.clone(), format!("cannot read {}: {error}", path.display()))),
    }
}
