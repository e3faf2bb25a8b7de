//! `--web.config.file`: metrics behind TLS and passwords, as clients of Prometheus' exporters know it.

use std::fs;
use std::path::{Path, PathBuf};

use kevtmon_tests::certificate::Certificate;
use kevtmon_tests::daemon::{Daemon, Launch, launch, program};
use kevtmon_tests::eventually;
use kevtmon_tests::http;
use kevtmon_tests::mount::Scratch;
use kevtmon_tests::process::{Finished, attempt};

/// Hashes of these passwords.
const RIGHT: (&str, &str) = ("right", "$2b$04$J1rVmDn8nWIvGDo.EJb0POYcnCLJtWG6WLLHx2BLQODFaLFQcl0ee");
const ROTATED: (&str, &str) = ("rotated", "$2b$04$CT4nO3dbRwXP562gR43Q5e/.FNo0ii9V0k/C.nyXWbBl1L6f6dFp.");

fn secured(launch: Launch, text: &str) -> Launch {
    let path = launch.directory().join("web.yml");
    fs::write(&path, text).expect("a file can be written");
    launch.argument("--web.config.file").argument(path)
}

fn web_config(daemon: &Daemon) -> PathBuf {
    daemon.directory().join("web.yml")
}

/// What curl gets of a path: its exit status, and the status of HTTP before the body.
fn curl(daemon: &Daemon, scheme: &str, path: &str, options: &[&str]) -> Finished {
    let url = format!("{scheme}://{}{path}", daemon.address());
    let mut words =
        vec!["curl", "--silent", "--show-error", "--noproxy", "*", "--write-out", "\n%{http_code}"];
    words.extend(options);
    words.push(&url);
    attempt(&words)
}

#[track_caller]
fn expect_status(ran: &Finished, status: &str) {
    let found = ran.stdout.lines().last().unwrap_or_default();
    assert_eq!(found, status, "{} {}", ran.stdout, ran.stderr);
}

#[track_caller]
fn expect_metrics(ran: &Finished) {
    expect_status(ran, "200");
    assert!(ran.stdout.contains("\nkevtmon_build_info{"), "{}", ran.stdout);
}

fn has_metrics(ran: &Finished) -> bool {
    ran.stdout.ends_with("\n200") && ran.stdout.contains("\nkevtmon_build_info{")
}

/// Panics if any metric came.
#[track_caller]
fn expect_nothing(ran: &Finished) {
    assert!(!ran.status.success() && !ran.stdout.contains("kevtmon_"), "{} {}", ran.stdout, ran.stderr);
}

fn users(hash: &str) -> String {
    format!("basic_auth_users:\n  ada: {hash}\n")
}

#[test]
fn metrics_take_the_password_and_health_does_not_and_a_new_password_takes_no_restart() {
    let mut daemon = secured(launch(), &users(RIGHT.1)).start();
    let with = |password: &str| curl(&daemon, "http", "/metrics", &["--user", &format!("ada:{password}")]);
    for _ in 0..3 {
        expect_metrics(&with(RIGHT.0));
        expect_status(&with("wrong"), "401");
    }
    expect_status(&curl(&daemon, "http", "/metrics", &["--user", "bob:right"]), "401");
    for path in ["/metrics", "/", "/anything"] {
        let refused = http::get(daemon.address(), path).expect("an answer");
        assert_eq!(refused.status, 401, "{path}: {}", refused.head);
        assert!(refused.head.contains("www-authenticate: Basic realm=\"kevtmon\""), "{}", refused.head);
        assert!(!refused.body.contains("kevtmon_"), "{}", refused.body);
    }
    for path in ["/healthz", "/readyz"] {
        assert_eq!(http::get(daemon.address(), path).expect("an answer").status, 200, "{path}");
    }

    fs::write(web_config(&daemon), users(ROTATED.1)).expect("a file can be written");
    // A disk that is slow just then is not waited for.
    eventually!(has_metrics(&with(ROTATED.0)), "the new password is right");
    expect_status(&with(RIGHT.0), "401");
    // Nor does it end with a file that is emptied, as one is that is being written.
    for text in ["", "basic_auth_users:\n", "basic_auth_users: {}\n"] {
        fs::write(web_config(&daemon), text).expect("a file can be written");
        expect_status(&curl(&daemon, "http", "/metrics", &[]), "401");
        expect_metrics(&with(ROTATED.0));
    }
    let is_told = || daemon.log().contains("authentication cannot be switched off without a restart");
    eventually!(is_told(), "the log says why");
    // A mistake changes nothing, and is told.
    fs::write(web_config(&daemon), "basic_auth_user:\n").expect("a file can be written");
    expect_metrics(&with(ROTATED.0));
    expect_status(&with(RIGHT.0), "401");
    let log = daemon.log();
    assert!(
        log.contains("web.yml:1:1: unknown key") && log.contains("keeping the web configuration"),
        "{log}"
    );
    daemon.stop();
}

#[test]
fn with_a_certificate_only_tls_is_spoken_and_a_new_certificate_takes_no_restart() {
    let launch = launch();
    let directory = launch.directory().to_owned();
    let text = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n";
    let launch = secured(launch, text);
    let address = launch.address();
    let server = Certificate::server(&directory, "server", address);
    let trusted = directory.join("trusted.pem");
    fs::copy(&server.certificate, &trusted).expect("a file can be copied");
    let mut daemon = launch.start();
    let trusting = |certificate: &Path| {
        curl(&daemon, "https", "/metrics", &["--cacert", &certificate.to_string_lossy()])
    };
    expect_metrics(&trusting(&trusted));
    let plain = http::get(address, "/metrics").expect("an answer");
    assert_eq!(
        (plain.status, plain.body.as_str()),
        (400, "this port speaks https only.\n"),
        "{}",
        plain.head
    );
    expect_nothing(&curl(&daemon, "https", "/metrics", &[]));
    for version in ["1.2", "1.3"] {
        let options = ["--cacert", &trusted.to_string_lossy(), "--tls-max", version];
        expect_metrics(&curl(&daemon, "https", "/metrics", &options));
    }

    let next = Certificate::server(&directory, "next", address);
    next.replace(&server);
    eventually!(has_metrics(&trusting(&next.certificate)), "the new certificate is shown");
    expect_nothing(&trusting(&trusted));
    // Half of a pair is a mistake: the last good one stays.
    fs::copy(directory.join("trusted.pem"), &server.certificate).expect("a file can be copied");
    let is_kept = || daemon.log().contains("keeping the web configuration from before");
    eventually!(has_metrics(&trusting(&next.certificate)) && is_kept(), "the mistake is seen");
    expect_metrics(&trusting(&next.certificate));
    daemon.stop();
}

#[test]
fn where_a_client_certificate_is_required_none_is_served_without_one_of_the_authority_until_a_restart() {
    let launch = launch();
    let directory = launch.directory().to_owned();
    let text = "tls_server_config:\n  cert_file: server.pem\n  key_file: server.key\n  client_ca_file: authority.pem\n  \
                client_auth_type: RequireAndVerifyClientCert\n";
    let required = format!("{text}{}", users(RIGHT.1));
    let if_given =
        required.replace("RequireAndVerify", "Verify").replace("ClientCert\n", "ClientCertIfGiven\n");
    let launch = secured(launch, &if_given);
    let server = Certificate::server(&directory, "server", launch.address());
    let authority = Certificate::authority(&directory, "authority");
    let known = Certificate::client(&directory, "known", &authority);
    let others = Certificate::authority(&directory, "others");
    let stranger = Certificate::client(&directory, "stranger", &others);
    let mut daemon = launch.start();
    let trusted = server.certificate.to_string_lossy().into_owned();
    let ask = |client: Option<&Certificate>, user: &str| {
        let mut options = vec!["--cacert", &trusted, "--user", user];
        let paths = client.map(|client| (client.certificate.to_string_lossy(), client.key.to_string_lossy()));
        if let Some((certificate, key)) = &paths {
            options.extend(["--cert", certificate, "--key", key]);
        }
        curl(&daemon, "https", "/metrics", &options)
    };
    expect_metrics(&ask(None, "ada:right"));
    expect_nothing(&ask(Some(&stranger), "ada:right"));

    fs::write(web_config(&daemon), &required).expect("a file can be written");
    eventually!(!has_metrics(&ask(None, "ada:right")), "a certificate is needed from now on");
    expect_metrics(&ask(Some(&known), "ada:right"));
    expect_status(&ask(Some(&known), "ada:wrong"), "401");
    expect_nothing(&ask(None, "ada:right"));
    expect_nothing(&ask(Some(&stranger), "ada:right"));

    for weaker in [&if_given, text] {
        let log = daemon.log().len();
        fs::write(web_config(&daemon), weaker).expect("a file can be written");
        let is_told =
            || daemon.log()[log..].contains("authentication cannot be switched off without a restart");
        eventually!(
            {
                expect_nothing(&ask(None, "ada:right"));
                is_told()
            },
            "the log says why"
        );
        expect_nothing(&ask(None, "ada:right"));
        expect_status(&ask(Some(&known), "ada:wrong"), "401");
        expect_metrics(&ask(Some(&known), "ada:right"));
    }
    daemon.stop();
}

#[test]
fn a_mistake_ends_the_start_before_anything_is_started_and_the_check_tells_the_same() {
    let scratch = Scratch::without_mounts();
    let (web, config) = (scratch.path().join("web.yml"), scratch.path().join("kevtmon.toml"));
    fs::write(&web, "tls_server_config:\n  cert_fil: server.pem\n").expect("a file can be written");
    fs::write(&config, format!("[metrics]\nweb_config = {web:?}\n")).expect("a file can be written");
    let complaint = format!("{}:2:3: unknown key \"cert_fil\"; did you mean \"cert_file\"?", web.display());
    let started = launch().argument("--config").argument(&config);
    let state = started.directory().join("state");
    let socket = started.directory().join("kevtmon.sock");
    let ran = started.run_to_end();
    assert_eq!(ran.status.code(), Some(64), "{}", ran.stderr);
    assert!(ran.stderr.contains(&complaint), "{}", ran.stderr);
    assert!(!state.exists() && !socket.exists());
    let check = [program().as_path(), Path::new("config"), Path::new("check"), &config].map(Path::to_owned);
    let ran = attempt(&check);
    assert_eq!(ran.status.code(), Some(64), "{}", ran.stderr);
    assert!(ran.stderr.contains(&complaint), "{}", ran.stderr);
    fs::write(&web, users(RIGHT.1)).expect("a file can be written");
    let ran = attempt(&check).succeeded("config check");
    assert!(ran.stdout.contains("web_config = "), "{}", ran.stdout);
}
