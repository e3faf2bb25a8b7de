//! How fast the core is, and whether its memory stays flat: a generated recording of 1,000,000 observations from 250
//! pods, replayed on one core. Needs neither root nor a kernel with programs.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, Result, bail, ensure};

const OBSERVATIONS: [u64; 3] = [1_000_000, 500_000, 250_000];
const PODS: u64 = 250;
/// Observations a second on one core.
const BUDGET: f64 = 200_000.0;
/// Memory may grow by this much from the shortest recording to the longest, in KiB.
const GROWTH_KIB: i64 = 4096;
const HOST: u64 = 4_026_531_833;

pub(super) fn replay(binary: &Path) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let path = directory.path().join("recording.ndjson");
    let lengths = generate(&path).context("cannot write the recording")?;
    let mut peaks = Vec::new();
    // Each is the beginning of the one before, so that one file is enough.
    for (count, length) in OBSERVATIONS.into_iter().zip(lengths) {
        File::options().write(true).open(&path)?.set_len(length)?;
        let (took, busy, peak) = measure(binary, &path)?;
        let rate = count as f64 / busy.as_secs_f64();
        eprintln!(
            "replay     {count:>9} observations ({} MiB) in {:.2} s, {:.2} s of one core: {rate:.0}/s, peak memory {:.1} MiB",
            length >> 20,
            took.as_secs_f64(),
            busy.as_secs_f64(),
            peak as f64 / 1024.0
        );
        peaks.push((rate, peak));
    }
    let (rate, longest) = peaks[0];
    let (_, shortest) = peaks[peaks.len() - 1];
    ensure!(rate >= BUDGET, "{rate:.0} observations a second; the budget is {BUDGET:.0}");
    ensure!(longest - shortest <= GROWTH_KIB, "memory grows with the recording");
    Ok(())
}

/// Time, processor time and peak resident memory in KiB of one replay, which has one thread.
fn measure(binary: &Path, recording: &Path) -> Result<(Duration, Duration, i64)> {
    let start = Instant::now();
    let child = Command::new(binary)
        .arg("replay")
        .arg("--json")
        .arg("--strict")
        .arg(recording)
        .stdout(Stdio::null())
        .spawn()
        .with_context(|| format!("cannot start {}", binary.display()))?;
    let pid = libc::pid_t::try_from(child.id())?;
    let mut status = 0;
    // SAFETY: a structure of integers, for which zeros are valid.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live locals, and nobody else waits for this child.
    let waited = unsafe { libc::wait4(pid, &raw mut status, 0, &raw mut usage) };
    ensure!(waited == pid, "cannot wait for the replay: {}", std::io::Error::last_os_error());
    if !libc::WIFEXITED(status) || libc::WEXITSTATUS(status) != 0 {
        bail!("the replay failed");
    }
    let time = |time: libc::timeval| -> Result<Duration> {
        Ok(Duration::new(u64::try_from(time.tv_sec)?, u32::try_from(time.tv_usec)? * 1000))
    };
    Ok((start.elapsed(), time(usage.ru_utime)? + time(usage.ru_stime)?, usage.ru_maxrss))
}

/// Writes the longest recording; returns the lengths at which each of them ends.
fn generate(path: &Path) -> Result<Vec<u64>> {
    let mut writer = Counted { out: BufWriter::new(File::create(path)?), bytes: 0, lines: 0 };
    let mut lengths = Vec::new();
    writer.line(&header())?;
    let mut script = Script { at: 1_000_000_000, random: 1, next_task: 0, up: true };
    script.node(&mut writer)?;
    while writer.lines <= OBSERVATIONS[0] {
        script.step(&mut writer)?;
        // The header is a line, too.
        if OBSERVATIONS.contains(&(writer.lines - 1)) {
            lengths.push(writer.bytes);
        }
    }
    writer.out.flush()?;
    lengths.reverse();
    ensure!(lengths.len() == OBSERVATIONS.len(), "the generator skipped a length");
    Ok(lengths)
}

struct Counted {
    out: BufWriter<File>,
    bytes: u64,
    lines: u64,
}

impl Counted {
    fn line(&mut self, text: &str) -> Result<()> {
        writeln!(self.out, "{text}")?;
        self.bytes += u64::try_from(text.len())? + 1;
        self.lines += 1;
        Ok(())
    }
}

/// What happens on the node: the same in every run.
struct Script {
    at: u64,
    random: u64,
    next_task: u64,
    up: bool,
}

impl Script {
    fn say(&mut self, writer: &mut Counted, fact: &str) -> Result<()> {
        self.at += 100_000;
        writer.line(&format!("{{\"at\":{},\"fact\":{fact}}}", self.at))
    }

    /// A number below `bound` (a linear congruential generator).
    fn below(&mut self, bound: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % bound
    }

    /// Everything that is there at the start.
    fn node(&mut self, writer: &mut Counted) -> Result<()> {
        self.say(writer, r#"{"clock":{"realtime_offset_ns":1528830000000000000}}"#)?;
        let links: Vec<String> = (0..PODS).map(|pod| host_link(pod, true)).collect();
        self.say(writer, &netns(HOST, &links.join(","), ""))?;
        for pod in 0..PODS {
            let link = link(inum(pod), 4, "eth0", 0x11043, 100 + pod, HOST);
            self.say(writer, &netns(inum(pod), &link, &route(pod)))?;
        }
        let containers: Vec<String> = (0..PODS).map(|pod| container(pod, "running")).collect();
        let list = format!(
            r#"{{"runtime_snapshot":{{"runtime":"docker","source":"docker","containers":[{}]}}}}"#,
            containers.join(",")
        );
        self.say(writer, &list)?;
        for (source, kind) in [
            ("netlink", "netlink"),
            ("hook.neighbor", "hook"),
            ("hook.umount", "hook"),
            ("docker", "runtime"),
        ] {
            self.say(writer, &format!(r#"{{"source":{{"source":"{source}","kind":"{kind}","up":true}}}}"#))?;
        }
        for _ in 0..50 {
            self.new_task(writer)?;
        }
        Ok(())
    }

    /// One observation of a busy node.
    fn step(&mut self, writer: &mut Counted) -> Result<()> {
        let pod = self.below(PODS);
        match self.below(100) {
            0..5 => self.new_task(writer),
            5..45 => self.neighbor(writer, pod, "deleted"),
            45..65 => self.neighbor(writer, pod, "added"),
            65..80 => {
                self.up = !self.up;
                let link = host_link(pod, self.up);
                self.say(writer, &format!(r#"{{"link":{link}}}"#))
            }
            80..92 => self.umount(writer, pod),
            92..94 => {
                let state = if self.below(2) == 0 { "running" } else { "exited" };
                self.say(writer, &format!(r#"{{"container":{}}}"#, container(pod, state)))
            }
            94..96 => {
                let link = link(inum(pod), 4, "eth0", 0x11043, 100 + pod, HOST);
                self.say(writer, &netns(inum(pod), &link, &route(pod)))
            }
            _ => self.say(writer, "\"tick\""),
        }
    }

    fn new_task(&mut self, writer: &mut Counted) -> Result<()> {
        self.next_task += 1;
        let key = key(self.next_task);
        self.say(
            writer,
            &format!(
                r#"{{"task":{{"key":{key},"place":{{"mntns":0,"cgroup_v1":0,"cgroup_v2":0}},"uid":0,"exe":"/opt/cni/bin/calico","cmdline":"/opt/cni/bin/calico","netns":{HOST},"mntns":4026531840,"cgroup":"/system.slice/kubelet.service","ancestors":[{{"tgid":1893,"start_ns":31000000000,"comm":"kubelet","exe":"/usr/bin/kubelet"}}]}}}}"#
            ),
        )
    }

    /// One of the newest tasks, as a reference.
    fn actor(&mut self, comm: &str) -> String {
        let number = self.next_task - self.below(50.min(self.next_task));
        format!(r#"{{"key":{},"tid":{},"comm":"{comm}"}}"#, key(number), tgid(number))
    }

    fn neighbor(&mut self, writer: &mut Counted, pod: u64, op: &str) -> Result<()> {
        let actor = self.actor("calico");
        let last = self.below(5) + 1;
        let (old, new) = if op == "deleted" { ("128", "null") } else { ("0", "128") };
        self.say(
            writer,
            &format!(
                r#"{{"neighbor":{{"key":{{"netns":{},"ifindex":4,"address":"169.254.1.{last}"}},"ifname":"eth0","op":"{op}","cause":"admin","old_state":{old},"new_state":{new},"lladdr":"ee:ee:ee:ee:ee:ee","new_lladdr":null,"device_lladdr":null,"actor":{actor},"netlink_port":null}}}}"#,
                inum(pod)
            ),
        )
    }

    fn umount(&mut self, writer: &mut Counted, pod: u64) -> Result<()> {
        let actor = self.actor("umount");
        let errno = if self.below(8) == 0 { "null" } else { "16" };
        self.say(
            writer,
            &format!(
                r#"{{"umount":{{"syscall":"umount2","actor":{actor},"mntns":4026531840,"path":"/var/lib/kubelet/pods/{}/volumes/kubernetes.io~glusterfs/pv-{pod}","flags":0,"errno":{errno}}}}}"#,
                uid(pod)
            ),
        )
    }
}

fn header() -> String {
    format!(
        r#"{{"format":"kevtmon-recording","version":1,"started":"","settings":{{"node":"slave-197","boot_id":"7d1e0c5a-3b0f-4a3e-9d43-2f6f0a9d8c11","version":"0.1.0","host_netns":{HOST},"cmdline":"host","sources":{{"netlink":false,"hook.neighbor":false,"hook.umount":false,"docker":true}}}}}}"#
    )
}

fn inum(pod: u64) -> u64 {
    4_026_532_253 + pod
}

fn uid(pod: u64) -> String {
    format!("5c948341-c030-4996-b888-{pod:012x}")
}

fn tgid(number: u64) -> u64 {
    1000 + number % 30_000
}

fn key(number: u64) -> String {
    format!(r#"{{"tgid":{},"start_ns":{},"exec_id":2}}"#, tgid(number), 1_000_000_000 + number)
}

fn link(netns: u64, ifindex: u64, name: &str, flags: u32, peer: u64, peer_netns: u64) -> String {
    format!(
        r#"{{"netns":{netns},"ifindex":{ifindex},"ifname":"{name}","kind":"veth","flags":{flags},"mac":"ce:a1:6b:02:52:42","master":null,"peer":{{"ifindex":{peer},"netns":{peer_netns}}}}}"#
    )
}

fn host_link(pod: u64, up: bool) -> String {
    link(HOST, 100 + pod, &format!("cali{pod:011x}"), if up { 0x11043 } else { 0x1002 }, 4, inum(pod))
}

fn route(pod: u64) -> String {
    format!(r#"{{"netns":{},"destination":null,"gateway":"169.254.1.1","ifindex":4}}"#, inum(pod))
}

fn netns(netns: u64, links: &str, routes: &str) -> String {
    format!(
        r#"{{"netns":{{"netns":{netns},"name":null,"owner":null,"links":[{links}],"addresses":[],"routes":[{routes}],"neighbors":[]}}}}"#
    )
}

fn container(pod: u64, state: &str) -> String {
    let id = format!("{pod:064x}");
    let uid = uid(pod);
    let process = if state == "running" { (20_000 + pod).to_string() } else { "null".to_owned() };
    format!(
        r#"{{"id":"{id}","name":"k8s_POD_web-{pod}_web_{uid}_0","runtime":"docker","source":"docker","image":"pause","state":"{state}","tgid":{process},"netns":{},"mntns":4026531900,"addresses":["192.168.1.{}"],"pod":{{"namespace":"web","name":"web-{pod}","uid":"{uid}","sandbox_id":"{id}","container_name":"POD","proof":"cgroup"}},"sandbox":true}}"#,
        inum(pod),
        pod % 250 + 1
    )
}
