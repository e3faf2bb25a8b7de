//! What a message that a kernel program saw being sent is about: the same facts as of the one that the socket receives.

use kevtmon_observation::{NsInum, RouteOp};

use super::message::{self, Change};
use super::route;

/// Bytes that are no message of rtnetlink; the type of the message, 0 without any.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Malformed(pub u16);

/// What was done to routes, addresses and rules; nothing where the message is of no interest.
pub fn ops(netns: NsInum, bytes: &[u8]) -> Result<Vec<RouteOp>, Malformed> {
    let message = message::messages(bytes).next().and_then(Result::ok).ok_or(Malformed(0))?;
    if let Some((rule, is_there)) = route::policy_rule(netns, &message) {
        return Ok(vec![if is_there { RouteOp::RuleAdded(rule) } else { RouteOp::RuleDeleted(rule) }]);
    }
    let change = message::decode(netns, &message).map_err(|_| Malformed(message.message_type()))?;
    Ok(match change {
        Change::Route { routes, .. } => routes.into_iter().map(RouteOp::RouteAdded).collect(),
        Change::RouteGone { routes, .. } => routes.into_iter().map(RouteOp::RouteDeleted).collect(),
        Change::Address(address) => vec![RouteOp::AddressAdded(address)],
        Change::AddressGone(address) => vec![RouteOp::AddressDeleted(address)],
        _ => Vec::new(),
    })
}
