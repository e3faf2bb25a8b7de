//! Ceph RBD images that come and go.

use super::*;

fn image(number: u32) -> RbdImage {
    RbdImage {
        number: number.into(),
        device: format!("252:{}", number * 16),
        pool: "kube".into(),
        namespace: Some("team-a".into()),
        image: "index-api-image".into(),
        image_id: Some("1f3a6b8b4567".into()),
        snapshot: Some("nightly".into()),
        client_id: Some("client24128".into()),
        client_addr: Some("10.47.136.60:0/1504107565".into()),
        cluster_fsid: Some("7b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84".into()),
    }
}

fn images(images: &[RbdImage]) -> Fact {
    Fact::RbdImages(RbdImages { images: images.to_vec(), ..RbdImages::default() })
}

#[test]
fn an_image_is_told_when_it_is_mapped_and_when_it_is_unmapped() {
    let mut core = core();
    core.observe(at(MS, images(&[image(0)])));
    assert_eq!(events(&mut core), [], "it may have been there for long");
    core.observe(at(2 * MS, images(&[image(0), image(1)])));
    core.observe(at(3 * MS, images(&[image(1)])));
    let told = events(&mut core);
    told.iter().for_each(assert_valid);
    let shown: Vec<_> = told.iter().map(|event| (event.kind, event.at, event.message.as_str())).collect();
    assert_eq!(
        shown,
        [
            (Kind::RbdMapped, 2 * MS, "RBD image kube/team-a/index-api-image@nightly mapped as /dev/rbd1"),
            (
                Kind::RbdUnmapped,
                3 * MS,
                "RBD image kube/team-a/index-api-image@nightly unmapped from /dev/rbd0"
            ),
        ]
    );
    let json = serde_json::to_value(&told[0]).unwrap();
    assert_eq!(
        json["rbd"],
        serde_json::json!({
            "pool": "kube",
            "rados_namespace": "team-a",
            "image": "index-api-image",
            "image_id": "1f3a6b8b4567",
            "snapshot": "nightly",
            "device": "/dev/rbd1",
            "device_number": "252:16",
            "client_id": "client24128",
            "client_addr": "10.47.136.60:0/1504107565",
            "cluster_fsid": "7b7a2f50-9d1c-4a3e-8f6d-2c5b1e0a9d84",
        })
    );
}
