//! Who is charged for an event: whoever caused it. What users can choose, such as the names of processes, paths and
//! control groups of their own, makes no difference.

use super::cgroup;
use crate::event::{Actor, Charge, Event, Join, Kind, Standing, Target};

/// Everybody whose user is only known in a user namespace of their own.
const USERS: &str = "users";
/// Namespaces of which nothing is known.
const UNKNOWN: &str = "unknown";

/// Who is charged for an event.
#[must_use]
pub fn charge(event: &Event) -> Charge {
    let (actor, target) = (event.actor.as_deref(), event.target.as_deref());
    if actor.is_none() && target.is_none() {
        return Charge::default();
    }
    let standing = standing(event, actor, target);
    let account = match (actor, target) {
        (Some(actor), _) => of_actor(actor),
        (None, Some(target)) => of_target(target),
        (None, None) => String::new(),
    };
    Charge { standing, account: account.into() }
}

fn standing(event: &Event, actor: Option<&Actor>, target: Option<&Target>) -> Standing {
    let is_owned = target.is_some_and(|target| target.container.is_some() || target.pod.is_some());
    // Only root of the node can name one.
    let is_nameless = |target: &Target| target.join == Join::Missed && target.netns_name.is_none();
    let is_unknown = target.is_some_and(is_nameless) && !is_owned;
    let is_users = actor.is_some_and(|actor| is_user(actor) && actor.container.is_none());
    if target.is_some_and(Target::is_foreign) || is_unknown || is_users && !is_owned {
        return Standing::Foreign;
    }
    let is_gateway = event.neighbor.as_ref().is_some_and(|neighbor| neighbor.gateway == Some(true));
    let is_incident =
        matches!(event.kind, Kind::IncidentOpened | Kind::IncidentUpdated | Kind::IncidentClosed);
    if is_owned || is_gateway || is_incident { Standing::Known } else { Standing::Node }
}

/// Whether it acts for a user of the node: in a user namespace, or by a program that gave it rights for one thing.
fn is_user(actor: &Actor) -> bool {
    actor.userns.is_some() || actor.uid.is_some_and(|uid| uid != 0)
}

fn of_actor(actor: &Actor) -> String {
    if let Some(container) = &actor.container {
        return container.id.clone();
    }
    let group = actor.cgroup.as_deref();
    match (group.and_then(cgroup::owner), actor.uid) {
        (Some(owner), _) => owner.to_owned(),
        // Of the many user ids that a user may have in namespaces, none tells who it is.
        (None, _) if actor.userns.is_some() => USERS.to_owned(),
        (None, Some(uid)) if uid != 0 => format!("uid {uid}"),
        (None, _) => group.map(cgroup::account).unwrap_or_default().to_owned(),
    }
}

fn of_target(target: &Target) -> String {
    if let Some(container) = &target.container {
        return container.id.clone();
    }
    if let Some(pod) = &target.pod {
        return pod.uid.clone();
    }
    match target.cgroup.as_deref().and_then(cgroup::owner) {
        Some(owner) => owner.to_owned(),
        None if target.is_foreign() => USERS.to_owned(),
        None if target.join == Join::Missed => UNKNOWN.to_owned(),
        // The host's namespace, or one that root of the node has named.
        None => target.netns_name.clone().unwrap_or_default(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::UserNamespace;
    use crate::tests::sample;

    fn of(change: impl FnOnce(&mut Event)) -> (Standing, String) {
        let mut event = sample::deletion();
        change(&mut event);
        let charge = charge(&event);
        (charge.standing, charge.account.to_string())
    }

    fn unowned(event: &mut Event) {
        event.target = Some(Box::new(Target::unknown(Join::Ok)));
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
        let foreign = |name: &str| (Standing::Foreign, name.to_owned());
        for (cgroup, uid, userns, expected) in [
            (slice, 1000, false, foreign("user-1000.slice")),
            (nested, 100_007, true, foreign("user-1000.slice")),
            ("/", 1000, false, foreign("uid 1000")),
            ("/", 100_007, true, foreign(USERS)),
            ("/", 100_008, true, foreign(USERS)),
            ("/", 0, true, foreign(USERS)),
            ("/system.slice/cron.service/x", 0, false, (Standing::Node, "cron.service".to_owned())),
            ("/", 0, false, (Standing::Node, "/".to_owned())),
        ] {
            assert_eq!(user(cgroup, uid, userns), expected, "{cgroup} {uid}");
        }
    }

    #[test]
    fn gateways_and_containers_are_known_and_what_users_made_is_not() {
        assert_eq!(of(|_| {}).0, Standing::Known);
        let gateway = |event: &mut Event| {
            unowned(event);
            event.neighbor.as_mut().unwrap().gateway = Some(true);
        };
        assert_eq!(of(gateway).0, Standing::Known);
        let foreign = |event: &mut Event| {
            gateway(event);
            event.target.as_mut().unwrap().userns = Some(UserNamespace::Other);
        };
        assert_eq!(of(foreign).0, Standing::Foreign);
        let unknown = |event: &mut Event| {
            unowned(event);
            (event.actor, event.target) = (None, Some(Box::new(Target::unknown(Join::Missed))));
        };
        assert_eq!(of(unknown), (Standing::Foreign, UNKNOWN.to_owned()));
        assert_eq!(charge(&sample::daemon(crate::event::Severity::Info)), Charge::default());
    }
}
