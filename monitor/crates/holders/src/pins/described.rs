//! Who it is that pins something. A process can start another program at any time (execve(2)) and stays the same process, with
//! the same id and start: so what names the program is read twice, and compared with the program that it had when its pins
//! were found.

use kevtmon_observation::{Holder, NsInum};
use kevtmon_sources::procfs::Proc;
use kevtmon_sources::procfs::dir::{Buffer, Dir};
use kevtmon_sources::procfs::readers;
use kevtmon_types::redact;

use super::Pin;
use crate::file_server;
use crate::mntns_index::survivor;

/// A process with what it pins.
#[derive(Debug, Default)]
pub struct Described {
    pub holders: Vec<Holder>,
    /// Whether it has another program by now than when its pins were found: it need not have them any more.
    pub is_replaced: bool,
}

#[derive(Debug)]
struct Program {
    exe: Option<String>,
    cmdline: Option<String>,
}

impl Program {
    /// Of a process of which this thread lives.
    fn of(task: &Dir, links: &mut Buffer, text: &mut Vec<u8>) -> Self {
        let exe = task.link(c"exe", links).ok().map(|exe| exe.into_owned());
        let is_read = task.text(c"cmdline", text).is_ok();
        let cmdline = if is_read { redact::command_line(text) } else { None };
        Self { exe, cmdline }
    }
}

/// Describes a process and lists what it pins.
pub fn describe(proc: &Proc, tgid: u32, process: &Dir, ns: NsInum, pins: Vec<Pin>) -> Vec<Holder> {
    described(proc, (tgid, process), ns, pins, None).holders
}

/// The same. `exe`: its program when its pins were found.
pub fn described(
    proc: &Proc,
    (tgid, process): (u32, &Dir),
    ns: NsInum,
    pins: Vec<Pin>,
    exe: Option<&str>,
) -> Described {
    if pins.is_empty() {
        return Described::default();
    }
    let (mut links, mut text) = (Buffer::default(), Vec::new());
    let survivor = survivor(tgid, process, &mut links);
    let task = survivor.as_ref().unwrap_or(process);
    let mut read = || {
        let stat = proc.stat(tgid)?;
        let program = Program::of(task, &mut links, &mut text);
        Some((stat, program))
    };
    let Some((_, before)) = read() else { return Described::default() };
    let (cgroup, uid, served) =
        (proc.cgroup(tgid), proc.uid(tgid), file_server::served(proc, (tgid, process)));
    let Some((stat, mut program)) = read() else { return Described::default() };
    // A process that executes another program in between gets none. Its comm alone it may change at will (PR_SET_NAME).
    if program.exe != before.exe {
        (program.exe, program.cmdline) = (None, None);
    }
    let init = proc.is_init(tgid);
    // The description was read by id: it is this process' only if that was there until now.
    if is_reader(stat.ppid, program.exe.as_deref()) || !process.is_there(&mut Vec::new()) {
        return Described::default();
    }
    let is_replaced = exe.is_some_and(|exe| program.exe.as_deref().is_none_or(|now| !is_same_file(exe, now)));
    let holder = |Pin { access, path, fd, tid, possible, mount }| Holder {
        tgid,
        comm: stat.comm.clone(),
        cmdline: program.cmdline.clone(),
        exe: program.exe.clone(),
        access,
        path,
        fd,
        tid,
        start_ns: Some(stat.start_ns),
        uid,
        init,
        cgroup: cgroup.clone(),
        mntns: Some(ns),
        serves: served.as_ref().map(|served| served.mountpoint.clone()),
        serves_for_certain: served.as_ref().is_some_and(|served| served.is_certain),
        possible,
        mount,
        loop_device: None,
        source: None,
    };
    Described { holders: pins.into_iter().map(holder).collect(), is_replaced }
}

/// Whether two names of a program are of one that may have been removed meanwhile.
fn is_same_file(before: &str, now: &str) -> bool {
    let name = |exe: &str| exe.strip_suffix(" (deleted)").unwrap_or(exe).to_owned();
    name(before) == name(now)
}

/// Whether a process, by its parent and its program, is another reader of whoever asks: until it is there it has the open files
/// that it was started with.
fn is_reader(ppid: u32, exe: Option<&str>) -> bool {
    let own = || std::fs::read_link("/proc/self/exe");
    readers::asker() == Some(ppid) && own().is_ok_and(|own| own.to_str() == exe && exe.is_some())
}

#[cfg(test)]
mod tests {
    use std::process::{Command, Stdio};

    use kevtmon_observation::Access;

    use super::*;

    #[test]
    fn who_has_another_program_by_now_is_not_described_as_what_he_was() {
        let mut child = Command::new("sleep").arg("1000").stdin(Stdio::null()).spawn().unwrap();
        let (proc, tgid) = (Proc::default(), child.id());
        let process = proc.dir(tgid).unwrap();
        let pins = || vec![Pin::of(Access::Cwd, "/v".to_owned())];
        let now = proc.exe(tgid).unwrap();
        let deleted = format!("{now} (deleted)");
        let told: Vec<_> = [None, Some("/bin/before"), Some(&*now), Some(&*deleted)]
            .into_iter()
            .map(|exe| described(&proc, (tgid, &process), 1, pins(), exe))
            .collect();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(told.iter().map(|told| told.is_replaced).collect::<Vec<_>>(), [false, true, false, false]);
        assert!(told.iter().all(|told| told.holders[0].exe.as_ref() == Some(&now)), "{told:?}");
    }
}
