//! The choice of a cluster's index by the addresses that this machine uses already.

use crate::address::Addresses;
use crate::occupied::{self, Fit, Occupied};

/// The indexes of clusters, rated by their addresses.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Usable indexes, the best first, each with a sentence about the route that the cluster would partly hide, if
    /// there is one.
    pub usable: Vec<(u8, Option<String>)>,
    /// A sentence for each range of this machine that makes an index unusable.
    pub conflicts: Vec<String>,
}

/// Rates all indexes. Those that hide no route come first.
pub fn choose(occupied: &[Occupied]) -> Choice {
    let mut choice = Choice::default();
    let mut hiding = Vec::new();
    for index in 0..Addresses::CLUSTERS {
        match occupied::fit(&Addresses { index }.ranges(), occupied) {
            (Fit::Free, _) | (_, None) => choice.usable.push((index, None)),
            (Fit::Hiding, Some((range, other))) => {
                hiding.push((index, Some(format!("{range} hides a part of {other} until the cluster ends"))));
            }
            (Fit::Conflict, Some((_, other))) => {
                let sentence = format!("{other} overlaps addresses of clusters");
                if !choice.conflicts.contains(&sentence) {
                    choice.conflicts.push(sentence);
                }
            }
        }
    }
    choice.usable.extend(hiding);
    choice
}

#[cfg(test)]
mod tests {
    use super::*;

    fn first(addresses: &[(&str, &str)], routes: &[(&str, &str)]) -> (Option<(u8, bool)>, usize) {
        let choice = choose(&occupied::testing(addresses, routes));
        let first = choice.usable.first().map(|(index, hides)| (*index, hides.is_some()));
        (first, choice.conflicts.len())
    }

    #[test]
    fn first_index_without_an_overlap_is_chosen() {
        assert_eq!(first(&[], &[]), (Some((0, false)), 0));
        assert_eq!(first(&[("172.30.0.254/24", "kcm0")], &[]), (Some((1, false)), 1));
    }

    #[test]
    fn second_block_is_chosen_when_a_route_covers_the_first() {
        let vpn = [("172.16.0.0/12", "tun0")];
        assert_eq!(first(&[], &vpn), (Some((16, false)), 0));
        assert_eq!(first(&[("172.31.0.1/12", "docker0")], &[]), (Some((16, false)), 1));
    }

    #[test]
    fn route_is_hidden_when_routes_cover_both_blocks() {
        let vpn = [("172.16.0.0/12", "tun0"), ("10.0.0.0/8", "tun0")];
        assert_eq!(first(&[], &vpn), (Some((0, true)), 0));
        assert_eq!(first(&[("172.30.3.3/16", "eth0")], &vpn), (Some((16, true)), 1));
    }

    #[test]
    fn conflicts_are_listed_once_when_no_index_is_left() {
        let own = [("172.30.3.3/16", "eth0"), ("10.213.0.1/16", "eth1")];
        assert_eq!(first(&own, &[]), (None, 2));
    }
}
