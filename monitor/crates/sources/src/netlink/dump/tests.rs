use kevtmon_observation::RuleAction;

use super::*;

#[test]
fn a_vrf_that_is_down_selects_no_table() {
    let vrf = |ifindex, flags| {
        let facts = LinkFacts {
            netns: 1,
            ifindex,
            ifname: format!("vrf{ifindex}"),
            kind: Some("vrf".into()),
            flags,
            ..LinkFacts::default()
        };
        LinkChange { facts, other_nsid: None, toggled: false, vrf_table: Some(ifindex) }
    };
    let most = Most { rows: 16, neighbors: 16 };
    let mut tables = Tables { most, ..Tables::default() };
    tables.link(vrf(77, iff::UP));
    tables.link(vrf(78, 0));
    tables.rules.push(Rule {
        ipv6: false,
        table: None,
        priority: 1000,
        matches_all: false,
        action: RuleAction::Lookup,
        suppresses: None,
    });
    let selected: Vec<u32> = tables.rules_by_table().iter().map(|rule| rule.table).collect();
    assert_eq!(selected, [77]);
    assert_eq!(tables.links.len(), 2);
}
