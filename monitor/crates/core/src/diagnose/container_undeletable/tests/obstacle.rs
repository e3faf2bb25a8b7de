//! What cannot be removed though nothing holds it.

use super::*;

const FILE: &str = "/var/lib/docker/overlay2/353abb/diff/k x";

fn refused_by(error: RemovalError) -> ContainerFacts {
    let refused = RefusedRemoval { path: FILE.into(), error };
    ContainerFacts { refused_removal: Some(Box::new(refused)), ..web(ContainerState::Dead) }
}

fn immutable(path: &str, is_directory: bool) -> Obstacle {
    Obstacle::Flag { flag: FileFlag::Immutable, path: path.into(), is_directory }
}

fn found(node: &mut TestNode, error: RemovalError, found: Obstacle) {
    let refused = RefusedRemoval { path: FILE.into(), error };
    node.observe(Fact::Obstacle(Box::new(FoundObstacle { container: WEB.into(), refused, found })));
}

fn asked(node: &TestNode) -> usize {
    node.requests.iter().filter(|request| matches!(request, Request::Obstacle { .. })).count()
}

fn commands(node: &TestNode) -> Vec<String> {
    node.open()[0].advice.iter().map(|step| step.command.clone()).collect()
}

fn summary(node: &TestNode) -> String {
    node.open()[0].summary.clone()
}

#[test]
fn an_immutable_file_is_no_holder_and_is_named_until_it_is_so_no_more() {
    let mut node = started(web(ContainerState::Exited));
    // What was in use was so before.
    node.observe(refused(&shm()));
    tell(&mut node, refused_by(RemovalError::NotPermitted));
    assert_eq!(asked(&node), 1);
    found(&mut node, RemovalError::NotPermitted, immutable(FILE, false));
    node.run_for(10 * S);
    let opened = node.last_incident();
    let incident = opened.incident.as_ref().unwrap();
    let expected = format!("is dead: no holder: file \"{FILE}\" is immutable; the runtime says ");
    assert!(incident.summary.contains(&expected), "{}", incident.summary);
    assert_eq!((incident.confidence, incident.count), (Confidence::Likely, 1));
    assert_eq!(incident.ruled_out, ["no process, mount or device holds it: that gives EBUSY, and not EPERM"]);
    assert!(opened.mount.is_none() && opened.holders.is_none(), "{opened:?}");
    assert_eq!(commands(&node), [format!("chattr -i '{FILE}'"), format!("docker rm {WEB}")]);

    let told = node.incidents().len();
    tell(&mut node, web(ContainerState::Removing));
    tell(&mut node, refused_by(RemovalError::NotPermitted));
    node.run_for(LOOK);
    assert_eq!(asked(&node), 2, "it is looked at again");
    found(&mut node, RemovalError::NotPermitted, Obstacle::Unknown);
    assert!(summary(&node).contains("is immutable"), "{}", summary(&node));
    found(&mut node, RemovalError::NotPermitted, Obstacle::None);
    assert!(summary(&node).contains("is dead: what likely blocked it is gone; "), "{}", summary(&node));
    assert_eq!(commands(&node), [format!("docker rm {WEB}")]);
    assert!(node.incidents().len() - told <= 3, "{:?}", node.kinds());

    // Now it is in use.
    tell(&mut node, web(ContainerState::Dead));
    assert!(summary(&node).contains("held by glusterfs (pid 94549)"), "{}", summary(&node));
    assert_eq!(node.open()[0].ruled_out, [""; 0]);
}

#[test]
fn what_a_look_does_not_show_the_runtime_tells() {
    let directory = "/var/lib/docker/overlay2/353abb/diff";
    let append = Obstacle::Flag { flag: FileFlag::AppendOnly, path: FILE.into(), is_directory: false };
    for (error, look, expected) in [
        (
            RemovalError::NotPermitted,
            Some(immutable(directory, true)),
            format!("directory {directory} is immutable"),
        ),
        (RemovalError::NotPermitted, Some(append), format!("file \"{FILE}\" is append-only")),
        (RemovalError::NotPermitted, Some(Obstacle::None), format!("removing \"{FILE}\" is not permitted")),
        (
            RemovalError::NotPermitted,
            Some(Obstacle::Unknown),
            format!("removing \"{FILE}\" is not permitted"),
        ),
        (RemovalError::NotPermitted, None, format!("removing \"{FILE}\" is not permitted")),
        (
            RemovalError::ReadOnly,
            Some(Obstacle::ReadOnly),
            format!("the file system of \"{FILE}\" is mounted read-only"),
        ),
        (
            RemovalError::ReadOnly,
            Some(Obstacle::None),
            format!("the file system of \"{FILE}\" was read-only"),
        ),
        (RemovalError::NotPermitted, Some(Obstacle::Swap), format!("the kernel swaps to file \"{FILE}\"")),
        (RemovalError::Io, None, format!("I/O error at \"{FILE}\"")),
    ] {
        let mut node = started(refused_by(error));
        assert_eq!(asked(&node), usize::from(error != RemovalError::Io));
        if let Some(look) = look {
            found(&mut node, error, look);
        }
        node.run_for(10 * S);
        let holder = if expected.contains(" is immutable") || expected.contains("append-only") {
            "no holder: "
        } else {
            ""
        };
        assert!(summary(&node).contains(&format!("is dead: {holder}{expected}; ")), "{}", summary(&node));
        assert_eq!(node.open()[0].ruled_out.is_empty(), holder.is_empty());
        assert_eq!(node.open()[0].confidence, Confidence::Likely);
        assert!(
            !commands(&node).iter().any(|command| command.starts_with("kevtmon")),
            "{:?}",
            commands(&node)
        );
    }
}

#[test]
fn one_that_was_said_to_be_surely_so_becomes_likely() {
    let mut node = started(web(ContainerState::Dead));
    node.run_for(START_DELAY);
    assert_eq!(node.open()[0].confidence, Confidence::Certain);
    tell(&mut node, refused_by(RemovalError::NotPermitted));
    found(&mut node, RemovalError::NotPermitted, immutable(FILE, false));
    assert_eq!(node.open()[0].confidence, Confidence::Likely);
    // Over a restart nothing is different.
    let mut next = TestNode::booted(node.resume_state());
    next.start(vec![refused_by(RemovalError::NotPermitted)]);
    found(&mut next, RemovalError::NotPermitted, immutable(FILE, false));
    next.run_for(60 * S);
    assert_eq!(next.kinds(), [""; 0]);
    assert_eq!(next.open()[0].summary, summary(&node));
}
