//! What a web configuration may say, and what is said of one that cannot be used.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::header::HeaderValue;
use kevtmon_types::error_chain::chain;

use super::users::{Claim, Users};
use super::*;

/// That of `ada`.
pub(super) const PASSWORD: &str = "right";

/// `ada` alone.
pub(super) fn users() -> Users {
    users_of(&format!("ada: {}", bcrypt::hash(PASSWORD, 4).unwrap()))
}

/// Those of a section with this text.
pub(super) fn users_of(text: &str) -> Users {
    Users::of(&document::read(Path::new("/w.yml"), text).unwrap()).unwrap()
}

pub(super) fn claim(user: &str, password: &str) -> Claim {
    Claim::of(&header(&format!("{user}:{password}"))).unwrap()
}

pub(super) fn header(plain: &str) -> HeaderValue {
    HeaderValue::from_str(&format!("Basic {}", STANDARD.encode(plain))).unwrap()
}

/// What is said of a file with this text.
fn complaint(text: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.yml");
    fs::write(&path, text).unwrap();
    let error = WebConfig::load(&path).unwrap_err();
    chain(&error).replace(&*directory.path().to_string_lossy(), "/d")
}

#[test]
fn an_unknown_key_is_told_with_its_place_and_the_nearest_valid_one() {
    for (text, expected) in [
        (
            "tls_server_config:\n  cert_fil: c\n",
            "/d/web.yml:2:3: unknown key \"cert_fil\"; did you mean \"cert_file\"?",
        ),
        (
            "# x\nbasic_auth_user:\n",
            "/d/web.yml:2:1: unknown key \"basic_auth_user\"; did you mean \"basic_auth_users\"?",
        ),
        (
            "zzz: 1",
            "/d/web.yml:1:1: unknown key \"zzz\"; valid keys here: tls_server_config, basic_auth_users, http_server_config",
        ),
        (
            "http_server_config:\n  http3: true",
            "/d/web.yml:2:3: unknown key \"http3\"; did you mean \"http2\"?",
        ),
    ] {
        assert_eq!(complaint(text), expected);
    }
}

#[test]
fn what_only_exporter_toolkit_has_is_refused_with_the_reason() {
    // All keys of its docs/web-configuration.md that are not valid here.
    for (section, key) in [
        ("tls_server_config", "cert"),
        ("tls_server_config", "key"),
        ("tls_server_config", "client_ca"),
        ("tls_server_config", "client_allowed_sans"),
        ("tls_server_config", "cipher_suites"),
        ("tls_server_config", "curve_preferences"),
        ("http_server_config", "headers"),
    ] {
        let said = complaint(&format!("{section}:\n  {key}: [a]"));
        assert!(said.starts_with(&format!("/d/web.yml:2:3: key {key:?} is not supported: ")), "{said}");
    }
    let said = complaint("rate_limit:\n  burst: 3");
    assert!(said.starts_with("/d/web.yml:1:1: key \"rate_limit\" is not supported: the rate"), "{said}");
}

#[test]
fn a_value_that_cannot_be_used_is_told_with_its_place() {
    let pair = "tls_server_config:\n  cert_file: c\n  key_file: k\n";
    for (text, expected) in [
        (
            &*format!("{pair}  min_version: TLS11"),
            "/d/web.yml:4:16: \"TLS11\" is not valid: expected TLS12, TLS13",
        ),
        (
            &format!("{pair}  min_version: TLS13\n  max_version: TLS12"),
            "/d/web.yml:5:16: max_version is below min_version",
        ),
        (
            &format!("{pair}  client_auth_type: RequireClientCert"),
            "/d/web.yml:4:21: RequireClientCert is not supported, as anybody can make",
        ),
        ("a: [", "not valid YAML"),
        ("- a", "/d/web.yml:1:1: expected keys with values"),
        ("x: &a 1\ny: *a", "aliases are not supported"),
        ("basic_auth_users:\n  a: b\n  a: c", "/d/web.yml:3:3: key \"a\" is there twice"),
        (
            "basic_auth_users:\n  ada: hunter2",
            "/d/web.yml:2:8: what is given for user \"ada\" is no bcrypt hash",
        ),
        ("basic_auth_users: {ada: }", "expected text"),
        ("basic_auth_users:\n  \"a:b\": x", "/d/web.yml:2:3: \"a:b\" is no user name"),
        ("http_server_config:\n  http2: \"true\"", "/d/web.yml:2:10: expected true or false"),
        ("tls_server_config:\n  key_file: k", "/d/web.yml:2:3: cert_file is missing in tls_server_config"),
        (
            "tls_server_config:\n  cert_file: c\n  key_file: k",
            "/d/web.yml:2:14: cannot read /d/c: No such file or directory",
        ),
        ("a: 1\n---\nb: 2", "there is a second document"),
        ("a: {a: {a: {a: {a: 1}}}}", "it is nested too deep"),
    ] {
        let said = complaint(text);
        assert!(said.contains(expected), "{text:?}: {said}");
    }
    assert!(!complaint("basic_auth_users:\n  ada: hunter2").contains("hunter2"), "it may be the password");
}

#[test]
fn a_hash_that_costs_seconds_of_a_core_is_refused() {
    let hash = bcrypt::hash("x", 4).unwrap().replacen("$04$", "$31$", 1);
    let said = complaint(&format!("basic_auth_users:\n  ada: {hash}"));
    assert!(said.contains("has cost 31; at most 14 is accepted"), "{said}");
}

#[test]
fn an_empty_file_asks_for_nothing() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("web.yml");
    for text in ["", "# nothing\n", "http_server_config:\n", "http_server_config:\n  http2: false\n"] {
        fs::write(&path, text).unwrap();
        let web = WebConfig::load(&path).unwrap();
        assert!(web.tls.is_none() && web.users.is_empty(), "{text:?}");
    }
    let missing = WebConfig::load(&directory.path().join("none.yml")).unwrap_err();
    assert!(missing.to_string().starts_with("cannot read the web configuration /"), "{missing}");
}

#[test]
fn a_key_that_keeps_clients_out_is_a_mistake_without_a_value() {
    let pair = "tls_server_config:\n  cert_file: c\n  key_file: k\n";
    let verified = format!("{pair}  client_auth_type: RequireAndVerifyClientCert\n");
    for (text, expected) in [
        ("# x\nbasic_auth_users:\n", "/d/web.yml:2:1: basic_auth_users has no value"),
        ("basic_auth_users: ~\n", "/d/web.yml:1:1: basic_auth_users has no value"),
        ("tls_server_config:\n", "/d/web.yml:1:1: tls_server_config has no value"),
        ("tls_server_config:\n  cert_file:\n", "/d/web.yml:2:3: cert_file has no value"),
        ("tls_server_config:\n  cert_file: c\n  key_file: null", "/d/web.yml:3:3: key_file has no value"),
        (&format!("{pair}  client_auth_type:\n"), "/d/web.yml:4:3: client_auth_type has no value"),
        (&format!("{pair}  client_ca_file:\n"), "/d/web.yml:4:3: client_ca_file has no value"),
        (&format!("{verified}  client_ca_file:\n"), "/d/web.yml:5:3: client_ca_file has no value"),
    ] {
        assert_eq!(complaint(text), expected, "{text:?}");
    }
}

#[test]
fn a_configuration_asks_less_that_has_no_users_any_more_or_a_weaker_kind_of_certificates() {
    use ClientAuth::{IfGiven, None, Required};
    let web = |certificates, users| WebConfig { tls: Option::None, certificates, users: Arc::new(users) };
    for (before, after, expected) in [
        (web(None, users()), web(None, Users::default()), true),
        (web(None, users()), web(Required, Users::default()), true),
        (web(Required, users()), web(IfGiven, users()), true),
        (web(Required, Users::default()), web(None, users()), true),
        (web(IfGiven, users()), web(None, users()), true),
        (web(IfGiven, users()), web(Required, users()), false),
        (web(None, users()), web(None, users()), false),
        (web(None, Users::default()), web(None, users()), false),
        (web(None, Users::default()), web(None, Users::default()), false),
    ] {
        assert_eq!(after.asks_less_than(&before), expected, "{before:?} {after:?}");
    }
}

#[test]
fn a_claim_is_read_from_its_header_and_garbage_is_none() {
    assert_eq!(Claim::of(&header("ada:a:b")), Some(claim("ada", "a:b")), "a password may have colons");
    assert_eq!(Claim::of(&header("ada:")).map(|claim| claim.user), Some("ada".to_owned()));
    for garbage in ["", "Basic", "Basic !!!", "Bearer YTpi", "Basic YQ=="] {
        assert_eq!(Claim::of(&HeaderValue::from_str(garbage).unwrap()), None, "{garbage:?}");
    }
}
