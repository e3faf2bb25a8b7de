//! Mounts and processes for the tests: made here, undone on drop.

use std::ffi::{CString, c_char, c_int, c_void};
use std::fs::File;
use std::io::Read;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A forked child has all descriptors of this process for a moment, so tests that mount and fork take turns.
static TURN: Mutex<()> = Mutex::new(());

/// A directory for mounts, which are detached on drop, the last first.
pub(super) struct MountSandbox {
    mounts: Vec<PathBuf>,
    /// In a directory in which nobody else makes anything.
    top: PathBuf,
    _dir: tempfile::TempDir,
    _turn: MutexGuard<'static, ()>,
}

impl MountSandbox {
    /// A directory with a private mount of its own, so that nothing propagates out of it.
    pub(super) fn new() -> Self {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let dir = tempfile::tempdir().unwrap();
        let top = dir.path().join("top");
        std::fs::create_dir(&top).unwrap();
        let mut sandbox = Self { mounts: Vec::new(), top, _dir: dir, _turn: turn };
        mount("sandbox", &sandbox.top, "tmpfs", 0, "");
        sandbox.mounts.push(sandbox.top.clone());
        mount("", &sandbox.top, "", libc::MS_PRIVATE, "");
        sandbox
    }

    /// Makes what is mounted on this sandbox propagate to copies of the sandbox.
    pub(super) fn share(&self) {
        mount("", &self.top, "", libc::MS_SHARED, "");
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.top.join(name)
    }

    pub(super) fn mount(&mut self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        mount("target", &path, "tmpfs", 0, "");
        self.mounts.push(path.clone());
        path
    }

    pub(super) fn bind(&mut self, from: &str, at: &str) {
        let (from, at) = (self.path(from), self.path(at));
        mount(from.to_str().unwrap(), &at, "", libc::MS_BIND, "");
        self.mounts.push(at);
    }

    /// Mounts a FUSE file system whose server has died inside: it has the connection and never answers.
    pub(super) fn mount_hung_fuse(&mut self, name: &str) -> (PathBuf, OwnedFd) {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        let server = File::options().read(true).write(true).open("/dev/fuse").unwrap();
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0", server.as_raw_fd());
        mount("hung", &path, "fuse", 0, &options);
        self.mounts.push(path.clone());
        (path, server.into())
    }
}

impl MountSandbox {
    pub(super) fn place(&mut self, name: &str) -> PathBuf {
        let path = self.path(name);
        std::fs::create_dir_all(&path).unwrap();
        self.mounts.push(path.clone());
        path
    }
}

impl Drop for MountSandbox {
    fn drop(&mut self) {
        for path in self.mounts.iter().rev() {
            let _ = umount(path, libc::MNT_DETACH);
        }
    }
}

fn mount(source: &str, target: &Path, fstype: &str, flags: libc::c_ulong, data: &str) {
    let [source, fstype, data] = [source, fstype, data].map(|text| CString::new(text).unwrap());
    let target = c_path(target);
    // SAFETY: four strings that live for the call.
    let result = unsafe {
        libc::mount(source.as_ptr(), target.as_ptr(), fstype.as_ptr(), flags, data.as_ptr().cast())
    };
    assert_eq!(result, 0, "mount: {}", std::io::Error::last_os_error());
}

/// Unmounts; the positive errno when refused.
pub(super) fn umount(path: &Path, flags: c_int) -> Result<(), i32> {
    let path = c_path(path);
    // SAFETY: a string that lives for the call.
    match unsafe { libc::umount2(path.as_ptr(), flags) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error().raw_os_error().unwrap()),
    }
}

pub(super) fn c_path(path: &Path) -> CString {
    CString::new(path.to_str().unwrap()).unwrap()
}

pub(super) enum Step {
    Open(CString, c_int),
    /// Opens at this descriptor.
    OpenAt(CString, c_int),
    Map(CString),
    Bind(CString),
    Chdir(CString),
    Chroot(CString),
    /// A mount namespace of its own, with this propagation from the old one.
    Unshare(libc::c_ulong),
    Detach(CString),
    /// Mounts a FUSE file system as the first step, which is its server and never answers.
    Serve(CString),
    Mount(CString),
    /// Mounts a tmpfs on the root directory, and makes that its root directory.
    CoverRoot,
    /// A second thread with a current directory of its own.
    ThreadIn(CString),
    /// As many threads, of which the last one opens this in a table of descriptors of its own.
    Apart(CString, usize),
    /// A process of its own that has the same table of descriptors.
    ShareFiles,
    /// The first thread ends, so it is the last step.
    EndLeader,
}

/// A process that keeps what its steps gave it until it is dropped.
pub(super) struct Child {
    pid: libc::pid_t,
    _stay: OwnedFd,
}

impl Child {
    /// Forks, takes the steps, and returns when they are done.
    pub(super) fn spawn(steps: Vec<Step>) -> Self {
        let (mut ready, ready_out) = pipe();
        let (wait, stay) = pipe();
        // SAFETY: the child only makes system calls on memory that was prepared before.
        let pid = unsafe { libc::fork() };
        assert!(pid >= 0);
        if pid == 0 {
            // SAFETY: as above; it never returns to the code of the parent.
            unsafe { act(&steps, ready_out.as_raw_fd(), wait.as_raw_fd()) }
        }
        drop((ready_out, wait));
        let child = Self { pid, _stay: stay.into() };
        let mut byte = [0];
        assert_eq!(ready.read(&mut byte).unwrap(), 1, "a step failed");
        child
    }

    pub(super) fn tgid(&self) -> u32 {
        u32::try_from(self.pid).unwrap()
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        // SAFETY: a child that was not waited for yet, so the id is still its own.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, ptr::null_mut(), 0);
        }
    }
}

fn pipe() -> (File, File) {
    let mut ends = [0; 2];
    // SAFETY: room for two descriptors, which nothing else uses yet.
    unsafe {
        assert_eq!(libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC), 0);
        (File::from_raw_fd(ends[0]), File::from_raw_fd(ends[1]))
    }
}

/// # Safety
/// Only in a forked child.
unsafe fn act(steps: &[Step], ready_out: c_int, wait: c_int) -> ! {
    // SAFETY: system calls on strings that live as long as this process. The two pipe ends are moved to the
    // lowest numbers, and everything else that was inherited is closed.
    unsafe {
        let (ready_out, wait) = (libc::dup2(ready_out, 1000), libc::dup2(wait, 1001));
        libc::syscall(libc::SYS_close_range, 0, 999, 0);
        libc::syscall(libc::SYS_close_range, 1002, u32::MAX, 0);
        for step in steps {
            let ok = match step {
                Step::Open(path, flags) => libc::open(path.as_ptr(), *flags) >= 0,
                Step::OpenAt(path, fd) => {
                    let low = libc::open(path.as_ptr(), libc::O_RDONLY);
                    libc::dup2(low, *fd) == *fd && libc::close(low) == 0
                }
                Step::Map(path) => {
                    let fd = libc::open(path.as_ptr(), libc::O_RDONLY);
                    let mapped = libc::mmap(ptr::null_mut(), 4096, libc::PROT_READ, libc::MAP_PRIVATE, fd, 0);
                    libc::close(fd);
                    mapped != libc::MAP_FAILED
                }
                Step::Bind(path) => bind(path),
                Step::Chdir(path) => libc::chdir(path.as_ptr()) == 0,
                Step::Chroot(path) => libc::chroot(path.as_ptr()) == 0,
                Step::Unshare(propagation) => {
                    libc::unshare(libc::CLONE_NEWNS) == 0
                        && libc::mount(
                            ptr::null(),
                            c"/".as_ptr(),
                            ptr::null(),
                            libc::MS_REC | *propagation,
                            ptr::null(),
                        ) == 0
                }
                Step::Detach(path) => libc::umount2(path.as_ptr(), libc::MNT_DETACH) == 0,
                Step::Serve(path) => serve(path.as_ptr()),
                Step::Mount(path) => mount_own(path.as_ptr()),
                Step::CoverRoot => {
                    mount_own(c"/".as_ptr())
                        && libc::chdir(c"/..".as_ptr()) == 0
                        && libc::chroot(c".".as_ptr()) == 0
                }
                Step::ThreadIn(path) => start_thread(path, live_in),
                Step::Apart(path, count) => {
                    (1..*count).all(|_| start_thread(path, live)) && start_thread(path, live_apart)
                }
                Step::ShareFiles => share_files(),
                Step::EndLeader => {
                    libc::write(ready_out, c"!".as_ptr().cast(), 1);
                    libc::syscall(libc::SYS_exit, 0);
                    false
                }
            };
            if !ok {
                libc::_exit(1);
            }
        }
        libc::write(ready_out, c"!".as_ptr().cast(), 1);
        let mut byte = 0_u8;
        libc::read(wait, (&raw mut byte).cast(), 1);
        libc::_exit(0)
    }
}

/// # Safety
/// Only in a forked child.
unsafe fn bind(path: &CString) -> bool {
    let family = libc::sa_family_t::try_from(libc::AF_UNIX).unwrap_or_default();
    let mut address = libc::sockaddr_un { sun_family: family, sun_path: [0; 108] };
    for (to, from) in address.sun_path.iter_mut().zip(path.as_bytes()) {
        *to = *from as c_char;
    }
    let length = libc::socklen_t::try_from(size_of_val(&address)).unwrap_or_default();
    // SAFETY: the address lives for the call, and is as long as is said.
    unsafe {
        let socket = libc::socket(libc::AF_UNIX, libc::SOCK_STREAM, 0);
        libc::bind(socket, (&raw const address).cast(), length) == 0
    }
}

/// # Safety
/// Only in a forked child that has no other descriptor so low, with a string that ends with NUL.
unsafe fn serve(at: *const c_char) -> bool {
    let options = c"fd=0,rootmode=40000,user_id=0,group_id=0".as_ptr().cast();
    // SAFETY: strings that live for the call.
    unsafe {
        libc::open(c"/dev/fuse".as_ptr(), libc::O_RDWR) == 0
            && libc::mount(c"hung".as_ptr(), at, c"fuse".as_ptr(), 0, options) == 0
    }
}

/// # Safety
/// Only in a forked child, with a string that ends with NUL.
unsafe fn mount_own(at: *const c_char) -> bool {
    // SAFETY: strings that live for the call.
    unsafe { libc::mount(c"own".as_ptr(), at, c"tmpfs".as_ptr(), 0, ptr::null()) == 0 }
}

/// # Safety
/// Only in a forked child.
unsafe fn share_files() -> bool {
    let flags = libc::c_long::from(libc::CLONE_FILES | libc::SIGCHLD);
    // SAFETY: the new process has a copy of the memory, as after fork(2), and only makes system calls.
    unsafe {
        let pid = libc::syscall(libc::SYS_clone, flags, 0, 0, 0, 0);
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            loop {
                libc::pause();
            }
        }
        pid > 0
    }
}

type Life = extern "C" fn(*mut c_void) -> *mut c_void;

/// Starts a thread with a path, and waits until it is ready.
///
/// # Safety
/// Only in a forked child.
unsafe fn start_thread(path: &CString, life: Life) -> bool {
    let (mut ends, mut thread, mut byte) = ([0; 2], 0, 0_u8);
    // SAFETY: the thread reads its argument before it writes the byte that is awaited here.
    unsafe {
        libc::pipe(ends.as_mut_ptr());
        let argument = (path.as_ptr(), ends[1]);
        libc::pthread_create(&raw mut thread, ptr::null(), life, (&raw const argument).cast_mut().cast()) == 0
            && libc::read(ends[0], (&raw mut byte).cast(), 1) == 1
            && libc::close(ends[0]) == 0
            && byte == b'!'
    }
}

extern "C" fn live_in(argument: *mut c_void) -> *mut c_void {
    // SAFETY: two system calls, the second with a string of the process.
    live_on(argument, |path| unsafe { libc::unshare(libc::CLONE_FS) == 0 && libc::chdir(path) == 0 })
}

/// Opens the file where no other thread does.
extern "C" fn live_apart(argument: *mut c_void) -> *mut c_void {
    // SAFETY: two system calls, the second with a string of the process.
    live_on(argument, |path| unsafe {
        libc::unshare(libc::CLONE_FILES) == 0 && libc::open(path, libc::O_RDONLY) >= 0
    })
}

extern "C" fn live(argument: *mut c_void) -> *mut c_void {
    live_on(argument, |_| true)
}

fn live_on(argument: *mut c_void, begin: impl Fn(*const c_char) -> bool) -> *mut c_void {
    // SAFETY: the argument that start_thread made, which waits for the byte.
    unsafe {
        let (path, ready_out): (*const c_char, c_int) = argument.cast::<(*const c_char, c_int)>().read();
        let answer = if begin(path) { c"!" } else { c"?" };
        libc::write(ready_out, answer.as_ptr().cast(), 1);
        loop {
            libc::pause();
        }
    }
}
