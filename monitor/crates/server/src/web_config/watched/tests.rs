//! What becomes of a configuration in use when its files change.

use std::fs;

use super::*;
use crate::web_config::tests::{PASSWORD, header};

const FROM: IpAddr = IpAddr::V4(std::net::Ipv4Addr::LOCALHOST);

fn users() -> String {
    format!("basic_auth_users:\n  ada: {}\n", bcrypt::hash(PASSWORD, 4).unwrap())
}

#[tokio::test]
async fn a_file_that_is_emptied_or_half_written_lets_nobody_in_who_was_kept_out() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.yml");
    fs::write(&path, users()).unwrap();
    let config = WatchedConfig::load(&path).unwrap();
    let ada = header(&format!("ada:{PASSWORD}"));
    for text in ["", "# basic_auth_users\n", "basic_auth_users:\n", "basic_auth_users: {}\n"] {
        fs::write(&path, text).unwrap();
        assert_eq!(config.admit(None, FROM).await, Err(Refusal::Unauthorized), "{text:?}");
        assert_eq!(config.admit(Some(&ada), FROM).await, Ok(()), "{text:?}");
    }
    fs::remove_file(&path).unwrap();
    assert_eq!(config.admit(None, FROM).await, Err(Refusal::Unauthorized), "it is gone");
}

#[tokio::test]
async fn users_may_be_added_where_there_were_none() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.yml");
    fs::write(&path, "").unwrap();
    let config = WatchedConfig::load(&path).unwrap();
    assert_eq!(config.admit(None, FROM).await, Ok(()));
    fs::write(&path, users()).unwrap();
    // A disk that is slow just then is not waited for.
    while config.admit(None, FROM).await.is_ok() {
        tokio::task::yield_now().await;
    }
}

#[test]
fn a_file_that_is_named_before_it_is_there_is_read_once_it_comes() {
    let directory = tempfile::tempdir().unwrap();
    let (path, certificate) = (directory.path().join("web.yml"), directory.path().join("c.pem"));
    fs::write(&path, "").unwrap();
    let mut seen = Files::default();
    let web = Arc::new(WebConfig::read(&path, &mut seen).unwrap());
    let first = Current { web, seen };
    fs::write(&path, "tls_server_config:\n  cert_file: c.pem\n  key_file: c.key\n").unwrap();
    let missing = look(&path, &first).unwrap();
    assert!(Arc::ptr_eq(&missing.web, &first.web), "it cannot be used yet");
    assert!(look(&path, &missing).is_none(), "nothing has changed");
    fs::write(&certificate, "").unwrap();
    let empty = look(&path, &missing).expect("it is read again");
    assert!(look(&path, &empty).is_none());
    fs::write(&certificate, "no certificate").unwrap();
    assert!(look(&path, &empty).is_some());
}
