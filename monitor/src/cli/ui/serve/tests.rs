use std::io::{BufRead as _, BufReader, ErrorKind, Write as _};
use std::net::TcpStream;

use kevtmon_testing::patience::eventually;

use super::*;
use crate::api_rig::Rig;

struct Client {
    address: String,
    token: String,
    _server: Server,
}

impl Client {
    fn of(socket: &Path) -> Self {
        let (server, url) = start(socket, 0).unwrap();
        let (address, token) = url.strip_prefix("http://").unwrap().split_once("/?token=").unwrap();
        assert!(address.starts_with("127.0.0.1:") && token.len() == 32, "{url}");
        Self { address: address.to_owned(), token: token.to_owned(), _server: server }
    }

    fn send(&self, request: &str) -> TcpStream {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        stream.write_all(request.replace('\n', "\r\n").as_bytes()).unwrap();
        stream
    }

    fn answer(&self, request: &str) -> String {
        let mut answer = String::new();
        self.send(request).read_to_string(&mut answer).unwrap();
        answer
    }

    fn get(&self, target: &str) -> String {
        self.answer(&format!("GET {target} HTTP/1.1\nHost: localhost\n{TOKEN}: {}\n\n", self.token))
    }
}

#[track_caller]
fn expect(answer: &str, status: u16) {
    assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{answer}");
    for header in ["content-security-policy: default-src 'none'; ", "referrer-policy: no-referrer\r\n"] {
        assert!(answer.contains(header), "{answer}");
    }
}

#[test]
fn the_page_is_for_who_has_its_address() {
    let rig = Rig::new();
    let client = Client::of(&rig.path);
    let page = |query: &str| client.answer(&format!("GET /{query} HTTP/1.1\nHost: localhost:1\n\n"));
    let (token, found) = (&client.token, page(&format!("?token={}", client.token)));
    expect(&found, 200);
    assert!(found.contains("content-type: text/html") && found.ends_with("</html>\n"), "{found}");
    let (_, nonce) = found.split_once("script-src 'nonce-").unwrap();
    let nonce = &nonce[..32];
    assert_eq!(found.matches(&format!(" nonce=\"{nonce}\">")).count(), 2);
    assert!(!found.contains("@css@") && !found.contains("@js@") && !found.contains("@nonce@"));
    assert!(nonce != token && !found.contains(token.as_str()));
    for query in ["", "?token=", &format!("?token={}", &token[1..]), &format!("?token={token}0"), "?token=é"]
    {
        assert!(!page(query).contains("<html"), "{query}");
    }
    let other = Client::of(&rig.path);
    assert_ne!(other.token, *token);
}

#[test]
fn each_request_needs_the_token_in_its_header_and_is_only_to_read() {
    let rig = Rig::new();
    let client = Client::of(&rig.path);
    let token = &client.token;
    for path in PROXIED.iter().chain(&[FOLLOW, "/unknown"]) {
        for wrong in
            [String::new(), format!("{TOKEN}: {}\n", "0".repeat(32)), format!("Cookie: token={token}\n")]
        {
            let query = format!("GET {path}?token={token} HTTP/1.1\nHost: localhost\n{wrong}\n");
            expect(&client.answer(&query), 403);
        }
    }
    let post = format!("POST /v1/state HTTP/1.1\nHost: localhost\n{TOKEN}: {token}\n\n");
    expect(&client.answer(&post), 405);
    for path in ["/unknown", "/v1/version", "/v1/state/", "//v1/state", "/v1/../v1/state"] {
        expect(&client.get(path), 404);
    }
}

#[test]
fn a_name_that_another_host_has_given_to_the_loopback_is_refused() {
    let rig = Rig::new();
    let client = Client::of(&rig.path);
    for (hosts, status) in [
        ("Host: 127.0.0.1:8080\n", 200),
        ("Host: localhost\n", 200),
        ("Host: [::1]:80\n", 200),
        ("", 403),
        ("Host: \n", 403),
        ("Host: evil.example\n", 403),
        ("Host: evil.example:80\n", 403),
        ("Host: localhost.evil.example\n", 403),
        ("Host: 127.0.0.1:x\n", 403),
        ("Host: localhost\nHost: evil.example\n", 403),
    ] {
        let request = format!("GET /?token={} HTTP/1.1\n{hosts}\n", client.token);
        let answer = client.answer(&request);
        assert!(answer.starts_with(&format!("HTTP/1.1 {status} ")), "{hosts}: {answer}");
    }
}

#[test]
fn what_the_page_shows_is_asked_of_the_daemon() {
    let rig = Rig::new();
    rig.push([1, 2]);
    let client = Client::of(&rig.path);
    for (target, words) in [
        ("/v1/incidents", "{\"incidents\":[]}"),
        ("/v1/events?seq=2", "\"seq\":2,"),
        ("/v1/why?subject=nothing", "{\"unknown\":"),
        ("/v1/state", "\"node\":\"n\""),
        ("/v1/doctor", "\"node\":\"n\""),
    ] {
        let answer = client.get(target);
        expect(&answer, 200);
        assert!(answer.contains(words), "{target}: {answer}");
    }
    expect(&client.get("/v1/events?nonsense=1"), 502);
}

#[test]
fn events_are_streamed_and_so_is_the_end_of_the_daemon() {
    let rig = Rig::new();
    let client = Client::of(&rig.path);
    let request = format!("GET {FOLLOW} HTTP/1.1\nHost: localhost\n{TOKEN}: {}\n\n", client.token);
    let stream = client.send(&request);
    stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let mut stream = BufReader::new(stream);
    let mut read = String::new();
    let mut has = |words: &str| {
        match stream.read_line(&mut read) {
            Ok(length) => assert_ne!(length, 0, "{read}"),
            Err(error) => assert!(matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut)),
        }
        read.contains(words)
    };
    let mut next = 1..;
    // One that occurs before the stream begins is not in it.
    eventually("an event is streamed", || {
        rig.push(next.next());
        has("\"seq\":")
    });
    let path = rig.path.clone();
    drop(rig);
    eventually("the end is told", || has("{\"down\":"));
    let answer = client.get("/v1/state");
    expect(&answer, 502);
    assert!(answer.contains(&format!("no daemon listens on {}", path.display())), "{answer}");
}
