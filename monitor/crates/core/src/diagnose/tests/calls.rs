//! Calls of CNI plugins, in scenarios through the core.

use kevtmon_observation::*;

use super::harness::*;

pub(in crate::diagnose) fn exec(tgid: u32, command: CniCommand, id: &str) -> Fact {
    Fact::CniExec(Box::new(CniExec {
        actor: TaskRef { key: task_key(tgid), tid: tgid, comm: "calico".into(), context: None },
        plugin: "/opt/cni/bin/calico".into(),
        command,
        container_id: Some(id.into()),
        netns: None,
        ifname: Some("eth0".into()),
        pod: Some(CniPod { namespace: "lijiaob".into(), name: "etcd1-0".into(), uid: None }),
        truncated: false,
    }))
}

pub(in crate::diagnose) fn exit(tgid: u32, code: u32) -> Fact {
    Fact::CniExit(CniExit { tgid, start_ns: task_key(tgid).start_ns, status: code << 8 })
}

impl TestNode {
    /// A call of one plugin, and what is done meanwhile.
    pub(in crate::diagnose) fn call_with(
        &mut self,
        command: CniCommand,
        id: &str,
        code: u32,
        meanwhile: impl FnOnce(&mut Self),
    ) {
        let tgid = 30_000 + u32::try_from(self.observed.len()).unwrap();
        self.observe(task(tgid, "/opt/cni/bin/calico"));
        self.observe(exec(tgid, command, id));
        self.run_for(100 * MS);
        meanwhile(self);
        self.observe(exit(tgid, code));
        self.run_for(S);
    }

    pub(in crate::diagnose) fn call(&mut self, command: CniCommand, id: &str, code: u32) {
        self.call_with(command, id, code, |_| {});
    }
}
