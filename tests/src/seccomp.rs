//! Filters of system calls, and the capabilities that nobody needs for them.

/// Offset of the number in `struct seccomp_data`.
const NUMBER: u32 = 0;

/// Each of these calls ends with this error before it begins, of this thread from now on, and of whatever it becomes.
pub fn answer(numbers: &[u32], errno: i32) {
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let errno = u32::try_from(errno).expect("a number of an error");
    let statement = |code: u32, jf: u8, k: u32| libc::sock_filter {
        code: u16::try_from(code).expect("a code of an instruction"),
        jt: 0,
        jf,
        k,
    };
    let mut program = vec![statement(LOAD, 0, NUMBER)];
    for number in numbers {
        program.push(statement(EQUAL, 1, *number));
        program.push(statement(RETURN, 0, libc::SECCOMP_RET_ERRNO | errno));
    }
    program.push(statement(RETURN, 0, libc::SECCOMP_RET_ALLOW));
    let length = u16::try_from(program.len()).expect("a program that is not too long");
    let filter = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    // SAFETY: the kernel copies the program, which lives until then.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const filter) == 0
    };
    assert!(done, "seccomp: {}", std::io::Error::last_os_error());
}

/// Takes all capabilities from this thread, as root of a container has hardly any.
pub fn drop_capabilities() {
    const VERSION_3: u32 = 0x2008_0522;
    // `struct __user_cap_header_struct` of this thread, and two `struct __user_cap_data_struct`.
    let (header, none) = ([VERSION_3, 0], [0_u32; 6]);
    // SAFETY: the kernel reads both, and writes neither for this version.
    let done = unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), none.as_ptr()) } == 0;
    assert!(done, "capset: {}", std::io::Error::last_os_error());
}
