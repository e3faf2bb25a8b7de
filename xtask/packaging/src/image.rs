//! The image for containers: what the Dockerfile in `deploy/docker` says, made without Docker, so that it is the same bytes each
//! time. One archive is both an OCI layout and what `docker load`, `podman load` and `ctr images import` take.

mod dockerfile;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result};
use serde_json::{Value, json};

use self::dockerfile::Dockerfile;
use crate::Release;
use crate::checksums;
use crate::tool::run;
use crate::tree::{PLAIN, PROGRAM, Tree, compress};

/// Packs it into a directory, with the tag `kevtmon:VERSION`; returns the file.
pub fn pack(release: &Release, into: &Path) -> Result<PathBuf> {
    let path = release.root.join("deploy/docker/Dockerfile");
    let text = fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
    let file = Dockerfile::parse(&text).with_context(|| format!("{} is not understood", path.display()))?;
    let name = format!("{}-image", release.name());
    let layout = Tree::new(into.join(format!("{name}.work")))?;
    let created = created(release.time)?;
    let layer = layer(release, &file, into, &layout)?;
    let config = blob(&layout, &configuration(release, &file, &created, &layer.digest), CONFIG)?;
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": MANIFEST,
        "config": config.described(),
        "layers": [layer.described()],
    });
    let manifest = blob(&layout, &manifest, MANIFEST)?;
    let tag = format!("kevtmon:{}", release.version);
    let mut described = manifest.described();
    described["platform"] = json!({"architecture": release.architecture.debian, "os": "linux"});
    described["annotations"] = json!({
        "io.containerd.image.name": format!("docker.io/library/{tag}"),
        "org.opencontainers.image.ref.name": release.version,
    });
    let index = json!({"schemaVersion": 2, "manifests": [described]});
    let docker = json!([{"Config": config.place(), "RepoTags": [tag], "Layers": [layer.place()]}]);
    for (file, content) in [
        ("index.json", index),
        ("oci-layout", json!({"imageLayoutVersion": "1.0.0"})),
        // Where Docker looks first.
        ("manifest.json", docker),
    ] {
        layout.write(file, content.to_string(), PLAIN)?;
    }
    let archive = into.join(format!("{name}.tar"));
    layout.pack(&archive, release.time)?;
    layout.remove()?;
    compress(&archive)
}

const CONFIG: &str = "application/vnd.oci.image.config.v1+json";
const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";

/// A file of the layout, called by its sum.
struct Blob {
    kind: &'static str,
    digest: String,
    size: u64,
}

impl Blob {
    fn place(&self) -> String {
        place(&self.digest)
    }

    fn described(&self) -> Value {
        json!({"mediaType": self.kind, "digest": format!("sha256:{}", self.digest), "size": self.size})
    }
}

fn place(digest: &str) -> String {
    format!("blobs/sha256/{digest}")
}

/// Puts a document into the layout.
fn blob(layout: &Tree, document: &Value, kind: &'static str) -> Result<Blob> {
    layout.write("blob", document.to_string(), PLAIN)?;
    take(layout, &layout.root().join("blob"), kind)
}

/// Moves a file into the layout.
fn take(layout: &Tree, file: &Path, kind: &'static str) -> Result<Blob> {
    let digest = checksums::of(file)?;
    layout.copy(file, &place(&digest), PLAIN)?;
    let size = fs::metadata(file).and_then(|metadata| fs::remove_file(file).map(|()| metadata.len()));
    let size = size.with_context(|| format!("cannot move {}", file.display()))?;
    Ok(Blob { kind, digest, size })
}

/// The file system: what the Dockerfile copies.
fn layer(release: &Release, file: &Dockerfile, into: &Path, layout: &Tree) -> Result<Blob> {
    let tree = Tree::new(into.join(format!("{}-layer.work", release.name())))?;
    tree.copy(&release.daemon, file.place.trim_start_matches('/'), PROGRAM)?;
    let archive = into.join(format!("{}-layer.tar", release.name()));
    tree.pack(&archive, release.time)?;
    tree.remove()?;
    take(layout, &archive, LAYER)
}

fn configuration(release: &Release, file: &Dockerfile, created: &str, layer: &str) -> Value {
    json!({
        "created": created,
        "architecture": release.architecture.debian,
        "os": "linux",
        "config": {
            "Env": file.environment,
            "Entrypoint": file.entry_point,
            "Cmd": file.arguments,
            "Labels": file.labels,
        },
        "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer}")]},
        "history": [{"created": created, "created_by": format!("COPY kevtmon {}", file.place)}],
    })
}

fn created(time: u64) -> Result<String> {
    let time = format!("--date=@{time}");
    let printed = run(Command::new("date").args(["--utc", "+%Y-%m-%dT%H:%M:%SZ", &time]))?;
    Ok(String::from_utf8_lossy(&printed).trim().to_owned())
}
