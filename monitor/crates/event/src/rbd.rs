//! Ceph RBD images.

use kevtmon_observation::{ImageName, RbdExec, RbdImage};
use kevtmon_types::escape::name;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Details, Object, Role, Visitor};

/// A Ceph RBD image that is or was mapped as a block device, for `rbd.*`, or that is locked.
#[serde_with::skip_serializing_none]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rbd {
    /// Pool.
    pub pool: String,
    /// Namespace in the pool; absent for the default one.
    pub rados_namespace: Option<String>,
    /// Name of the image.
    pub image: String,
    /// Id of the image in its pool; absent where the kernel does not tell.
    pub image_id: Option<String>,
    /// The snapshot that is mapped; absent where it is the image itself.
    pub snapshot: Option<String>,
    /// The node of the device: `/dev/rbd0`, or `/dev/nbd0` of one that `rbd-nbd` has mapped, as its arguments tell; absent where the image is not mapped, for `rbd-lock-left` and
    /// `rbd-locked-elsewhere`.
    pub device: Option<String>,
    /// Number of the device, `major:minor`; absent with that.
    pub device_number: Option<String>,
    /// Id of the lock on it, for `rbd-lock-left`.
    pub lock: Option<String>,
    /// `client4125`: the kernel's client. It is not the one that a kubelet's lock names, which is that of the program `rbd`.
    pub client_id: Option<String>,
    /// Address of that client, `IP:PORT/NONCE`, as in the watchers of `rbd status`; absent before Linux 4.9, and of `rbd-nbd`, as all
    /// that is known of the client.
    pub client_addr: Option<String>,
    /// The cluster; absent before Linux 4.9.
    pub cluster_fsid: Option<String>,
    /// Address of the client that a log names as the one that has the image, for `rbd.attach_refused` and `rbd-locked-elsewhere`.
    pub held_by: Option<String>,
    /// Where the host or a kubelet has it mounted outside of pods' directories, for `rbd-orphan-mapping`.
    #[serde(skip_serializing_if = "Vec::is_empty", default)]
    pub mounted_at: Vec<String>,
}

impl Rbd {
    /// The image as `rbd` takes it: `POOL/NAMESPACE/IMAGE@SNAPSHOT`.
    pub fn spec(&self) -> String {
        let namespace = self.rados_namespace.as_ref().map_or_else(String::new, |name| format!("{name}/"));
        let snapshot = self.snapshot.as_ref().map_or_else(String::new, |name| format!("@{name}"));
        format!("{}/{namespace}{}{snapshot}", self.pool, self.image)
    }

    /// Whether `rbd-nbd` has it mapped: then its names rest on arguments of that program.
    pub fn is_by_nbd(&self) -> bool {
        self.device.as_ref().is_some_and(|device| device.starts_with("/dev/nbd"))
    }

    /// As part of a sentence: `RBD image kube/index-api-image`.
    pub fn label(&self) -> String {
        format!("RBD image {}", name(&self.spec()))
    }
}

impl Object for Rbd {
    fn visit(&self, visitor: &mut dyn Visitor) {
        if let Some(device) = &self.device {
            visitor.path(Role::Object, device);
        }
        if let Some(number) = &self.device_number {
            visitor.device(Role::Object, number);
        }
        for path in &self.mounted_at {
            visitor.path(Role::Object, path);
        }
    }

    fn describe(&self, details: &mut dyn Details) {
        let mut text = self.spec();
        if let Some(device) = &self.device {
            text.push_str(&format!(" on {device}"));
        }
        if let Some(client) = &self.client_id {
            text.push_str(&format!(" · {client}"));
        }
        if let Some(address) = &self.client_addr {
            text.push_str(&format!(" at {address}"));
        }
        details.line("image", &text);
        if self.is_by_nbd() {
            details.line("", "mapped by rbd-nbd; its client is unknown");
        }
        if let Some(lock) = &self.lock {
            details.line("lock", lock);
        }
        if let Some(address) = &self.held_by {
            details.line("", &format!("the log names the client at {address}"));
        }
        for path in &self.mounted_at {
            details.line("", &format!("mounted at {path}"));
        }
    }
}

/// An image that somebody has named: whether it is mapped is not said.
impl From<&ImageName> for Rbd {
    fn from(name: &ImageName) -> Self {
        Self {
            pool: name.pool.clone(),
            rados_namespace: name.namespace.clone(),
            image: name.image.clone(),
            ..Self::default()
        }
    }
}

/// The same of one that was named to `rbd`.
impl From<&RbdExec> for Rbd {
    fn from(exec: &RbdExec) -> Self {
        Self { snapshot: exec.snapshot.clone(), lock: exec.lock.clone(), ..Self::from(&exec.name()) }
    }
}

impl From<&RbdImage> for Rbd {
    fn from(image: &RbdImage) -> Self {
        Self {
            pool: image.pool.clone(),
            rados_namespace: image.namespace.clone(),
            image: image.image.clone(),
            image_id: image.image_id.clone(),
            snapshot: image.snapshot.clone(),
            device: Some(image.path()),
            device_number: Some(image.device.clone()),
            client_id: image.client_id.clone(),
            client_addr: image.client_addr.clone(),
            cluster_fsid: image.cluster_fsid.clone(),
            ..Self::default()
        }
    }
}
