//! The tenant of an event: whoever caused it. What users can choose, such as the names of processes, paths and
//! control groups of their own, makes no difference.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;
use std::sync::Arc;

use kevtmon_event::{Actor, Cni, Container, Event, Join, Kind, Pod, Priority, Target, Tenant};
use kevtmon_observation::{NsInum, cgroup};

/// Everybody whose user is only known in a user namespace of their own.
const USERS: &str = "users";
/// Namespaces of which nothing is known.
const UNKNOWN: &str = "unknown";
/// Names of accounts that are kept; beyond that all of them are made again.
const NAMES_MAX: usize = 1024;

/// The names of the accounts of late, each of which is in memory once.
#[derive(Clone, Default)]
pub struct Accounts(HashSet<Arc<str>>);

impl Accounts {
    /// The name, from memory if it was there.
    pub fn name(&mut self, name: &str) -> Arc<str> {
        if let Some(known) = self.0.get(name) {
            return Arc::clone(known);
        }
        if self.0.len() >= NAMES_MAX {
            self.0.clear();
        }
        let name = Arc::<str>::from(name);
        self.0.insert(Arc::clone(&name));
        name
    }

    /// That of all whose user is only known in a user namespace of their own.
    pub fn users(&mut self) -> Arc<str> {
        self.name(USERS)
    }
}

impl fmt::Debug for Accounts {
    /// It is no state: without it the same names are made again.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Accounts")
    }
}

pub fn tenant(event: &Event, accounts: &mut Accounts) -> Tenant {
    let (actor, target) = (event.actor.as_deref(), event.target.as_deref());
    let call = event.cni.as_deref().filter(|_| event.incident.is_none());
    if let Some(name) = call.and_then(|call| of_call(call, target)) {
        return Tenant { priority: priority(event, actor, target), name: accounts.name(&name) };
    }
    let name = match (actor, target) {
        // One agent can break the gateways of all pods: each of them has an incident of its own.
        (_, Some(target)) if event.incident.is_some() => of_target(target),
        (Some(actor), _) => of_actor(actor),
        (None, Some(target)) => of_target(target),
        (None, None) => return Tenant::default(),
    };
    Tenant { priority: priority(event, actor, target), name: accounts.name(&name) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Budget {
    /// Of an unprivileged account: it is about what users do among themselves, or one of them did it, and nothing that
    /// others rely on.
    User,
    /// Of a container, which may be allowed to change its own network: it is about that, and nobody else is known to have
    /// done it.
    Container,
}

/// The budget that an event counts against, if it is limited.
pub fn budget(event: &Event, tenant: &Tenant, host: NsInum) -> Option<Budget> {
    if event.kind == Kind::EventsThrottled {
        None
    } else if is_of_users(event, tenant) {
        Some(Budget::User)
    } else {
        is_of_own_network(event, host).then_some(Budget::Container)
    }
}

fn is_of_own_network(event: &Event, host: NsInum) -> bool {
    let of_rule = event.rule.as_ref().map(|rule| rule.netns);
    let routing = event.route.as_ref().map(|route| route.netns).or(of_rule);
    let is_network =
        event.link.is_some() || routing.is_some() || event.neighbor.is_some() || event.sysctl.is_some();
    // Only root changes those of the host, though they are about a container.
    if !is_network || routing == Some(host) || event.incident.is_some() {
        return false;
    }
    let Some(target) = event.target.as_deref() else { return false };
    let is_owned = || target.container.is_some() || target.pod.is_some();
    event.actor.as_deref().map_or_else(is_owned, |actor| is_by_itself(actor, target))
}

/// Whether a process did something to its own container or pod.
pub fn is_by_itself(actor: &Actor, target: &Target) -> bool {
    let is_same = |ours: Option<&str>, theirs: Option<&str>| ours.is_some() && ours == theirs;
    is_same(container_id(actor.container.as_ref()), container_id(target.container.as_ref()))
        || is_same(pod_uid(actor.pod.as_ref()), pod_uid(target.pod.as_ref()))
}

fn container_id(container: Option<&Container>) -> Option<&str> {
    container.map(|container| container.id.as_str())
}

/// What a container only claims to be is somebody else's.
fn pod_uid(pod: Option<&Pod>) -> Option<&str> {
    Pod::confirmed(pod).map(|pod| pod.uid.as_str())
}

fn is_of_users(event: &Event, tenant: &Tenant) -> bool {
    if tenant.priority != Priority::Foreign {
        return false;
    }
    let target = event.target.as_deref();
    if target.is_some_and(Target::is_foreign) {
        return true;
    }
    let is_gateway = event.neighbor.as_ref().is_some_and(|neighbor| neighbor.gateway == Some(true));
    let is_volume = event.mount.as_ref().is_some_and(|mount| mount.volume.is_some());
    let is_users = event.actor.as_deref().is_some_and(is_user);
    is_users && !is_gateway && !is_volume
}

/// The tenant of a CNI call: the pod that makes the kubelet or runtime do it, not the sandbox, since a pod that does not
/// start has a new one each time.
fn of_call<'a>(cni: &Cni, target: Option<&'a Target>) -> Option<Cow<'a, str>> {
    let pod = target.and_then(Target::confirmed_pod);
    pod.map(|pod| Cow::Borrowed(pod.uid.as_str())).or_else(|| cni.pod_name().map(Cow::Owned))
}

fn priority(event: &Event, actor: Option<&Actor>, target: Option<&Target>) -> Priority {
    let is_owned = target.is_some_and(|target| target.container.is_some() || target.pod.is_some());
    // Only root of the node can name one.
    let is_nameless = |target: &Target| target.join == Join::Missed && target.netns_name.is_none();
    let is_unknown = target.is_some_and(is_nameless) && !is_owned;
    let is_users = actor.is_some_and(|actor| is_user(actor) && actor.container.is_none());
    if target.is_some_and(Target::is_foreign) || is_unknown || is_users && !is_owned {
        return Priority::Foreign;
    }
    let is_gateway = event.neighbor.as_ref().is_some_and(|neighbor| neighbor.gateway == Some(true));
    let is_incident =
        matches!(event.kind, Kind::IncidentOpened | Kind::IncidentUpdated | Kind::IncidentClosed);
    if is_owned || is_gateway || is_incident { Priority::Known } else { Priority::Node }
}

/// Whether it acts for a user of the node: in a user namespace, or by a program that gave it rights for one thing.
fn is_user(actor: &Actor) -> bool {
    actor.userns.is_some() || actor.uid.is_some_and(|uid| uid != 0)
}

fn of_actor(actor: &Actor) -> Cow<'_, str> {
    if let Some(container) = &actor.container {
        return Cow::Borrowed(&container.id);
    }
    of_process(actor.cgroup.as_deref(), actor.uid, actor.userns.is_some())
}

/// The tenant of what a process does, by its control group and user.
pub fn of_process(group: Option<&str>, uid: Option<u32>, in_userns: bool) -> Cow<'_, str> {
    Cow::Borrowed(match (group.and_then(cgroup::owner), uid) {
        (Some(owner), _) => owner,
        // Of the many user ids that a user may have in namespaces, none tells who it is.
        (None, _) if in_userns => USERS,
        (None, Some(uid)) if uid != 0 => return Cow::Owned(format!("uid {uid}")),
        (None, _) => group.map(cgroup::account).unwrap_or_default(),
    })
}

/// The tenant of what is about a target.
pub fn of_target(target: &Target) -> Cow<'_, str> {
    if let Some(container) = &target.container {
        return Cow::Borrowed(&container.id);
    }
    if let Some(pod) = &target.pod {
        return Cow::Borrowed(&pod.uid);
    }
    Cow::Borrowed(match target.cgroup.as_deref().and_then(cgroup::owner) {
        Some(owner) => owner,
        None if target.is_foreign() => USERS,
        None if target.join == Join::Missed => UNKNOWN,
        // The host's namespace, or one that root of the node has named.
        None => target.netns_name.as_deref().unwrap_or_default(),
    })
}

#[cfg(test)]
mod tests {
    use kevtmon_event::{Shared, UserNamespace};
    use kevtmon_testing::sample;

    use super::*;

    fn of(change: impl FnOnce(&mut Event)) -> (Priority, String) {
        let mut event = sample::deletion();
        change(&mut event);
        let tenant = tenant(&event, &mut Accounts::default());
        (tenant.priority, tenant.name.to_string())
    }

    fn unowned(event: &mut Event) {
        event.target = Some(Shared::new(Target::unknown(Join::Ok)));
        let actor = event.actor.as_mut().unwrap();
        (actor.container, actor.pod) = (None, None);
        event.neighbor.as_mut().unwrap().gateway = Some(false);
    }

    #[test]
    fn whoever_caused_it_is_charged_whatever_it_is_called() {
        let user = |cgroup: &'static str, uid: u32, userns: bool| {
            of(move |event| {
                unowned(event);
                let actor = event.actor.as_mut().unwrap();
                (actor.comm, actor.exe) = ("kubelet".into(), Some("/usr/bin/kubelet".into()));
                (actor.cgroup, actor.uid) = (Some(cgroup.into()), Some(uid));
                actor.userns = userns.then_some(UserNamespace::Other);
            })
        };
        let slice = "/user.slice/user-1000.slice/session-3.scope";
        let nested = "/user.slice/user-1000.slice/user@1000.service/kubelet.service/anything";
        let foreign = |name: &str| (Priority::Foreign, name.to_owned());
        for (cgroup, uid, userns, expected) in [
            (slice, 1000, false, foreign("user-1000.slice")),
            (nested, 100_007, true, foreign("user-1000.slice")),
            ("/", 1000, false, foreign("uid 1000")),
            ("/", 100_007, true, foreign(USERS)),
            ("/", 100_008, true, foreign(USERS)),
            ("/", 0, true, foreign(USERS)),
            ("/system.slice/cron.service/x", 0, false, (Priority::Node, "cron.service".to_owned())),
            ("/", 0, false, (Priority::Node, "/".to_owned())),
        ] {
            assert_eq!(user(cgroup, uid, userns), expected, "{cgroup} {uid}");
        }
    }

    #[test]
    fn a_cni_call_is_charged_to_the_pod_for_which_it_is_made_and_not_to_who_serves_all_of_them() {
        let of_call = |change: &dyn Fn(&mut Event)| {
            let mut event = sample::cni();
            let actor = event.actor.as_mut().unwrap();
            (actor.cgroup, actor.container) = (Some("/system.slice/kubelet.service".into()), None);
            change(&mut event);
            tenant(&event, &mut Accounts::default()).name.to_string()
        };
        let uid = of_call(&|_| {});
        let target = sample::cni().target.unwrap().into_inner();
        assert_eq!(uid, target.pod.unwrap().uid);
        // The next sandbox of the pod.
        let next = of_call(&|event| {
            let target = event.target.as_mut().unwrap();
            target.container = Some(Container::of_id("ab".repeat(32)));
        });
        assert_eq!(next, uid);
        let named = |event: &mut Event| {
            let cni = event.cni.as_mut().unwrap();
            (cni.namespace, cni.pod) = (Some("lijiaob".into()), Some("etcd1-0".into()));
            event.target.as_mut().unwrap().pod.as_mut().unwrap().claimed = true;
        };
        assert_eq!(of_call(&named), "lijiaob/etcd1-0", "root names it, and not its labels");
        let nameless = |event: &mut Event| {
            let cni = event.cni.as_mut().unwrap();
            (cni.namespace, cni.pod) = (None, None);
            event.target.as_mut().unwrap().pod = None;
        };
        assert_eq!(of_call(&nameless), "kubelet.service");
    }

    #[test]
    fn gateways_and_containers_are_known_and_what_users_made_is_not() {
        assert_eq!(of(|_| {}).0, Priority::Known);
        let gateway = |event: &mut Event| {
            unowned(event);
            event.neighbor.as_mut().unwrap().gateway = Some(true);
        };
        assert_eq!(of(gateway).0, Priority::Known);
        let foreign = |event: &mut Event| {
            gateway(event);
            event.target.as_mut().unwrap().userns = Some(UserNamespace::Other);
        };
        assert_eq!(of(foreign).0, Priority::Foreign);
        let unknown = |event: &mut Event| {
            unowned(event);
            (event.actor, event.target) = (None, Some(Shared::new(Target::unknown(Join::Missed))));
        };
        assert_eq!(of(unknown), (Priority::Foreign, UNKNOWN.to_owned()));
        let daemon = sample::daemon(kevtmon_event::Severity::Info);
        assert_eq!(tenant(&daemon, &mut Accounts::default()), Tenant::default());
    }
}
