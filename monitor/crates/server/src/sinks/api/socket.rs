//! The socket file: created with its final mode, removed at the end unless it was replaced.

use std::fs::{self, DirBuilder, Permissions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::sys::socket::{
    AddressFamily, Backlog, SockFlag, SockType, UnixAddr, bind as bind_to, connect, listen, socket,
};
use nix::sys::stat::{Mode, fchmod};

use super::ApiError;

/// Root and the group of the socket.
const MODE: u32 = 0o660;
const DIRECTORY_MODE: u32 = 0o755;

/// The file; removed when dropped, unless another one has its path.
#[derive(Debug)]
pub(super) struct SocketFile {
    path: PathBuf,
    device: u64,
    inode: u64,
}

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = fs::symlink_metadata(&self.path)
            .is_ok_and(|there| (there.dev(), there.ino()) == (self.device, self.inode));
        if ours && let Err(error) = fs::remove_file(&self.path) {
            tracing::debug!(%error, path = %self.path.display(), "cannot remove the socket");
        }
    }
}

/// Listens at the path. A socket left by a dead daemon is replaced.
pub(super) fn bind(path: &Path) -> Result<(UnixListener, SocketFile), ApiError> {
    if let Some(parent) = path.parent().filter(|parent| !parent.as_os_str().is_empty()) {
        DirBuilder::new()
            .recursive(true)
            .mode(DIRECTORY_MODE)
            .create(parent)
            .map_err(|source| ApiError::Directory { path: parent.to_owned(), source })?;
    }
    clear(path)?;
    let failed = |source| ApiError::Listen { path: path.to_owned(), source };
    let listener = listen_at(path).map_err(failed)?;
    let there = fs::symlink_metadata(path).map_err(failed)?;
    Ok((listener, SocketFile { path: path.to_owned(), device: there.dev(), inode: there.ino() }))
}

/// Removes a socket that no process listens on.
fn clear(path: &Path) -> Result<(), ApiError> {
    let failed = |source| ApiError::Listen { path: path.to_owned(), source };
    match fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed(error)),
        Ok(there) if !there.file_type().is_socket() => {
            return Err(ApiError::NotASocket { path: path.to_owned() });
        }
        Ok(_) => {}
    }
    match probe_listener(path) {
        Err(Errno::ECONNREFUSED) => fs::remove_file(path).map_err(failed),
        Err(Errno::ENOENT) => Ok(()),
        // Any other error, such as a full backlog, means that a process listens.
        Ok(()) | Err(_) => Err(ApiError::Taken { path: path.to_owned() }),
    }
}

/// Connects without blocking: a daemon that hangs would block this one, too.
fn probe_listener(path: &Path) -> nix::Result<()> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new(path)?)
}

fn listen_at(path: &Path) -> io::Result<UnixListener> {
    let flags = SockFlag::SOCK_CLOEXEC | SockFlag::SOCK_NONBLOCK;
    let socket = socket(AddressFamily::Unix, SockType::Stream, flags, None)?;
    // bind(2) gives the file the mode of the socket, less the umask (net/unix/af_unix.c, unix_bind_bsd): so it
    // is never open to others, not even for a moment.
    fchmod(&socket, Mode::from_bits_truncate(MODE))?;
    bind_to(socket.as_raw_fd(), &UnixAddr::new(path)?)?;
    fs::set_permissions(path, Permissions::from_mode(MODE))?;
    listen(&socket, Backlog::MAXCONN)?;
    Ok(UnixListener::from(socket))
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixStream;

    use super::*;

    #[test]
    fn the_directory_is_made_and_root_and_group_may_connect() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/k.sock");
        let (_listener, file) = bind(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, MODE);
        assert_eq!(fs::metadata(dir.path().join("a/b")).unwrap().mode() & 0o7777, DIRECTORY_MODE);
        UnixStream::connect(&path).unwrap();
        drop(file);
        assert!(!path.exists());
    }

    #[test]
    fn what_a_dead_daemon_left_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.sock");
        drop(UnixListener::bind(&path).unwrap());
        assert!(path.exists());
        let (_listener, _file) = bind(&path).unwrap();
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn the_socket_of_a_living_daemon_is_left_alone_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.sock");
        let (_listener, _file) = bind(&path).unwrap();
        let error = bind(&path).unwrap_err().to_string();
        assert!(error.contains("another kevtmon listens on") && error.contains("k.sock"), "{error}");
        UnixStream::connect(&path).unwrap();
    }

    #[test]
    fn a_daemon_that_hangs_is_a_living_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.sock");
        let flags = SockFlag::SOCK_CLOEXEC;
        let hung = socket(AddressFamily::Unix, SockType::Stream, flags, None).unwrap();
        bind_to(hung.as_raw_fd(), &UnixAddr::new(&path).unwrap()).unwrap();
        listen(&hung, Backlog::new(0).unwrap()).unwrap();
        let _waiting = UnixStream::connect(&path).unwrap();
        assert!(matches!(bind(&path), Err(ApiError::Taken { .. })));
    }

    #[test]
    fn a_file_that_is_no_socket_is_left_alone_and_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("precious");
        fs::write(&path, "data").unwrap();
        assert!(bind(&path).unwrap_err().to_string().contains("precious"));
        assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    }

    #[test]
    fn a_socket_that_another_put_in_its_place_is_not_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("k.sock");
        let (_listener, file) = bind(&path).unwrap();
        let other = dir.path().join("other");
        let _other = UnixListener::bind(&other).unwrap();
        fs::rename(&other, &path).unwrap();
        drop(file);
        assert!(path.exists());
    }

    #[test]
    fn a_path_that_is_too_long_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x".repeat(200));
        assert!(matches!(bind(&path), Err(ApiError::Listen { .. })));
    }
}
