//! `basic_auth_users`: names, and bcrypt hashes of their passwords.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bcrypt::HashParts;
use hyper::header::HeaderValue;
use ring::digest::{SHA256, digest};

use super::WebConfigError;
use super::document::{Node, invalid};

/// A password of this cost takes about a second; each step more doubles it.
const COST_MAX: u32 = 14;

/// Who may read, by name. With none, everybody may.
#[derive(Debug, Default)]
pub(super) struct Users(BTreeMap<String, String>);

/// What a client says of itself.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Claim {
    pub(super) user: String,
    password: Vec<u8>,
}

/// A claim and the hash that it is to be compared with.
#[derive(Debug)]
pub(super) struct Comparison {
    hash: String,
    password: Vec<u8>,
    /// Whether there is such a user.
    known: bool,
}

impl Users {
    pub(super) fn of(node: &Node) -> Result<Self, WebConfigError> {
        let mut users = BTreeMap::new();
        for (name, position, node) in node.entries()? {
            if name.is_empty() || name.contains(':') {
                return Err(invalid(
                    position.clone(),
                    format!("{name:?} is no user name: it is empty, or has a colon"),
                ));
            }
            let hash = node.text()?;
            let cost = hash.parse::<HashParts>().map(|parts| parts.get_cost()).map_err(|_| {
                let how = "is no bcrypt hash; make one with htpasswd -nBC 10 NAME, the part behind the colon";
                // It may be the password itself: it is not shown.
                invalid(node.position.clone(), format!("what is given for user {name:?} {how}"))
            })?;
            if cost > COST_MAX {
                let message =
                    format!("the hash of user {name:?} has cost {cost}; at most {COST_MAX} is accepted");
                return Err(invalid(node.position.clone(), message));
            }
            users.insert(name.to_owned(), hash.to_owned());
        }
        Ok(Self(users))
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub(super) fn has(&self, user: &str, hash: &str) -> bool {
        self.0.get(user).is_some_and(|own| own == hash)
    }

    /// What is to be compared. An unknown user costs as much time as a known one, so that nobody learns who is known.
    pub(super) fn comparison(&self, claim: Claim) -> Option<Comparison> {
        let own = self.0.get(&claim.user);
        let hash = own.or_else(|| self.0.values().next())?.clone();
        Some(Comparison { hash, password: claim.password, known: own.is_some() })
    }
}

impl Claim {
    /// That of an `Authorization` header.
    pub(super) fn of(header: &HeaderValue) -> Option<Self> {
        let text = header.to_str().ok()?;
        let (scheme, encoded) = text.split_once(' ')?;
        let decoded =
            STANDARD.decode(encoded.trim()).ok().filter(|_| scheme.eq_ignore_ascii_case("basic"))?;
        let colon = decoded.iter().position(|byte| *byte == b':')?;
        let user = String::from_utf8(decoded[..colon].to_vec()).ok()?;
        Some(Self { user, password: decoded[colon + 1..].to_vec() })
    }
}

impl Comparison {
    /// What shows later that the same password was right for the same hash.
    pub(super) fn proof(&self) -> [u8; 32] {
        // A hash has no zero byte.
        let input = [self.hash.as_bytes(), b"\0", &self.password].concat();
        let mut proof = [0; 32];
        proof.copy_from_slice(digest(&SHA256, &input).as_ref());
        proof
    }

    pub(super) fn hash(&self) -> &str {
        &self.hash
    }

    /// Whether the password is right. Takes as long as the cost of the hash demands.
    pub(super) fn is_right(&self) -> bool {
        bcrypt::verify(&self.password, &self.hash).unwrap_or(false) && self.known
    }
}
