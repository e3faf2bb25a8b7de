//! Ceph RBD images. A series is there as long as its image is mapped, or for some time after somebody wanted it.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use kevtmon_observation::{
    Access, BootNs, Fact, Observation, RbdExec, RbdImage, RbdImages, RbdNumber, RbdUse, RbdUses,
};
use prometheus::IntGaugeVec;

use super::registrar::Registrar;
use super::{FamilyMetrics, MetricsError, lock};

/// An image is wanted this long after somebody has asked for it.
const WANTED_NS: BootNs = 600 * 1_000_000_000;
/// Images that are wanted at most; the one that was asked for longest ago goes first.
const WANTED_MAX: usize = 64;

/// Labels: pool, namespace in it, image.
type Labels = [String; 3];
const LABELS: [&str; 3] = ["pool", "rados_namespace", "image"];

pub(super) struct RbdMetrics {
    mapped: Series,
    mounted: Series,
    wanted: Series,
    /// By number: what names an image.
    known: Mutex<BTreeMap<RbdNumber, Labels>>,
    asked: Mutex<BTreeMap<Labels, BootNs>>,
}

/// A gauge whose series come and go.
struct Series {
    gauge: IntGaugeVec,
    shown: Mutex<BTreeSet<Labels>>,
}

impl Series {
    fn new(gauge: IntGaugeVec) -> Self {
        Self { gauge, shown: Mutex::default() }
    }

    /// Shows these with 1, and no others.
    fn show(&self, now: BTreeSet<Labels>) {
        let mut shown = lock(&self.shown);
        for gone in shown.difference(&now) {
            // It is there: it was set when it was remembered.
            let _ = self.gauge.remove_label_values(&gone.each_ref().map(String::as_str));
        }
        for labels in &now {
            self.gauge.with_label_values(&labels.each_ref().map(String::as_str)).set(1);
        }
        *shown = now;
    }
}

impl RbdMetrics {
    pub(super) fn register(registrar: &Registrar) -> Result<Self, MetricsError> {
        Ok(Self {
            mapped: Series::new(registrar.gauges(
                "kevtmon_rbd_image_mapped",
                "1 for each Ceph RBD image that is mapped on this node, by the kernel's client or by rbd-nbd.",
                &LABELS,
            )?),
            mounted: Series::new(registrar.gauges(
                "kevtmon_rbd_image_mounted",
                "1 for each mapped Ceph RBD image with a mounted file system, in any mount namespace.",
                &LABELS,
            )?),
            wanted: Series::new(registrar.gauges(
                "kevtmon_rbd_image_wanted",
                "1 for each Ceph RBD image that a program on this node asked to map or lock within the last 10 minutes, unless unmapped \
                 since.",
                &LABELS,
            )?),
            known: Mutex::default(),
            asked: Mutex::default(),
        })
    }

    fn images(&self, found: &RbdImages) {
        let mut known = lock(&self.known);
        // What could not be read may still be mapped: it stays until that is known.
        let keeps = |number: &RbdNumber| found.omitted > 0 || found.unread.contains(number);
        let before: BTreeSet<Labels> = known.values().cloned().collect();
        known.retain(|number, _| keeps(number));
        known.extend(found.images.iter().map(|image| (image.number, labels(image))));
        let now: BTreeSet<Labels> = known.values().cloned().collect();
        self.unmapped(before.difference(&now));
        let mounted = lock(&self.mounted.shown).intersection(&now).cloned().collect();
        self.mapped.show(now);
        self.mounted.show(mounted);
    }

    /// Who has had an image and gave it back no longer wants it.
    fn unmapped<'a>(&self, images: impl Iterator<Item = &'a Labels>) {
        let mut asked = lock(&self.asked);
        images.for_each(|labels| _ = asked.remove(labels));
        self.wanted.show(asked.keys().cloned().collect());
    }

    fn asked(&self, at: BootNs, exec: &RbdExec) {
        let labels = [exec.pool.clone(), exec.namespace.clone().unwrap_or_default(), exec.image.clone()];
        let mut asked = lock(&self.asked);
        asked.insert(labels, at);
        if asked.len() > WANTED_MAX
            && let Some(oldest) = asked.iter().min_by_key(|(_, at)| **at).map(|(labels, _)| labels.clone())
        {
            asked.remove(&oldest);
        }
        self.wanted.show(asked.keys().cloned().collect());
    }

    fn expire(&self, now: BootNs) {
        let mut asked = lock(&self.asked);
        let before = asked.len();
        asked.retain(|_, at| at.saturating_add(WANTED_NS) > now);
        if asked.len() < before {
            self.wanted.show(asked.keys().cloned().collect());
        }
    }

    fn uses(&self, found: &RbdUses) {
        let known = lock(&self.known);
        let is_mounted = |used: &&RbdUse| used.holders.iter().any(|holder| holder.access == Access::Mount);
        let mounted =
            found.uses.iter().filter(is_mounted).filter_map(|used| known.get(&used.number).cloned());
        self.mounted.show(mounted.collect());
    }
}

fn labels(image: &RbdImage) -> Labels {
    [image.pool.clone(), image.namespace.clone().unwrap_or_default(), image.image.clone()]
}

impl FamilyMetrics for RbdMetrics {
    fn observation(&self, observation: &Observation) {
        match &observation.fact {
            Fact::RbdImages(found) => self.images(found),
            Fact::RbdUses(found) => self.uses(found),
            Fact::RbdExec(exec) if exec.wants() => self.asked(observation.at, exec),
            Fact::Tick => self.expire(observation.at),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use kevtmon_observation::{Holder, RbdCommand, Source, TaskKey, TaskRef};
    use prometheus::{Registry, TextEncoder};

    use super::*;

    fn image(number: u32, name: &str) -> RbdImage {
        RbdImage { number: number.into(), pool: "kube".into(), image: name.into(), ..RbdImage::default() }
    }

    fn images(images: &[RbdImage], unread: &[u32]) -> Fact {
        let unread = unread.iter().map(|number| (*number).into()).collect();
        Fact::RbdImages(RbdImages { images: images.to_vec(), unread, omitted: 0 })
    }

    fn mounted(numbers: &[u32]) -> Fact {
        let holder = Holder::of_kernel(Access::Mount, "/mnt".into());
        let used = |number: &u32| RbdUse {
            number: (*number).into(),
            holders: vec![holder.clone()],
            ..RbdUse::default()
        };
        Fact::RbdUses(RbdUses { uses: numbers.iter().map(used).collect(), ..RbdUses::default() })
    }

    struct Shown(RbdMetrics, Registry);

    impl Shown {
        fn new() -> Self {
            let registry = Registry::new();
            let registrar = Registrar { registry: registry.clone(), descriptions: RefCell::default() };
            Self(RbdMetrics::register(&registrar).unwrap(), registry)
        }

        fn after(&self, at: BootNs, fact: Fact) -> Vec<String> {
            self.0.observation(&Observation { at, source: Source::Daemon, fact });
            let text = TextEncoder::new().encode_to_string(&self.1.gather()).unwrap();
            let lines = text.lines().filter(|line| !line.starts_with('#'));
            lines.map(|line| line.replace("kevtmon_rbd_image_", "")).collect()
        }
    }

    fn line(what: &str, image: &str) -> String {
        format!("{what}{{image=\"{image}\",pool=\"kube\",rados_namespace=\"\"}} 1")
    }

    #[test]
    fn an_image_has_a_series_as_long_as_it_is_mapped_and_another_while_it_is_mounted() {
        let metrics = Shown::new();
        let shown = |fact| metrics.after(0, fact);
        let (a, b) = (image(0, "a"), image(1, "b"));
        assert_eq!(shown(images(&[], &[])), Vec::<String>::new());
        assert_eq!(shown(images(&[a.clone(), b], &[])), [line("mapped", "a"), line("mapped", "b")]);
        let all = [line("mapped", "a"), line("mapped", "b"), line("mounted", "b")];
        assert_eq!(shown(mounted(&[1])), all);
        assert_eq!(shown(images(std::slice::from_ref(&a), &[1])), all, "what cannot be read may be mapped");
        assert_eq!(shown(images(&[a], &[])), [line("mapped", "a")]);
        assert_eq!(shown(mounted(&[0])), [line("mapped", "a"), line("mounted", "a")]);
        assert_eq!(shown(mounted(&[])), [line("mapped", "a")]);
    }

    fn exec(command: RbdCommand, image: &str) -> RbdExec {
        let actor = TaskRef {
            key: TaskKey { tgid: 7, start_ns: 5, exec_id: 1 },
            tid: 7,
            comm: "rbd".into(),
            context: None,
        };
        let (pool, image) = ("kube".to_owned(), image.to_owned());
        RbdExec {
            actor,
            command,
            pool,
            namespace: None,
            image,
            snapshot: None,
            device: None,
            nbd: false,
            lock: None,
            shared: false,
        }
    }

    fn asked(command: RbdCommand, image: &str) -> Fact {
        Fact::RbdExec(Box::new(exec(command, image)))
    }

    #[test]
    fn an_image_is_wanted_for_ten_minutes_after_it_was_asked_for_the_last_time() {
        use kevtmon_types::clock::SECOND as S;
        let metrics = Shown::new();
        assert_eq!(metrics.after(0, asked(RbdCommand::Map, "a")), [line("wanted", "a")]);
        assert_eq!(metrics.after(500 * S, asked(RbdCommand::LockAdd, "a")), [line("wanted", "a")]);
        assert_eq!(metrics.after(1099 * S, Fact::Tick), [line("wanted", "a")]);
        assert_eq!(metrics.after(1100 * S, Fact::Tick), Vec::<String>::new());
        // Who takes a lock away wants nothing, and of a snapshot everybody can have one.
        assert_eq!(metrics.after(0, asked(RbdCommand::LockRemove, "a")), Vec::<String>::new());
        let snapshot = RbdExec { snapshot: Some("nightly".into()), ..exec(RbdCommand::Map, "a") };
        assert_eq!(metrics.after(0, Fact::RbdExec(Box::new(snapshot))), Vec::<String>::new());
    }

    #[test]
    fn an_image_that_was_mapped_and_unmapped_is_no_longer_wanted() {
        let metrics = Shown::new();
        metrics.after(0, asked(RbdCommand::Map, "a"));
        metrics.after(0, asked(RbdCommand::Map, "b"));
        let all = [line("mapped", "a"), line("wanted", "a"), line("wanted", "b")];
        assert_eq!(metrics.after(0, images(&[image(0, "a")], &[])), all);
        assert_eq!(metrics.after(0, images(&[], &[0])), all, "what cannot be read may be mapped");
        assert_eq!(metrics.after(0, images(&[], &[])), [line("wanted", "b")]);
    }

    #[test]
    fn whoever_asks_for_many_images_gets_a_bounded_number_of_series() {
        let metrics = Shown::new();
        for number in 0..100 {
            metrics.after(number, asked(RbdCommand::Map, &format!("{number:03}")));
        }
        let shown = metrics.after(100, Fact::Tick);
        assert_eq!(shown.len(), WANTED_MAX);
        assert_eq!(shown.first(), Some(&line("wanted", "036")), "the oldest ones went");
    }
}
