//! How much memory the texts of an observation take, where whoever acts chooses them: what waits is bounded by that, too.

use super::{
    Ancestor, CniExec, Fact, Observation, PathOrigin, RbdExec, SecondPath, TaskFacts, UmountAttempt,
};

impl Observation {
    /// Bytes of the texts of what the kernel programs tell, as of paths. What others tell is not anybody's to flood with.
    pub fn text_bytes(&self) -> usize {
        match &self.fact {
            Fact::Umount(attempt) => attempt.text_bytes(),
            Fact::Task(task) => task.text_bytes(),
            Fact::CniExec(exec) => of_plugin(exec),
            Fact::RbdExec(exec) => of_rbd(exec),
            Fact::ContainerStart(start) => start.containers.iter().map(String::capacity).sum(),
            _ => 0,
        }
    }
}

impl UmountAttempt {
    pub fn text_bytes(&self) -> usize {
        let Self { path, origin, second, .. } = self;
        let of_second = |second: &SecondPath| second.path.capacity() + of_origin(&second.origin);
        path.capacity() + origin.as_deref().map_or(0, of_origin) + second.as_deref().map_or(0, of_second)
    }
}

fn of_origin(origin: &PathOrigin) -> usize {
    let directories = [&origin.root, &origin.cwd].into_iter().flatten();
    directories.map(|directory| of(&directory.path)).sum()
}

impl TaskFacts {
    pub fn text_bytes(&self) -> usize {
        let of_ancestor = |above: &Ancestor| above.comm.capacity() + of(&above.exe) + of(&above.cgroup);
        let own = of(&self.exe) + of(&self.cmdline) + of(&self.cgroup);
        own + self.ancestors.iter().map(of_ancestor).sum::<usize>()
    }
}

fn of_plugin(exec: &CniExec) -> usize {
    let of_pod =
        exec.pod.as_ref().map_or(0, |pod| pod.namespace.capacity() + pod.name.capacity() + of(&pod.uid));
    exec.plugin.capacity() + of(&exec.container_id) + of(&exec.netns) + of(&exec.ifname) + of_pod
}

fn of_rbd(exec: &RbdExec) -> usize {
    let RbdExec { pool, namespace, image, snapshot, lock, .. } = exec;
    pool.capacity() + image.capacity() + of(namespace) + of(snapshot) + of(lock)
}

fn of(text: &Option<String>) -> usize {
    text.as_ref().map_or(0, String::capacity)
}
