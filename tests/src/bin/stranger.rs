//! A user with namespaces of his own, who builds in them what he likes where a kubelet has its pods: the tests start it in them.
//!
//! `stranger SEED BASE VOLUME ASIDE`: something is mounted at BASE, and at VOLUME below it, where the host has a volume; what the
//! host has there is bound below ASIDE first, and then at random places. For each line of standard input an unmount is made; the
//! answer is a line of JSON that tells what is true about it.
#![expect(clippy::print_stdout, reason = "its standard output is read by the test that started it")]

use std::error::Error;
use std::io::BufRead;
use std::path::{Path, PathBuf};

use kevtmon_tests::random::Random;
use kevtmon_tests::tree::Tree;
use kevtmon_tests::tree::refusal::Refused;
use nix::mount::{MsFlags, mount};
use serde_json::{Value, json};

fn main() -> Result<(), Box<dyn Error>> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [seed, paths @ ..] = words.as_slice() else { return Err("SEED BASE VOLUME ASIDE".into()) };
    let paths: Vec<PathBuf> = paths.iter().map(PathBuf::from).collect();
    let [base, volume, aside] = paths.as_slice() else { return Err("SEED BASE VOLUME ASIDE".into()) };
    let mut random = Random::of(seed.parse()?);
    let foreign = bound_aside(volume, aside)?;
    let mut tree = Tree::new(&mut random, base).with_foreign(&foreign);
    tree.mount_below(volume);
    for _ in 0..16 {
        tree.grow();
    }
    println!("ready");
    let mut refused: Vec<Refused> = Vec::new();
    for line in std::io::stdin().lock().lines() {
        let answer = match line?.as_str() {
            "refuse" => tree.refuse(None).map_or(Value::Null, |mut call| {
                if tree.is_once_in(2) {
                    tree.change_about(&mut call);
                }
                let answer = call.to_json();
                refused.push(call);
                answer
            }),
            "release" => refused
                .pop()
                .and_then(|call| tree.release(&call))
                .map_or(Value::Null, |truth| json!({ "pid": truth.pid, "mount": truth.mount, "unique": truth.unique, "errno": truth.errno })),
            other => return Err(format!("{other}: refuse or release").into()),
        };
        println!("{answer}");
    }
    Ok(())
}

/// Binds what the host has mounted there below another directory.
fn bound_aside(volume: &Path, aside: &Path) -> Result<PathBuf, Box<dyn Error>> {
    let none = MsFlags::empty();
    mount(Some("kevtmon"), aside, Some("tmpfs"), none, None::<&str>)?;
    let bound = aside.join("bound");
    std::fs::create_dir(&bound)?;
    mount(Some(volume), &bound, None::<&str>, MsFlags::MS_BIND, None::<&str>)?;
    Ok(bound)
}
