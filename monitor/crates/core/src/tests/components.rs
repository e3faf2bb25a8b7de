//! Kubelet and runtimes that come and go.

use kevtmon_event::Component;

use super::*;

const SECOND: u64 = 1_000 * MS;

fn kubelet(tgid: u32, started_s: u64, version: Option<&str>) -> ComponentFacts {
    ComponentFacts {
        name: "kubelet".into(),
        tgid,
        started_ns: started_s * SECOND,
        exe: Some("/usr/bin/kubelet".into()),
        version: version.map(str::to_owned),
        remote_runtime: None,
        cni_dirs: Default::default(),
    }
}

fn list(components: &[ComponentFacts]) -> Fact {
    Fact::Components { components: components.to_vec() }
}

fn told(core: &mut Core) -> Vec<(Kind, Severity, Component, String)> {
    let all = events(core).into_iter();
    all.inspect(assert_valid)
        .map(|event| (event.kind, event.severity, *event.component.unwrap(), event.message))
        .collect()
}

#[test]
fn what_runs_at_the_start_is_no_news_and_what_comes_later_is() {
    let mut core = core();
    core.observe(at(50 * SECOND, list(&[kubelet(7, 5, None)])));
    assert_eq!(told(&mut core), []);
    assert_eq!(core.state(0).components.len(), 1);
    let exit = ComponentExit { tgid: 7, started_ns: 5 * SECOND, code: Some(255), signal: None };
    core.observe(at(60 * SECOND, Fact::ComponentExited(exit.clone())));
    core.observe(at(60 * SECOND, Fact::ComponentExited(exit)));
    let [(Kind::ComponentExited, Severity::Notice, component, message)] = &told(&mut core)[..] else {
        panic!("its end is told once")
    };
    assert_eq!((component.exit_code, component.lifetime_s), (Some(255), Some(55.0)));
    assert_eq!(message, "kubelet (pid 7) exited with code 255 after 55.0 s");
    assert_eq!(core.state(0).components, []);
    core.observe(at(80 * SECOND, list(&[kubelet(8, 70, None)])));
    let found = events(&mut core);
    assert_eq!((found[0].kind, found[0].at), (Kind::ComponentStarted, 70 * SECOND), "when it started");
}

#[test]
fn another_version_than_before_is_worth_reading() {
    let mut core = core();
    core.observe(at(50 * SECOND, list(&[kubelet(7, 5, Some("v1.7.16"))])));
    core.observe(at(
        60 * SECOND,
        Fact::ComponentExited(ComponentExit {
            tgid: 7,
            started_ns: 5 * SECOND,
            code: None,
            signal: Some(15),
        }),
    ));
    core.observe(at(80 * SECOND, list(&[kubelet(8, 70, Some("v1.9.11"))])));
    let told = told(&mut core);
    assert_eq!(told[0].3, "kubelet v1.7.16 (pid 7) was ended by signal 15 after 55.0 s");
    let (_, severity, component, message) = &told[1];
    assert_eq!((*severity, component.previous_version.as_deref()), (Severity::Notice, Some("v1.7.16")));
    assert_eq!(message, "kubelet v1.9.11 (pid 8) started in place of version v1.7.16");
}

#[test]
fn what_was_started_while_no_daemon_ran_is_told() {
    let mut core = core();
    core.observe(at(50 * SECOND, Fact::Restarted { last_alive: 40 * SECOND }));
    events(&mut core);
    core.observe(at(51 * SECOND, list(&[kubelet(7, 5, None), kubelet(8, 45, None)])));
    let pids: Vec<u32> = told(&mut core).iter().map(|(_, _, component, _)| component.pid).collect();
    assert_eq!(pids, [8]);
}
