//! What was over the budget of a source, and what the model had no room for: who, where, how many, from when to when.

use kevtmon_event::wording::{container_label, owner_phrase, pod_label};
use kevtmon_event::{Event, Kind, Severity, Shared, Throttled};
use kevtmon_observation::{BootNs, BudgetClass, Request};
use kevtmon_types::escape::name;

use super::Core;
use crate::node::namespaces::Refused;

impl Core {
    pub(super) fn throttled(&mut self, at: BootNs, over: &kevtmon_observation::Throttled) {
        let cgroup = self.tasks.cgroup(over.cgroup_v1, over.cgroup_v2).map(str::to_owned);
        let group = self.node().owner(cgroup.as_deref());
        let throttled = Throttled {
            lane: over.lane.name().to_owned(),
            kind: None,
            mntns: None,
            count: over.count,
            from: self.wall_time(over.from),
            to: self.wall_time(over.until),
            netns: over.netns,
            uid: over.uid,
            cgroup: cgroup.filter(|path| path != "/"),
            unit: group.unit,
            container: group.container,
            pod: group.pod,
            last_pid: over.last_tgid,
        };
        let target = over.netns.map(|netns| self.target(netns, false));
        let by = by(&throttled);
        let counted = |one: &str| format!("{} {one}{}", over.count, if over.count == 1 { "" } else { "s" });
        let changes = counted("neighbor change");
        let what = match over.lane {
            BudgetClass::Namespace | BudgetClass::GatewaySet | BudgetClass::Link => {
                let owner = target.as_ref().map(owner_phrase).filter(|phrase| !phrase.is_empty());
                let netns = over.netns.filter(|netns| *netns != self.settings.host_netns);
                let place = owner.unwrap_or_else(|| match netns {
                    Some(netns) => format!(" in net:[{netns}]"),
                    None => " of the host".to_owned(),
                });
                match over.lane {
                    BudgetClass::GatewaySet => {
                        format!("{}{place}, of the neighbor entry of a gateway", counted("setting"))
                    }
                    BudgetClass::Link => format!("{}{place}{by}", counted("interface change")),
                    _ => format!("{changes}{place}{by}"),
                }
            }
            BudgetClass::Owner => format!(
                "{changes} in namespaces of uid {}",
                over.uid.map_or_else(|| "unknown".to_owned(), |uid| uid.to_string())
            ),
            BudgetClass::Unknown => format!("{} of unidentified sources", counted("record")),
            BudgetClass::Umount => format!("{}{by}", counted("unmount attempt")),
            BudgetClass::Remove => {
                let calls = if over.count == 1 { "removal or rename" } else { "removals or renames" };
                format!("{} refused {calls}{by} because of a mount", over.count)
            }
            BudgetClass::Exec => {
                format!(
                    "{}{by} of CNI plugins or of programs with the name of a kubelet or runtime",
                    counted("execution")
                )
            }
        };
        let message = format!("beyond the budget of one source, and only counted: {what}");
        // What users do among themselves concerns nobody else.
        let of_host = matches!(
            over.lane,
            BudgetClass::Namespace | BudgetClass::Exec | BudgetClass::GatewaySet | BudgetClass::Link
        ) || matches!(over.lane, BudgetClass::Umount | BudgetClass::Remove)
            && over.uid == Some(0);
        let severity = if of_host { Severity::Warning } else { Severity::Notice };
        let event = Event {
            target: target.map(Shared::new),
            throttled: Some(Box::new(throttled)),
            ..self.event(at, Kind::EventsThrottled, severity, message)
        };
        self.emit(event);
        if over.lane == BudgetClass::Umount {
            self.look_up_busy_mounts_soon(at);
        }
        // What became of its gateways is not known otherwise. The host's namespace is large.
        let is_host = over.netns == Some(self.settings.host_netns);
        if let Some(netns) = over.netns.filter(|_| !is_host || over.lane == BudgetClass::GatewaySet) {
            self.request(Request::Netns { netns });
        }
    }
}

impl Core {
    pub(super) fn tell_refused(&mut self, now: BootNs, all: bool) {
        for refused in self.quota.take_due(now, all) {
            self.emit_refused(now, &refused);
        }
    }

    fn emit_refused(&mut self, now: BootNs, refused: &Refused) {
        let Refused { count, netns, .. } = *refused;
        let throttled = Throttled {
            lane: Throttled::NAMESPACES.to_owned(),
            count,
            from: self.wall_time(refused.from),
            to: self.wall_time(refused.until),
            netns: Some(netns),
            ..Throttled::default()
        };
        let target = refused.of_containers.then(|| self.target(netns, false));
        let place = target.as_ref().map(owner_phrase).unwrap_or_default();
        let what = match count {
            1 => format!("the network namespace net:[{netns}]{place}"),
            _ => format!("network namespaces in {count} readings, the last of them net:[{netns}]{place}"),
        };
        let (whose, severity) = match refused.of_containers {
            true => ("container", Severity::Warning),
            false => ("user", Severity::Notice),
        };
        let message = format!("beyond the quota of network namespaces of one {whose}; not watched: {what}");
        let event = Event {
            target: target.map(Shared::new),
            throttled: Some(Box::new(throttled)),
            ..self.event(now, Kind::EventsThrottled, severity, message)
        };
        self.emit(event);
    }
}

fn by(throttled: &Throttled) -> String {
    match (&throttled.pod, &throttled.container, throttled.unit.as_ref().or(throttled.cgroup.as_ref())) {
        (Some(pod), ..) if !pod.claimed => format!(" by pod {}", pod_label(pod)),
        (_, Some(container), _) => format!(" by container {}", container_label(container)),
        (_, None, Some(group)) => format!(" by {}", name(group)),
        (_, None, None) => match throttled.uid {
            Some(uid) => format!(" by uid {uid}"),
            None => String::new(),
        },
    }
}
