//! The agreement on plans: when a communicator is set, the ranks compare their collective calls.

use std::num::NonZeroU16;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use serde::Serialize;
use sha2::{Digest, Sha256};

use super::ResolvedLayer;
use crate::collective::{Determinism, Purpose, PurposeKind};
use crate::comm::Communicator;
use crate::data_type::DataType;
use crate::error::{Error, ErrorKind, Result, error};
use crate::rank::Rank;
use crate::shape::Dims;
use crate::util::text::{count_of, list_ranks};

/// The comparison of plans.
pub(crate) const SET_COMMUNICATOR: Purpose = Purpose::new("set_communicator", PurposeKind::Part);

/// A collective call of a plan, as ranks compare it. Layer names may differ; errors show them.
#[derive(Clone, Debug)]
pub(crate) struct PlannedCall {
    /// `layer "grad_sync" (all_reduce)`.
    subject: String,
    /// `all_reduce(sum) of float32 [64, 4096] among 4 ranks`.
    call: String,
    /// The mode of a reduction.
    determinism: Option<Determinism>,
}

impl PlannedCall {
    /// `input` is the input's dimensions and, as text, their range, if they are known.
    pub(crate) fn new(layer: &ResolvedLayer, data_type: DataType, input: Option<(&Dims, &str)>) -> Self {
        let collective = &layer.collective;
        let mut call = collective.operation().to_string();
        if let Some(reduce_op) = collective.reduce_op() {
            call += &format!("({reduce_op})");
        }
        call += &format!(" of {data_type}");
        if let Some((dims, range)) = input {
            call += &format!(" {dims}{range}");
        }
        if let Some(root) = collective.root() {
            call += &format!(" with group rank {root} as root");
        }
        call += &format!(" among {}", count_of(layer.nb_rank as usize, "rank"));
        if layer.groups.group_len().is_some() {
            call += &format!(" of {}", layer.groups);
        }
        if let Some(wire_type) = layer.wire_type.filter(|_| layer.nb_rank > 1) {
            call += &format!(" sent as {wire_type}");
        }
        let determinism = collective.reduce_op().map(|_| layer.determinism);
        PlannedCall { subject: layer.subject.to_string(), call, determinism }
    }

    /// The call on a communicator, whose mode may be stricter than the layer's.
    fn on(&self, communicator: &Communicator) -> String {
        match self.determinism.map(|determinism| determinism.max(communicator.determinism())) {
            Some(Determinism::Exact) => format!("{} in exact mode", self.call),
            _ => self.call.clone(),
        }
    }
}

/// What ranks exchange first.
#[derive(Clone, Copy, PartialEq, Eq, Serialize, serde::Deserialize)]
struct Summary {
    calls: [u8; 32],
    needs: Needs,
    number: NonZeroU16,
}

/// What a plan needs beside its calls.
#[derive(Clone, Copy, Default, PartialEq, Eq, Serialize, serde::Deserialize)]
pub(crate) struct Needs {
    /// The bytes for the operands of collectives.
    pub(crate) region_bytes: u64,
    /// A hash of where the operands are in these bytes.
    pub(crate) places: [u8; 32],
    /// A hash of how many collectives are in each step.
    pub(crate) steps: [u8; 32],
}

/// What all ranks know after they have compared their calls.
pub(crate) struct PlanAgreement {
    /// The most bytes that a rank needs.
    pub(crate) region_bytes: usize,
    /// Whether all ranks have the operands at the same places of the region.
    pub(crate) has_equal_places: bool,
    /// Whether all ranks have the same collectives in each step.
    pub(crate) has_equal_steps: bool,
    /// The agreement's number: rank 0's. Rank 0 gives it to no other of its latest 65,534.
    pub(crate) number: NonZeroU16,
}

/// A number for an agreement of this process.
fn new_number() -> NonZeroU16 {
    static MADE: AtomicU64 = AtomicU64::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    NonZeroU16::MIN.saturating_add((made % u64::from(u16::MAX)) as u16)
}

/// Compares the calls of all ranks, and their needs. Collective: a rank that cannot use the
/// communicator calls it too, with its error, so that no peer waits for it. `plan` is what errors
/// call the plan; it is empty for a layer by itself.
pub(crate) fn agree(
    communicator: &Communicator,
    calls: Result<&[PlannedCall]>,
    plan: &str,
    needs: Needs,
    deadline: Instant,
) -> Result<PlanAgreement> {
    let number = new_number();
    let summary_of = |calls: &&[PlannedCall]| {
        let mut hash = Sha256::new();
        for call in calls.iter().map(|call| call.on(communicator)) {
            hash.update((call.len() as u64).to_le_bytes());
            hash.update(call);
        }
        Summary { calls: hash.finalize().into(), needs, number }
    };
    let refused = |refusals: &[(Rank, Error)]| {
        let texts: Vec<String> =
            refusals.iter().map(|(rank, error)| format!("rank {rank} refuses it: {error}")).collect();
        error!(InvalidCommunicator, "the communicator is set on no rank: {}", texts.join("; "))
    };
    let (calls, all) = communicator.exchange_results(SET_COMMUNICATOR, calls, summary_of, refused, deadline)?;
    if all.iter().any(|summary| summary.calls != all[0].calls) {
        let mine: Vec<(String, String)> = calls.iter().map(|c| (c.subject.clone(), c.on(communicator))).collect();
        let sides = communicator.exchange(SET_COMMUNICATOR, &(plan.to_owned(), mine), deadline)?;
        return Err(difference(communicator, &sides));
    }
    let region_bytes = all.iter().map(|summary| summary.needs.region_bytes).max().unwrap_or(0) as usize;
    let has_equal_places = all.iter().all(|summary| summary.needs.places == needs.places);
    let has_equal_steps = all.iter().all(|summary| summary.needs.steps == needs.steps);
    Ok(PlanAgreement { region_bytes, has_equal_places, has_equal_steps, number: all[0].number })
}

/// The error that shows the first call that differs between ranks, with each rank's version.
fn difference(communicator: &Communicator, sides: &[(String, Vec<(String, String)>)]) -> Error {
    let longest = sides.iter().map(|(_, calls)| calls.len()).max().unwrap_or(0);
    let call_of = |rank: usize, i: usize| sides[rank].1.get(i).map(|(_, call)| call.as_str());
    let first = (0..longest).find(|&i| (1..sides.len()).any(|r| call_of(r, i) != call_of(0, i))).unwrap_or(0);
    let mut groups: Vec<(Option<&str>, &str, Vec<u32>)> = Vec::new();
    for (r, (plan, _)) in sides.iter().enumerate() {
        let call = call_of(r, first);
        let rank = communicator.origin(Rank(r as u32)).0;
        match groups.iter_mut().find(|(other, other_plan, _)| *other == call && other_plan == plan) {
            Some((.., ranks)) => ranks.push(rank),
            None => groups.push((call, plan, vec![rank])),
        }
    }
    let texts: Vec<String> = groups
        .into_iter()
        .map(|(call, plan, ranks)| {
            let verb = if ranks.len() == 1 { "has" } else { "have" };
            let plan = if plan.is_empty() { String::new() } else { format!(" (plan {plan})") };
            format!("{} {verb} {}{plan}", list_ranks(ranks), call.unwrap_or("no further collective"))
        })
        .collect();
    let texts = texts.join("; ");
    let difference = match sides.iter().all(|(plan, _)| plan.is_empty()) {
        true => format!("the layers of the ranks differ: {texts}"),
        false => format!("the plans of the ranks differ at collective {}: {texts}", first + 1),
    };
    let error = Error::new(ErrorKind::Disagreement, difference);
    // This rank's name of the layer, or that of the first rank that has the layer.
    let named = std::iter::once(communicator.rank().index()).chain(0..sides.len()).find_map(|r| sides[r].1.get(first));
    match named {
        Some((subject, _)) => error.about(|| subject.clone()),
        None => error,
    }
}
