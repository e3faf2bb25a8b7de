//! What is masked, what is not, and what never reaches a terminal.

use super::{MAX_LEN, command_line, mount_source};

/// Arguments stand apart by `|` here, because a NUL is hard to read.
fn line(args: &str) -> String {
    command_line(format!("{args}|").replace('|', "\0").as_bytes()).unwrap_or_default()
}

/// The same, with the capture cut behind the last byte.
fn cut(args: &str) -> String {
    command_line(args.replace('|', "\0").as_bytes()).unwrap_or_default()
}

#[rustfmt::skip]
const MASKED: &[(&str, &str)] = &[
    // Options with the value behind `=`, or as the next argument.
    ("rbd|map|--key=AQBx==|img", "rbd map --key=*** img"),
    ("rbd|map|--key|AQBx==|img", "rbd map --key *** img"),
    ("a|--password=hunter2", "a --password=***"),
    ("a|--password|hunter2|-x", "a --password *** -x"),
    ("a|--PASSWORD=hunter2|--Token|x", "a --PASSWORD=*** --Token ***"),
    ("a|-password|x", "a -password ***"),
    ("a|-token=x", "a -token=***"),
    ("a|--api-key=x|--client-secret|y|--db.password|z", "a --api-key=*** --client-secret *** --db.password ***"),
    ("a|--api_key=x|--apiKey=y|--APIKey=z|--clientSecret=s", "a --api_key=*** --apiKey=*** --APIKey=*** --clientSecret=***"),
    ("a|--password=two words, and more=x", "a --password=***"),
    ("a|--password|two words", "a --password ***"),
    ("a|--password='x y'", "a --password=***"),
    ("a|--password|-starts-with-dash", "a --password ***"),
    ("a|--key|--token|x|y", "a --key *** *** y"),
    ("a|--password|=|x", "a --password = ***"),
    ("a|--password=", "a --password="),
    ("a|--token", "a --token"),
    ("a|--secrets=x|--tokens=y|--password2=z|--TOKEN_1=u", "a --secrets=*** --tokens=*** --password2=*** --TOKEN_1=***"),
    ("openssl|rsa|-passin|pass:x", "openssl rsa -passin ***"),
    ("a|pass:x", "a pass:***"),
    ("java|-Djavax.net.ssl.keyStorePassword=x", "java -Djavax.net.ssl.keyStorePassword=***"),
    ("nmcli|dev|wifi|connect|net|password|x", "nmcli dev wifi connect net password ***"),
    ("skopeo|--src-creds|u:p|x", "skopeo --src-creds *** x"),
    ("mysql|-u|root|-phunter2|db", "mysql -u root -p*** db"),
    ("mysql|-ps3cr3t!x y|db", "mysql -p*** db"),
    ("/usr/bin/mysqldump|-p123456|db", "/usr/bin/mysqldump -p*** db"),
    ("sh|-c|mariadb -uroot -p/x -h db", "sh -c mariadb -uroot -p***"),
    ("sh|-c|mysql -phunter2 -h db", "sh -c mysql -p***"),
    ("sshpass|-p|hunter2|ssh|-p|22|h", "sshpass -p *** ssh -p *** h"),
    ("docker|login|-u|me|-p|hunter2|r", "docker login -u me -p *** r"),
    ("sh|-c|docker login -p hunter2 r", "sh -c docker login -p ***"),
    ("sh|-c|export A_TOKEN=x; c --password|hunter2|y", "sh -c export A_TOKEN=*** *** y"),
    ("sh|-c|export A_TOKEN=x; c -H Authorization:|Bearer|hunter2", "sh -c export A_TOKEN=*** Bearer ***"),
    (r#"sh|-c|sudo -u "app" mount h:/x /y"#, r#"sh -c sudo -u "app" mount h:/x /y"#),
    // Assignments.
    ("env|AWS_SECRET_ACCESS_KEY=x/y|GITHUB_TOKEN=y|PGPASSWORD=z|cmd", "env AWS_SECRET_ACCESS_KEY=*** GITHUB_TOKEN=*** PGPASSWORD=*** cmd"),
    ("docker|run|-e|KEY=x|-e|A_SECRET=y|-eKEY=z|--env=MYSQL_PWD=w|img", "docker run -e KEY=*** -e A_SECRET=*** -eKEY=*** --env=MYSQL_PWD=*** img"),
    ("env|DB_PASSWORD=a,b c", "env DB_PASSWORD=***"),
    ("kubectl|--from-literal=password=a b", "kubectl --from-literal=password=***"),
    ("helm|--set|a.b=1,db.password=a,b,image=c", "helm --set a.b=1,db.password=***"),
    ("a|REDISCLI_AUTH=x|_auth=y", "a REDISCLI_AUTH=*** _auth=***"),
    // Lists of mount options.
    ("mount|-t|ceph|-o|name=admin,secret=AQ==,rw|m:/|/mnt", "mount -t ceph -o name=admin,secret=*** m:/ /mnt"),
    ("mount|-o|secret=AQ==,name=admin|/mnt", "mount -o secret=*** /mnt"),
    ("mount|-oname=a,key=AQ==,rw", "mount -oname=a,key=***"),
    ("mount|-okey=AQ==,rw", "mount -okey=***"),
    ("mount.cifs|-o|user=a,password=x,,y,ro", "mount.cifs -o user=a,password=***"),
    ("rbd|map|--options|name=a,secret=AQ==,ro", "rbd map --options name=a,secret=***"),
    ("docker|volume|create|--opt|o=addr=1,password=x,uid=0", "docker volume create --opt o=addr=1,password=***"),
    // URLs.
    ("curl|https://user:pass@host:80/x", "curl https://***@host:80/x"),
    ("git|clone|https://ghp_abc@github.com/x", "git clone https://***@github.com/x"),
    ("a|--db=postgres://u:p@h/db|redis://:p/w@h", "a --db=postgres://***@h/db redis://***@h"),
    ("a|https://u:p@ss@h/x", "a https://***@h/x"),
    ("a|--etcd=https://a:1,https://u:p@b:2", "a --etcd=https://a:1,https://***@b:2"),
    ("curl|https://h/p?a=1&token=x&b=2#c", "curl https://h/p?a=1&token=***"),
    ("curl|https://h/p?api_key=x", "curl https://h/p?api_key=***"),
    ("app|root:pa$s@tcp(db:3306)/x", "app root:***@tcp(db:3306)/x"),
    ("mount|//u:p@server/share", "mount //u:***@server/share"),
    ("curl|-u|admin:x|-uadmin:y|--user|a:b c|--user=a:b|h", "curl -u admin:*** -uadmin:*** --user a:*** --user=a:*** h"),
    // Headers.
    ("curl|-H|Authorization: Bearer abc", "curl -H Authorization: ***"),
    ("curl|-H|authorization:Basic abc", "curl -H authorization:***"),
    ("curl|-H|X-Vault-Token: abc|-H|Cookie: a=b; c=d", "curl -H X-Vault-Token: *** -H Cookie: ***"),
    ("curl|-H|Authorization:|Bearer|abc|x", "curl -H Authorization: Bearer *** x"),
    ("curl|-H|Bearer|abc", "curl -H Bearer ***"),
    ("curl|--header=Bearer abc", "curl --header=Bearer ***"),
    // Within a script, a connection string, JSON.
    ("sh|-c|mysql --password=x -h db; echo ok", "sh -c mysql --password=***"),
    ("sh|-c|mysql --password x -h db", "sh -c mysql --password ***"),
    ("sh|-c|mysql --password='x y' -h db", "sh -c mysql --password=***"),
    ("sh|-c|a --key --token x y", "sh -c a --key ***"),
    ("sh|-c|a --key --token|x|y", "sh -c a --key *** *** y"),
    ("sh|-c|a --token|x", "sh -c a --token ***"),
    ("sh|-c|export A_TOKEN=x B=y; curl -u a:b http://c", "sh -c export A_TOKEN=***"),
    ("sh|-c|curl -u a:b http://c", "sh -c curl -u a:***"),
    ("sh|-c|curl -u 'a b:c' http://c", "sh -c curl -u 'a b:***"),
    ("sh|-c|mount -o name=a,secret=AQ==,rw m:/ /mnt", "sh -c mount -o name=a,secret=***"),
    ("sh|-c|curl -H 'Authorization: Basic abc' http://h", "sh -c curl -H 'Authorization: ***"),
    ("sh|-c|echo 'name=a,secret=AQ== rbd img' > add", "sh -c echo 'name=a,secret=***"),
    ("psql|host=h password=x user=u", "psql host=h password=***"),
    ("psql|host=h password = 'x y' user=u", "psql host=h password = ***"),
    ("a|Server=h;Password=x y;Database=d", "a Server=h;Password=***"),
    ("curl|-d|{\"user\":\"u\",\"password\": \"x,\\\"y\",\"z\":1}", "curl -d {\"user\":\"u\",\"password\": ***"),
    ("curl|-d|{\\\"password\\\":\\\"x y\\\",\\\"z\\\":1}", "curl -d {\\\"password\\\":***"),
    ("a|{token: x, b: c}", "a {token: ***"),
    ("a|{\"auths\":{\"r\":{\"auth\":\"dXNlcjpw\"}}}", "a {\"auths\":{\"r\":{\"auth\":***"),
    ("a|{\"token\":{\"b\":\"x\"}}", "a {\"token\":***"),
    // Keys of IPsec.
    ("ip|xfrm|state|add|enc|cbc(aes)|0x0123456789abcdef0123456789ABCDEF", "ip xfrm state add enc cbc(aes) ***"),
];

#[test]
fn secrets_are_masked() {
    for (args, expected) in MASKED {
        assert_eq!(&line(args), expected, "{args}");
    }
}

#[rustfmt::skip]
const KEPT: &[&str] = &[
    "ip|neigh|del|169.254.1.1|dev|eth0",
    "ip|-6|neigh|del|fe80::1|lladdr|ee:ee:ee:ee:ee:ee|dev|eth0",
    "umount|-f|/var/lib/kubelet/pods/eebb8e08-a296-49c3-8679-03a110f0de3f/volumes/kubernetes.io~secret/token",
    "kubelet|--tls-private-key-file=/etc/k.pem|--token-auth-file|/etc/t|--password-stdin|--root-dir=/x",
    "docker|run|-u|1000:1000|-v|/etc/secret:/etc/secret:ro|nginx:1.2@sha256:0123",
    "psql|--no-password|-h|db",
    "env|PWD=/root|OLDPWD=/|PASSWORD_FILE=/run/secrets/p|AWS_ACCESS_KEY_ID=AKIA",
    "a|--monkey=1|--hotkeys|x|--keyring=/etc/k|--tokenizer=x",
    "passwd|root",
    "etcd|--listen=http://10.0.0.1:2379,http://[::1]:2379|https://example.com/a@b",
    "rsync|user@host:/a@b|git@github.com:x/y",
    "sshfs|me@host:/x|/mnt|-o|reconnect,ro",
    "kubectl|delete|secret|my-secret|-n|kube-system",
    "devmem|0x00000000fee00000",
    "ssh|-p|22|h|-p2222|docker|run|-p8080:80|-p127.0.0.1:1:1/tcp",
    "mkdir|-p|a/b|-p/x|install|-pm|644|find|-print0|-path|x|-perm|644",
];

#[test]
fn what_is_mounted_shows_no_password() {
    for (source, shown) in [
        ("https://u:p@host/dav", "https://***@host/dav"),
        ("//u:p@server/share", "//u:***@server/share"),
        ("curlftpfs#ftp://u:p@host/", "curlftpfs#ftp://***@host/"),
        ("u:p@host:/x", "u:***@host:/x"),
        ("10.47.136.60:cam", "10.47.136.60:cam"),
        ("me@host:/x", "me@host:/x"),
        ("/dev/mapper/a-b", "/dev/mapper/a-b"),
        ("overlay", "overlay"),
        ("[fd00::1]:6789,[fd00::2]:6789:/", "[fd00::1]:6789,[fd00::2]:6789:/"),
    ] {
        assert_eq!(mount_source(source), shown);
    }
}

#[test]
fn what_is_no_secret_stays() {
    for args in KEPT {
        assert_eq!(line(args), args.replace('|', " "));
    }
}

#[test]
fn a_secret_cut_by_the_capture_is_masked_too() {
    for (args, expected) in [
        ("rbd|map|--key=AQ", "rbd map --key=***"),
        ("rbd|map|--key|AQ", "rbd map --key ***"),
        ("mount|-o|name=a,secret=AQ", "mount -o name=a,secret=***"),
        ("a|--password='x y", "a --password=***"),
        ("git|clone|https://ghp_abc", "git clone https://***"),
        ("git|clone|https://user:pa", "git clone https://***"),
        ("curl|{\"password\":\"x", "curl {\"password\":***"),
        ("ip|xfrm|0x0123456789ab", "ip xfrm ***"),
        ("git|clone|https://host/x", "git clone https://host/x"),
        ("ip|neigh|del|fe80::1", "ip neigh del fe80::1"),
    ] {
        assert_eq!(cut(args), expected, "{args}");
    }
}

#[test]
fn no_prefix_of_a_command_line_shows_more_of_a_secret_than_the_whole() {
    for (args, _) in MASKED.iter().filter(|(args, _)| args.contains("hunter2") || args.contains("AQ==")) {
        for length in 0..args.len() {
            let shown = cut(&args[..length]);
            assert!(!shown.contains("hu") && !shown.contains("AQ"), "{shown}");
        }
    }
}

#[test]
fn nothing_that_a_terminal_obeys_is_left() {
    let shown = line("a|\u{1b}[2J\u{1b}]0;x\u{7}|b\nc\rd\te|\u{9b}31m|\u{202e}txt|\u{200b}");
    assert_eq!(
        shown,
        "a \u{fffd}[2J\u{fffd}]0;x\u{fffd} b\u{fffd}c\u{fffd}d e \u{fffd}31m \u{fffd}txt \u{fffd}"
    );
    assert_eq!(command_line(b"a\xff\xfe\0").unwrap(), "a\u{fffd}\u{fffd}");
}

#[test]
fn a_line_break_does_not_hide_what_follows_it() {
    assert_eq!(line("sh|-c|x\nexport A_KEY=x\ny"), "sh -c x\u{fffd}export A_KEY=***");
    assert_eq!(line("sh|-c|x\ny --token\nz"), "sh -c x\u{fffd}y --token\u{fffd}***");
}

#[test]
fn no_arguments_are_none() {
    for args in [b"".as_slice(), b"\0", b"\0\0\0"] {
        assert_eq!(command_line(args), None);
    }
    assert_eq!(line("a||b|"), "a b");
}

#[test]
fn a_long_line_is_cut_between_characters() {
    let shown = line(&format!("a|{}", "é".repeat(4000)));
    assert!(shown.ends_with("é…") && shown.len() <= MAX_LEN && shown.len() > MAX_LEN - 4);
    let whole = line(&"x".repeat(MAX_LEN));
    assert_eq!(whole.len(), MAX_LEN);
    assert!(!whole.contains('…'));
}

#[test]
fn a_secret_across_the_cut_is_masked() {
    let shown = line(&format!("{}|--password={}", "x".repeat(MAX_LEN - 20), "s".repeat(100_000)));
    assert!(shown.ends_with("--password=***…"), "{}", &shown[shown.len() - 40..]);
}
