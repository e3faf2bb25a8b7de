use std::io::Write;

use tokio::sync::oneshot;

use super::*;

/// What the facts leave of the addresses of a namespace.
fn apply(model: &mut HashSet<IpAddr>, netns: NsInum, fact: &Fact) {
    match fact {
        Fact::Netns(snapshot) if snapshot.netns == netns => *model = addresses(snapshot),
        Fact::Address(added) if added.netns == netns => {
            model.insert(added.address);
        }
        Fact::AddressGone(gone) if gone.netns == netns => {
            model.remove(&gone.address);
        }
        _ => {}
    }
}

/// A file of commands for `ip -batch`.
fn batch_file(commands: impl Iterator<Item = String>) -> tempfile::NamedTempFile {
    let mut file = tempfile::NamedTempFile::new().unwrap();
    for command in commands {
        writeln!(file, "{command}").unwrap();
    }
    file
}

/// IPv6 makes addresses of its own accord.
fn ipv4(model: &HashSet<IpAddr>) -> HashSet<IpAddr> {
    model.iter().copied().filter(IpAddr::is_ipv4).collect()
}

#[tokio::test]
async fn an_overrun_is_reported_and_repaired() {
    let netns = Netns::new();
    netns.connect();
    let mut source = Running::start(NetlinkConfig { receive_buffer: 4096, ..NetlinkConfig::default() });
    let mut model = addresses(&source.snapshot(netns.inode).await);
    source.up().await;
    // The source shares this thread, so it cannot read while the burst lasts.
    let added = (1..=200).map(|i| format!("addr add 10.10.0.{i}/32 dev eth0"));
    let gone = (1..=100).map(|i| format!("addr del 10.10.0.{i}/32 dev eth0"));
    let burst = batch_file(added.chain(gone));
    netns.ip(&format!("-batch {}", burst.path().display()));
    let mut truth: HashSet<IpAddr> = (101..=200).map(|i| address(&format!("10.10.0.{i}"))).collect();
    truth.insert(address("10.9.0.2"));
    let (mut lost, mut mended) = (false, false);
    let equal = async {
        loop {
            let fact = source.next().await;
            apply(&mut model, netns.inode, &fact);
            match fact {
                Fact::Lost(loss) if loss.reason == "overrun" => {
                    assert_eq!(loss.count, None);
                    lost = true;
                }
                Fact::Resync { reason, .. } => mended |= lost && reason == "overrun",
                _ => {}
            }
            if mended && ipv4(&model) == truth {
                return;
            }
        }
    };
    timeout(patience(), equal).await.expect("the model never became equal to the truth");
}

#[tokio::test]
async fn changes_during_a_dump_are_neither_lost_nor_undone() {
    let netns = Netns::new();
    netns.connect();
    // Neighbors are dumped last: with many of them, addresses change after theirs were dumped.
    let neighbors = batch_file((1..=4000).map(|i| {
        format!("neigh add 10.9.{}.{} lladdr ee:ee:ee:ee:ee:ee nud permanent dev eth0", 1 + i / 250, i % 250)
    }));
    netns.ip(&format!("-batch {}", neighbors.path().display()));
    let mut source = Running::start(NetlinkConfig::default());
    let mut model = addresses(&source.snapshot(netns.inode).await);
    source.up().await;
    let burst = (1..=3000).flat_map(|i| {
        let at = format!("10.20.{}.{}/32 dev eth0", i / 250, i % 250);
        let gone = (i % 3 != 0).then(|| format!("addr del {at}"));
        std::iter::once(format!("addr add {at}")).chain(gone)
    });
    let file = batch_file(burst.chain(["addr add 10.30.0.1/32 dev eth0".to_owned()]));
    let mut batch = Command::new("ip").args(["-n", &netns.name, "-batch"]).arg(file.path()).spawn().unwrap();
    let mut truth: HashSet<IpAddr> = (1..=3000)
        .filter(|i| i % 3 == 0)
        .map(|i| address(&format!("10.20.{}.{}", i / 250, i % 250)))
        .collect();
    truth.extend([address("10.9.0.2"), address("10.30.0.1")]);
    let mut snapshots = 0;
    let last = async {
        loop {
            // One snapshot after the other, as long as the burst lasts.
            let _ = source.requests.try_send(netns.inode);
            let fact = source.next().await;
            let reported: Vec<IpAddr> = model.intersection(&truth).copied().collect();
            apply(&mut model, netns.inode, &fact);
            assert!(
                reported.iter().all(|kept| model.contains(kept)),
                "a snapshot is older than what it follows"
            );
            match fact {
                Fact::Netns(snapshot) if snapshot.netns == netns.inode => snapshots += 1,
                Fact::Address(last) if last.address == address("10.30.0.1") => return,
                _ => {}
            }
        }
    };
    timeout(patience(), last).await.expect("the last change of the burst was lost");
    assert!(batch.wait().unwrap().success());
    assert!(snapshots > 1, "no dump was made during the burst");
    assert_eq!(ipv4(&model), truth);
}

#[tokio::test]
async fn all_that_was_sent_before_a_barrier_is_delivered_before_its_answer() {
    let netns = Netns::new();
    netns.connect();
    let mut source = Running::start(NetlinkConfig::default());
    source.snapshot(netns.inode).await;
    source.up().await;
    for gateway in 2..30 {
        netns.ip(&format!("route append default via 10.9.0.{gateway} metric {gateway}"));
        let (barrier, mut passed) = oneshot::channel();
        source.barriers.send(barrier).await.unwrap();
        let mut facts = Vec::new();
        // Others change their namespaces meanwhile: what is told has to be taken, or the source waits.
        while passed.try_recv().is_err() {
            tokio::select! {
                biased;
                _ = &mut passed => break,
                fact = source.next() => facts.push(fact),
            }
        }
        facts.extend(std::iter::from_fn(|| source.facts.try_recv().ok()).map(|one| one.fact));
        let mut facts = facts.into_iter();
        let heard = |fact: &Fact| matches!(fact, Fact::NetnsHeard { netns: of, .. } if *of == netns.inode);
        let expected = address(&format!("10.9.0.{gateway}"));
        assert!(facts.any(|fact| heard(&fact)), "the message is dated");
        let told = |fact: Fact| matches!(fact, Fact::Route(route) if route.gateway == Some(expected));
        assert!(facts.any(told), "the route by {expected} was told");
    }
}
