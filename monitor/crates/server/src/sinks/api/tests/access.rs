//! Who may ask, and what is listening there.

use super::*;

#[test]
fn something_else_that_listens_is_not_taken_for_the_daemon() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("other.sock");
    let listener = std::os::unix::net::UnixListener::bind(&path).unwrap();
    let answers =
        ["HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}", "HTTP/1.1 200 OK\r\nkevtmon-api: 7\r\n\r\n"];
    thread::scope(|scope| {
        scope.spawn(|| {
            for answer in answers {
                let (mut stream, _) = listener.accept().unwrap();
                let mut line = String::new();
                BufReader::new(stream.try_clone().unwrap()).read_line(&mut line).unwrap();
                stream.write_all(answer.as_bytes()).unwrap();
            }
        });
        assert!(matches!(Remote::connect(&path), Err(RemoteError::NotKevtmon { .. })));
        let error = Remote::connect(&path).unwrap_err().to_string();
        assert!(error.contains("has interface version 7, this kevtmon has 1"), "{error}");
    });
}

/// Changes the user of the calling thread only: the raw system calls do not affect the other threads.
fn become_nobody(group: libc::gid_t) {
    const NOBODY: libc::uid_t = 65_534;
    // SAFETY: setgroups(2) reads no list of length 0; the other calls take plain integers.
    let failed = unsafe {
        libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) != 0
            || libc::syscall(libc::SYS_setresgid, group, group, group) != 0
            || libc::syscall(libc::SYS_setresuid, NOBODY, NOBODY, NOBODY) != 0
    };
    assert!(!failed, "{}", io::Error::last_os_error());
}

#[test]
fn a_stranger_is_refused_even_where_the_socket_is_open_to_all_and_a_member_of_its_group_is_not() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can become somebody else");
        return;
    }
    let rig = Rig::new();
    let ask_as = |group| {
        thread::scope(|scope| {
            let asking = scope.spawn(|| {
                become_nobody(group);
                Remote::connect(&rig.path).map(|remote| remote.path().to_owned())
            });
            asking.join().unwrap()
        })
    };
    assert!(matches!(ask_as(65_534), Err(RemoteError::Denied { .. })), "by the mode of the socket");
    fs::set_permissions(&rig.path, Permissions::from_mode(0o666)).unwrap();
    assert!(matches!(ask_as(65_534), Err(RemoteError::Denied { .. })), "by the daemon");
    assert!(ask_as(0).is_ok());
}

#[test]
fn connections_that_say_nothing_make_room_for_a_query() {
    let rig = Rig::new();
    let idle: Vec<UnixStream> = (0..600).map(|_| UnixStream::connect(&rig.path).unwrap()).collect();
    assert!(rig.ask("/v1/version").starts_with("HTTP/1.1 200 "));
    let open = idle.iter().filter(|stream| {
        stream.set_nonblocking(true).unwrap();
        (&**stream).read(&mut [0]).is_err_and(|error| error.kind() == io::ErrorKind::WouldBlock)
    });
    // Only as many were closed as the others needed, and none because it had waited for too long.
    assert!(open.count() >= 600 - 100);
}

#[test]
fn a_client_without_access_gets_no_connection() {
    if !nix::unistd::geteuid().is_root() {
        eprintln!("skipped: only root can become somebody else");
        return;
    }
    let rig = Rig::new();
    fs::set_permissions(&rig.path, Permissions::from_mode(0o666)).unwrap();
    let connect = || UnixStream::connect(&rig.path).unwrap();
    let unclaimed: Vec<UnixStream> = thread::scope(|scope| {
        let connecting = scope.spawn(|| {
            become_nobody(65_534);
            (0..600).map(|_| connect()).collect()
        });
        connecting.join().unwrap()
    });
    for mut stranger in unclaimed {
        stranger.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut answer = String::new();
        // Nothing was sent, and yet it ends.
        stranger.read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 403 ") && answer.contains("user 65534"), "{answer}");
    }
}
