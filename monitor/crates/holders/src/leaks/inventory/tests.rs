//! Looks at the mounts that this process has.

use super::*;

#[test]
fn a_process_that_was_set_aside_is_not_read_for_its_name() {
    let own = std::process::id();
    let proc = Proc::default();
    assert!(names(&proc, &[own].into()).contains_key(&own));
    assert_eq!(names(&proc.without(vec![own]), &[own].into()), BTreeMap::new());
}

#[test]
fn a_namespace_with_more_mounts_than_are_told_does_not_count_as_read() {
    let proc = Proc::default();
    let own = std::process::id();
    let inum = proc.ns(own, "mnt").unwrap();
    let members = vec![Member { tgid: own, tid: own }];
    let namespace = Namespace { inum, members, whose: Whose::Root };
    let mut look = Look::new(&proc);
    look.namespace(&namespace, &mut BTreeMap::new());
    assert!(look.found.read.contains(&inum) && look.found.missed.is_empty());
    let one = look.found.copies[0].clone();
    look.found = Found { copies: vec![one; COPIES_MAX], ..Found::default() };
    look.namespace(&namespace, &mut BTreeMap::new());
    assert!(look.found.omitted > 0 && !look.found.read.contains(&inum));
    assert_eq!(look.found.displaced, look.found.omitted);
    assert_eq!(look.found.missed, [inum].into());
}

#[test]
fn one_namespace_of_a_user_takes_no_more_room_than_its_share() {
    let proc = Proc::default();
    let own = std::process::id();
    let members = vec![Member { tgid: own, tid: own }];
    let of = |whose| Namespace { inum: proc.ns(own, "mnt").unwrap(), members: members.clone(), whose };
    let told = |whose| {
        let mut look = Look::new(&proc);
        look.found.copies.clear();
        look.namespace(&of(whose), &mut BTreeMap::new());
        assert!(matches!(whose, Whose::Root) || look.found.displaced == 0, "his own number leaves no room");
        (look.found.copies.len(), look.found.omitted as usize)
    };
    let (all, _) = told(Whose::Root);
    let (some, omitted) = told(Whose::User(1000));
    assert_eq!((some, some + omitted), (all.min(COPIES_OF_USERS), all));
}
