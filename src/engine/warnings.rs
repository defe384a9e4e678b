//! What is allowed but may be a mistake.

use std::collections::HashSet;

use crate::collective::{Geometry, Groups, Side};
use crate::dist_collective::ResolvedLayer;
use crate::network::{LayerId, Network, Readers};
use crate::rank::Rank;
use crate::util::text::{clipped, count_of};

/// A warning for each tensor that a rank reads and does not write. There it reads as zeros.
///
/// The number of ranks is not known before a communicator is set. What counts here are the ranks
/// that the layers name, and those of their `nb_rank`.
pub(super) fn warnings(network: &Network, collectives: &[Option<ResolvedLayer>], readers: &Readers) -> Vec<String> {
    let world_size = collectives.iter().flatten().map(ResolvedLayer::least_world_size).max().unwrap_or(1);
    let mut warnings = Vec::new();
    for (layer, resolved) in network.layers.iter().zip(collectives) {
        let Some(resolved) = resolved.as_ref().filter(|resolved| resolved.may_leave_output_unwritten()) else {
            continue;
        };
        let Some(writers) = resolved.participants(|geometry| geometry.output) else { continue };
        let writers: HashSet<Rank> = writers.into_iter().collect();
        let outside = |rank: &Rank| !writers.contains(rank);
        let first_of_all = (0..world_size).map(Rank).find(outside);
        let unwritten = |reader: &LayerId| match &collectives[reader.index()] {
            Some(reader) if !reader.is_identity() => match reader.participants(|geometry| geometry.input) {
                None => first_of_all,
                Some(readers) => readers.into_iter().filter(outside).min(),
            },
            _ => first_of_all,
        };
        // A layer that reads the output twice is there twice.
        let readers = readers.of(layer.outputs[0]).chunk_by(PartialEq::eq).filter_map(<[LayerId]>::first);
        let mut found = readers.filter_map(|reader| Some((reader, unwritten(reader)?)));
        let Some((reader, rank)) = found.next() else { continue };
        let others = match found.count() {
            0 => String::new(),
            others => format!(" (and {})", count_of(others, "other layer")),
        };
        warnings.push(format!(
            "{}{others} reads the output of {} on rank {rank}, which does not write it: it reads zeros there",
            clipped(&network.layers[reader.index()].subject()),
            clipped(&resolved.subject)
        ));
    }
    warnings
}

impl ResolvedLayer {
    /// The fewest ranks of a communicator that the layer fits.
    fn least_world_size(&self) -> u32 {
        self.groups.largest_rank().map_or(self.nb_rank, |rank| rank.0.saturating_add(1))
    }

    /// The ranks that use a side: those that take part, or of each group the root; `None` for all.
    fn participants(&self, side: fn(Geometry) -> Side) -> Option<Vec<Rank>> {
        let root = self.collective.root().filter(|_| side(self.collective.operation().geometry()).is_of_root);
        let of_group = |group: &Vec<Rank>| match root {
            Some(root) => group.get(root.index()).copied().into_iter().collect(),
            None => group.clone(),
        };
        match &self.groups {
            Groups::All => root.map(|root| vec![Rank(root.0)]),
            Groups::Group(group) => Some(of_group(group)),
            Groups::Partition(partition) => Some(partition.groups().iter().flat_map(of_group).collect()),
        }
    }
}
