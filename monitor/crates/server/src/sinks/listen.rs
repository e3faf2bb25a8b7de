//! `[metrics]` of the configuration file: where metrics and health are served.

use std::fmt;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use kevtmon_types::settings::settings;
use serde::Serialize;
use serde::de::{Deserialize, Deserializer, Error, SeqAccess, Visitor};

settings! { "metrics":
    /// Addresses that metrics and health are served on; an empty list turns this off.
    LISTEN: Addresses = "listen", default Addresses(vec![SocketAddr::from((Ipv4Addr::LOCALHOST, 19809))]);
    /// File with TLS and basic authentication for them, as of Prometheus' exporter-toolkit; empty for none.
    WEB_CONFIG: PathBuf = "web_config", default PathBuf::new();
}

#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Addresses(pub Vec<SocketAddr>);

impl<'de> Deserialize<'de> for Addresses {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        from.deserialize_seq(AddressesVisitor)
    }
}

struct AddressesVisitor;

impl<'de> Visitor<'de> for AddressesVisitor {
    type Value = Addresses;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(r#"a list such as ["127.0.0.1:19809"]"#)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Addresses, A::Error> {
        let mut addresses = Vec::new();
        while let Some(text) = list.next_element::<String>()? {
            addresses.push(text.parse().map_err(|_| {
                A::Error::custom(format!(
                    "{text:?} is not valid: expected ADDR:PORT, as in 127.0.0.1:19809 or [::1]:19809"
                ))
            })?);
        }
        Ok(Addresses(addresses))
    }
}
