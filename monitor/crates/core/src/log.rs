//! Lines of logs. Each is a reason to look at what is known, and no fact: it is quoted where it names an image that somebody on
//! this node may wait for, or a server that does not respond, or belongs to an incident that is open, and else it is nothing.

use kevtmon_event::{Event, Kind, Log, Rbd, Severity, Shared, Target};
use kevtmon_observation::{
    BootNs, CephServerLine, LogLine, LogSays, Loss, NfsSays, NfsServerLine, RbdRefusal, is_of_ceph,
};
use kevtmon_types::escape::Escaped;

use super::Core;
use crate::diagnose::{ModelChange, OpenIncident};

const QUOTED_FOR_MAX: usize = 4;
/// Where only the time tells that a line may belong to an incident, that was seen so long ago at most.
const TOGETHER_NS: BootNs = 60 * 1_000_000_000;

struct Quoted {
    id: String,
    kind: String,
    subject: String,
    target: Option<Shared<Target>>,
}

impl Core {
    pub(super) fn log_line(&mut self, at: BootNs, line: LogLine) {
        let LogLine { log, text, says } = line;
        let log = Log { name: log, text, vague: false };
        match says {
            LogSays::RbdRefused(refusal) => self.attach_refused(at, log, refusal),
            LogSays::NfsServer(line) if !line.lockd => self.nfs_server(at, &log, &line),
            LogSays::CephServer(line) => self.ceph_server(at, &log, &line),
            LogSays::DeviceNotFreed { ifname } => self.device_not_freed(at, &log, &ifname),
            says => {
                self.quote(at, &log, &says);
            }
        }
    }

    fn nfs_server(&mut self, at: BootNs, log: &Log, line: &NfsServerLine) {
        let quote = match line.says {
            NfsSays::Answers => {
                self.quote(at, log, &LogSays::NfsServer(line.clone()));
                None
            }
            // It is evidence of the incident that opens if this lasts.
            says if self.quotes.admits(at, &line.server, says.name()) => self.emit_quote(at, log, None),
            _ => None,
        };
        self.diagnose(at, &ModelChange::NfsServer { line, quote });
    }

    /// It is evidence of an unmount that hangs, or may hang later.
    fn ceph_server(&mut self, at: BootNs, log: &Log, line: &CephServerLine) {
        let says = LogSays::CephServer(line.clone());
        let mut quote = self.quote(at, log, &says);
        if quote.is_none() && !line.is_back && self.quotes.admits(at, &line.server, says.name()) {
            quote = self.emit_quote(at, log, None);
        }
        self.diagnose(at, &ModelChange::CephServer { line, quote });
    }

    /// It is evidence of the incident that opens if this lasts.
    fn device_not_freed(&mut self, at: BootNs, log: &Log, ifname: &str) {
        let is_quoted = self.quotes.admits(at, ifname, "device-not-freed");
        let quote = if is_quoted { self.emit_quote(at, log, None) } else { None };
        self.diagnose(at, &ModelChange::UnfreedDevice { ifname, quote });
    }

    fn emit_quote(&mut self, at: BootNs, log: &Log, target: Option<Shared<Target>>) -> Option<u64> {
        let event = self.event(at, Kind::LogQuoted, Severity::Info, said(log));
        self.emit(Event { target, log: Some(Box::new(log.clone())), ..event })
    }

    fn attach_refused(&mut self, at: BootNs, log: Log, refusal: RbdRefusal) {
        let Some(image) = self.rbd_asked.meant(at, &refusal) else { return };
        if !self.rbd_asked.refuse(at, &image) {
            return;
        }
        let rbd = Rbd { held_by: refusal.held_by, ..Rbd::from(&image) };
        let log = Log { vague: refusal.vague, ..log };
        let message = format!("{} was refused to this node, as {}", rbd.label(), said(&log));
        let event = self.event(at, Kind::RbdAttachRefused, Severity::Notice, message);
        self.emit(Event { rbd: Some(Box::new(rbd)), log: Some(Box::new(log)), ..event });
    }

    /// Tells how many refusals of images there was no room for, if any.
    pub(super) fn tell_refusals_left_out(&mut self, at: BootNs) {
        let count = self.rbd_asked.take_left_out(at);
        if count > 0 {
            let (source, reason) = ("logs".to_owned(), "too-many-images".to_owned());
            self.lost(at, &Loss { source, reason, count: Some(count) });
        }
    }

    /// Quotes a line for the open incidents that it belongs to; the number of the last event.
    fn quote(&mut self, at: BootNs, log: &Log, says: &LogSays) -> Option<u64> {
        let clock = self.clock();
        let is_recent = |open: &OpenIncident| {
            let last = clock.boot_ns(&open.incident(clock).last_seen);
            last.is_some_and(|last| last.saturating_add(TOGETHER_NS) >= at)
        };
        let open = self.engine.incidents.iter().filter(|open| belongs(open, says, is_recent));
        let found: Vec<Quoted> = open
            .take(QUOTED_FOR_MAX)
            .map(|open| Quoted {
                id: open.incident(clock).id,
                kind: open.kind().to_owned(),
                subject: open.subject.clone(),
                target: open.objects.target.clone(),
            })
            .collect();
        // A line that names nothing may belong to either of two.
        if found.len() > 1 && matches!(says, LogSays::ThinDeletion | LogSays::SpecHashChanged) {
            return None;
        }
        let mut last = None;
        for Quoted { id, kind, subject, target } in found {
            if !self.quotes.admits(at, &id, says.name()) {
                continue;
            }
            if let Some(seq) = self.emit_quote(at, log, target) {
                last = Some(seq);
                self.engine.quote(at, &kind, &subject, seq);
                self.emit_incidents();
            }
        }
        last
    }
}

/// `/dev/kmsg says "INFO: task umount:4711 blocked for more than 120 seconds."`
fn said(log: &Log) -> String {
    let text = log.text.replace('\\', "\\\\").replace('"', "\\\"");
    format!("{} says \"{}\"", kevtmon_types::escape::name(&log.name), Escaped(&text))
}

/// Whether a line is about what an incident is about.
fn belongs(open: &OpenIncident, says: &LogSays, is_recent: impl Fn(&OpenIncident) -> bool) -> bool {
    let objects = &open.objects;
    match says {
        LogSays::EndpointMissing { sandbox, pod } | LogSays::NetworkNotRemoved { sandbox, pod } => {
            let Some(cni) = objects.cni.as_deref().filter(|_| open.kind() == "cni-teardown-failing") else {
                return false;
            };
            match (sandbox, pod) {
                (Some(sandbox), _) => cni.container_id.as_ref() == Some(sandbox),
                (None, Some((namespace, name))) => {
                    (cni.namespace.as_ref(), cni.pod.as_ref()) == (Some(namespace), Some(name))
                }
                (None, None) => false,
            }
        }
        LogSays::HungTask { comm, tid } => {
            let is_it = |pid: u32, tid_: u32, name: &str| (pid == *tid || tid_ == *tid) && name == comm;
            open.kind() == "umount-hung"
                && objects.actor.as_deref().is_some_and(|actor| is_it(actor.pid, actor.tid, &actor.comm))
        }
        LogSays::SandboxMissing { sandbox } => {
            open.kind() == "orphan-container"
                && objects.sandbox.as_deref().is_some_and(|lacked| lacked.id == *sandbox)
        }
        LogSays::TeardownFailed { pod_uid } => {
            let volume = objects.mount.as_deref().and_then(|mount| mount.volume.as_ref());
            ["volume-busy", "pod-stuck-terminating"].contains(&open.kind())
                && volume.is_some_and(|volume| volume.pod_uid == *pod_uid)
        }
        LogSays::SpecHashChanged => open.kind() == "spec-hash-storm" && is_recent(open),
        LogSays::ThinDeletion => open.kind() == "container-undeletable" && is_recent(open),
        LogSays::NeighborOverflow { ipv6 } if open.kind() == "neighbor-table-full" => {
            let table = objects.neighbor_table.as_deref();
            table.is_some_and(|table| (table.family == "ipv6") == *ipv6)
        }
        LogSays::NeighborOverflow { ipv6 } => {
            let neighbor = objects.neighbor.as_deref().filter(|entry| entry.address.is_ipv6() == *ipv6);
            neighbor.is_some_and(|neighbor| match open.kind() {
                "pod-neighbor-unreachable" => is_recent(open),
                "gateway-neighbor-lost" => neighbor.reason.as_deref() == Some("failed"),
                _ => false,
            })
        }
        LogSays::NfsServer(line) => {
            objects.nfs_server.as_deref().is_some_and(|server| server.name == line.server)
        }
        LogSays::CephServer(_) => {
            let mount = objects.mount.as_deref();
            ["volume-busy", "pod-stuck-terminating"].contains(&open.kind())
                && mount
                    .and_then(|mount| mount.fstype.as_deref().zip(mount.source.as_deref()))
                    .is_some_and(|(fstype, source)| is_of_ceph(fstype, source))
        }
        LogSays::RbdDevice { device } => {
            let is_it = |path: &String| path.strip_prefix("/dev/") == Some(device.as_str());
            let mount = objects.mount.as_deref().and_then(|mount| mount.source.as_ref());
            mount.is_some_and(is_it)
                || objects.rbd.as_deref().and_then(|rbd| rbd.device.as_ref()).is_some_and(is_it)
        }
        // Of a device that is in no namespace any more: that of an open incident is another of the same name.
        LogSays::DeviceNotFreed { .. } | LogSays::RbdRefused(_) => false,
    }
}
