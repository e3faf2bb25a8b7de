use std::io::Write;
use std::process::Stdio;

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

#[tokio::test]
async fn an_overrun_is_told_and_mended() {
    let netns = Netns::new();
    netns.connect();
    let mut source = Running::start(NetlinkConfig { receive_buffer: 4096, ..NetlinkConfig::default() });
    let mut model = addresses(&source.snapshot(netns.inode).await);
    source.up().await;
    // The source shares this thread, so it cannot read while the burst lasts.
    let mut batch =
        Command::new("ip").args(["-n", &netns.name, "-batch", "-"]).stdin(Stdio::piped()).spawn().unwrap();
    let mut commands = String::new();
    for i in 1..=200 {
        commands += &format!("addr add 10.10.0.{i}/32 dev eth0\n");
    }
    for i in 1..=100 {
        commands += &format!("addr del 10.10.0.{i}/32 dev eth0\n");
    }
    batch.stdin.take().unwrap().write_all(commands.as_bytes()).unwrap();
    assert!(batch.wait().unwrap().success());
    let mut lost = false;
    loop {
        let fact = source.next().await;
        apply(&mut model, netns.inode, &fact);
        match fact {
            Fact::Lost(loss) => {
                assert_eq!((loss.reason.as_str(), loss.count), ("overrun", None));
                lost = true;
            }
            Fact::Resync { reason, .. } => {
                assert_eq!((lost, reason.as_str()), (true, "overrun"));
                break;
            }
            _ => {}
        }
    }
    model.retain(|address| address.is_ipv4());
    let mut truth: HashSet<IpAddr> = (101..=200).map(|i| address(&format!("10.10.0.{i}"))).collect();
    truth.insert(address("10.9.0.2"));
    assert_eq!(model, truth);
}
