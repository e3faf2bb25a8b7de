//! In which order it is looked who uses a mount that was detached, and how a look goes on.

use std::collections::BTreeSet;

use kevtmon_observation::DetachedMount;
use kevtmon_sources::procfs::readers::Job;

use super::*;
use crate::detached::{self, Looked, users};
use crate::jobs;

fn asked(mounts: &[u64]) -> DetachedRequest {
    let mount =
        |id: &u64| DetachedMount { meant: MeantMount { id: *id, unique: None }, path: "/vol".to_owned() };
    DetachedRequest::new(1, mounts.iter().map(mount).collect())
}

fn used(fake: &FakeProc, mounts: &[u64]) -> Vec<HolderReport> {
    let looked = users(&Proc::new(fake.0.path()), &asked(mounts), detached::Progress::default(), AMPLE);
    assert_eq!(looked.progress, None);
    looked.reports
}

/// One part, which begins with what the one before wrote down.
fn go_on(fake: &FakeProc, mounts: &[u64], progress: &detached::Progress, budget: Duration) -> Looked {
    let written = serde_json::to_string(progress).unwrap();
    let read = serde_json::from_str(&written).unwrap();
    assert_eq!(*progress, read);
    users(&Proc::new(fake.0.path()), &asked(mounts), read, budget)
}

/// All parts, each of which ends after any progress at all. `between`: what happens after each but the last.
fn parts(fake: &FakeProc, mounts: &[u64], mut between: impl FnMut(&Looked)) -> Vec<Vec<HolderReport>> {
    let (mut progress, mut all) = (detached::Progress::default(), Vec::new());
    loop {
        let looked = go_on(fake, mounts, &progress, Duration::ZERO);
        all.push(looked.reports.clone());
        let Some(left) = looked.progress.clone() else { return all };
        between(&looked);
        progress = left;
        assert!(all.len() < 1000, "each part gets on: {progress:?}");
    }
}

fn found(report: &HolderReport) -> Vec<(u32, Option<u32>)> {
    report.holders.iter().map(|holder| (holder.tgid, holder.fd)).collect()
}

#[test]
fn nobody_hides_the_users_of_a_detached_mount_behind_his_descriptors() {
    let fake = FakeProc::new();
    for tgid in 11..14 {
        fake.process(tgid, 1, &fake_table());
        for fd in 0..2000 {
            fake.open(tgid, fd, "/dev/null", "mnt_id:\t1\n");
        }
    }
    fake.open(11, 2000, "/f", &format!("mnt_id:\t{VOL}\n"));
    fake.open(12, 2000, "/f", &format!("mnt_id:\t{}\n", VOL + 1));
    fake.process(92, 1, &fake_table());
    fake.open(92, 3, "/f", &format!("mnt_id:\t{VOL}\n"));
    let [report] = &used(&fake, &[VOL])[..] else { panic!("one") };
    assert_eq!(found(report), [(92, Some(3)), (11, Some(2000))]);
    assert!(!report.cut, "{report:#?}");
    fake.open(92, 4, "/f", &format!("mnt_id:\t{}\n", VOL + 1));
    let reports = used(&fake, &[VOL, VOL + 1, VOL + 2]);
    let mut by_both: Vec<_> = reports.iter().map(found).collect();
    by_both.iter_mut().for_each(|found| found.sort_unstable());
    let of_first = vec![(11, Some(2000)), (92, Some(3))];
    assert_eq!(by_both, [of_first, vec![(12, Some(2000)), (92, Some(4))], vec![]]);
}

#[test]
fn a_descriptor_that_only_a_thread_has_is_found_whichever_of_several_mounts_it_is_on() {
    let fake = FakeProc::new();
    fake.process(20, 1, &fake_table());
    for task in ["20/task/20", "20/task/21"] {
        fs::create_dir_all(fake.0.path().join(task)).unwrap();
    }
    let task = fake.0.path().join("20/task/21");
    for sub in ["fd", "fdinfo"] {
        fs::create_dir(task.join(sub)).unwrap();
    }
    symlink("/f", task.join("fd/5")).unwrap();
    fs::write(task.join("fdinfo/5"), format!("mnt_id:\t{VOL}\n")).unwrap();
    let of = |report: &HolderReport| {
        report.holders.iter().map(|holder| (holder.tgid, holder.tid, holder.fd)).collect::<Vec<_>>()
    };
    let of_thread = vec![(20, Some(21), Some(5))];
    assert_eq!(of(&used(&fake, &[VOL])[0]), of_thread);
    let reports = used(&fake, &[VOL + 1, VOL]);
    assert_eq!(reports.iter().map(of).collect::<Vec<_>>(), [vec![], of_thread.clone()]);
    let all = parts(&fake, &[VOL + 1, VOL], |_| ());
    assert_eq!(all.last().unwrap().iter().map(of).collect::<Vec<_>>(), [vec![], of_thread]);
}

#[test]
fn more_users_of_a_detached_mount_than_are_listed_are_counted() {
    let fake = FakeProc::new();
    for tgid in (100..).take(MAX_LISTED + 3) {
        fake.process(tgid, 1, &fake_table());
        fake.open(tgid, 3, "/f", &format!("mnt_id:\t{VOL}\n"));
    }
    let [report] = &used(&fake, &[VOL])[..] else { panic!("one") };
    assert_eq!((report.holders.len(), report.holders_omitted), (MAX_LISTED, 3));
}

/// Six processes with five hundred descriptors each, two of which use one of two mounts by the last one; and one that quickly
/// shows that it uses both.
fn crowded() -> FakeProc {
    let fake = FakeProc::new();
    for tgid in 100..106 {
        fake.process(tgid, 1, &fake_table());
        for fd in 0..500 {
            fake.open(tgid, fd, "/dev/null", "mnt_id:\t1\n");
        }
    }
    fake.open(105, 1000, "/f", &format!("mnt_id:\t{VOL}\n"));
    fake.open(103, 1001, "/f", &format!("mnt_id:\t{}\n", VOL + 1));
    fake.process(110, 1, &fake_table());
    fake.open(110, 3, "/f", &format!("mnt_id:\t{VOL}\n"));
    fake.open(110, 4, "/f", &format!("mnt_id:\t{}\n", VOL + 1));
    fake
}

fn sorted(report: &HolderReport) -> HolderReport {
    let mut report = report.clone();
    report.holders.sort_by_key(|holder| (holder.tgid, holder.access));
    report
}

#[test]
fn a_look_whose_time_runs_out_in_every_part_finds_what_a_whole_one_finds() {
    let fake = crowded();
    for mounts in [&[VOL][..], &[VOL, VOL + 1]] {
        let whole = used(&fake, mounts);
        let mut stopped_in = BTreeSet::new();
        let all = parts(&fake, mounts, |looked| {
            stopped_in.insert(serde_json::to_value(&looked.progress).unwrap()["part"].to_string());
        });
        let stages = ["\"first-files\"", "\"links\"", "\"mappings\"", "null"].map(str::to_owned);
        assert_eq!(stopped_in, BTreeSet::from(stages));
        let (last, before) = all.split_last().unwrap();
        assert!(before.iter().flatten().all(|report| report.cut && !report.complete), "{before:#?}");
        let [last, whole] = [last, &whole].map(|reports| reports.iter().map(sorted).collect::<Vec<_>>());
        assert_eq!(last, whole);
        assert_eq!(found(&whole[0]), [(105, Some(1000)), (110, Some(3))]);
        let quick = before.iter().position(|reports| found(&reports[0]) == [(110, Some(3))]);
        assert!(quick.is_some_and(|part| part + 1 < before.len()), "{quick:?} of {}", before.len());
    }
}

#[test]
fn what_happens_while_a_look_waits_to_go_on_is_seen() {
    let fake = crowded();
    let is_found = |looked: &Looked, tgid| found(&looked.reports[0]).iter().any(|holder| holder.0 == tgid);
    // Until somebody is found.
    let mut progress = detached::Progress::default();
    loop {
        let looked = go_on(&fake, &[VOL], &progress, Duration::ZERO);
        progress = looked.progress.clone().expect("it is not done");
        if is_found(&looked, 110) {
            break;
        }
    }
    let last = |progress: &detached::Progress| {
        let Looked { reports, progress } = go_on(&fake, &[VOL], progress, AMPLE);
        assert_eq!(progress, None);
        assert!(!reports[0].cut, "{reports:#?}");
        reports.into_iter().next().unwrap()
    };
    let dir = |tgid: u32| fake.0.path().join(tgid.to_string());
    assert_eq!(found(&last(&progress)), [(110, Some(3)), (105, Some(1000))]);

    // It has the file by another number.
    fs::remove_file(dir(110).join("fd/3")).unwrap();
    fake.open(110, 2, "/f", &format!("mnt_id:\t{VOL}\n"));
    // Somebody else came, with the id of nobody.
    fake.process(200, 1, &fake_table());
    fake.open(200, 9, "/f", &format!("mnt_id:\t{VOL}\n"));
    let report = sorted(&last(&progress));
    assert_eq!(found(&report), [(105, Some(1000)), (110, Some(2)), (200, Some(9))]);

    // It has let go.
    fs::remove_file(dir(110).join("fd/2")).unwrap();
    assert_eq!(found(&sorted(&last(&progress))), [(105, Some(1000)), (200, Some(9))]);

    // Its id is another one's now, who uses it too.
    let stat = fs::read_to_string(dir(110).join("stat")).unwrap();
    fs::write(dir(110).join("stat"), stat.replace(" 110 0 0", " 110 5 0").replacen(" 0 110", " 7 110", 1))
        .unwrap();
    fake.open(110, 7, "/f", &format!("mnt_id:\t{VOL}\n"));
    assert_eq!(found(&sorted(&last(&progress)))[1], (110, Some(7)));

    // They have ended, whether they were found or not.
    for tgid in [103, 105, 110, 200] {
        fs::remove_dir_all(dir(tgid)).unwrap();
    }
    let report = last(&progress);
    assert_eq!((found(&report), report.unreadable, report.verdict), (vec![], 0, Verdict::Incomplete));
}

#[test]
fn who_hangs_whoever_reads_him_may_still_use_what_he_used_and_is_named() {
    let fake = crowded();
    let mut progress = detached::Progress::default();
    while !serde_json::to_string(&progress).unwrap().contains("\"tgid\":110") {
        progress = go_on(&fake, &[VOL], &progress, Duration::ZERO).progress.expect("it is not done");
    }
    let proc = Proc::new(fake.0.path()).without(vec![110]);
    let mut job = jobs::Detached {
        request: asked(&[VOL]),
        progress: detached::Progress::default(),
        terms: jobs::Terms { budget: AMPLE, in_background: false },
    };
    job.go_on(&serde_json::to_vec(&progress).unwrap());
    assert_eq!(job.progress, progress);
    let Looked { reports, progress } = job.run(&proc).found;
    assert_eq!((progress, reports[0].unreadable), (None, 1));
    let told: Vec<_> = reports[0].holders.iter().map(|holder| (holder.tgid, holder.possible)).collect();
    assert_eq!(told, [(110, true), (105, true)]);
    let of_it = reports[0].blind_spots.iter().filter(|spot| spot.tgid == Some(110));
    let reasons: Vec<&str> = of_it.map(|spot| spot.reason.as_str()).collect();
    assert_eq!(reasons, ["reads of it hang", "it is unknown whether it still uses the detached mount"]);
    job.go_on(b"nothing");
    assert_eq!(job.progress, detached::Progress::default());
}
